"""Fairness between processes: what each learns of the others, and what it costs while idle."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from noonday.domain.fair import Ranker
from noonday.domain.lane_clock import LaneReport
from noonday.domain.ranking import Work, is_queued, tag_of
from noonday.loops.costs import Costs
from noonday.store import Store, Tx, charges, costs, workers
from tests.support import seeds
from tests.support.scripted import Hanging, Parts, Scripted, carry_out, landed

NOW = datetime.now(UTC)
SECOND = timedelta(seconds=1)
FULL = LaneReport(1, v=(9.0,), clock=9.0)
"""A worker without a free slot: virtual time stands still."""
A, B, OTHER = 1, 2, 99
HEAVY = """
INSERT INTO tenants (name, weight, signing_secrets, secrets_rotated_at, created_at)
VALUES ('heavy', 4, '{}', now(), now()) RETURNING id
"""


def work(tenant: int = A, priority: int = 5) -> Work:
    return Work(tenant, "default", priority, seeds.HOST)


async def told(store: Store) -> list[tuple[str, str]]:
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT lane, charged::text, changed_at FROM charges ORDER BY 1")
    return [(row["lane"], row["charged"]) for row in rows]


async def test_a_flood_queues_once_workers_report_that_it_waits_and_others_go_in_front(
    store: Store, parts: Parts
) -> None:
    store.now = NOW
    ranker = Ranker()
    fairness, executor = parts.fairness(ranker), Hanging()
    worker = parts.worker(executor, slots=2)
    await worker.beats.tick()
    await fairness.tick()
    async with store.transaction() as tx:
        await seeds.ready(tx, count=50, tenant=A, ranks=ranker.ranks)
    await worker.tick()
    await worker.beats.tick()
    await fairness.tick()
    flood, other = ranker.ranks([work(A), work(B)], NOW)
    assert is_queued(flood)
    assert other == NOW
    executor.free.set()
    await landed(worker)


async def test_what_processes_charge_is_told_once_and_only_when_it_has_changed(
    store: Store, parts: Parts
) -> None:
    store.now = NOW
    async with store.transaction() as tx:
        await workers.report(
            tx,
            seeds.WORKER,
            "worker",
            "w",
            slots=1,
            lanes={"default": FULL},
        )
    one, other = Ranker(), Ranker()
    first, second = parts.fairness(one), parts.fairness(other)
    await first.tick()
    await second.tick()
    assert await told(store) == []
    one.ranks([work()] * 10, NOW)
    await first.tick()
    before = await told(store)
    assert [lane for lane, _ in before] == ["default"]
    store.now = NOW + SECOND
    await first.tick()
    assert await told(store) == before
    await second.tick()
    ((mine,), (theirs,)) = (each.ranks([work()], NOW) for each in (one, other))
    assert tag_of(mine) == pytest.approx(tag_of(theirs), abs=0.01)


async def test_an_idle_worker_writes_nothing_of_its_lanes(store: Store, parts: Parts) -> None:
    worker = parts.worker(Scripted(), slots=2)
    await worker.tick()
    await worker.beats.tick()
    async with store.transaction() as tx:
        before = await tx.value("SELECT xmin::text FROM workers")
    for _ in range(5):
        await worker.tick()
        await worker.beats.tick()
    async with store.transaction() as tx:
        assert await tx.value("SELECT xmin::text FROM workers") == before


async def test_the_ageing_of_a_lane_and_the_weights_of_tenants_are_heeded(
    store: Store, parts: Parts
) -> None:
    store.now = NOW
    async with store.transaction() as tx:
        await tx.execute("UPDATE lanes SET ageing_sec = 1 WHERE name = 'default'")
        tenant = await tx.value(HEAVY)
        await workers.report(
            tx,
            seeds.WORKER,
            "worker",
            "w",
            slots=1,
            lanes={"default": FULL},
        )
    ranker = Ranker()
    await parts.fairness(ranker).tick()
    assert ranker.ageing_sec("default") == 1.0
    assert ranker.ageing_sec("long") == 6.0
    heavy, light = (ranker.ranks([work(each)] * 2, NOW)[1] for each in (tenant, OTHER))
    assert tag_of(light) - 9.0 == pytest.approx(4 * (tag_of(heavy) - 9.0))
    executor = Scripted()
    worker = parts.worker(executor, slots=1, ranker=ranker)
    async with store.transaction() as tx:
        tx.now = NOW - 10 * SECOND
        (patient,) = await seeds.ready(tx, priority=9)
    async with store.transaction() as tx:
        await seeds.ready(tx, priority=0)
    await carry_out(worker)
    assert executor.attempts[0].run == patient


async def test_what_is_told_by_processes_that_are_gone_is_forgotten(store: Store) -> None:
    store.now = NOW
    alive, gone = uuid4(), uuid4()
    async with store.transaction() as tx:
        await workers.report(tx, alive, "api", "a")
        for process in (alive, gone):
            await charges.put(tx, process, "default", {A: [(5, 1.0, 2.0)]})
    store.now = NOW + 120 * SECOND
    async with store.transaction() as tx:
        assert await charges.forget(tx) == 1
        assert [row[0] for row in (await charges.news(tx, uuid4(), NOW)).charged] == [str(alive)]


# --- costs ------------------------------------------------------------------------------------


async def all_costs(tx: Tx) -> dict[int, float]:
    return {
        tenant: seconds
        for tenant, _, seconds in (await charges.news(tx, uuid4(), NOW - SECOND)).costs
    }


async def test_what_attempts_take_is_told_when_it_is_not_as_expected(store: Store) -> None:
    store.now = NOW
    ranker = Ranker()
    part = Costs(store, ranker.cost)
    part.note(A, seeds.HOST, 2.0)
    assert await part.tick() == 1
    async with store.transaction() as tx:
        ranker.learn((await charges.news(tx, uuid4(), NOW)).costs)
    assert ranker.cost(A, seeds.HOST) == pytest.approx(2.0)
    part.note(A, seeds.HOST, 2.1)
    assert await part.tick() == 0, "that was to be expected"
    for _ in range(60):
        part.note(A, seeds.HOST, 8.0)
    assert await part.tick() == 1
    async with store.transaction() as tx:
        assert (await all_costs(tx))[A] == pytest.approx(5.0, abs=0.1), "half way there"


async def test_costs_are_told_in_batches_and_none_is_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noonday.loops.costs.MOST_TOLD", 10)
    store.now = NOW
    part = Costs(store, Ranker().cost)
    for tenant in range(25):
        part.note(tenant, seeds.HOST, 1.0)
    assert [await part.tick() for _ in range(4)] == [10, 10, 5, 0]
    async with store.transaction() as tx:
        assert len(await all_costs(tx)) == 25


async def test_a_worker_forgets_the_oldest_of_too_many(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noonday.loops.costs.MOST_KEPT", 3)
    part = Costs(store, Ranker().cost)
    for tenant in range(5):
        part.note(tenant, seeds.HOST, 1.0)
    assert await part.tick() == 3


async def test_costs_that_do_not_change_and_too_many_are_forgotten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for days, tenants in ((8, (1, 2)), (2, (3, 4, 5)), (0, (6,))):
        store.now = NOW - timedelta(days=days)
        async with store.transaction() as tx:
            await costs.tell(tx, [(tenant, seeds.HOST, 1.0) for tenant in tenants])
    store.now = NOW
    async with store.transaction() as tx:
        assert await costs.forget(tx) == 2
    monkeypatch.setattr("noonday.store.costs.MOST", 1)
    async with store.transaction() as tx:
        assert await costs.forget(tx) == 0, "three of one moment are kept together"
        await costs.tell(tx, [(7, seeds.HOST, 1.0)])
        assert await costs.forget(tx) == 3


async def test_a_worker_learns_what_its_attempts_take(store: Store, parts: Parts) -> None:
    worker = parts.worker(Scripted())
    async with store.transaction() as tx:
        await seeds.ready(tx, count=3)
    await carry_out(worker)
    assert await worker.costs.tick() == 1
    async with store.transaction() as tx:
        ((tenant, host, seconds),) = (await charges.news(tx, uuid4(), NOW - 3_600 * SECOND)).costs
    assert (tenant, host) == (seeds.TENANT, seeds.HOST)
    assert seconds > 0


async def test_what_waits_for_a_slot_of_a_cap_is_charged_once(store: Store, parts: Parts) -> None:
    store.now = NOW
    async with store.transaction() as tx:
        await tx.execute(
            "INSERT INTO limits (key, tenant_id, kind, name, max_running, changed_at) "
            "VALUES ('host:1:a', 1, 'host', 'a', 1, now()), ('key:1:b', 1, 'key', 'b', NULL, now())"
        )
    ranker = Ranker()
    await parts.fairness(ranker).tick()
    capped = [Work(1, "default", 5, "a"), Work(1, "default", 5, "x", "c")]
    free = [Work(1, "default", 5, "x"), Work(1, "default", 5, "x", "b")]
    assert ranker.ranks(capped * 5, NOW) == [NOW] * 10
    assert not ranker.tell()["default"]
    ranker.ranks(free, NOW)
    assert list(ranker.tell()["default"]) == [1]
