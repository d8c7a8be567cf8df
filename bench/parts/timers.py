"""Very many timers: what a tick, a POST and a drain cost beside them, and a million due at once."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from bench import filling, harness, load, wire
from bench.figures import Figures, Rows, percentile, spread
from bench.harness import Service
from bench.options import Options
from bench.parts.carrying import DRAIN_SLOTS, backlog, until_past
from bench.progress import say
from bench.role import NOOP
from bench.sink import Sink
from noonday.loops.scheduler import Scheduler
from noonday.store import Store
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics

TICKS_PER_SEC = 100


async def tick_scale(options: Options) -> Rows:
    """Beside ever more future timers: ticks that each fire about one, POSTs due within 30 days,
    and a drain; against the same with an empty database."""
    found: Rows = {}
    async with harness.service(options, "api", pools=DRAIN_SLOTS) as running:
        store = await running.store()
        there = 0
        empty = await _beside(running, store, 0, found)
        for wanted in _sizes(options):
            await filling.clone(
                running, store, filling.NARROW, wanted - there, filling.future(),
                offset=there, seed=options.seed,
            )  # fmt: skip
            there = wanted
            await filling.settle_down(store)
            now = await _beside(running, store, there, found)
            for what, row in (("post", "POST"), ("drain", "drain")):
                found[f"{row}: {there:,} timers"] |= {
                    f"{what}_of_empty": now[f"{what}_per_sec"] / empty[f"{what}_per_sec"],
                    "cpu_of_empty": now[f"{what}_cpu_us"] / empty[f"{what}_cpu_us"],
                }
        await store.close()
    return found


def _sizes(options: Options) -> list[int]:
    if options.quick:
        return [100_000]
    return [each for each in (10_000, 1_000_000, 10_000_000) if each < options.timers] + [
        options.timers
    ]


async def _beside(running: Service, store: Store, timers: int, found: Rows) -> Figures:
    options, name = running.options, f"{timers:,} timers"
    say(f"beside {name}")
    found[f"tick: {name}"] = await _ticks(running, store, options.pick(1_000, 150))
    found[f"tick: {name}"]["disk_mb"] = await filling.disk_mb(store)
    one, payload = filling.body_of_400(NOOP, filling.LATER)
    bodies = [_due_on(one, day) for day in range(1, 31)]
    raws = [wire.post(running.token, "/v1/jobs", body) for body in bodies]
    turn = iter(range(10**12))
    async with running.measuring(store, f"post beside {timers}") as section:
        answers = await load.closed(
            running.addresses, 64, options.pick(20.0, 2.0), lambda: raws[next(turn) % len(raws)]
        )
    row = section.figures(answers.count, answers.took)
    found[f"POST: {name}"] = row | {"wal_beyond_payload": row["wal_bytes"] - payload}
    running.start("worker", module="bench.role")
    await running.up(store, worker=1)
    one = filling.job(NOOP, filling.NOW)
    await backlog(running, store, one, 2_000, "")
    drained = await backlog(
        running, store, one, options.pick(100_000, 8_000), f"drain beside {timers}"
    )
    running.stop("worker")
    found[f"drain: {name}"] = drained
    return {
        f"{what}_{figure}": each[figure]
        for what, each in (("post", row), ("drain", drained))
        for figure in ("per_sec", "cpu_us")
    }


def _due_on(one: dict[str, object], day: int) -> dict[str, object]:
    return one | {"schedule": {"type": "once", "delay": f"P{day}D"}}


async def _ticks(running: Service, store: Store, count: int) -> Figures:
    """The time of ticks, called by hand a hundred times a second, with as many timers due."""
    began = time.time() + 1.5
    due = f"to_timestamp({began}) + n * interval '1 second' / {TICKS_PER_SEC}"
    await filling.clone(running, store, filling.NARROW, count, due)
    scheduler = Scheduler(store, uuid4(), "bench", Metrics(), Wakeups(store))
    await scheduler.keep_shards()
    await scheduler.tick()
    took = []
    async with running.measuring(store, "ticks") as section:
        used = time.process_time()
        for n in range(count):
            await asyncio.sleep(max(0.0, began + n / TICKS_PER_SEC - time.time()))
            if n % TICKS_PER_SEC == 0:
                await scheduler.keep_shards()
            start = time.perf_counter()
            await scheduler.tick()
            took.append(time.perf_counter() - start)
        used = time.process_time() - used
    await scheduler.leave()
    async with store.transaction() as tx:  # no worker is there for what they made
        for table in ("runs", "occurrences"):
            await tx.execute(f"DELETE FROM {table}")
    row = section.figures(count, took)
    row.pop("memory_mb")  # it is not a process of its own
    return row | {"noonday_us": used / count * 1e6, "generator_us": 0.0}


STARTS = """
SELECT extract(epoch FROM min(e.leased_at))::float8 AS first,
       extract(epoch FROM max(e.finished_at))::float8 AS last, count(*) AS count
