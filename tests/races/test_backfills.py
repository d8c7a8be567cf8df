"""Steps of a backfill against each other, against ticks, and against whoever ends it or its job."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from noonday.domain.model import Interval, Overlap
from noonday.store import Row, Store, Tx, backfills, cancels, jobs, locks, operations
from tests.races.conftest import EveryOrder
from tests.races.test_ticks import OLD, SECOND, SHARD, T, at, ticking
from tests.support import seeds
from tests.support.backfills import ask, loop_over, shown
from tests.support.stepping import Plan, Step

MINUTE = timedelta(minutes=1)


async def backfilled(store: Store, overlap: Overlap = "allow") -> tuple[UUID, UUID]:
    """A job whose timer stands at T, and a backfill from a minute before that on."""
    store.now = T
    async with store.transaction() as tx:
        await tx.execute("DELETE FROM operations")
        await tx.execute("UPDATE shards SET epoch = 0, owner_id = NULL, leased_until = NULL")
        await seeds.own_all_shards(tx, OLD)
        wanted = Interval(60, T - 60 * MINUTE, overlap=overlap)
        (job,) = await seeds.armed(tx, wanted, T, shard=SHARD)
        await tx.execute("UPDATE jobs SET created_at = $1", T - 60 * MINUTE)
    return job, await ask(store, job, T - MINUTE, T)


def filling(store: Store, operation: UUID) -> list[Step]:
    """A step of the loop: it takes the operation, and opens what comes next."""
    loop, taken = loop_over(store), list[Row | None]()

    async def take(tx: Tx) -> bool:
        taken.append(await backfills.take(tx, operation))
        return taken[0] is not None

    async def go_on(tx: Tx) -> int:
        if taken[0] is None:
            return 0
        step = await loop._go_on(tx, taken[0])
        if step.state != "RUNNING":
            await operations.end(tx, operation, step.state, step.error)
        return step.opened

    return [at(T, take), at(T, go_on)]


async def made(store: Store) -> list[tuple[int, int, str | None]]:
    """What is in the ledger: kind, minutes from T on, and outcome."""
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT * FROM occurrences ORDER BY occurrence_at, kind")
    return [(row["kind"], (row["occurrence_at"] - T) // MINUTE, row["outcome"]) for row in rows]


async def test_two_steps_at_a_time_are_one(store: Store, every_order: EveryOrder) -> None:
    operation = UUID(int=0)

    async def prepare() -> Plan:
        nonlocal operation
        _, operation = await backfilled(store)
        return {"one": filling(store, operation), "other": filling(store, operation)}

    async for played in every_order(prepare):
        assert not played.errors, played
        assert sum(results[1] for results in played.results.values()) == 1, played
        assert await made(store) == [(2, -1, None)], played
        row = await shown(store, operation)
        assert (row["looked_at"], row["done"]) == (2, 1), played


async def test_what_a_tick_fires_at_the_same_time_is_not_opened_as_well(
    store: Store, every_order: EveryOrder
) -> None:
    seen = set()

    async def prepare() -> Plan:
        job, operation = await backfilled(store, "skip")
        tick = ticking(OLD, 1, job, T + SECOND)
        return {"step": filling(store, operation), "tick": tick}

    async for played in every_order(prepare):
        assert not played.errors, played
        seen.add(tuple(await made(store)))
    assert seen == {((2, -1, None), (0, 0, "SKIPPED")), ((0, 0, None),)}, "whoever comes first"


async def test_a_job_that_is_cancelled_at_the_same_time_has_nothing_left(
    store: Store, every_order: EveryOrder
) -> None:
    operation = UUID(int=0)

    async def prepare() -> Plan:
        nonlocal operation
        job, operation = await backfilled(store)

        async def own(tx: Tx) -> None:
            await locks.own_shard(tx, SHARD)

        async def cancel(tx: Tx) -> bool:
            row = await jobs.one(tx, job, seeds.TENANT)
            assert row is not None
            return await cancels.cancel_job(tx, row, "a test")

        return {"step": filling(store, operation), "cancel": [own, at(T, cancel)]}

    async for played in every_order(prepare):
        assert not played.errors, played
        opened = played.results["step"][1]
        row = await shown(store, operation)
        assert (row["state"], row["done"]) == ("DONE" if opened else "FAILED", opened), played
        async with store.transaction() as tx:
            assert await tx.value("SELECT count(*) FROM runs") == 0, played


async def test_a_step_comes_before_an_abort_or_not_at_all(
    store: Store, every_order: EveryOrder
) -> None:
    operation = UUID(int=0)

    async def prepare() -> Plan:
        nonlocal operation
        _, operation = await backfilled(store)

        async def abort(tx: Tx) -> bool:
            return await operations.end(tx, operation, "ABORTED")

        return {"step": filling(store, operation), "abort": [abort]}

    async for played in every_order(prepare):
        assert not played.errors, played
        opened, aborted = played.results["step"][1], played.results["abort"][0]
        row = await shown(store, operation)
        assert row["done"] == opened == len([line for line in await made(store) if line[0] == 2])
        assert row["state"] == ("ABORTED" if aborted else "DONE"), played
        assert aborted != bool(opened), played
