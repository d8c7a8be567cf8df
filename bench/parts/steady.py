"""Load that goes on for long: beside a snapshot held open, and twice as much as can be done."""

from __future__ import annotations

import asyncio
import time
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import filling, harness, load
from bench.figures import Figures, Rows, percentile, spread
from bench.harness import Service
from bench.options import Options
from bench.parts.carrying import delivery
from bench.processes import memory_mb
from bench.progress import say
from bench.sink import Seen, Sink
from noonday.embedded import find_binaries
from noonday.store import Store

PER_SEC = 2_000
BATCH = 100
TOTAL = "SELECT count(*) FROM executions"


@dataclass(frozen=True)
class Phase:
    """A stretch of the load: its name, when it began and ended (seconds since 1970)."""

    name: str
    began: float
    ended: float


async def held_snapshot(options: Options) -> Rows:
    """2,000 webhook runs a second while another connection holds a snapshot, then beside pg_dump,
    then after both have gone: what was delivered, and how long claims took."""
    minutes = options.minutes * 60
    lengths = {
        "warm": options.pick(10.0, 2.0),
        "clean": options.pick(60.0, 3.0),
        "held": options.pick(minutes * 2 / 3, 6.0),
        "pg_dump": options.pick(minutes / 3, 4.0),
        "released": options.pick(120.0, 4.0),
    }
    sink, phases = Sink(), list[Phase]()
    async with harness.service(options, "api") as running:
        store = await running.store()
        files = [running.settings.home / f"claims-{n}" for n in (1, 2)]
        for file in files:
            running.start("worker", module="bench.role", claims=file)
        await running.up(store, worker=2)
        raw = filling.batch(running.token, filling.job(sink.url, filling.NOW), BATCH)
        opened = load.Open(
            running.addresses, PER_SEC / BATCH, lambda: raw, connections=8, even=True
        )
        async with running.measuring(store, "held snapshot") as section:
            loading = asyncio.create_task(opened.run(sum(lengths.values())))
            dead = await _phases(running, store, lengths, phases, loading)
            await loading
            await filling.drained(store)
        await store.close()
        running.stop("worker")
        claims = _claims(files)
    seen = sink.stop()
    count = opened.sent * BATCH
    if seen.count < count:
        raise RuntimeError(f"{count} jobs, but {seen.count} deliveries")
    rows = {phase.name: _phase(phase, seen, claims) for phase in phases}
    clean = rows["clean"]["claim_p99_ms"]
    for phase in phases[1:]:
        rows[phase.name]["claim_p99_of_clean"] = rows[phase.name]["claim_p99_ms"] / clean
        rows[phase.name]["dead_rows"] = dead[phase.name]
    rows["released"] |= _recovery(phases[-1], seen, claims, clean)
    return {"all": section.figures(count, seen.late)} | rows


async def _phases(
    running: Service,
    store: Store,
    lengths: dict[str, float],
    phases: list[Phase],
    loading: asyncio.Task[load.Answers],
) -> Figures:
    """Go through the phases, unless the load fails; dead rows of ``runs`` at the end of each."""
    dead: Figures = {}

    async def phase(name: str) -> None:
        say(f"{name}: {lengths[name]:.0f} s")
        began = time.time()
        await asyncio.wait({loading}, timeout=lengths[name])
        if loading.done():
            loading.result()
        phases.append(Phase(name, began, time.time()))
        async with store.transaction() as tx:
            dead[name] = float(await tx.value(DEAD))

    await phase("warm")
    phases.clear()  # the first connections are made in it
    await phase("clean")
    async with store.direct() as holder:
        await holder.execute("SET idle_in_transaction_session_timeout = 0")
        await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await holder.value(TOTAL)
        await phase("held")
        dumping = asyncio.create_task(_dump(running, lengths["pg_dump"]))
        await phase("pg_dump")
        await dumping
        await holder.execute("ROLLBACK")
    await phase("released")
    return dead


DEAD = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'runs'"


