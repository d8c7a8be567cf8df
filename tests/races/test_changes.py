"""Whoever changes a job against a tick, and against each other, in every order of their steps.

Whatever the order: after the answer nothing of the version before fires, nothing is lost, and each
nominal time is in the ledger once, as a line or within a range.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest

from noonday.domain.model import Interval, Kind, Schedule, shard_of
from noonday.domain.pausing import same_times
from noonday.domain.ranking import by_time
from noonday.domain.schedule import next_after
from noonday.store import Row, Store, Tx, cancels, changes, jobs, locks, occurrences, pauses, shards
from noonday.store.changes import Definition, Place
from noonday.store.firing import Due, plan, ranked
from noonday.store.occurrences import Opening
from tests.races.conftest import EveryOrder
from tests.support import seeds
from tests.support.stepping import Plan, Stage, Step

T = datetime.now(UTC).replace(microsecond=0)
SECOND = timedelta(seconds=1)
EACH = Interval(10, T, overlap="allow")
OTHER = Interval(7, T, overlap="allow")
DUE = 2
"""So many occurrences are due when all this happens."""
NOW = T + (DUE - 1) * 10 * SECOND + SECOND
OWNER = UUID(int=10)


async def armed_job(store: Store) -> UUID:
    """A job that fires every ten seconds, of which ``DUE`` occurrences are due."""
    store.now = NOW
    async with store.transaction() as tx:
        await tx.execute("UPDATE shards SET epoch = 0")
        (job,) = await seeds.armed(tx, EACH, T)
        assert await shards.acquire(tx, OWNER, 64)
    return job


def ticking(job: UUID) -> list[Step]:
    """A tick: it reads, plans, and in its transaction writes what it has planned."""

    async def fence(tx: Tx) -> None:
        await tx.execute(locks.sharing([shard_of(job)]))
        await shards.fence(tx, OWNER, {shard_of(job): 1})

    async def write(tx: Tx) -> int:
        row: Row = {
            "job_id": job, "spec": msgspec.json.encode(seeds.spec_of(EACH)), "occurrence_at": T,
            "due_at": T, "schedule_version": 1, "seq": 0, "catch_up_to": None,
            "shard": shard_of(job),
            "tenant_id": seeds.TENANT, "lane": "default", "priority": 5,
            "target_host": seeds.HOST, "concurrency_key": None,
        }  # fmt: skip
        planned = plan(row, 1, NOW, 100)
        assert isinstance(planned, Due)
        assert planned.rearm is not None
        entries = ranked([planned], by_time, NOW)
        written = await occurrences.materialize(
            tx, [planned.fired], entries, [planned.rearm], NOW, planned.ranges
        )
        return written.ready

    return [fence, write]


class Changing:
    """The transactions of those who change a job: the shard's lock, then all the rest."""

    def __init__(self, job: UUID) -> None:
        self._job = job

    async def lock(self, tx: Tx) -> None:
        await locks.own_shard(tx, shard_of(self._job))

    async def _read(self, tx: Tx) -> Row:
        job = await jobs.one(tx, self._job, seeds.TENANT)
        assert job is not None
        return job

    async def pause(self, tx: Tx) -> str:
        job = await self._read(tx)
        if job["state"] == "ACTIVE":
            assert await pauses.pause(tx, job, "a test", None, "me", by_time, NOW)
        return str(job["state"])

    async def resume(self, tx: Tx) -> str:
        job = await self._read(tx)
        if job["state"] == "PAUSED":
            await pauses.resume(tx, job, NOW, NOW)
        return str(job["state"])

    async def change(self, tx: Tx) -> str:
        job = await self._read(tx)
        if job["state"] == "CANCELLED":
            return "CANCELLED"
        stands = await changes.stop(tx, job, by_time, NOW)
        assert stands.at is not None
        await changes.leave_out(tx, job, EACH, stands, "me", NOW)
        await changes.keep_schedule(tx, self._job, NOW)
        first = next_after(OTHER, NOW, self._job)
        assert first is not None
        spec = msgspec.json.encode(seeds.spec_of(OTHER)).decode()
        definition = Definition(
            "interval", first, "a job", "default", 5, 60, seeds.HOST, "{}", spec, None, None
        )
        assert await changes.redefine(tx, job, definition)
        await changes.go_on(tx, job, OTHER, stands, Place(first, 1), NOW)
        return str(job["state"])

    async def delete(self, tx: Tx) -> bool:
        return await cancels.cancel_job(tx, await self._read(tx), "a test")

    async def trigger(self, tx: Tx) -> int:
        job = await self._read(tx)
        if job["state"] == "CANCELLED":
            return 0
        opening = Opening(
            self._job, NOW, Kind.TRIGGER, seeds.TENANT, NOW, job["payload_version"], "default", 5
        )
        return await occurrences.open_now(tx, [opening], NOW)

    def steps(self, name: str) -> list[Step]:
        return [self.lock, getattr(self, name)]