FROM executions AS e JOIN tenants AS t ON t.id = e.tenant_id WHERE t.name = 'default'
"""
OTHERS = 100
"""Jobs of others a second."""


async def herd(options: Options) -> Rows:
    """Hourly crons without jitter that are all due at the same second, no-op, while others' jobs go
    on: the first start, the last end, and how late others begin."""
    count = options.pick(1_000_000, 20_000)
    sink, found = Sink(), Rows()
    async with harness.service(options, "api", "scheduler", pools=DRAIN_SLOTS) as running:
        store = await running.store()
        for _ in range(2):
            running.start("worker", module="bench.role")
        await running.up(store, worker=2)
        at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=8 + count // 8_000)
        each_hour = f"{at.second} {at.minute} * * * *"
        cron: filling.Schedule = {"type": "cron", "cron": each_hour, "timezone": "UTC"}
        one = filling.job(NOOP, cron, payload=None)
        due = f"to_timestamp({at.timestamp():.0f})"
        await filling.clone(running, store, one, count, due)
        await filling.settle_down(store)
        if time.time() > at.timestamp() - 1:
            raise RuntimeError("filling took too long")
        other = await _tenant(running)
        raw = wire.post(other, "/v1/jobs", filling.job(sink.url, filling.NOW))
        opened = load.Open(running.addresses, OTHERS, lambda: raw, seed=options.seed)
        await asyncio.sleep(at.timestamp() - 1 - time.time())
        async with running.measuring(store, "herd") as section:
            opening = asyncio.create_task(opened.run(options.pick(60.0, 8.0)))
            await asyncio.sleep(2)
            await until_past(store)
            await opening
            await filling.drained(store)
        async with store.transaction() as tx:
            row = await tx.one(STARTS)
        seen = sink.stop()
        if row["count"] != count or seen.count != opened.sent:
            raise RuntimeError(f"{row['count']} of {count}, {seen.count} of {opened.sent}")
        seconds = row["last"] - at.timestamp()
        found["crons"] = section.figures(count, seconds=seconds) | {
            "first_ms": (row["first"] - at.timestamp()) * 1e3,
            "all_sec": seconds,
            "disk_mb": await filling.disk_mb(store),
        }
        meanwhile = _between(seen.late, seen.came, at.timestamp(), row["last"])
        found["others"] = {"count": float(len(meanwhile))} | spread(meanwhile)
        found["others"]["post_p99_ms"] = percentile(sorted(opened.answers.took), 0.99) * 1e3
        await store.close()
    return found


def _between(late: object, came: object, first: float, last: float) -> list[float]:
    """How late those were that were due in between."""
    assert isinstance(late, type(came))
    pairs = zip(late, came, strict=True)  # type: ignore[call-overload]
    return [each for each, at in pairs if first <= at - each <= last]


async def _tenant(running: Service) -> str:
    """A key of another tenant."""
    caller = running.caller()
    await caller.call("POST", "/v1/tenants", {"name": "other"})
    made = await caller.call("POST", "/v1/api-keys", {"tenant": "other", "role": "submitter"})
    caller.close()
    return str(made["key"])
