"""DUP: what leadership, clocks and restarts may do to a schedule without doubling or losing it."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from noonday.domain.errors import FenceLost
from noonday.domain.model import Cron, Interval, Once, parse_run_id
from noonday.store import Store
from tests.field.durations import scaled
from tests.support.clocks import WallClock
from tests.support.cluster import Cluster
from tests.support.driving import arm, drive, ledger
from tests.support.holds import eventually
from tests.support.invariants import broken
from tests.support.ledgers import Line, lines
from tests.support.members import Member
from tests.support.scripted import Parts, Scripted, carry_out

SEED = int(os.environ.get("NOONDAY_TEST_SEED", "20270314"))
SECOND, MINUTE, HOUR = (timedelta(seconds=n) for n in (1, 60, 3_600))
SHARD_LEASE = timedelta(seconds=10)
# A second stands for a minute.
REGULARLY = {"type": "cron", "cron": scaled("* * * * * *", "* * * * *"), "overlap": "allow"}
UNIT = scaled(SECOND, MINUTE)

SHARED_OUT = """
SELECT count(DISTINCT owner_id) = $1 AND count(*) FILTER (WHERE leased_until > now()) = 64
FROM shards WHERE owner_id IS NOT NULL
"""
LEADS = """
SELECT count(*) FILTER (WHERE w.pid = $1) = 64
FROM shards AS s JOIN workers AS w ON w.id = s.owner_id WHERE s.leased_until > now()
"""
# What time would do, at once.
LAPSE = """
WITH late AS (
    UPDATE shards SET leased_until = now() - interval '1 s'
    WHERE owner_id IN (SELECT id FROM workers WHERE pid = $1) RETURNING 1
), unseen AS (
    UPDATE workers SET seen_at = seen_at - interval '1 minute' WHERE pid = $1 RETURNING 1
)
SELECT count(*) >= 0 FROM late, unseen
"""
DROP = """
UPDATE shards SET owner_id = NULL, leased_until = NULL
WHERE owner_id IN (SELECT id FROM workers WHERE pid = $1)
"""
BOUNDARY = """
SELECT to_timestamp(ceil(extract(epoch FROM now()) / $1 + 0.5) * $1::int)
"""
NOW = "SELECT clock_timestamp()"
PAST = "SELECT clock_timestamp() >= $1"
COMPLETE = "SELECT count(*) = $2 FROM occurrences WHERE job_id = ANY($1) AND outcome = 'COMPLETE'"
LATENESS = "SELECT max(materialized_at - due_at) FROM occurrences WHERE job_id = ANY($1)"
COMPLETE_SINCE = """
SELECT count(*) >= $2 FROM occurrences WHERE outcome = 'COMPLETE' AND occurrence_at > $1
"""
EARLY = "SELECT count(*) FROM occurrences WHERE materialized_at < occurrence_at"
OFF_THE_SECOND = """
SELECT count(*) FROM occurrences WHERE occurrence_at <> date_trunc('second', occurrence_at)
"""


async def post_all(cluster: Cluster, count: int, path: str, schedule: dict[str, Any]) -> list[UUID]:
    return list(
        await asyncio.gather(*(cluster.post(path, schedule=schedule) for _ in range(count)))
    )


async def lapse(cluster: Cluster, pid: int) -> None:
    """Let the leases of a process run out; it may have been stopped while it renewed them."""
    await cluster.until(LAPSE, pid)


# --- leadership -------------------------------------------------------------------------------


async def test_leadership_that_goes_to_and_fro_doubles_nothing(cluster: Cluster) -> None:
    """DUP-01: 20 jobs; A leads, then B, A, B, A. Who led before goes on from where it stood."""
    _, _, a = await cluster.start("api", "worker", "scheduler")
    made = await post_all(cluster, 20, "/often", REGULARLY)
    since: datetime = await cluster.value(NOW)
    (b,) = await cluster.start("scheduler")
    for leader, other in ((b, a), (a, b), (b, a), (a, b)):
        other.freeze()
        await lapse(cluster, other.pid)
        await cluster.until(LEADS, leader.pid)
        now: datetime = await cluster.value(NOW)
        await cluster.until(COMPLETE_SINCE, now, len(made), deadline_sec=scaled(20, 90))
        other.thaw()
    for member in (a, b):
        await eventually(partial(member.said, "shard.lost"))
    until: datetime = await cluster.value(NOW)
    await cluster.drain(scaled(20, 90))
    assert await cluster.check() == []
    await assert_each_time_once(cluster, since, until, len(made))


async def assert_each_time_once(
    cluster: Cluster, since: datetime, until: datetime, jobs: int
) -> None:
    """A row for each job and nominal time, and a request under its own run id for each that ran."""
    seen: defaultdict[datetime, list[str]] = defaultdict(list)
    for request in cluster.receiver.requests:
        run = parse_run_id(request.run_id)
        assert run is not None
        seen[run.occurrence_at].append(request.run_id)
    found = await by_time(cluster, since, until)
    assert len(found) in {(until - since) // UNIT, (until - since) // UNIT + 1}
    for at, rows in found.items():
        assert len(rows) == len({line.job_id for line in rows}) == jobs, (at, rows)
        ids = seen[at]
        assert len(ids) == len(set(ids)) == sum(line.outcome == "COMPLETE" for line in rows), at


async def by_time(cluster: Cluster, since: datetime, until: datetime) -> dict[datetime, list[Line]]:
    """What is on record of each nominal time."""
    found: defaultdict[datetime, list[Line]] = defaultdict(list)
    for line in await lines(cluster.store):
        if since <= line.at < until:
            found[line.at].append(line)
    return found


async def test_no_occurrence_falls_between_two_leaders(cluster: Cluster) -> None:
    """DUP-02: just before a boundary a leader is killed, or only its leases are dropped."""
    await cluster.start("api", "worker")
    three = await cluster.start("scheduler", "scheduler", "scheduler")
    await cluster.until(SHARED_OUT, 3)
    await post_all(cluster, 5, "/often", REGULARLY)
    for n in range(scaled(2, 30)):
        leader = three[n % 3]
        await over_a_boundary(cluster, leader, kill=n % 2 == 0)
        await cluster.until(SHARED_OUT, 3, deadline_sec=40)  # it leads again
    for leader in three:
        await alone(cluster, leader, [other for other in three if other is not leader])
    await cluster.drain(scaled(20, 90))
    assert await cluster.check() == []


async def over_a_boundary(cluster: Cluster, leader: Member, *, kill: bool) -> None:
    """A leader loses its shards 200 ms before jobs of all shards are due."""
    at: datetime = await cluster.value(BOUNDARY, UNIT.total_seconds())
    jobs = await post_all(cluster, 12, "/once", {"type": "once", "run_at": at.isoformat()})
    await cluster.until(PAST, at - SECOND / 5, deadline_sec=90)
    if kill:
        pid = leader.pid
        leader.kill()
        leader.start()
        if UNIT == SECOND:
            await lapse(cluster, pid)
    else:
        await cluster.execute(DROP, leader.pid)
    await cluster.until(COMPLETE, jobs, len(jobs), deadline_sec=40)
    assert await cluster.value(LATENESS, jobs) <= SHARD_LEASE + 5 * SECOND


async def alone(cluster: Cluster, leader: Member, others: list[Member]) -> None:
    """The leader is the only one left, for a while."""
    for other in others:
        other.freeze()
        await lapse(cluster, other.pid)
    await cluster.until(LEADS, leader.pid)
    for other in others:
        other.thaw()


# --- clocks -----------------------------------------------------------------------------------


@pytest.mark.debian("faketime")
async def test_schedulers_whose_clocks_are_wrong_fire_when_postgres_says_so(
    cluster: Cluster, tmp_path: Path
) -> None:
    """DUP-03: −90, −3, +3 and +90 s, at the same time, each with shards of its own."""
    await cluster.start("api", "worker")
    clocks = {offset: WallClock(tmp_path / f"clock{offset}", offset) for offset in (-90, -3, 3, 90)}
    members = {
        offset: cluster.add("scheduler", environment=clock.environment)
        for offset, clock in clocks.items()
    }
    await cluster.until(SHARED_OUT, 4)
    made = await post_all(cluster, 48, "/often", REGULARLY)
    now: datetime = await cluster.value(NOW)
    for offset, member in members.items():
        assert abs(await ahead(cluster, member) - offset) < 2, "its clock is wrong indeed"
    for offset, member in members.items():
        owned = [job for job in made if job.int % 64 in await shards_of(cluster, member)]
        assert owned, offset
        wanted = len(owned) * scaled(3, 10)
        await cluster.until(FIRED, owned, now, wanted, deadline_sec=scaled(20, 720))
    assert await cluster.value(EARLY) == await cluster.value(OFF_THE_SECOND) == 0
    await cluster.drain(scaled(20, 90))
    assert await cluster.check() == []


FIRED = """
SELECT count(*) >= $3 FROM occurrences
WHERE job_id = ANY($1) AND occurrence_at > $2 AND outcome = 'COMPLETE'
"""
SHARDS_OF = """
SELECT array_agg(s.shard) FROM shards AS s JOIN workers AS w ON w.id = s.owner_id WHERE w.pid = $1
"""


async def shards_of(cluster: Cluster, member: Member) -> list[int]:
    owned: list[int] = await cluster.value(SHARDS_OF, member.pid)
    return owned


async def ahead(cluster: Cluster, member: Member) -> float:
    """Seconds that a process's wall clock is ahead of Postgres, to the second."""
    async with aiohttp.request("GET", f"{member.admin}/healthz") as answer:
        shown = parsedate_to_datetime(answer.headers["Date"])
    now: datetime = await cluster.value(NOW)
    return (shown - now).total_seconds()


