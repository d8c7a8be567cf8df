// graphile-worker: a local queue of SIZE jobs, CONC at a time, completions batched over DELAY ms.
import { began, env, hook, main, payload, require, told } from "./adapter.mjs";
const { run, makeWorkerUtils, runMigrations, Logger } = require("graphile-worker");
const { Pool } = require("pg");

const logger = new Logger(() => () => {});
function pool() {
  const made = new Pool({ max: 10 });
  made.on("error", console.error);
  made.on("connect", (client) => client.on("error", console.error));
  return made;
}
const delay = Number(env.DELAY ?? 0);

await main({
  setup: async () => runMigrations({ pgPool: pool(), logger }),
  insert: async (kind) => {
    const utils = await makeWorkerUtils({ pgPool: pool(), logger });
    return (count) => utils.addJobs(Array.from({ length: count }, () => ({ identifier: kind, payload })));
  },
  work: async () => {
    const pgPool = pool();
    await pgPool.query("SELECT 1");
    await told();
    await run({
      logger, pgPool,
      preset: {
        worker: {
          concurrentJobs: Number(env.CONC ?? 100), pollInterval: 2000,
          localQueue: { size: Number(env.SIZE ?? 500) }, completeJobBatchDelay: delay, failJobBatchDelay: delay,
        },
      },
      taskList: { noop: () => began(), hook: (given) => hook(given) },
    });
  },
});
