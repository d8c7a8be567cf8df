"""Whole families, carried out by loops that are ticked by hand: chains, fans, diamonds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from noonday.domain.model import Outcome, OutcomeKind
from noonday.loops.dependents import CHILDREN, Dependents
from noonday.loops.scheduler import Scheduler
from noonday.loops.worker import Worker
from noonday.store import Store, Tx, jobs, retention
from tests.support import families, seeds
from tests.support.invariants import broken
from tests.support.scripted import Parts, Scripted, carry_out, counted

REFUSED = Outcome(OutcomeKind.PERMANENT, http_status=400, error="no")


class Family:
    """One of each loop over one database."""

    def __init__(self, store: Store, parts: Parts, *outcomes: Outcome, slots: int = 500) -> None:
        self.store = store
        self.executor = Scripted(*outcomes)
        self.worker: Worker = parts.worker(self.executor, slots=slots)
        self.scheduler: Scheduler = parts.scheduler()
        self.dependents: Dependents = parts.dependents()

    async def carry_out(self) -> None:
        """Until nothing moves any more."""
        await self.scheduler.keep_shards()
        moved = 1
        while moved:
            moved = await self.dependents.tick()
            await self.scheduler.keep_shards()
            moved += await self.scheduler.tick()
            moved += await carry_out(self.worker)

    @property
    def started(self) -> list[UUID]:
        """The jobs whose runs were begun, in order."""
        return [attempt.run.job_id for attempt in self.executor.attempts]

    async def outcomes(self) -> dict[str, int]:
        async with self.store.transaction() as tx:
            rows = await tx.rows("SELECT outcome, count(*) FROM occurrences GROUP BY outcome")
            return {row["outcome"]: row["count"] for row in rows}


async def first(store: Store) -> UUID:
    async with store.transaction() as tx:
        return (await seeds.ready(tx))[0].job_id


async def chain(store: Store, length: int) -> list[UUID]:
    """Each waits for the one before."""
    links = [await first(store)]
    while len(links) < length:
        links += await families.child_of(store, links[-1])
    return links


async def nothing_waits(store: Store) -> None:
    async with store.transaction() as tx:
        for table in ("dependents", "dependencies", "endings", "timers", "runs"):
            assert await tx.value(f"SELECT count(*) FROM {table}") == 0, table
    assert not await broken(store)


async def test_a_chain_of_a_thousand_runs_in_its_order(store: Store, parts: Parts) -> None:
    links = await chain(store, 1_000)
    family = Family(store, parts)
    await family.carry_out()
    assert family.started == links
    await nothing_waits(store)


async def test_a_chain_whose_first_link_fails_is_skipped_to_its_end(
    store: Store, parts: Parts
) -> None:
    links = await chain(store, 100)
    family = Family(store, parts, REFUSED)
    await family.carry_out()
    assert family.started == links[:1]
    assert await family.outcomes() == {"FAILED": 1, "SKIPPED": 99}
    assert counted(family.dependents, "dependents") == 99
    assert (await families.fate_of(store, links[1]))[1] == "parent_failed"
    assert (await families.fate_of(store, links[2]))[1] == "parent_skipped"
    await nothing_waits(store)


async def test_a_fan_of_ten_thousand_is_told_in_bounded_batches(store: Store, parts: Parts) -> None:
    parent = await first(store)
    for _ in range(10):
        await families.child_of(store, parent, count=1_000)
    family = Family(store, parts)
    await family.scheduler.keep_shards()
    assert await carry_out(family.worker) == 1
    async with store.transaction() as tx:
        assert await tx.value("SELECT count(*) FROM dependents") == 10_000, "one note is all"
    assert await family.dependents.tick() == CHILDREN
    await family.carry_out()
    assert len(family.started) == len(set(family.started)) == 10_001
    await nothing_waits(store)


async def diamond(store: Store) -> list[UUID]:
    top = await first(store)
    sides = await families.child_of(store, top, count=2)
    return [top, *sides, *await families.child_of(store, *sides)]


async def test_the_end_of_a_diamond_waits_for_both_sides(store: Store, parts: Parts) -> None:
    top, left, right, bottom = await diamond(store)
    family = Family(store, parts, slots=1)
    await family.carry_out()
    assert family.started[0] == top
    assert set(family.started[1:3]) == {left, right}
    assert family.started[3:] == [bottom]
    await nothing_waits(store)


async def test_the_end_of_a_diamond_is_skipped_by_one_side_alone(
    store: Store, parts: Parts
) -> None:
    top, *_, bottom = await diamond(store)
    family = Family(store, parts, Outcome(OutcomeKind.SUCCESS), REFUSED, slots=1)
    await family.carry_out()
    assert len(family.started) == 3
    assert bottom not in family.started
    assert family.started[0] == top
    await nothing_waits(store)


async def test_who_waits_runs_when_its_own_time_has_come(store: Store, parts: Parts) -> None:
    parent = await first(store)
    async with store.transaction() as tx:
        later = await tx.clock() + timedelta(hours=1)
        await families.announce(tx, parent)
    async with store.transaction() as tx:
        (child,) = await families.add(tx, [parent], due_at=later)
    family = Family(store, parts)
    await family.carry_out()
    assert await families.fate_of(store, child) == ("armed", None, None)
    store.now = later
    await family.carry_out()
    assert family.started == [parent, child]
    await nothing_waits(store)


async def test_who_waited_is_due_when_the_others_have_ended(store: Store, parts: Parts) -> None:
    parent = await first(store)
    (child,) = await families.child_of(store, parent)
    family = Family(store, parts)
    store.now = ended_at = await _now(store) + timedelta(days=2)
    await family.carry_out()
    async with store.transaction() as tx:
        due_at = await tx.value("SELECT due_at FROM occurrences WHERE job_id = $1", child)
    assert due_at == ended_at, "its retries and its lateness count from there"


async def test_ends_that_nobody_noted_are_counted(store: Store, parts: Parts) -> None:
    parent = await first(store)
    (child,) = await families.child_of(store, parent)
    family = Family(store, parts)
    await carry_out(family.worker)
    async with store.transaction() as tx:
        await tx.execute("DELETE FROM endings")
    await family.dependents.look()
    assert counted(family.dependents, "floor_stragglers") == 1
    await family.carry_out()
    assert family.started == [parent, child]


async def test_a_parent_is_kept_while_it_is_waited_for_and_so_is_who_waits(store: Store) -> None:

    parent = await first(store)
    (child,) = await families.child_of(store, parent)
    store.now = await _now(store) + timedelta(days=500)
    bounds = (store.now, store.now, store.now)

    async def ended(tx: Tx) -> Sequence[UUID]:
        rows = await tx.rows(retention.ENDED, UUID(int=0), *bounds, 10)
        return [row["id"] for row in rows if row["ended"]]

    async with store.transaction() as tx:
        await tx.execute("DELETE FROM runs")
        await tx.execute("UPDATE occurrences SET outcome = 'COMPLETE', ended_at = now()")
        await tx.execute("UPDATE ledger_start SET starts_at = $1", store.now)
        assert await ended(tx) == []
        await tx.execute("DELETE FROM dependencies")
        await tx.execute("DELETE FROM dependents")
        assert {parent, child} == set(await ended(tx))
        assert await jobs.existing(tx, [parent, child]) == {parent, child}


async def _now(store: Store) -> datetime:
    async with store.transaction() as tx:
        return await tx.clock()
