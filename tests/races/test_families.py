"""A child is created while its parent ends, or moves; two parents end at the same time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from noonday.domain.model import Once
from noonday.loops.dependents import tell
from noonday.store import Row, Store, Tx, dependencies, occurrences
from tests.races.conftest import EveryOrder
from tests.support import families, seeds
from tests.support.stepping import Plan, Stage, Step

T = datetime.now(UTC).replace(microsecond=0)
SECOND = timedelta(seconds=1)


def creating(parent: UUID, child: UUID) -> list[Step]:
    """The transaction that creates a child: it looks first, and waits only for what is open."""
    created: list[bool] = []

    async def look(tx: Tx) -> None:
        await dependencies.share_families(tx, [parent])
        stands = await dependencies.standing(tx, families.parents_of(parent))
        created.append(stands[families.parents_of(parent)[0]].open)

    async def insert(tx: Tx) -> bool:
        if created[0]:
            job = seeds.new_job(seeds.spec_of(Once(T)), T, id=child)
            await families.insert(tx, [job], [parent], T)
        return created[0]

    return [look, insert]


def announcing(parent: UUID) -> list[Step]:
    async def announce(tx: Tx) -> None:
        await families.announce(tx, parent)

    return [announce]


def completing(*runs: UUID) -> list[Step]:
    async def complete(tx: Tx) -> int:
        done = [seeds.completed(seeds.held(families.run_of(run, T))) for run in runs]
        return len(await seeds.settle(tx, *done))

    return [complete]


def telling() -> list[Step]:
    ends: list[Row] = []

    async def take(tx: Tx) -> int:
        ends.extend(await dependencies.take(tx, 1))
        return len(ends)

    async def say(tx: Tx) -> int:
        return (await tell(tx, ends)).handled if ends else 0

    return [take, say]


async def told_at_once(tx: Tx) -> int:
    """The same in one step."""
    take, say = telling()
    await take(tx)
    return int(str(await say(tx)))


async def running_parent(store: Store) -> UUID:
    store.now = T
    async with store.transaction() as tx:
        (parent,) = await seeds.ready(tx)
        assert await seeds.claim(tx)
    return parent.job_id


async def waits(store: Store) -> int:
    await families.told(store)
    async with store.transaction() as tx:
        return int(await tx.value("SELECT count(*) FROM dependents"))


async def test_no_child_is_forgotten_that_is_created_while_its_parent_ends(
    store: Store, every_order: EveryOrder, stage: Stage
) -> None:
    stage.set_clock(T)
    child = UUID(int=2**127 + 5)

    async def prepare() -> Plan:
        parent = await running_parent(store)
        return {
            "announce": announcing(parent),
            "create": creating(parent, child),
            "end": completing(parent),
        }

    created = set()
    async for played in every_order(prepare):
        assert not played.errors, played
        assert played.results["end"] == [1], played
        created.add(played.results["create"][-1])
        assert await waits(store) == 0, played
    assert created == {True, False}, "both happened"


async def test_no_child_is_forgotten_that_is_created_while_others_are_told(
    store: Store, every_order: EveryOrder, stage: Stage
) -> None:
    stage.set_clock(T)
    child = UUID(int=2**127 + 5)

    async def prepare() -> Plan:
        parent = await running_parent(store)
        await families.child_of(store, parent)
        return {
            "end": completing(parent),
            "create": creating(parent, child),
            "tell": [told_at_once],
        }

    async for played in every_order(prepare):
        assert not played.errors, played
        assert await waits(store) == 0, played


async def test_no_child_is_forgotten_that_is_created_while_its_parent_fires(
    store: Store, every_order: EveryOrder, stage: Stage
) -> None:
    stage.set_clock(T)
    child = UUID(int=2**127 + 5)

    async def prepare() -> Plan:
        store.now = T
        async with store.transaction() as tx:
            (parent,) = await seeds.armed(tx, Once(T), T)

        async def fire(tx: Tx) -> int:
            written = await occurrences.materialize(
                tx, [seeds.fired(parent, T)], [seeds.open_entry(parent, T)], [], T
            )
            return written.ready

        return {
            "announce": announcing(parent),
            "create": creating(parent, child),
            "fire": [fire],
        }

    async for played in every_order(prepare):
        assert not played.errors, played
        assert played.results["fire"] == [1], played
        async with store.transaction() as tx:
            (row,) = await seeds.claim(tx)
            parent = families.run_of(row["job_id"], T)
            assert await seeds.settle(tx, seeds.completed(seeds.held(parent)))
        assert await waits(store) == 0, played


async def test_no_child_is_forgotten_that_is_created_while_its_parent_stops_waiting(
    store: Store, every_order: EveryOrder, stage: Stage
) -> None:
    stage.set_clock(T)
    child = UUID(int=2**127 + 5)

    async def prepare() -> Plan:
        first = await running_parent(store)
        (parent,) = await families.child_of(store, first)
        async with store.transaction() as tx:
            done = seeds.completed(seeds.held(families.run_of(first, T)))
            assert await seeds.settle(tx, done)
        return {
            "announce": announcing(parent),
            "create": creating(parent, child),
            "tell": [told_at_once],
        }

    async for played in every_order(prepare):
        assert not played.errors, played
        left = await waits(store)
        assert left == int(played.results["create"][-1]), played
        async with store.transaction() as tx:
            armed = await tx.rows("SELECT job_id, awaited FROM timers")
        assert len(armed) == 1, played
        assert not left or armed[0]["awaited"], played


@pytest.mark.parametrize("together", [False, True])
async def test_of_two_parents_that_end_at_the_same_time_the_last_one_frees_the_child(
    store: Store, every_order: EveryOrder, stage: Stage, together: bool
) -> None:
    stage.set_clock(T)

    async def prepare() -> Plan:
        store.now = T
        ids: list[UUID] = []
        while len({id.int % dependencies.FAMILIES for id in ids}) < 2:
            async with store.transaction() as tx:
                ids += [run.job_id for run in await seeds.ready(tx)]
        async with store.transaction() as tx:
            assert await seeds.claim(tx)
        first, last = ids[0], ids[-1]
        await families.child_of(store, first, last)
        if together:
            return {"first": completing(first), "last": completing(last)}
        for parent in (first, last):
            async with store.transaction() as tx:
                done = seeds.completed(seeds.held(families.run_of(parent, T)))
                assert await seeds.settle(tx, done)
        return {"one": telling(), "other": telling()}

    async for played in every_order(prepare):
        assert not played.errors, played
        assert await waits(store) == 0, played
        async with store.transaction() as tx:
            assert await tx.value("SELECT count(*) FROM timers") == 1, played
