"""Outcomes whose rows somebody else has locked: the others are written without them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from noonday.domain.errors import StoreUnavailable
from noonday.domain.model import Outcome, OutcomeKind
from noonday.loops.flight import Flight
from noonday.loops.worker import Worker
from noonday.store import Store, Tx
from tests.support import seeds
from tests.support.holds import eventually
from tests.support.invariants import broken
from tests.support.scripted import Parts, Scripted, landed

LOCK = "SELECT FROM runs WHERE job_id = ANY ($1::uuid[]) FOR UPDATE"
LOCK_LEDGER = "SELECT FROM occurrences WHERE job_id = ANY ($1::uuid[]) FOR UPDATE"
LEFT = "SELECT array_agg(job_id) FROM runs"
SOON = "SET LOCAL lock_timeout = '100ms';"


class Impatient(Store):
    """Waits for a lock for a moment only."""

    @asynccontextmanager
    async def transaction(self, opening: str = "") -> AsyncIterator[Tx]:
        async with super().transaction(SOON + opening) as tx:
            yield tx


@pytest.fixture
async def impatient(database_url: str) -> AsyncIterator[Store]:
    store = await Impatient.open(database_url)
    yield store
    await store.close()


async def done(store: Store, parts: Parts, count: int, *outcomes: Outcome) -> Worker:
    """A worker that has carried out so many runs, and settled none."""
    async with store.transaction() as tx:
        await seeds.ready(tx, count=count)
    worker = parts.worker(Scripted(*outcomes), store=store)
    assert await worker.tick() == count
    await landed(worker)
    return worker


def some(worker: Worker, count: int) -> list[Flight]:
    return random.sample(list(worker._flights.values()), count)


async def left(store: Store) -> set[object]:
    async with store.transaction() as tx:
        return set(await tx.value(LEFT) or ())


RETRIED = Outcome(OutcomeKind.TRANSIENT, http_status=503)


@pytest.mark.parametrize("lock", [LOCK, LOCK_LEDGER])
@pytest.mark.parametrize(("locked", "batch"), [(1, 100), (5, 100), (20, 100), (1, 3), (7, 3)])
async def test_a_locked_row_fails_a_batch_once_and_then_waits_by_itself(
    store: Store,
    impatient: Store,
    parts: Parts,
    monkeypatch: pytest.MonkeyPatch,
    lock: str,
    locked: int,
    batch: int,
) -> None:
    monkeypatch.setattr("noonday.loops.settling.BATCH", batch)
    worker = await done(impatient, parts, 20)
    jobs = [flight.held.job_id for flight in some(worker, locked)]
    async with store.transaction() as tx:
        await tx.rows(lock, jobs)
        failed = 0
        for _ in range(40):
            try:
                await worker.settling.tick()
            except StoreUnavailable:
                failed += 1
            if worker.settling.waiting == locked:
                break
        assert failed == 1
        assert {held.job_id for held in worker._flights} == set(jobs)
        for _ in range(3):  # whatever is tried again meanwhile
            assert await worker.settling.tick() == 0
            await asyncio.sleep(0)
    await eventually(lambda: _settles(worker))
    assert worker._flights == {}
    assert not await left(store)
    assert not await broken(store)


async def _settles(worker: Worker) -> bool:
    await worker.settling.tick()
    return worker.settling.waiting == 0


async def test_what_is_to_be_tried_again_waits_for_a_lock_as_well(
    store: Store, impatient: Store, parts: Parts
) -> None:
    worker = await done(impatient, parts, 6, RETRIED)
    jobs = [flight.held.job_id for flight in some(worker, 2)]
    async with store.transaction() as tx:
        await tx.rows(LOCK, jobs)
        with pytest.raises(StoreUnavailable):
            await worker.settling.tick()
        assert await worker.settling.tick() == 4
    await eventually(lambda: _settles(worker))
    assert len(await left(store)) == 6
    assert not await broken(store)


async def test_a_lease_that_is_taken_away_meanwhile_is_lost_and_waits_no_longer(
    store: Store, impatient: Store, parts: Parts
) -> None:
    worker = await done(impatient, parts, 4)
    (taken,) = some(worker, 1)
    async with store.transaction() as tx:
        await tx.rows(LOCK, [taken.held.job_id])
        with pytest.raises(StoreUnavailable):
            await worker.settling.tick()
        assert await worker.settling.tick() == 3
        await seeds.settle(tx, seeds.handed_back(taken.held))
    await eventually(lambda: _settles(worker))
    assert worker._flights == {}
    assert await left(store) == {taken.held.job_id}, "it is somebody else's to carry out"


@pytest.mark.parametrize("lock", [LOCK, LOCK_LEDGER])
@pytest.mark.parametrize(("locked", "batch"), [(2, 100), (4, 2), (1, 2)])
async def test_a_worker_that_leaves_writes_what_it_can_and_ends(
    store: Store,
    impatient: Store,
    parts: Parts,
    monkeypatch: pytest.MonkeyPatch,
    lock: str,
    locked: int,
    batch: int,
) -> None:
    monkeypatch.setattr("noonday.loops.settling.BATCH", batch)
    worker = await done(impatient, parts, 9)
    jobs = {flight.held.job_id for flight in some(worker, locked)}
    async with store.transaction() as tx:
        await tx.rows(lock, list(jobs))
        await worker.stop(0)
        await worker.leave()
        assert await left(store) == jobs
