"""Lanes that share the slots of a pool: by weight, without idle slots, each with its own doubt."""

from __future__ import annotations

import pytest

from noonday.domain.errors import CommitUnknown
from noonday.domain.pools import Pool
from noonday.loops import pool as pools
from noonday.loops.worker import Worker
from noonday.store import Store, lanes
from tests.loops.test_lanes import ready, running
from tests.races.test_lanes import change
from tests.support.holds import eventually
from tests.support.invariants import broken
from tests.support.links import Link
from tests.support.scripted import Hanging, Parts, Scripted, landed

SHARED = [Pool(("default", "batch"), 10)]
EVERYTHING = [Pool(("long",), 2), Pool(("default", "*"), 10)]


async def fill(worker: Worker, *names: str) -> None:
    """Claim until nothing more can be, or no slot is free."""

    async def full() -> bool:
        claimed = await worker.tick(*names)
        pool = worker.pools[names[0]] if names else next(iter(worker.pools.values()))
        return pool.free == 0 or (claimed == 0 and pool.sleep_for() is None)

    await eventually(full)


async def weigh(store: Store, **weights: float) -> None:
    for name, weight in weights.items():
        await change(store, name, weight=weight)


# --- shares -----------------------------------------------------------------------------------


async def test_two_lanes_full_of_work_have_slots_by_their_weights(
    store: Store, parts: Parts
) -> None:
    await weigh(store, default=4, batch=1)
    for lane in ("batch", "default"):
        await ready(store, count=20, lane=lane)
    executor = Hanging()
    worker = parts.worker(executor, plan=SHARED)
    await fill(worker)
    assert await running(store) == {"default": 8, "batch": 2}
    executor.free.set()
    await landed(worker)
    await worker.settling.tick()
    executor.free.clear()
    await fill(worker)
    assert await running(store) == {"default": 8, "batch": 2}
    executor.free.set()
    await landed(worker)
    assert not await broken(store)


async def test_idle_slots_of_a_pool_serve_any_of_its_lanes(store: Store, parts: Parts) -> None:
    await ready(store, count=20, lane="batch")
    executor = Hanging()
    worker = parts.worker(executor, plan=SHARED)
    await fill(worker)
    assert await running(store) == {"batch": 10}
    await ready(store, count=3)
    await fill(worker)
    assert await running(store) == {"batch": 10}, "nobody is turned out"
    executor.free.set()
    await landed(worker)
    await worker.settling.tick()
    executor.free.clear()
    await fill(worker)
    assert await running(store) == {"batch": 7, "default": 3}
    executor.free.set()
    await landed(worker)


async def test_a_weight_that_is_changed_holds_from_then_on(store: Store, parts: Parts) -> None:
    for lane in ("batch", "default"):
        await ready(store, count=20, lane=lane)
    await weigh(store, default=1, batch=1)
    executor = Hanging()
    worker = parts.worker(executor, plan=SHARED)
    await fill(worker)
    assert await running(store) == {"batch": 5, "default": 5}
    await weigh(store, batch=9)
    worker._lanes.forget()
    executor.free.set()
    await landed(worker)
    await worker.settling.tick()
    executor.free.clear()
    await fill(worker)
    assert await running(store) == {"batch": 9, "default": 1}
    executor.free.set()
    await landed(worker)


async def test_long_work_shares_no_slot_and_own_lanes_are_served(
    store: Store, parts: Parts
) -> None:
    async with store.transaction() as tx:
        await lanes.create(tx, "reports")
    executor = Hanging()
    worker = parts.worker(executor, plan=EVERYTHING)
    await ready(store, count=5, lane="long")
    await ready(store, count=2, lane="reports")
    await ready(store, count=2, lane="critical")
    await fill(worker, "default,*")
    await fill(worker, "long")
    assert await running(store) == {"long": 2, "reports": 2, "critical": 2}
    async with store.transaction() as tx:
        await lanes.create(tx, "later")
    await ready(store, count=1, lane="later")
    worker._lanes.forget()
    await fill(worker, "default,*")
    assert (await running(store))["later"] == 1
    executor.free.set()
    await landed(worker)


async def test_a_lane_that_nobody_made_holds_up_no_other_of_its_pool(
    store: Store, parts: Parts
) -> None:
    await ready(store)
    worker = parts.worker(Scripted(), plan=[Pool(("nowhere", "default"), 4)])
    assert await worker.tick() == 1
    await landed(worker)


