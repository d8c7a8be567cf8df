// Answers what croner says: a line of JSON in, the instants of its window out.

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const { Cron } = await import(pathToFileURL(process.argv[2]));

for await (const line of createInterface({ input: process.stdin })) {
  const { cron, timezone, start, end } = JSON.parse(line);
  const found = [];
  try {
    const job = new Cron(cron, { timezone, paused: true });
    let at = job.nextRun(new Date(start));
    while (at && at < new Date(end)) {
      found.push(at.getTime() / 1000);
      at = job.nextRun(at);
    }
    console.log(JSON.stringify({ found }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error) }));
  }
}
