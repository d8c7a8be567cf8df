// What the Node adapters share: see running.py for what is asked of one.
import http from "node:http";
import readline from "node:readline";
import { createRequire } from "node:module";

export const env = process.env;
export const require = createRequire(`${env.BENCH_PEERS}/package.json`);
export const BATCH = 5000;

let count = 0, first = 0;
export function began() {
  if (!count++) first = Date.now() / 1000;
}

const agent = new http.Agent({ keepAlive: true, maxSockets: 100 });
const target = env.BENCH_URL && new URL(env.BENCH_URL);
const stamp = () => new Date().toISOString();
export const payload = { pad: "x".repeat(348) };

// node:http with a keep-alive agent is faster than fetch.
export function hook(given) {
  began();
  const body = JSON.stringify(given);
  return new Promise((done, failed) => {
    const request = http.request({
      host: target.hostname, port: target.port, path: target.pathname, method: "POST", agent,
      headers: { "Content-Type": "application/json", "Content-Length": body.length, "X-Occurrence": stamp() },
    }, (answer) => {
      answer.resume();
      answer.on("end", () => (answer.statusCode === 200 ? done() : failed(new Error(`answered ${answer.statusCode}`))));
    });
    request.on("error", failed);
    request.end(body);
  });
}

// Resolves when told to go; from then on it says how far it is, and ends when nobody is there to hear.
export async function told() {
  console.log("ready");
  const lines = readline.createInterface({ input: process.stdin });
  lines.on("close", () => process.exit(0));
  await new Promise((go) => lines.once("line", go));
  setInterval(() => console.log(JSON.stringify({ count, first })), 20);
}

export async function main({ setup, insert, work }) {
  const [action, kind, number] = process.argv.slice(2);
  if (action === "setup") await setup();
  if (action === "work") return work(kind);
  if (action === "bulk") {
    const put = await insert(kind);
    const start = performance.now();
    for (let done = 0; done < Number(number); done += BATCH) await put(Math.min(BATCH, Number(number) - done));
    console.log(JSON.stringify({ seconds: (performance.now() - start) / 1000 }));
  }
  process.exit(0);
}
