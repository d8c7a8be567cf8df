"""Runs of one job that wait for each other: ticks, settles and whoever lets the next one go, in
every order of their steps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from noonday.domain.model import Cron, Kind, Overlap, RunKey, shard_of
from noonday.loops.admitting import Admitting
from noonday.store import Store, Tx, locks, occurrences, overlaps
from noonday.store.occurrences import Opening
from noonday.store.runs import Held, held_key
from noonday.store.timers import Timer
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics
from tests.races.conftest import EveryOrder
from tests.support import seeds
from tests.support.stepping import Plan, Step

T = datetime.now(UTC)
MINUTE = timedelta(minutes=1)
STANDING = "SELECT occurrence_at, kind, hold, cancel_requested_at FROM runs ORDER BY occurrence_at"


def key_of(job: UUID) -> str:
    return f"job:{seeds.TENANT}:{job.hex}"


async def under_way(store: Store, overlap: Overlap, waiting: int = 0) -> tuple[UUID, Held]:
    """A job of which one run is under way, and perhaps a later one waits; its next is due."""
    store.now = T
    async with store.transaction() as tx:
        (job,) = await seeds.armed(tx, Cron("* * * * *", overlap=overlap), T)
    for n in range(waiting + 1):
        async with store.transaction() as tx:
            await materialized(tx, job, overlap, n)
        if n == 0:
            async with store.transaction() as tx:
                (row,) = await seeds.claim(tx)
    return job, held_key(row)


async def materialized(tx: Tx, job: UUID, overlap: Overlap, n: int) -> int:
    due_at = T + n * MINUTE
    written = await occurrences.materialize(
        tx,
        [seeds.fired(job, due_at, seq=n)],
        [seeds.open_entry(job, due_at, overlap=overlap)],
        [Timer(job, due_at + MINUTE, due_at + MINUTE, 1, n + 1, shard_of(job))],
        T,
    )
    return written.ready


def ticking(job: UUID, overlap: Overlap, n: int) -> list[Step]:
    async def fence(tx: Tx) -> None:
        await tx.execute(locks.sharing([shard_of(job)]))

    async def materialize(tx: Tx) -> int:
        return await materialized(tx, job, overlap, n)

    return [fence, materialize]


def following(job: UUID) -> list[Step]:
    """All that is decided of those that wait, in its steps."""
    key = key_of(job)

    async def make_way(tx: Tx) -> int:
        await locks.own_tenant(tx, seeds.TENANT)  # which neither a tick nor a settle asks for
        return await overlaps.supersede(tx, [key]) + await overlaps.replace(tx, [key])

    async def follow(tx: Tx) -> int:
        return await overlaps.follow(tx, [key])

    return [make_way, follow]


def settling(lease: Held) -> list[Step]:
    async def settle(tx: Tx) -> int:
        return len(await seeds.settle(tx, seeds.completed(lease)))

    return [settle]


async def told(store: Store, job: UUID) -> None:
    """What follows the commit of what makes a run wait, or ends one."""
    admitting = Admitting(store, Metrics(), Wakeups(store))
    admitting.tell([key_of(job)])
    while await admitting.tick():
        pass


async def standing(store: Store) -> list[tuple[int, str | None]]:
    """What is unfinished: the number of its minute, and its hold."""
    async with store.transaction() as tx:
        rows = await tx.rows(STANDING)
    return [(int((row["occurrence_at"] - T) / MINUTE), row["hold"]) for row in rows]


@pytest.mark.parametrize("overlap", ["queue", "replace"])
@pytest.mark.parametrize("waiting", [0, 1])
async def test_one_is_under_way_at_a_time_and_the_latest_goes_next(
    store: Store, every_order: EveryOrder, overlap: Overlap, waiting: int
) -> None:
    jobs: list[UUID] = []

    async def prepare() -> Plan:
        job, lease = await under_way(store, overlap, waiting)
        jobs.append(job)
        return {
            "ends": settling(lease),
            "ticks": ticking(job, overlap, waiting + 1),
            "follows": following(job),
        }

    async for played in every_order(prepare):
        assert not played.errors, played
        free = [n for n, hold in await standing(store) if hold is None]
        assert len(free) <= 1, played
        await told(store, jobs[-1])
        left = await standing(store)
        # The one that waited may have begun before the latest was there, which then waits.
        assert left in (
            [(waiting + 1, None)],
            [(waiting, None), (waiting + 1, "overlap")],
        ), played


async def test_two_who_let_the_next_one_go_let_one_go(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        job, lease = await under_way(store, "queue", 2)
        async with store.transaction() as tx:
            await seeds.settle(tx, seeds.completed(lease))
        return {"one": following(job), "other": following(job)}

    async for played in every_order(prepare):
        assert sorted(results[-1] for results in played.results.values()) == [0, 1], played
        assert await standing(store) == [(2, None)], played


async def test_a_trigger_beside_a_tick_is_not_lost_and_not_beside_another(
    store: Store, every_order: EveryOrder
) -> None:
    jobs: list[UUID] = []

    async def prepare() -> Plan:
        job, lease = await under_way(store, "queue")
        jobs.append(job)
        async with store.transaction() as tx:
            await seeds.settle(tx, seeds.completed(lease))
        at = T + MINUTE / 2

        async def lock(tx: Tx) -> None:
            await locks.own_shard(tx, shard_of(job))

        async def trigger(tx: Tx) -> None:
            busy = await tx.value("SELECT count(*) FROM runs WHERE job_id = $1", job)
            opening = Opening(job, at, Kind.TRIGGER, seeds.TENANT, at, 1, "default", 5)
            await occurrences.open_now(tx, [opening], at)
            if busy:
                await overlaps.queue(tx, RunKey(job, Kind.TRIGGER, at))

        return {"triggers": [lock, trigger], "ticks": ticking(job, "queue", 1)}

    async for played in every_order(prepare):
        assert not played.errors, played
        assert sorted(hold or "" for _, hold in await standing(store)) == ["", "overlap"], played
        await told(store, jobs[-1])
        assert len(await standing(store)) == 2, played
