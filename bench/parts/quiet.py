"""What is used while nothing happens, and what a process holds in memory."""

from __future__ import annotations

import asyncio

from bench import filling, harness
from bench.figures import Figures, Rows
from bench.harness import Service
from bench.options import Options
from bench.processes import memory_mb
from bench.progress import say
from bench.sink import Sink
from noonday.store import Store

IN_FLIGHT = 10_000
RUNNING = "SELECT count(*) FROM runs WHERE state = 'RUNNING'"
LONG_SEC = 3_000


async def idle(options: Options) -> Rows:
    """Nothing is due, very many future jobs are there, one process of each role is up: how much of
    a core Postgres and Noonday use."""
    count, seconds = options.pick(1_000_000, 100_000), options.pick(60.0, 10.0)
    async with harness.service(options, "api", "scheduler", "worker") as running:
        store = await running.store()
        due = filling.future()
        await filling.clone(running, store, filling.NARROW, count, due, seed=options.seed)
        await filling.settle_down(store)
        await asyncio.sleep(options.pick(15.0, 4.0))
        async with running.measuring(store, "idle") as section:
            await asyncio.sleep(seconds)
        disk = await filling.disk_mb(store)
        await store.close()
    used = section.figures(1)
    return {
        "nothing due": {
            "seconds": section.seconds,
            "future_jobs": float(count),
            "postgres_core": used["postgres_us"] / 1e6 / section.seconds,
            "noonday_core": used["noonday_us"] / 1e6 / section.seconds,
            "commits_per_sec": used["commits"] / section.seconds,
            "wal_per_sec": used["wal_bytes"] / section.seconds,
            "disk_mb": disk,
        }
        | section.memory
    }


async def memory(options: Options) -> Rows:
    """Resident memory of each process: idle, a worker with 10,000 webhooks under way, and what it
    holds for each host that it has called."""
    found: Rows = {}
    pools = ("critical,default,batch,*=64", f"long={IN_FLIGHT}")
    async with harness.service(options, "api", "scheduler", "worker", pools=pools) as running:
        await asyncio.sleep(options.pick(15.0, 5.0))
        for child in running.children:
            found[f"{child.role} idle"] = {"memory_mb": memory_mb(child.pid)}
        store = await running.store()
        found["worker, 10,000 in flight"] = await _in_flight(running, store)
        await store.close()
    async with harness.service(options, "api", "worker") as running:
        store = await running.store()
        found["worker, an open host"] = await _hosts(running, store, options.pick(1_000, 250))
        await store.close()
    return found


def _worker_mb(running: Service) -> float:
    return max(memory_mb(child.pid) for child in running.children if child.role == "worker")


async def _in_flight(running: Service, store: Store) -> Figures:
    sink, before = Sink("hold"), _worker_mb(running)
    target = {"type": "http", "url": sink.url, "timeout_sec": LONG_SEC}
    await filling.fill(running, filling.job(sink.url, filling.NOW, target=target), IN_FLIGHT)
    async with asyncio.timeout(120):
        while True:
            async with store.transaction() as tx:
                if await tx.value(RUNNING) == IN_FLIGHT:
                    break
            await asyncio.sleep(0.2)
    await asyncio.sleep(3)
    now = _worker_mb(running)
    for child in running.children:
        if child.role == "worker":
            child.kill()
    opened = sink.stop().count
    say(f"{opened:,} requests were under way")
    return {
        "count": float(opened),
        "memory_mb": now,
        "each_kb": (now - before) * 1e3 / IN_FLIGHT,
    }


async def _hosts(running: Service, store: Store, hosts: int) -> Figures:
    """One delivery to each of many hosts, after as many to one."""
    sink, caller = Sink("any"), running.caller()
    held = []
    for many in (False, True):
        for n in range(hosts):
            host = f"127.1.{n // 250}.{n % 250 + 1}" if many else "127.0.0.1"
            url = f"http://{host}:{sink.port}/hook"
            await caller.call("POST", "/v1/jobs", filling.job(url, filling.NOW))
        await filling.drained(store)
        held.append(_worker_mb(running))
    caller.close()
    sink.stop()
    return {
        "count": float(hosts),
        "memory_mb": held[1],
        "each_kb": (held[1] - held[0]) * 1e3 / hosts,
    }