@pytest.mark.debian("faketime")
@pytest.mark.parametrize("back_sec", [120, 3_600])
async def test_a_scheduler_whose_clock_is_set_back_repeats_nothing_and_goes_on(
    cluster: Cluster, tmp_path: Path, back_sec: int
) -> None:
    """DUP-04: a cron job, an interval job and a one-off job that has ended."""
    clock = WallClock(tmp_path / "clock")
    scheduler = cluster.add("scheduler", environment=clock.environment)
    await cluster.start("api", "worker")
    await scheduler.ready()
    once = await cluster.post("/once", schedule={"type": "once", "delay": "PT1S"})
    interval = {"type": "interval", "interval_sec": scaled(1, 5), "overlap": "allow"}
    recurring = [
        await cluster.post("/often", schedule=REGULARLY),
        await cluster.post("/grid", schedule=interval),
    ]
    await cluster.until(COMPLETE, [once], 1)
    for job in recurring:
        await cluster.until(FIRED, [job], await cluster.value(NOW), 1, deadline_sec=90)
    clock.set(-back_sec)
    set_at: datetime = await cluster.value(NOW)

    async def is_back() -> bool:
        return abs(await ahead(cluster, scheduler) + back_sec) < 5

    await eventually(is_back)
    for job in recurring:
        await cluster.until(FIRED, [job], set_at, scaled(3, 10), deadline_sec=scaled(20, 720))
    assert await cluster.value(EARLY) == 0
    await cluster.drain(scaled(20, 90))
    assert len(cluster.receiver.of("/once")) == 1
    ids = [request.run_id for request in cluster.receiver.requests]
    assert len(ids) == len(set(ids))
    assert await cluster.check() == []


