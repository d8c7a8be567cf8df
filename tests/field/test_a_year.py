"""A year of a mix of schedules, in minutes: restarts, outages, clock changes, pauses, triggers.

Time is set by hand. Whatever happens, each nominal time of each job is on record exactly once: as a
line of its own, or within one range.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from noonday.domain.model import MICROSECOND, Cron, Interval, shard_of
from noonday.domain.ranking import by_time
from noonday.domain.schedule import left_from, next_after
from noonday.loops.admitting import Admitting
from noonday.loops.resuming import Resuming
from noonday.loops.scheduler import Scheduler
from noonday.loops.watchdog import Watchdog
from noonday.store import Store, Tx, jobs, locks, pauses
from noonday.store.runs import held_key
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics
from tests.field.durations import FULL
from tests.support import seeds
from tests.support.invariants import broken
from tests.support.scripted import Parts

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MOMENTS, JOBS = (1_500, 80) if FULL else (100, 20)
ZONES = ["UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
EXPRESSIONS = [
    "0 * * * *", "30 2 * * *", "0 0 * * *", "15 1,2,3 * * 0", "0 12 1 * *", "0 0 L * *",
    "*/30 1-4 * * *", "0 9 * * 1-5", "0 3 29 2 *", "0 0,12 */2 * *", "H H * * *", "0 1 * * 5#2",
]  # fmt: skip


def a_schedule(chance: random.Random, start: datetime) -> Cron | Interval:
    rules: dict[str, Any] = {
        "jitter_sec": chance.choice([0, 0, 60, 1_800]),
        "misfire": chance.choice(["one", "one", "one", "skip", "all"]),
        "overlap": chance.choice(["allow", "skip", "queue", "replace"]),
        "grace_sec": chance.choice([600, 86_400, 10**7]),
        "ends_at": chance.choice([None, None, start + chance.uniform(20, 400) * DAY]),
        "max_occurrences": chance.choice([None, None, None, chance.randrange(1, 300)]),
    }
    if chance.random() < 0.3:
        return Interval(chance.randrange(2, 400) * 1_800, start, **rules)
    return Cron(
        chance.choice(EXPRESSIONS),
        chance.choice(ZONES),
        starts_at=start,
        dst_gap=chance.choice(["run", "skip"]),
        dst_fold=chance.choice(["first", "second", "both"]),
        **rules,
    )


class Year:
    """All that happens, drawn by lot."""

    def __init__(self, store: Store, parts: Parts, chance: random.Random, made: list[UUID]) -> None:
        self._store = store
        self._parts = parts
        self._chance = chance
        self._made = made
        self._scheduler: Scheduler = parts.scheduler()
        self._admitting = Admitting(store, Metrics(), Wakeups(store))
        self.metrics = Metrics()
        self._watchdog = Watchdog(store, self.metrics, leads=lambda: True)

    async def happen(self, now: datetime) -> None:
        self._store.now = now
        chance = self._chance
        if chance.random() < 0.1:  # it dies, and another takes over
            if chance.random() < 0.5:
                await self._scheduler.leave()
            else:
                async with self._store.transaction() as tx:
                    await tx.execute("UPDATE shards SET owner_id = NULL, leased_until = NULL")
            self._scheduler = self._parts.scheduler()
        if chance.random() < 0.15:
            await self._change(chance.choice(self._made), now)
        await self._fire()
        await self._carry_out()
        await self._watchdog.tick()

    async def _fire(self) -> None:
        await self._parts.janitor().tick()
        await Resuming(self._store).tick()
        await self._scheduler.keep_shards()
        for _ in range(self._chance.randrange(1, 30)):
            if not await self._scheduler.tick():
                break
        await self._admitting.tick()
        await self._admitting.sweep()

    async def _carry_out(self) -> None:
        """Some of what is READY ends; the rest is in the way of what comes."""
        async with self._store.transaction() as tx:
            held = [held_key(row) for row in await seeds.claim(tx, limit=500)]
            rest = await tx.rows("SELECT * FROM runs WHERE state = 'RUNNING'")
            held = list({*held, *map(held_key, rest)})
            ended = [lease for lease in held if self._chance.random() < 0.8]
            await seeds.settle(tx, *map(seeds.completed, sorted(ended)))

    async def _change(self, job_id: UUID, now: datetime) -> None:
        async with self._store.transaction() as tx:
            await locks.own_shard(tx, shard_of(job_id))
            job = await jobs.one(tx, job_id, seeds.TENANT)
            assert job is not None
            if job["state"] == "ACTIVE":
                until = self._chance.choice([None, now + self._chance.uniform(0.1, 20) * DAY])
                await pauses.pause(tx, job, "a test", until, "me", by_time, now)
            elif job["state"] == "PAUSED":
                catch_up = self._chance.random() < 0.3
                await pauses.resume(tx, job, now, now, catch_up=catch_up)

    async def end(self, now: datetime) -> None:
        """All of them are in service at the end, and what is due is fired."""
        self._store.now = now
        for job_id in self._made:
            async with self._store.transaction() as tx:
                await locks.own_shard(tx, shard_of(job_id))
                job = await jobs.one(tx, job_id, seeds.TENANT)
                assert job is not None
                if job["state"] == "PAUSED":
                    await pauses.resume(tx, job, now, now)
        for n in range(10_000):
            self._store.now = now + timedelta(seconds=n)
            if n % 50 == 0 and not await self._is_behind(now):
                break
            await self._scheduler.keep_shards()
            await self._scheduler.tick()
        await self._carry_out()

    async def _is_behind(self, now: datetime) -> bool:
        """Whether something is still to be fired, or caught up on."""
        async with self._store.transaction() as tx:
            behind = "SELECT count(*) FROM timers WHERE occurrence_at <= $1"
            return bool(await tx.value(behind, now - HOUR))


LINES = """
SELECT occurrence_at AS from_at, occurrence_at AS to_at,
       outcome IS NULL OR outcome = 'COMPLETE' AS ran
