"""PgQueuer: batches of BATCH over a pool of asyncpg, as running.py asks of an adapter."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from threading import Thread

import aiohttp
import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

BATCH = int(os.environ.get("BATCH", "100"))
BODY = json.dumps({"pad": "x" * 348}).encode()
INSERTED = 5_000


async def setup() -> None:
    async with asyncpg.create_pool(min_size=1, max_size=2) as pool:
        await Queries(AsyncpgPoolDriver(pool)).install()


async def bulk(kind: str, count: int) -> None:
    async with asyncpg.create_pool(min_size=1, max_size=2) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        began = time.perf_counter()
        for start in range(0, count, INSERTED):
            n = min(INSERTED, count - start)
            await queries.enqueue([kind] * n, [BODY] * n, [0] * n)
        print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)


async def work() -> None:
    counted, first, url = 0, 0.0, os.environ.get("BENCH_URL", "")

    def began() -> None:
        nonlocal counted, first
        if not counted:
            first = time.time()
        counted += 1

    async def tell() -> None:
        while True:
            print(json.dumps({"count": counted, "first": first}), flush=True)
            await asyncio.sleep(0.02)

    connector = aiohttp.TCPConnector(limit=100)
    async with (
        asyncpg.create_pool(min_size=2, max_size=10) as pool,
        aiohttp.ClientSession(connector=connector) as session,
    ):
        queuer = PgQueuer.from_asyncpg_pool(pool)

        @queuer.entrypoint("noop")
        async def noop(_: object) -> None:
            began()

        @queuer.entrypoint("hook")
        async def hook(job: Job) -> None:
            began()
            headers = {
                "Content-Type": "application/json",
                "X-Occurrence": datetime.now(UTC).isoformat(),
            }
            async with session.post(url, data=job.payload, headers=headers) as answer:
                await answer.read()
                answer.raise_for_status()

        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        telling = asyncio.create_task(tell())
        Thread(target=end_with_input, daemon=True).start()
        await queuer.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=30))
        await telling


def end_with_input() -> None:
    """Nobody is there to hear any more."""
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    action, *words = sys.argv[1:]
    if action == "setup":
        uvloop.run(setup())
    elif action == "bulk":
        uvloop.run(bulk(words[0], int(words[1])))
    else:
        uvloop.run(work())


if __name__ == "__main__":
    main()
