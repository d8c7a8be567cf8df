"""Lanes with caps, pauses and changes, against claims: a cap is one at any instant."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest

from noonday.domain.ranking import Floors
from noonday.store import Store, Tx, lanes, runs
from noonday.store.lanes import Refused
from noonday.store.runs import Held, held_key
from tests.races.conftest import EveryOrder
from tests.support import seeds
from tests.support.database import open_store
from tests.support.stepping import Plan, Stage, Step

CLAIMERS = 16


async def change(store: Store, name: str, **settings: object) -> None:
    async with store.transaction() as tx:
        await lanes.own(tx, name)
        await set_lane(tx, name, **settings)


async def set_lane(tx: Tx, name: str, **settings: object) -> None:
    before = await lanes.one(tx, name)
    assert before is not None
    await lanes.change(tx, before, before._replace(**settings))  # type: ignore[arg-type]


async def take(tx: Tx, name: str, wanted: int = 10, worker: UUID = seeds.WORKER) -> list[Held]:
    """Claim as a worker does; nothing when the lane lets nothing be claimed."""
    entry = await lanes.enter(tx, name, wanted)
    if isinstance(entry, Refused) or not entry.room:
        return []
    claimed = await runs.claim(tx, name, seeds.ranges(), entry.room, worker)
    await lanes.note_claimed(tx, name, entry, claimed.taken)
    return [held_key(row) for row in claimed.rows]


async def claim(store: Store, name: str, wanted: int = 10) -> int:
    async with store.transaction() as tx:
        return len(await take(tx, name, wanted))


async def seed(store: Store, count: int, lane: str = "batch", **how: int) -> None:
    async with store.transaction() as tx:
        await seeds.ready(tx, count=count, lane=lane, **how)  # type: ignore[arg-type]


async def running(store: Store, lane: str = "batch") -> int:
    async with store.transaction() as tx:
        count: int = await tx.value(
            "SELECT count(*) FROM runs WHERE lane = $1 AND state = 'RUNNING'", lane
        )
    return count


# --- caps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [1, 5])
async def test_sixteen_that_claim_a_capped_lane_never_run_more_than_its_cap(
    store: Store, database_url: str, cap: int
) -> None:
    for priority in (2, 5, 8):
        await seed(store, 40, priority=priority)
    await change(store, "batch", max_running=cap)
    wide = await open_store(database_url, size=CLAIMERS + 2)
    left, most = 120, 0

    async def work() -> None:
        nonlocal left, most
        me = uuid4()
        while left:
            async with wide.transaction() as tx:
                taken = await take(tx, "batch", 3, me)
            if taken:
                most = max(most, await running(wide))
                async with wide.transaction() as tx:
                    done = await seeds.settle(tx, *map(seeds.completed, taken))
                left -= len(done)

    async def watch() -> None:
        nonlocal most
        while left:
            most = max(most, await running(wide))

    await asyncio.wait_for(asyncio.gather(watch(), *(work() for _ in range(CLAIMERS))), 60)
    await wide.close()
    assert most <= cap
    async with store.transaction() as tx:
        assert await tx.value("SELECT count(*) FROM executions") == 120


async def test_a_cap_below_what_runs_lets_that_finish_and_admits_none(store: Store) -> None:
    await seed(store, 10)
    async with store.transaction() as tx:
        taken = await take(tx, "batch", 4)
    await change(store, "batch", max_running=2)
    assert await claim(store, "batch") == 0
    for held, admitted in zip(taken, (0, 0, 1, 1), strict=True):
        async with store.transaction() as tx:
            assert await seeds.settle(tx, seeds.completed(held))
        assert await claim(store, "batch") == admitted
    assert await running(store) == 2
    await change(store, "batch", max_running=5)
    assert await claim(store, "batch") == 3
    await change(store, "batch", max_running=0)
    assert await claim(store, "batch") == 0
    await change(store, "batch", max_running=None)
    assert await claim(store, "batch") == 1


async def test_what_ran_before_a_lane_had_a_cap_counts(store: Store) -> None:
    await seed(store, 3)
    await seed(store, 3, priority=1)
    assert await claim(store, "batch", 4) == 4
    await change(store, "batch", max_running=5)
    assert await claim(store, "batch") == 1
    assert await running(store) == 5


async def test_slots_in_use_are_counted_in_the_front_and_in_the_queue(store: Store) -> None:
    await seed(store, 4)
    async with store.transaction() as tx:
        await tx.execute("UPDATE runs SET rank = rank + interval '1000 years' WHERE job_id IN "
                         "(SELECT job_id FROM runs ORDER BY job_id LIMIT 2)")  # fmt: skip
    assert await claim(store, "batch", 3) == 3
    await change(store, "batch", max_running=3)
    assert await claim(store, "batch") == 0
    await change(store, "batch", max_running=None)
    await change(store, "batch", max_running=4)
    assert await claim(store, "batch") == 1
    await seed(store, 1)
    assert await claim(store, "batch") == 0


async def test_a_run_that_comes_back_below_all_others_is_counted_as_well(store: Store) -> None:
    await change(store, "batch", max_running=2)
    await seed(store, 1)
    assert await claim(store, "batch") == 1
    await seed(store, 2)
    async with store.transaction() as tx:
        await tx.execute(
            "UPDATE runs SET rank = rank - interval '1 hour' WHERE state = 'READY' AND job_id = "
            "(SELECT max(job_id::text)::uuid FROM runs)"
        )
    assert await claim(store, "batch") == 1
    assert await claim(store, "batch") == 0
    assert await running(store) == 2


async def test_slots_of_a_cap_outlive_nobody_who_held_them(store: Store) -> None:
    await change(store, "batch", max_running=1)
    await seed(store, 2)
    assert await claim(store, "batch") == 1
    async with store.transaction() as tx:
        await tx.execute("UPDATE runs SET locked_until = now() - interval '1 s' WHERE "
                         "state = 'RUNNING'")  # fmt: skip
    assert await claim(store, "batch") == 0, "its lease is over, and nobody has settled it"
    async with store.transaction() as tx:
        span = next(span for span in Floors().each() if span.priority == 5)
        (row,) = await runs.expired(tx, "batch", span, await tx.clock(), 10)
        await seeds.settle(tx, seeds.retried(held_key(row)))
    assert await claim(store, "batch") == 1


async def test_a_count_looks_only_where_something_runs(store: Store) -> None:
    await change(store, "batch", max_running=1_000)
    await seed(store, 50)
    assert await claim(store, "batch", 1) == 1
    async with store.transaction() as tx:
        (span,) = await tx.rows("SELECT * FROM lane_spans")
        (run,) = await tx.rows("SELECT rank FROM runs WHERE state = 'RUNNING'")
        assert span["low"] == run["rank"]
        assert span["high"] - run["rank"] == lanes.SPARE


# --- changes against claims -------------------------------------------------------------------


def owning(name: str) -> Step:
    async def step(tx: Tx) -> None:
        await lanes.own(tx, name)

    return step


def capping(name: str, cap: int | None) -> Step:
    async def step(tx: Tx) -> None:
        await set_lane(tx, name, max_running=cap)

    return step


def pausing(name: str) -> Step:
    async def step(tx: Tx) -> bool:
        return await lanes.pause(tx, name, "key", "why")

    return step


def claiming(name: str, wanted: int, worker: UUID = seeds.WORKER) -> Sequence[Step]:
    """A claim in two steps: it enters the lane, and claims by what it has read then."""
    entered: list[object] = []

    async def enter(tx: Tx) -> None:
        entered[:] = [await lanes.enter(tx, name, wanted)]

    async def claim(tx: Tx) -> int:
        (entry,) = entered
        if not isinstance(entry, lanes.Entry) or not entry.room:
            return 0
        claimed = await runs.claim(tx, name, seeds.ranges(), entry.room, worker)
        await lanes.note_claimed(tx, name, entry, claimed.taken)
        return len(claimed.rows)

    return [enter, claim]


def claiming_known(name: str, version: int, wanted: int) -> Sequence[Step]:
    """A claim of a lane of which a version is known: it takes the lock, and claims if it is still
    so."""

    async def open_for(tx: Tx) -> None:
        await tx.execute(lanes.entering(name))

    async def claim(tx: Tx) -> int | None:
        ranges, worker = seeds.ranges(), seeds.WORKER
        claimed = await runs.claim_known(tx, name, version, ranges, wanted, worker)
        return None if claimed is None else len(claimed.rows)

    return [open_for, claim]


async def version_of(store: Store, name: str) -> int:
    async with store.transaction() as tx:
        lane = await lanes.one(tx, name)
    assert lane is not None
    return lane.version


async def test_a_lane_that_is_known_is_claimed_before_a_change_or_not_at_all(
    store: Store, every_order: EveryOrder
) -> None:
    """Whatever changes: a cap, a pause, or nothing that keeps anything from being claimed."""
    for step in (capping("batch", 2), pausing("batch"), capping("batch", None)):
        taken = set()

        async def prepare(step: Step = step) -> Plan:
            await change(store, "batch", max_running=None)
            async with store.transaction() as tx:
                await lanes.resume(tx, "batch")
                await tx.execute("DELETE FROM runs")
            await seed(store, 3)
            known = await version_of(store, "batch")
            return {"a": [*claiming_known("batch", known, 3)], "b": [owning("batch"), step]}

        async for played in every_order(prepare):
            # The claim's own transaction ends last when the change waits for its lock.
            claimed = played.results["a"][-1]
            taken.add(claimed)
            assert claimed in (3, None), played
            assert await running(store) == (claimed or 0), played
            first = played.order.split().index("b") < played.order.split().index("a")
            if first:
                assert claimed is None, played
        assert taken == {3, None}


async def test_a_lane_that_is_known_is_claimed_as_often_as_it_stays_so(store: Store) -> None:
    await seed(store, 3)
    known = await version_of(store, "batch")
    for _ in range(2):
        async with store.transaction(lanes.entering("batch")) as tx:
            claimed = await runs.claim_known(tx, "batch", known, seeds.ranges(), 1, seeds.WORKER)
            assert claimed is not None
            assert len(claimed.rows) == 1
    async with store.transaction() as tx:  # on the same connection, and not opened for it
        assert await runs.claim_known(tx, "batch", known, seeds.ranges(), 1, seeds.WORKER) is None


async def test_in_whatever_order_a_cap_is_set_and_claims_go_it_is_never_exceeded(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        await change(store, "batch", max_running=None)
        await seed(store, 6)
        return {
            "a": [*claiming("batch", 3)],
            "b": [owning("batch"), capping("batch", 2)],
        }

    async for played in every_order(prepare):
        before = await running(store)
        assert await claim(store, "batch") == max(0, 2 - before), played


async def test_after_a_pause_is_committed_no_claim_of_before_is(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        async with store.transaction() as tx:
            await lanes.resume(tx, "batch")
        await seed(store, 2)
        return {"a": [*claiming("batch", 1)], "b": [owning("batch"), pausing("batch")]}

    async for played in every_order(prepare):
        now = await running(store)
        assert await claim(store, "batch") == 0, played
        assert await running(store) == now, played


async def test_two_claims_of_a_capped_lane_do_not_wait_for_each_other(
    store: Store, stage: Stage
) -> None:
    await change(store, "batch", max_running=3)
    await seed(store, 6)
    played = await stage.play(
        {"a": [*claiming("batch", 2)], "b": [*claiming("batch", 2, seeds.OTHER_WORKER)]},
        ["a", "b", "a", "b", "a", "b"],
    )
    assert not played.waited
    assert await running(store) == 2, "the second tries again"
    assert await claim(store, "batch") == 1
