// pg-boss: batches of BATCH, the next at once while they are full.
import { began, env, hook, main, payload, require, told } from "./adapter.mjs";
const { PgBoss } = require("pg-boss");

const BATCH = Number(env.BATCH ?? 500);

async function boss(more = {}) {
  const { PGHOST: host, PGPORT: port, PGUSER: user, PGPASSWORD: password, PGDATABASE: database } = env;
  const made = new PgBoss({
    host, port: Number(port), user, password, database, max: 10, schedule: false, supervise: false, ...more,
  });
  made.on("error", (error) => console.error(error));
  await made.start();
  return made;
}

await main({
  setup: async () => {
    const made = await boss();
    for (const name of ["noop", "hook"]) await made.createQueue(name);
    await made.stop({ graceful: false });
  },
  insert: async (kind) => {
    const made = await boss();
    return (count) => made.insert(kind, Array.from({ length: count }, () => ({ data: payload })));
  },
  work: async (kind) => {
    const made = await boss();
    await told();
    const options = { batchSize: BATCH, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true };
    await made.work(kind, options, async (jobs) => {
      if (kind === "hook") await Promise.all(jobs.map((job) => hook(job.data)));
      else for (const _ of jobs) began();
    });
  },
});