# --- doubt ------------------------------------------------------------------------------------


async def test_a_lost_answer_leaves_the_other_lanes_of_the_pool_as_they_are(
    store: Store, parts: Parts, linked: Store, link: Link
) -> None:
    worker = parts.worker(Hanging(), store=linked, plan=SHARED)
    await ready(store, count=2)
    await worker.tick()
    await ready(store, count=2, lane="batch")
    pool = worker.pools["default,batch"]
    pool.lanes["batch"].more = True
    link.fault = "after commit"
    with pytest.raises(CommitUnknown):
        await worker._claim(pool, pool.lanes["batch"], 2)
    assert [lane.name for lane in pool.doubtful] == ["batch"]
    assert await running(store) == {"default": 2, "batch": 2}
    await ready(store, count=1)
    await fill(worker)
    async with store.transaction() as tx:
        rows = await tx.rows(
            "SELECT lane, lease_version FROM runs WHERE state = 'RUNNING' ORDER BY lane"
        )
    found = [tuple(row.values()) for row in rows]
    assert found == [("batch", 2)] * 2 + [("default", 1)] * 3
    await worker.stop(0)


async def test_a_worker_that_leaves_hands_back_what_it_is_in_doubt_about_in_a_shared_pool(
    store: Store, parts: Parts, linked: Store, link: Link
) -> None:
    worker = parts.worker(Scripted(), store=linked, plan=SHARED)
    pool = worker.pools["default,batch"]
    for name in ("default", "batch"):
        await ready(store, lane=name)
        link.fault = "after commit"
        with pytest.raises(CommitUnknown):
            await worker._claim(pool, pool.lanes[name], 1)
    assert await running(store) == {"default": 1, "batch": 1}
    await worker.stop(0)
    await worker.leave()
    assert await running(store) == {}


# --- caps and pauses --------------------------------------------------------------------------


async def test_a_cap_holds_over_all_workers_and_what_it_leaves_goes_to_other_lanes(
    store: Store, parts: Parts
) -> None:
    await change(store, "batch", max_running=3)
    await ready(store, count=20, lane="batch")
    await ready(store, count=20)
    executor = Hanging()
    first, second = (parts.worker(executor, plan=SHARED) for _ in range(2))
    for worker in (first, second):
        await fill(worker)
    assert await running(store) == {"batch": 3, "default": 17}
    executor.free.set()
    for worker in (first, second):
        await landed(worker)


async def test_the_end_of_a_capped_run_wakes_the_workers_of_its_lane(
    store: Store, parts: Parts
) -> None:
    await change(store, "batch", max_running=1)
    await ready(store, count=2, lane="batch")
    await ready(store)
    executor = Hanging()
    worker = parts.worker(executor, plan=SHARED)
    told: list[bool] = []
    worker.settling.made_room = lambda: told.append(True)
    await fill(worker)
    assert await running(store) == {"batch": 1, "default": 1}
    assert worker.pools["default,batch"].sleep_for() is None, "it does not ask again and again"
    executor.free.set()
    await landed(worker)
    assert await worker.settling.tick() == 2
    assert told == [True]
    await fill(worker)
    await landed(worker)
    assert await worker.settling.tick() == 1
    await ready(store)
    await fill(worker)
    await landed(worker)
    await worker.settling.tick()
    assert len(told) == 2, "not for those of other lanes"


async def test_a_paused_lane_is_left_alone_by_a_worker_that_does_not_know_yet(
    store: Store, parts: Parts
) -> None:
    worker = parts.worker(Scripted(), plan=SHARED)
    await worker.tick()
    async with store.transaction() as tx:
        await lanes.pause(tx, "batch", "key", "why")
    await ready(store, lane="batch")
    await ready(store)
    await fill(worker)
    assert await running(store) == {"default": 1}
    async with store.transaction() as tx:
        await lanes.resume(tx, "batch")
    await fill(worker)
    assert await running(store) == {"default": 1, "batch": 1}
    await landed(worker)


async def test_lanes_without_work_are_asked_together(store: Store, parts: Parts) -> None:
    worker = parts.worker(Scripted(), plan=[Pool(("*",), 4)])
    assert await worker.tick() == 0
    (pool,) = worker.pools.values()
    assert isinstance(pool, pools.Pool)
    assert {lane.name for lane in pool.serving} == {"batch", "critical", "default", "long"}
    assert not any(lane.in_doubt for lane in pool.serving), "nothing was claimed"
