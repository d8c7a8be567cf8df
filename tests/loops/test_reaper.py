"""The reaper: what workers that died have held is offered again, within its bounds."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from noonday.domain.lanes import READY_MADE
from noonday.domain.model import RetryPolicy, RunKey
from noonday.loops import reaper as module
from noonday.loops.reaper import Reaper
from noonday.store import Store, workers
from tests.support import seeds
from tests.support.invariants import broken
from tests.support.scripted import Parts, counted

T = datetime.now(UTC)
SECOND = timedelta(seconds=1)
EXPIRED_AT = T + (seeds.LEASE_SEC + 1) * SECOND


async def leased(store: Store, **how: object) -> list[RunKey]:
    """Runs under leases from ``T`` on, whose worker says nothing any more."""
    store.now = T
    async with store.transaction() as tx:
        made = await seeds.ready(tx, **how)  # type: ignore[arg-type]
        assert len(await seeds.claim(tx, limit=10_000)) == len(made)
    return made


async def states(store: Store) -> list[tuple[str, int, int]]:
    """State, attempt and failures of each run, in order of their jobs."""
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT state, attempt, failures FROM runs ORDER BY job_id")
    return [(row["state"], row["attempt"], row["failures"]) for row in rows]


async def letters(store: Store) -> list[str]:
    async with store.transaction() as tx:
        return [row["reason"] for row in await tx.rows("SELECT reason FROM dead_letters")]


async def test_an_expired_lease_is_counted_and_its_run_offered_at_once(
    store: Store, parts: Parts
) -> None:
    await leased(store, count=3)
    assert await parts.reaper().tick() == 0, "not while the lease lasts"
    store.now = EXPIRED_AT
    reaper = parts.reaper()
    assert await reaper.tick() == 3
    assert await states(store) == [("READY", 1, 1)] * 3
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT status, unknown, error, finished_at FROM executions")
        assert len(await seeds.claim(tx)) == 3
    assert {tuple(row.values()) for row in rows} == {
        (
            "LEASE_EXPIRED",
            True,
            "the lease ran out: its worker died, hung or was cut off",
            EXPIRED_AT,
        )
    }
    assert counted(reaper, "leases_expired") == 3
    assert counted(reaper, "suspected_duplicates") == 3
    assert await reaper.tick() == 0
    assert not await broken(store)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (RetryPolicy(max_attempts=1), "lease_expired"),
        (RetryPolicy(max_age_sec=60), "expired"),
    ],
)
async def test_a_run_whose_budget_or_time_is_used_up_becomes_a_dead_letter(
    store: Store, parts: Parts, policy: RetryPolicy, reason: str
) -> None:
    await leased(store, policy=policy)
    store.now = EXPIRED_AT
    reaper = parts.reaper()
    assert await reaper.tick() == 1
    assert await states(store) == []
    assert await letters(store) == [reason]
    assert counted(reaper, "dead_letters") == 1
    assert not await broken(store)


async def test_a_job_that_cannot_be_read_does_not_keep_others_from_being_reaped(
    store: Store, parts: Parts
) -> None:
    made = await leased(store, count=3)
    async with store.transaction() as tx:
        await tx.execute("UPDATE jobs SET spec = '{}' WHERE id = $1", made[1].job_id)
    store.now = EXPIRED_AT
    assert await parts.reaper().tick() == 3
    assert await states(store) == [("READY", 1, 1)] * 3


async def test_every_lane_is_looked_after(store: Store, parts: Parts) -> None:
    store.now = T
    async with store.transaction() as tx:
        for lane in READY_MADE:
            await seeds.ready(tx, lane=lane)
            assert len(await seeds.claim(tx, lane=lane)) == 1
    store.now = EXPIRED_AT
    assert await parts.reaper().tick() == len(READY_MADE)
    assert await states(store) == [("READY", 1, 1)] * len(READY_MADE)


async def test_more_than_a_batch_is_reaped_by_several_ticks(
    store: Store, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 10)
    await leased(store, count=25)
    store.now = EXPIRED_AT
    reaper = parts.reaper()
    reached = []
    while done := await reaper.tick():
        reached.append(done)
        reaper._passed_at = 0.0
    assert reached == [10, 10, 5]


# --- how far it looks -------------------------------------------------------------------------


async def say_granted(store: Store, rank: datetime) -> None:
    async with store.transaction() as tx:
        await workers.report(tx, seeds.WORKER, "worker", "a", granted={"default:5": rank})


def only_quickly(reaper: Reaper) -> None:
    """As if the last full pass had just been."""
    reaper._passed_at = time.monotonic()


async def test_it_looks_as_far_as_workers_say_and_once_in_a_while_at_all(
    store: Store, parts: Parts
) -> None:
    await leased(store)
    store.now = EXPIRED_AT
    reaper = parts.reaper()
    only_quickly(reaper)
    assert await reaper.tick() == 0, "nobody has said that anything was granted"
    await say_granted(store, T - module.SLACK - SECOND)
    assert await reaper.tick() == 0, "not so far"
    await say_granted(store, T - module.SLACK)
    assert await reaper.tick() == 1
    assert await states(store) == [("READY", 1, 1)]


async def test_a_worker_that_died_before_it_could_say_anything_is_found_by_a_full_pass(
    store: Store, parts: Parts
) -> None:
    await leased(store, priority=9)
    store.now = EXPIRED_AT
    reaper = parts.reaper()
    only_quickly(reaper)
    assert await reaper.tick() == 0
    reaper._passed_at -= module.FULL_PASS_SEC + 0.1
    assert await reaper.tick() == 1
