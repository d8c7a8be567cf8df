"""A worker's lanes: slots, claims and heartbeats of long runs beside short ones."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack

import pytest

from noonday.domain import pools
from noonday.domain.errors import CommitUnknown
from noonday.domain.model import EPOCH
from noonday.loops import pool
from noonday.loops.pool import Pool
from noonday.loops.worker import Worker
from noonday.store import Store, cancels, runs, workers
from tests.support import seeds
from tests.support.counting import CountingStore
from tests.support.holds import eventually
from tests.support.invariants import broken
from tests.support.links import Link
from tests.support.scripted import Hanging, Parts, Scripted, carry_out, landed

LONG_RUNS = 10_000
ONE = "job_id = $1 AND occurrence_at = $2 AND kind = $3"
LOCK_ONE = f"SELECT FROM runs WHERE {ONE} FOR UPDATE"
TAKE_AWAY = f"""
UPDATE runs SET state = 'READY', worker_id = NULL, leased_at = NULL, locked_until = NULL,
                lease_version = lease_version + 1 WHERE {ONE}
"""


async def ready(store: Store, **how: object) -> None:
    async with store.transaction() as tx:
        await seeds.ready(tx, **how)  # type: ignore[arg-type]


async def running(store: Store) -> dict[str, int]:
    async with store.transaction() as tx:
        rows = await tx.rows(
            "SELECT lane, count(*) AS count FROM runs WHERE state = 'RUNNING' GROUP BY lane"
        )
    return {row["lane"]: row["count"] for row in rows}


def backdate(worker: Worker, least_sec: float, most_sec: float | None = None) -> None:
    """As if the leases had been asked for so much earlier, each by its own time."""
    for each in worker._flights.values():
        each.extended -= random.uniform(least_sec, most_sec or least_sec)


# --- slots ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("full", "other"), [("long", "default"), ("default", "long")])
async def test_a_full_lane_takes_no_slot_of_the_other(
    store: Store, parts: Parts, full: str, other: str
) -> None:
    await ready(store, count=5, lane=full)
    executor = Hanging()
    worker = parts.worker(executor, slots=2, long_slots=2)
    assert await worker.tick() == 2
    await ready(store, count=1, lane=other)
    assert await worker.tick(full) == 0
    assert await eventually(lambda: worker.tick(other)) == 1
    assert await running(store) == {full: 2, other: 1}
    assert {lane: each.free for lane, each in worker.pools.items()} == {full: 0, other: 1}
    executor.free.set()
    await landed(worker)
    assert await worker.settling.tick() == 3
    assert not await broken(store)


async def test_a_lane_without_slots_is_left_to_other_workers(store: Store, parts: Parts) -> None:
    await ready(store, lane="long")
    assert await carry_out(parts.worker(Scripted(), slots=4, long_slots=0)) == 0
    await ready(store, lane="default")
    assert await carry_out(parts.worker(Scripted(), slots=0, long_slots=4)) == 1
    async with store.transaction() as tx:
        assert await tx.value("SELECT lane FROM runs") == "default"


async def test_a_free_slot_wakes_the_claims_of_its_own_lane(store: Store, parts: Parts) -> None:
    await ready(store, count=2, lane="long")
    await ready(store, count=1)
    executor = Hanging()
    worker = parts.worker(executor, slots=1, long_slots=1)
    woken: list[str] = []
    worker.wake_claim = woken.append
    assert await worker.tick() == 2
    executor.free.set()
    await landed(worker)
    assert woken == ["long"], "in the other nothing more waits"


async def test_an_unknown_claim_of_one_lane_holds_up_no_other_and_hands_back_its_own_alone(
    store: Store, parts: Parts, linked: Store, link: Link
) -> None:
    await ready(store, count=2, lane="long")
    executor = Hanging()
    worker = parts.worker(executor, store=linked, slots=4, long_slots=4)
    link.fault = "after commit"
    with pytest.raises(CommitUnknown):
        await worker.tick("long")
    await ready(store, count=2)
    assert await worker.tick("default") == 2
    assert await running(store) == {"long": 2, "default": 2}
    await eventually(lambda: worker.tick("long"))
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT lane, lease_version, attempt FROM runs ORDER BY lane")
    assert [tuple(row.values()) for row in rows] == [("default", 1, 1)] * 2 + [("long", 2, 1)] * 2
    executor.free.set()
    await landed(worker)


async def test_a_worker_that_leaves_in_doubt_about_two_lanes_hands_back_both(
    store: Store, parts: Parts, linked: Store, link: Link
) -> None:
    worker = parts.worker(Scripted(), store=linked, slots=4, long_slots=4)
    for lane in worker.pools:
        await ready(store, lane=lane)
        link.fault = "after commit"
        with pytest.raises(CommitUnknown):
            await worker.tick(lane)
    assert await running(store) == {"default": 1, "long": 1}
    await worker.stop(0)
    await worker.leave()
    assert await running(store) == {}


async def test_a_sweep_looks_below_the_floors_of_every_lane(store: Store, parts: Parts) -> None:
    worker = parts.worker(Scripted(), slots=4, long_slots=4)
    await worker.tick()  # raises the floors
    for lane in worker.pools:
        await ready(store, lane=lane)
    async with store.transaction() as tx:
        await tx.execute("UPDATE runs SET rank = rank - interval '1 hour'")
    await worker.sweep()
    await eventually(lambda: _take(worker))
    await landed(worker)
    assert await worker.settling.tick() == 2


async def _take(worker: Worker) -> bool:
    await worker.tick()
    return len(worker._flights) == 2


async def test_a_worker_reports_the_slots_of_all_lanes_and_what_was_granted_in_each(
    store: Store, parts: Parts
) -> None:
    await ready(store, lane="long", priority=3)
    await ready(store)
    executor = Hanging()
    worker = parts.worker(executor, slots=3, long_slots=4)
    await worker.tick()
    await worker.beats.tick()
    async with store.transaction() as tx:
        (row,) = await workers.every(tx)
        assert (await workers.granted(tx)).keys() == {"default:5", "long:3"}
    assert (row["slots"], row["in_flight"]) == (7, 2)
    text = worker._metrics.render().decode()
    assert 'noonday_worker_slots{pool="long"} 4.0' in text
    assert 'noonday_worker_busy_slots{pool="default"} 1.0' in text
    await worker.stop(0)


def test_a_claim_that_was_put_off_is_made_up_for() -> None:
    each = Pool(pools.Pool(("long",), 64))
    (lane,) = each.serving
    assert each.sleep_for() is None
    assert each.may_claim()
    each.claiming(lane)
    lane.claimed(EPOCH, more=False)
    assert not each.may_claim(), "woken for the runs of another lane"
    assert pool.PACE_SEC <= (each.sleep_for() or 0) <= pool.IDLE_PACE_SEC["long"]
    lane.claimed(EPOCH, more=True)
    assert each.may_claim(), "more are known to wait"


# --- heartbeats -------------------------------------------------------------------------------


async def long_runs(store: Store, parts: Parts, beats: Store, count: int) -> Worker:
    """A worker in which so many runs of the lane ``long`` are under way."""
    await ready(store, count=count, lane="long")
    worker = parts.worker(Hanging(), beats=beats, slots=0, long_slots=count)
    await eventually(lambda: _fill(worker), 60)
    return worker


async def _fill(worker: Worker) -> bool:
    return await worker.tick() == 0 and worker.pools["long"].free == 0


async def test_ten_thousand_long_runs_cost_one_heartbeat_statement(
    store: Store, parts: Parts, beats: Store
) -> None:
    counting = CountingStore(beats)
    worker = await long_runs(store, parts, counting, LONG_RUNS)
    await worker.beats.tick()
    assert runs.HEARTBEAT not in counting.statements, "not yet"
    backdate(worker, 20.5, 30)
    counting.statements.clear()
    await worker.beats.tick()
    beside = (workers.REPORT, cancels.ASKED)
    assert [each for each in counting.statements if each not in beside] == [runs.HEARTBEAT]
    async with store.transaction() as tx:
        assert await tx.value(
            "SELECT bool_and(locked_until > leased_at + interval '60 s') FROM runs"
        )
    counting.statements.clear()
    await worker.beats.tick()
    assert runs.HEARTBEAT not in counting.statements, "nor again"
    await worker.stop(0)


async def test_leases_of_an_hour_wait_for_each_other_and_short_ones_for_nobody(
    store: Store, parts: Parts, beats: Store
) -> None:
    counting = CountingStore(beats)
    await ready(store, lease_sec=3_600, lane="long")
    await ready(store, lease_sec=5)
    worker = parts.worker(Hanging(), beats=counting, long_slots=4)
    await worker.tick()
    hour, short = sorted(worker._flights.values(), key=lambda each: -each.lease_sec)
    hour.extended -= 1_250
    await worker.beats.tick()
    assert runs.HEARTBEAT not in counting.statements, "a third has passed, and it can wait"
    short.extended -= 2
    await worker.beats.tick()
    assert counting.statements.count(runs.HEARTBEAT) == 1
    assert not hour.wants_heartbeat(), "went along"
    hour.extended -= 1_510
    await worker.beats.tick()
    assert counting.statements.count(runs.HEARTBEAT) == 2
    await worker.stop(0)


async def test_after_a_heartbeat_that_failed_fewer_go_in_one_statement_the_most_urgent_first(
    store: Store, parts: Parts, linked: Store, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noonday.loops.beats.HEARTBEATS", 8)
    monkeypatch.setattr("noonday.loops.beats.FEWEST_HEARTBEATS", 2)
    counting = CountingStore(linked)
    worker = await long_runs(store, parts, counting, 8)
    backdate(worker, 25, 30)
    link.fault = "down"
    await worker.beats.tick()
    link.fault = "none"
    counting.statements.clear()
    await worker.beats.tick()
    assert counting.statements.count(runs.HEARTBEAT) == 2
    backdate(worker, 25, 30)
    counting.statements.clear()
    await worker.beats.tick()
    assert counting.statements.count(runs.HEARTBEAT) == 1
    await worker.stop(0)


async def test_a_worker_whose_heartbeats_fail_claims_nothing_until_they_succeed(
    store: Store, parts: Parts, linked: Store, link: Link
) -> None:
    await ready(store)
    worker = parts.worker(Scripted(), beats=linked)
    link.fault = "down"
    await worker.beats.tick()
    assert await worker.tick() == 0
    link.fault = "none"
    await worker.beats.tick()
    assert await worker.tick() == 1
    await landed(worker)


async def test_leases_are_extended_while_all_connections_of_the_pool_are_taken(
    store: Store, parts: Parts, linked: Store, beats: Store
) -> None:
    """PGD-06."""
    await ready(store, count=20)
    worker = parts.worker(Hanging(), store=linked, beats=beats)
    assert await worker.tick() == 20
    backdate(worker, 25)
    async with AsyncExitStack() as taken:
        for _ in range(4):
            await taken.enter_async_context(linked.transaction())
        await worker.beats.tick()
    assert not any(each.wants_heartbeat() or each.lost for each in worker._flights.values())
    await worker.stop(0)


@pytest.mark.parametrize("held_up", [1, 7, 19, 20])
async def test_rows_that_somebody_has_locked_hold_up_no_other_lease(
    store: Store, parts: Parts, beats: Store, held_up: int
) -> None:
    await ready(store, count=20)
    worker = parts.worker(Hanging(), beats=beats)
    assert await worker.tick() == 20
    backdate(worker, 25)
    flights = list(worker._flights.values())
    random.shuffle(flights)
    locked = flights[:held_up]
    async with store.transaction() as tx:
        for each in locked:
            assert await tx.execute(LOCK_ONE, *each.held[:3]) == 1
        await worker.beats.tick()
        assert {each.held for each in flights if each.wants_heartbeat()} == {
            each.held for each in locked
        }
        assert not any(each.lost for each in flights), "nobody else has them"
    await worker.beats.tick()
    assert not any(each.wants_heartbeat() or each.lost for each in flights), "caught up"
    await worker.stop(0)


async def test_a_lease_that_somebody_is_taking_away_is_given_up_when_that_is_committed(
    store: Store, parts: Parts, beats: Store
) -> None:
    await ready(store, count=2)
    worker = parts.worker(Hanging(), beats=beats)
    await worker.tick()
    backdate(worker, 25)
    taken, kept = worker._flights.values()
    async with store.transaction() as tx:
        assert await tx.execute(TAKE_AWAY, *taken.held[:3]) == 1
        await worker.beats.tick()
        assert not taken.lost, "it may yet be rolled back"
    await worker.beats.tick()
    assert taken.lost
    assert not kept.lost
    await worker.stop(0)