VERBS = ("pause", "resume", "change", "delete", "trigger")

LINES = """
SELECT occurrence_at AS from_at, occurrence_at AS to_at, outcome FROM occurrences WHERE kind = 0
UNION ALL SELECT from_at, to_at, outcome FROM occurrence_ranges
ORDER BY 1
"""


async def nominal_times(store: Store) -> list[datetime]:
    """All that is in the ledger of the schedule that was, each as often as it is there."""
    async with store.transaction() as tx:
        rows = await tx.rows(LINES)
    return [
        row["from_at"] + n * 10 * SECOND
        for row in rows
        for n in range((row["to_at"] - row["from_at"]) // (10 * SECOND) + 1)
    ]


async def left(store: Store) -> tuple[str, Schedule, int, list[tuple[int, datetime]]]:
    """The job's state, schedule and version of it, and its timers."""
    async with store.transaction() as tx:
        job = await tx.one("SELECT state, spec, schedule_version FROM jobs")
        timers = await tx.rows("SELECT schedule_version, occurrence_at FROM timers")
    schedule = pauses.schedule_of({**job, "id": UUID(int=0)})
    armed = [(row["schedule_version"], row["occurrence_at"]) for row in timers]
    return job["state"], schedule, job["schedule_version"], armed


async def require_sound(store: Store, played: object) -> None:
    state, schedule, version, armed = await left(store)
    assert await nominal_times(store) == [T + n * 10 * SECOND for n in range(DUE)], played
    if state == "ACTIVE":
        changed = not same_times(schedule, EACH)
        next_at = next_after(OTHER if changed else EACH, NOW, UUID(int=0))
        assert armed == [(version, next_at)], played
    else:
        assert armed == [], played


@pytest.mark.parametrize("verb", VERBS)
async def test_a_change_and_a_tick_leave_each_nominal_time_on_record_once(
    store: Store, every_order: EveryOrder, stage: Stage, verb: str
) -> None:
    stage.set_clock(NOW)

    async def prepare() -> Plan:
        job = await armed_job(store)
        return {"tick": ticking(job), verb: Changing(job).steps(verb)}

    async for played in every_order(prepare):
        assert not played.errors, played
        await require_sound(store, played)


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(VERBS, 2)))
async def test_two_changes_leave_what_one_after_the_other_would(
    store: Store, every_order: EveryOrder, stage: Stage, one: str, other: str
) -> None:
    stage.set_clock(NOW)

    async def prepare() -> Plan:
        job = await armed_job(store)
        return {name: Changing(job).steps(name) for name in (one, other)}

    async for played in every_order(prepare):
        assert not played.errors, played
        if {one, other} == {"resume", "trigger"}:
            continue  # neither has moved the timer
        await require_sound(store, played)


async def test_a_change_of_a_paused_job_and_its_resume_keep_to_the_ledger(
    store: Store, every_order: EveryOrder, stage: Stage
) -> None:
    stage.set_clock(NOW)
    stale: list[Step] = []

    async def prepare() -> Plan:
        job = await armed_job(store)
        changing = Changing(job)
        async with store.transaction() as tx:
            await changing.lock(tx)
            await changing.pause(tx)
        store.now = NOW
        stale[:] = ticking(job)
        return {name: changing.steps(name) for name in ("change", "resume")}

    async for played in every_order(prepare):
        assert not played.errors, played
        async with store.transaction() as tx:
            fence, write = stale
            await fence(tx)
            assert await write(tx) == 0, "it was read of the version before"
        state, schedule, version, armed = await left(store)
        assert state == "ACTIVE", played
        assert armed == [(version, next_after(schedule, NOW, UUID(int=0)))], played
        assert await nominal_times(store) == [T + n * 10 * SECOND for n in range(DUE)], played
