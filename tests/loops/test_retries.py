"""Retries: what waits becomes READY when its time has come, and not before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from noonday.domain.model import RunKey
from noonday.loops import retries as module
from noonday.store import Store, cancels, runs
from noonday.store.cancels import Which
from tests.support import seeds
from tests.support.invariants import broken
from tests.support.scripted import Parts

T = datetime.now(UTC)
SECOND = timedelta(seconds=1)


async def waiting(store: Store, *delays: int) -> list[RunKey]:
    """Runs that failed once and wait for so many seconds."""
    store.now = T
    async with store.transaction() as tx:
        made = await seeds.ready(tx, count=len(delays))
        await seeds.claim(tx, limit=10_000)
        items = [
            seeds.retried(seeds.held(run), delay * SECOND)
            for run, delay in zip(made, delays, strict=True)
        ]
        assert len(await seeds.settle(tx, *items)) == len(made)
    return made


async def ready(store: Store) -> set[RunKey]:
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT * FROM runs WHERE state = 'READY' AND claimable")
    return {runs.key_of(row) for row in rows}


async def test_each_is_ready_when_its_own_time_has_come(store: Store, parts: Parts) -> None:
    first, second, third = await waiting(store, 10, 20, 30)
    retries = parts.retries()
    for late, done, expected in ((9, 0, set()), (10, 1, {first}), (25, 1, {first, second})):
        store.now = T + late * SECOND
        assert await retries.tick() == done
        assert await ready(store) == expected
    store.now = T + 99 * SECOND
    assert await retries.tick() == 1
    assert await ready(store) == {first, second, third}
    assert not await broken(store)


async def test_it_sleeps_until_the_next_is_due(store: Store, parts: Parts) -> None:
    retries = parts.retries()
    store.now = T
    await retries.tick()
    assert retries.sleep_for() is None
    await waiting(store, 10, 25)
    await retries.tick()
    assert retries.sleep_for() == 10
    store.now = T + 12 * SECOND
    await retries.tick()
    assert retries.sleep_for() == 13


async def test_more_than_a_batch_is_made_ready_oldest_first(
    store: Store, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 10)
    made = await waiting(store, *range(25, 0, -1))
    store.now = T + 60 * SECOND
    retries = parts.retries()
    assert await retries.tick() == 10
    assert await ready(store) == set(made[-10:])
    assert retries.sleep_for() is not None
    assert [await retries.tick(), await retries.tick(), await retries.tick()] == [10, 5, 0]


async def test_a_run_that_was_cancelled_meanwhile_does_not_come_back(
    store: Store, parts: Parts
) -> None:
    (run,) = await waiting(store, 10)
    async with store.transaction() as tx:
        assert await cancels.cancel(tx, Which(run.job_id), "deleted") == 1
    store.now = T + 60 * SECOND
    assert await parts.retries().tick() == 0
    assert not await broken(store)