MIDNIGHT = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
T = MIDNIGHT + 9 * HOUR


@pytest.mark.parametrize("back", [2 * MINUTE, HOUR])
async def test_after_a_failover_to_an_earlier_clock_nothing_is_repeated(
    store: Store, parts: Parts, back: timedelta
) -> None:
    """DUP-04, where it is the clock of Postgres that is set back."""
    store.now = T
    (minutely,) = await arm(store, Cron("* * * * *", overlap="allow"), T)
    (once,) = await arm(store, Once(T), T)
    scheduler, executor = parts.scheduler(), Scripted()
    worker = parts.worker(executor)
    for n in range(11):
        await drive(scheduler, store, T + n * MINUTE)
        await carry_out(worker)
    before = await ledger(store, minutely)
    stopped = T + 10 * MINUTE + 30 * SECOND
    for n in range(back // MINUTE + 3):
        await drive(scheduler, store, stopped - back + n * MINUTE)
        await carry_out(worker)
    after = await ledger(store, minutely)
    assert after[: len(before)] == before
    assert [at for at, *_ in after] == [T + n * MINUTE for n in range(13)]
    assert {outcome for _, outcome, _ in after} == {"COMPLETE"}
    assert await ledger(store, once) == [(T, "COMPLETE", None)]
    assert len({attempt.run for attempt in executor.attempts}) == len(executor.attempts) == 14
    assert not await broken(store)


# --- a scheduler that slept -------------------------------------------------------------------


@pytest.mark.parametrize("standby", [True, False])
async def test_a_frozen_scheduler_that_wakes_up_gives_way_or_catches_up_with_one_run_of_each_job(
    cluster: Cluster, standby: bool
) -> None:
    """DUP-06: SIGSTOP, until its leases have run out and some occurrences have been."""
    _, _, leader = await cluster.start("api", "worker", "scheduler")
    others = await cluster.start("scheduler") if standby else []
    await cluster.until(SHARED_OUT, 1 + len(others))
    made = await post_all(cluster, 6, "/often", REGULARLY | {"overlap": "skip"})
    since: datetime = await cluster.value(NOW)
    await cluster.until(FIRED, made, since, len(made), deadline_sec=scaled(20, 120))
    leader.freeze()
    await lapse(cluster, leader.pid)
    frozen_at: datetime = await cluster.value(NOW)
    for other in others:
        await cluster.until(LEADS, other.pid)
    count = scaled(3, 10)
    await cluster.until(PAST, frozen_at + count * UNIT, deadline_sec=scaled(20, 720))
    thawed_at: datetime = await cluster.value(NOW)
    leader.thaw()
    await eventually(partial(leader.said, "shard.lost"))
    await cluster.until(FIRED, made, thawed_at, 2 * len(made), deadline_sec=scaled(20, 240))
    await cluster.until(SHARED_OUT, 1 + len(others))  # it leads again
    await leader.ready()
    until: datetime = await cluster.value(NOW)
    await cluster.drain(scaled(20, 120))
    await assert_each_time_once(cluster, since, until, len(made))
    if not standby:
        slept = [line for line in await lines(cluster.store) if frozen_at < line.at <= thawed_at]
        missed = Counter(line.job_id for line in slept if line.reason == "superseded")
        kept = Counter(line.job_id for line in slept if line.outcome != "MISSED")
        assert missed.keys() == set(made)
        assert min(missed.values()) >= count - 1
        # The latest, unless a later one was due already.
        assert max(kept.values(), default=0) <= 1
    assert await cluster.check() == []


@pytest.mark.parametrize("standby", [True, False])
async def test_what_a_scheduler_had_in_mind_before_it_slept_is_not_written(
    store: Store, parts: Parts, standby: bool
) -> None:
    """DUP-06: ten minutes of which its own clock knows nothing."""
    store.now = T
    (job,) = await arm(store, Cron("* * * * *", overlap="skip"), T)
    sleeper, other, executor = parts.scheduler(), parts.scheduler(), Scripted()
    worker = parts.worker(executor)
    await drive(sleeper, store, T)
    await carry_out(worker)
    if standby:
        for n in range(1, 11):
            await drive(other, store, T + n * MINUTE)
            await carry_out(worker)
    store.now = woken = T + 11 * MINUTE
    if standby:
        await other.keep_shards()
    before = await ledger(store, job)
    with pytest.raises(FenceLost):
        await sleeper.tick()
    assert await ledger(store, job) == before
    await drive(sleeper, store, woken)
    assert bool(sleeper.epochs) is not standby
    for scheduler in (other, sleeper):  # which has its share again
        await drive(scheduler, store, woken)
    await carry_out(worker)
    slept = [T + n * MINUTE for n in range(1, 11)]
    what = ("COMPLETE", None) if standby else ("MISSED", "superseded")
    assert await ledger(store, job) == [
        (T, "COMPLETE", None), *[(at, *what) for at in slept], (woken, "COMPLETE", None)
    ]  # fmt: skip
    ran = [attempt.run.occurrence_at for attempt in executor.attempts]
    assert ran == [T, *(slept if standby else []), woken]
    assert not await broken(store)


# --- marking and creating ---------------------------------------------------------------------


async def test_a_scheduler_killed_at_any_moment_leaves_no_mark_without_run_and_no_run_without_mark(
    cluster: Cluster,
) -> None:
    """DUP-07: 100 jobs fire each second; the kills come around the full second.

    (A run that has ended is deleted at once, so what tells that it was is the ledger alone.)
    """
    chance = random.Random(SEED)
    await cluster.start("api")
    cluster.add("worker", worker_pools=("default=64",))
    pair = await cluster.start("scheduler", "scheduler")
    await cluster.until(SHARED_OUT, 2)
    every_second = {"type": "cron", "cron": "* * * * * *", "overlap": "allow"}
    made = await post_all(cluster, 100, "/often", every_second)
    since: datetime = await cluster.value(NOW)
    for n in range(scaled(5, 500)):
        at: datetime = await cluster.value(BOUNDARY, 1)
        await cluster.until(PAST, at + chance.uniform(-0.02, 0.12) * SECOND)
        victim = pair[n % 2]
        pid = victim.pid
        victim.kill()
        victim.start()
        await lapse(cluster, pid)
    await cluster.until(COMPLETE_SINCE, await cluster.value(NOW), len(made), deadline_sec=40)
    until: datetime = await cluster.value(NOW)
    await cluster.drain(40)
    for at, found in (await by_time(cluster, since, until)).items():
        assert len(found) == len({line.job_id for line in found}) == 100, at
    assert await cluster.check() == [], f"seed {SEED}"


# --- intervals --------------------------------------------------------------------------------


async def test_an_interval_longer_than_any_process_lives_fires_on_its_grid(
    store: Store, parts: Parts
) -> None:
    """DUP-08: every 6 hours, on a machine that is started again every 4 hours, for 48 hours."""
    store.now = T
    (job,) = await arm(store, Interval(6 * 3_600, T, overlap="allow"), T + 6 * HOUR)
    for start in range(0, 49, 4):
        scheduler = parts.scheduler()
        for minutes in range(5, 240, 47):
            await drive(scheduler, store, T + start * HOUR + minutes * MINUTE)
        # No timer is read before its partition has a due index.
        await parts.janitor().tick()
    assert [at for at, *_ in await ledger(store, job)] == [T + 6 * k * HOUR for k in range(1, 9)]
    async with store.transaction() as tx:
        late = await tx.value("SELECT max(materialized_at - due_at) FROM occurrences")
    assert late <= 47 * MINUTE
    assert not await broken(store)


@pytest.mark.parametrize("down", [12 * SECOND, 150 * SECOND])
async def test_after_a_restart_each_of_many_intervals_keeps_its_phase(
    store: Store, parts: Parts, down: timedelta
) -> None:
    """DUP-08: 200 jobs of one minute, spread over it, before and after the scheduler was away."""
    store.now = T
    phases = [n * timedelta(milliseconds=300) for n in range(200)]
    jobs = [
        (await arm(store, Interval(60, T + phase, overlap="allow"), T + phase))[0]
        for phase in phases
    ]
    scheduler = parts.scheduler()
    for n in range(90):
        await drive(scheduler, store, T + n * SECOND)
    back = T + 89 * SECOND + down
    scheduler = parts.scheduler()  # the one before has died, and its leases have run out
    for n in range(130):
        await drive(scheduler, store, back + n * SECOND)
    for job, phase in zip(jobs, phases, strict=True):
        times = [at for at, *_ in await ledger(store, job)]
        assert times == [T + phase + k * MINUTE for k in range(len(times))], phase
        assert times[-1] > back + 68 * SECOND
    async with store.transaction() as tx:
        most: int = await tx.value(
            "SELECT max(count) FROM (SELECT count(*) FROM occurrences "
            "WHERE materialized_at > $1 GROUP BY materialized_at) AS second",
            back,
        )
    assert most <= 4, "a pile-up"
    assert not await broken(store)
