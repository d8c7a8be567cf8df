"""Carrying runs out: no-op ones, webhooks, and how late those begin."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime

from bench import filling, harness, load, peers, wire
from bench.figures import Figures, Rows
from bench.harness import Service
from bench.options import Options
from bench.progress import say
from bench.role import NOOP
from bench.sink import Sink
from noonday.store import Store

BETWEEN = """
SELECT extract(epoch FROM max(finished_at) - min(leased_at))::float8 AS sec, count(*) AS count
FROM executions WHERE leased_at >= $1
"""
DRAIN_SLOTS = ("critical,default,batch,*=1000", "long=32")


async def backlog(
    running: Service, store: Store, one: dict[str, object], count: int, name: str
) -> Figures:
    """Make runs that are due already, then let the workers have them: from the first claim to the
    last settle."""
    await filling.pause(running)
    await filling.fill(running, one, count)
    async with store.direct() as connection:
        await connection.execute("ANALYZE runs")
    async with store.transaction() as tx:
        began = await tx.clock()
    async with running.measuring(store, name) as section:
        await filling.resume(running)
        await filling.drained(store)
    seconds, done = await between(store, began)
    if done != count:
        raise RuntimeError(f"{count} runs, but {done} attempts")
    return section.figures(count, seconds=seconds)


async def between(store: Store, began: datetime) -> tuple[float, int]:
    """From the first lease since ``began`` to the last attempt's end, and how many there were."""
    async with store.transaction() as tx:
        row = await tx.one(BETWEEN, began)
    return row["sec"] or 0.0, row["count"]


async def drain(options: Options) -> Rows:
    """No-op runs that are due already, by one worker process and by two; peers on the same
    Postgres; and the whole life of a job, from its POST on."""
    count = options.pick(200_000, 16_000)
    found: Rows = {}
    async with harness.service(options, "api", pools=DRAIN_SLOTS) as running:
        store = await running.store()
        for workers in (1, 2):
            running.start("worker", module="bench.role")
            await running.up(store, worker=workers)
            await backlog(running, store, filling.job(NOOP, filling.NOW), 2_000, "")
            name = f"{workers} worker{'s' * (workers > 1)}"
            one = filling.job(NOOP, filling.NOW)
            found[name] = await backlog(running, store, one, count, f"drain {name}")
            say(f"{name}: {found[name]['per_sec']:,.0f}/s")
            if workers == 1:
                found |= await _lives(running, store, count // 2)
        await store.close()
        running.stop()
        others = await peers.each(options, lambda peer: peer.drain(running, count))
    best = max(found["1 worker"], found["2 workers"], key=lambda row: row["per_sec"])
    return found | {"against peers": peers.compared(best, others)} | others


async def _lives(running: Service, store: Store, count: int) -> Rows:
    """From the POST to the end, with one worker: each posted by itself and begun at once, and
    posted by 1,000, carried out when all are there."""
    one = filling.job(NOOP, filling.NOW)
    raw, seconds = wire.post(running.token, "/v1/jobs", one), running.options.pick(20.0, 3.0)
    async with running.measuring(store, "life one by one") as section:
        answers = await load.closed(running.addresses, 64, seconds, lambda: raw)
        await filling.drained(store)
    found = {"whole life, one by one": section.figures(answers.count)}
    await filling.pause(running)
    async with running.measuring(store, "life by 1000") as section:
        await filling.fill(running, one, count)
        await filling.resume(running)
        await filling.drained(store)
    return found | {"whole life, by 1,000": section.figures(count)}


_known: dict[bool, Figures] = {}


async def delivery(options: Options) -> Figures:
    """The webhook figure: signed POSTs of 360 bytes to the local sink by two worker processes,
    from a backlog. Measured once in a run."""
    if options.quick not in _known:
        sink = Sink()
        async with harness.service(options, "api") as running:
            store = await running.store()
            running.start("worker")
            running.start("worker")
            await running.up(store, worker=2)
            one, count = filling.job(sink.url, filling.NOW), options.pick(100_000, 6_000)
            await backlog(running, store, one, 2_000, "")
            _known[options.quick] = await backlog(running, store, one, count, "webhook")
            await store.close()
        seen = sink.stop()
        if seen.count != count + 2_000:
            raise RuntimeError(f"{count + 2_000} jobs, but {seen.count} deliveries")
    return _known[options.quick]


async def webhook(options: Options) -> Rows:
    """Signed POSTs of 360 bytes to the local sink, two worker processes; peers' beside it."""
    row = await delivery(options)
    say(f"{row['per_sec']:,.0f}/s")
    sink, count = Sink(), options.pick(50_000, 4_000)
    async with harness.service(options) as running:
        others = await peers.each(options, lambda peer: peer.webhook(running, count, sink.url))
    sink.stop()
    return {"2 workers": row | peers.compared(row, others)} | others


async def start_latency(options: Options) -> Rows:
    """From due to the receiver: posted a second ahead, 20 a second, all else idle; then timers that
    were there before, due at equal distances, 1,000 a second and at 80 % of the webhook figure."""
    peak = (await delivery(options))["per_sec"]
    found = {"idle, 20/s": await _idle(options)}
    for name, per_sec in (("1,000/s", 1_000.0), ("80 % of webhook", 0.8 * peak)):
        say(f"{name}: {per_sec:,.0f}/s")
        found[name] = await _at_rate(options, per_sec, options.pick(60.0, 4.0))
    return found


async def _idle(options: Options) -> Figures:
    sink = Sink()
    async with harness.service(options, "api", "scheduler", "worker") as running:
        store = await running.store()
        raw = wire.post(running.token, "/v1/jobs", filling.job(sink.url, filling.SOON))
        opened = load.Open(
            running.addresses, 20.0, lambda: raw, connections=4, seed=options.seed, even=True
        )
        async with running.measuring(store, "start latency idle") as section:
            answers = await opened.run(options.pick(20.0, 4.0))
            await asyncio.sleep(1.5)
            await filling.drained(store)
        await store.close()
    return section.figures(answers.count, sink.stop().late)


async def _at_rate(options: Options, per_sec: float, seconds: float) -> Figures:
    sink, count = Sink(), int(per_sec * seconds)
    async with harness.service(options, "api", "scheduler", "worker", "worker") as running:
        store = await running.store()
        # Far enough ahead that all timers are there before the first is due.
        base = time.time() + 4 + count / 8_000
        due = f"to_timestamp({base}) + n * interval '1 second' / {per_sec}"
        await filling.clone(running, store, filling.job(sink.url, filling.NOW), count, due)
        if time.time() > base:
            raise RuntimeError("filling took too long")
        await asyncio.sleep(base - time.time())
        async with running.measuring(store, f"start latency {per_sec:.0f}") as section:
            await asyncio.sleep(seconds)
            await until_past(store)
        await store.close()
    late = sink.stop().late
    if len(late) != count:
        raise RuntimeError(f"{count} jobs, but {len(late)} deliveries")
    return section.figures(count, _warm(late, per_sec), seconds)


def _warm(late: Sequence[float], per_sec: float) -> Sequence[float]:
    """Without the first second: the first connections are made in it."""
    return late[int(min(per_sec, len(late) / 4)) :]


async def until_past(store: Store) -> None:
    """Wait until no timer is due and no run is left."""
    while True:
        async with store.transaction() as tx:
            if not await tx.value(
                "SELECT EXISTS (SELECT FROM runs)"
                " OR EXISTS (SELECT FROM timers WHERE due_at <= now())"
            ):
                return
        await asyncio.sleep(0.1)