FROM occurrences WHERE job_id = $1 AND kind = 0
UNION ALL SELECT from_at, to_at, false FROM occurrence_ranges WHERE job_id = $1
ORDER BY 1
"""


async def accounted(tx: Tx, job_id: UUID, wanted: Cron | Interval, until: datetime) -> int:
    """Every nominal time up to the last on record, in its order, is on one line; how many ran."""
    assert wanted.starts_at is not None
    at = next_after(wanted, wanted.starts_at - MICROSECOND, job_id)
    number, ran = 0, 0
    for line in await tx.rows(LINES, job_id):
        assert line["from_at"] == at, (job_id, wanted)
        while at is not None and at <= line["to_at"]:
            last, number = at, number + 1
            at = next_after(wanted, at, job_id)
        assert last == line["to_at"], (job_id, wanted)
        ran += line["ran"]
    left = left_from(wanted, number + 1)
    assert left is None or left >= 0, (job_id, wanted)
    if left != 0:
        assert at is None or at > until, (job_id, wanted, "was not decided")
    return ran


@pytest.mark.parametrize("seed", [1, 2, 3] if FULL else [1])
async def test_a_year_of_a_mix_of_schedules_is_on_record_time_by_time(
    store: Store, tmp_path: Path, seed: int
) -> None:
    chance, parts = random.Random(seed), Parts(store, tmp_path)
    now = start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    store.now = start
    wanted: dict[UUID, Cron | Interval] = {}
    for _ in range(JOBS):
        schedule, id = a_schedule(chance, start), seeds.job_id()
        first = next_after(schedule, start - MICROSECOND, id)
        if first is None:
            continue
        async with store.transaction() as tx:
            await seeds.armed(tx, schedule, first, ids=[id])
            await tx.execute("UPDATE timers SET seq = 1 WHERE job_id = $1", id)
        wanted[id] = schedule
    year = Year(store, parts, chance, list(wanted))
    for pause in _pauses(chance):
        now += pause
        await year.happen(now)
    await year.end(now)
    assert not await broken(store)
    ran = 0
    async with store.transaction() as tx:
        for id, schedule in wanted.items():
            state = await tx.value("SELECT state FROM jobs WHERE id = $1", id)
            assert state in ("ACTIVE", "ENDED"), (id, state)
            ran += await accounted(tx, id, schedule, now - HOUR)
    assert ran > JOBS
    text = year.metrics.render().decode()
    assert "noonday_jobs_repaired_total{" not in text, "nothing was lost on the way"


def _pauses(chance: random.Random) -> Sequence[timedelta]:
    """A year in steps of many lengths: most are short, some are outages."""
    drawn = [chance.choice([0.01, 0.1, 1, 1, 3, 10]) for _ in range(MOMENTS)]
    return [365 * DAY * each / sum(drawn) for each in drawn]
