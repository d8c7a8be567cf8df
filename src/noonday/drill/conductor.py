"""A drill from beginning to end."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from noonday.client import AsyncClient, NoondayClientError
from noonday.domain.errors import StoreUnavailable
from noonday.drill import duplicates, measures
from noonday.drill.checks import history
from noonday.drill.checks.database import direct
from noonday.drill.checks.evidence import Evidence, Witness, gather
from noonday.drill.client_log import ClientLog
from noonday.drill.faults import clocks
from noonday.drill.load import Clients
from noonday.drill.measures import Phases
from noonday.drill.nemesis import Nemesis
from noonday.drill.options import Options
from noonday.drill.results import Results
from noonday.drill.timeline import draw
from noonday.drill.world import World

QUIET: Final = 0.1
HEALED: Final = 0.12
"""Parts of the whole time without faults, before and after."""
LEAST_SEC: Final = 5.0
BACK_SEC: Final = 30.0
"""How long it may take after the last fault until all is well again."""
DRAIN_SEC: Final = 90.0
FAR: Final = timedelta(seconds=10)
OVERDUE: Final = """
SELECT (SELECT count(*) FROM timers WHERE due_at < now() - interval '2 s')
     + (SELECT count(*) FROM runs WHERE (state = 'READY' AND hold IS NULL
                                         AND ready_at < now() - interval '2 s')
           OR (state = 'RETRYING' AND retry_at < now() - interval '2 s')
           OR (state = 'RUNNING' AND locked_until < now() - interval '2 s'))
"""
# A scheduler is ready before the shards of one that was killed are free.
UNWELL: Final = f"""
SELECT ({OVERDUE}) + (
    SELECT count(*) FROM shards WHERE coalesce(leased_until < now(), true)
       OR owner_id NOT IN (SELECT id FROM workers WHERE pid = ANY($1::int[])))