async def _dump(running: Service, seconds: float) -> None:
    """Dump the database, again and again, for so long."""
    until = time.monotonic() + seconds
    program = find_binaries().program("pg_dump")
    while (left := until - time.monotonic()) > 0:
        process = await asyncio.create_subprocess_exec(
            program,
            f"--dbname={running.settings.database_url}",
            "--file=/dev/null",
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await asyncio.wait_for(process.wait(), left)
        except TimeoutError:
            process.terminate()
            await process.wait()


def _claims(files: Sequence[Path]) -> list[tuple[float, float]]:
    """When each claim of these processes was, and how long it took."""
    found: list[tuple[float, float]] = []
    for file in files:
        values = array("d", file.read_bytes())
        found += zip(values[::2], values[1::2], strict=True)
    return sorted(found)


def _phase(phase: Phase, seen: Seen, claims: Sequence[tuple[float, float]]) -> Figures:
    seconds = phase.ended - phase.began
    mine = [took for at, took in claims if phase.began <= at < phase.ended]
    late = [
        each
        for each, at in zip(seen.late, seen.came, strict=True)
        if phase.began <= at < phase.ended
    ]
    return {
        "count": float(len(late)),
        "seconds": seconds,
        "per_sec": len(late) / seconds,
        "of_offered": len(late) / seconds / PER_SEC,
        **spread(late),
        **spread(mine, "claim_"),
        **_over_time(phase, claims),
    }


def _over_time(phase: Phase, claims: Sequence[tuple[float, float]]) -> Figures:
    """The same percentiles in each quarter of the phase."""
    found: Figures = {}
    quarter = (phase.ended - phase.began) / 4
    for n in range(4):
        first = phase.began + n * quarter
        mine = sorted(took for at, took in claims if first <= at < first + quarter)
        found[f"claim_p99_quarter_{n + 1}_ms"] = percentile(mine, 0.99) * 1e3
    return found


def _recovery(
    phase: Phase, seen: Seen, claims: Sequence[tuple[float, float]], clean_ms: float
) -> Figures:
    """Seconds after which, for two seconds, claims are again within half as much again of what they
    took, and deliveries keep pace; only that it did not recover, if that never is."""
    for second in range(int(phase.ended - phase.began)):
        first = phase.began + second
        mine = sorted(took for at, took in claims if first <= at < first + 2)
        came = bisect_left(seen.came, first + 2) - bisect_left(seen.came, first)
        if mine and percentile(mine, 0.99) * 1e3 <= 1.5 * clean_ms and came >= 2 * 0.98 * PER_SEC:
            return {"recovered": 1.0, "recovery_sec": float(second)}
    return {"recovered": 0.0}


LOST = "SELECT count(*) FROM executions WHERE status = 'LEASE_EXPIRED'"
WINDOW_SEC = 1.0
OFFER = 500
SETTLE_SEC = 2.0


async def overload(options: Options) -> Rows:
    """As many runs as the webhook figure offered through the API, and then twice as many for five
    minutes: what is delivered beside that, workers' memory over time, leases lost."""
    webhook = (await delivery(options))["per_sec"]
    found: Rows = {}
    for name, times in (("as much", 1), ("twice", 2)):
        found[name] = await _offered(options, name, times * webhook)
        found[name]["of_webhook"] = found[name]["per_sec"] / webhook
    found["twice"]["of_peak"] = found["twice"]["per_sec"] / found["as much"]["per_sec"]
    return found


async def _offered(options: Options, name: str, per_sec: float) -> Figures:
    seconds = options.pick(60.0, 5.0) if name == "as much" else options.pick(300.0, 10.0)
    say(f"{name}: {per_sec:,.0f}/s for {seconds:.0f} s")
    sink = Sink()
    async with harness.service(options, "api", "scheduler", "worker", "worker") as running:
        store = await running.store()
        raw = filling.batch(running.token, filling.job(sink.url, filling.NOW), OFFER)
        opened = load.Open(
            running.addresses, per_sec / OFFER, lambda: raw, connections=8, even=True
        )
        loading = asyncio.create_task(opened.run(seconds))
        await asyncio.sleep(SETTLE_SEC)
        async with running.measuring(store, f"overload {name}") as section:
            began = time.time()
            memory = await _memory(running, seconds - SETTLE_SEC)
            ended = time.time()
        accepted = opened.answers.count * OFFER
        async with store.transaction() as tx:
            lost = float(await tx.value(LOST))
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        await store.close()
    came = [at for at in sink.stop().came if began <= at < ended]
    third = max(len(memory) // 3, 1)
    return section.figures(len(came), seconds=ended - began) | {
        "offered_per_sec": per_sec,
        "accepted_per_sec": accepted / seconds,
        "memory_first_mb": memory[0],
        "memory_last_mb": memory[-1],
        "memory_growth": max(memory[-third:]) / max(memory[third : 2 * third] or memory),
        "leases_lost": lost,
    }


async def _memory(running: Service, seconds: float) -> list[float]:
    """The biggest worker's memory, twice a second."""
    found, until = [], time.monotonic() + seconds
    workers = [child for child in running.children if child.role == "worker"]
    while time.monotonic() < until:
        found.append(max(memory_mb(worker.pid) for worker in workers))
        await asyncio.sleep(0.5)
    return found