"""
TO_CANCEL: Final = """
SELECT id FROM jobs WHERE schedule_type <> 'once' AND state = 'ACTIVE'
UNION SELECT job_id FROM runs WHERE state = 'RETRYING' AND retry_at > now() + $1::interval
"""
LEFT: Final = "SELECT (SELECT count(*) FROM timers) + (SELECT count(*) FROM runs)"
DUMPED: Final = ("jobs", "runs", "timers", "occurrences", "executions", "dead_letters", "shards",
                 "workers", "idempotency_keys", "journal")  # fmt: skip

Say = Callable[[str], None]


async def conduct(options: Options, say: Say) -> Results:
    """Run it; the out folder holds the report and what it rests on when this returns."""
    options.out.mkdir(parents=True, exist_ok=True)
    size_mb = 400 + int(options.seconds) if "F17" in options.faults else 0
    world = World(
        options.out,
        options.seed,
        size_mb=size_mb,
        faketime=clocks.library() if "F11" in options.faults else None,
        environment=options.environment,
    )
    say(f"seed {options.seed}; starting Postgres, receivers and the service in {options.out}")
    try:
        async with world.running():
            results = await _in(world, options, say)
    finally:
        shutil.rmtree(options.out / "data", ignore_errors=True)
    _write(options.out, results, world)
    return results


async def _in(world: World, options: Options, say: Say) -> Results:
    log = ClientLog(options.out / "client.jsonl")
    clients = Clients(world, log)
    nemesis = Nemesis(world, options.faults, say)
    async with _beside(world.look_after()), _beside(_progress(world, log, nemesis, say)):
        phases, healed = await _phases(world, options, clients, log, nemesis, say)
        say("letting all work come to its end")
        await _drain(world)
        await asyncio.sleep(1)
    log.close()
    evidence = await gather(world.database.dsn, _witness(world, log))
    say("checking")
    return await _judge(world, options, log, clients, nemesis, phases, healed, evidence)


async def _phases(
    world: World, options: Options, clients: Clients, log: ClientLog, nemesis: Nemesis, say: Say
) -> tuple[Phases, list[str]]:
    """Quiet, faults, healed; what was not well again in time."""
    quiet_sec = max(options.seconds * QUIET, LEAST_SEC)
    healed_sec = max(options.seconds * HEALED, LEAST_SEC)
    async with clients.at_work():
        quiet = time.time()
        say(f"{quiet_sec:.0f} s without a fault")
        await asyncio.sleep(quiet_sec)
        faults = time.time()
        await nemesis.rage(options.seconds - quiet_sec - healed_sec)
        healed = time.time()
        say("no more faults")
        unready = await _well_again(world)
        well = time.time()
        say(f"all was well again {well - healed:.1f} s later" if not unready else "not all is well")
        # What has become due by now is to be seen, too.
        await asyncio.sleep(max(healed_sec - (time.time() - healed), 2.0))
        evidence = await gather(world.database.dsn, Witness(unready=unready), past=False)
        violations = history.broken(evidence, history.OF_NOW)
        return Phases(quiet, faults, healed, well, time.time()), violations


async def _well_again(world: World) -> list[str]:
    """Wait until everything is as it should be; what is not ready when the time is up."""
    until = time.monotonic() + BACK_SEC
    unready: list[str] = []
    while time.monotonic() < until:
        ready = await asyncio.gather(*(member.is_ready() for member in world.members))
        unready = [m.name for m, well in zip(world.members, ready, strict=True) if not well]
        with suppress(StoreUnavailable):
            pids = [member.pid for member in world.members]
            if not unready and await world.value(UNWELL, pids) == 0:
                break
        await asyncio.sleep(0.25)
    return unready


async def _drain(world: World) -> None:
    """Cancel what recurs and what a receiver put off for hours; let the rest end."""
    until = time.monotonic() + DRAIN_SEC
    async with AsyncClient(world.address, world.token) as client:
        while time.monotonic() < until and await world.value(LEFT):
            for row in await world.rows(TO_CANCEL, FAR):
                with suppress(NoondayClientError):  # then the next time round
                    await client.jobs.delete(str(row["id"]))
            await asyncio.sleep(0.3)


def _witness(world: World, log: ClientLog) -> Witness:
    """What was seen from outside, read before the database is: then all of it must be there."""
    return Witness(
        acknowledged=set(log.acknowledged),
        requests=[request for witness in world.witnesses for request in witness.requests()],
        secrets=world.secrets,
        asked=set(log.asked),
        answers=list(log.answers),
        triggered=set(log.triggered),
        cancelled=dict(log.cancelled),
        cancelled_runs=dict(log.cancelled_runs),
    )


async def _judge(
    world: World,
    options: Options,
    log: ClientLog,
    clients: Clients,
    nemesis: Nemesis,
    phases: Phases,
    healed: list[str],
    evidence: Evidence,
) -> Results:
    ended = history.violations(evidence, drained=True, healed=False)
    violations = list(dict.fromkeys([*healed, *ended]))
    for mark in nemesis.marks:
        mark.look_back(evidence)
    answers = [answer for witness in world.witnesses for answer in witness.answers()]
    repeated = list(duplicates.find(evidence, answers))
    violations += [
        f"I12: {d.run_id}: attempt {d.attempt} repeats what attempt {d.earlier} had done, and "
        "nothing explains it"
        for d in repeated
        if d.cause == duplicates.UNEXPLAINED
    ]
    if violations:
        await _dump(world.database.dsn, options.out / "database")
    found = list(measures.deliveries(evidence))
    return Results(
        options=options,
        phases=phases,
        evidence=evidence,
        clients=log,
        marks=nemesis.marks,
        violations=violations,
        duplicates=repeated,
        deliveries=found,
        recovery=measures.recovery(found, clients.pulses, nemesis.marks, phases),
        kills=_by_role(world, "kills"),
        unasked=_by_role(world, "unasked"),
    )


def _by_role(world: World, what: str) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for member in world.members:
        counted[member.role] += getattr(member, what)
    return dict(counted)


async def _dump(dsn: str, folder: Path) -> None:
    """Keep the tables, so that what was found can be looked into."""
    folder.mkdir()
    async with direct(dsn) as connection:
        for table in DUMPED:
            rows = await connection.rows(f"SELECT to_jsonb(t)::text AS row FROM {table} AS t")
            (folder / f"{table}.jsonl").write_text("".join(f"{row['row']}\n" for row in rows))


def _write(out: Path, results: Results, world: World) -> None:
    (out / "report.txt").write_text(results.as_text())
    (out / "report.json").write_text(json.dumps(results.as_document(), indent=1, default=str))
    lanes = ["postgres", *(member.name for member in world.members), "receivers"]
    picture = draw(results.title(), lanes, results.marks, results.deliveries, results.phases)
    (out / "timeline.svg").write_text(picture)
    shutil.rmtree(out / "home", ignore_errors=True)
    for file in out.glob("*.clock"):
        file.unlink()


@asynccontextmanager
async def _beside(work: Any) -> AsyncIterator[None]:
    """Do something beside the block, until that ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _progress(world: World, log: ClientLog, nemesis: Nemesis, say: Say) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(10)
        kills = sum(member.kills for member in world.members)
        say(
            f"{time.monotonic() - began:5.0f} s  {len(log.acknowledged)} jobs acknowledged, "
            f"{len(nemesis.marks)} faults, {kills} kills"
        )
