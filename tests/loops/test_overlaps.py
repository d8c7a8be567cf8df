"""Runs of one job that do not run side by side: who waits, who makes way, who goes next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from noonday.domain.model import Cron, Kind, Overlap, RunKey
from noonday.loops.admitting import Admitting
from noonday.loops.scheduler import Scheduler
from noonday.store import Row, Store, occurrences, overlaps
from noonday.store.occurrences import Opening
from noonday.store.runs import Held, held_key
from tests.support import seeds
from tests.support.driving import drive
from tests.support.holds import holding
from tests.support.invariants import broken
from tests.support.scripted import Parts, counted

MINUTE = timedelta(minutes=1)
T = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


async def armed(store: Store, overlap: Overlap) -> UUID:
    async with store.transaction() as tx:
        (job,) = await seeds.armed(tx, Cron("* * * * *", overlap=overlap), T)
        return job


async def claimed(store: Store) -> list[Held]:
    async with store.transaction() as tx:
        return [held_key(row) for row in await seeds.claim(tx)]


async def under_way(
    store: Store, parts: Parts, overlap: Overlap
) -> tuple[Scheduler, Admitting, UUID, Held]:
    """A job whose run of ``T`` is under way, and those who see to what comes after it."""
    scheduler, admitting = parts.scheduler(), parts.admitting()
    job = await armed(store, overlap)
    await drive(scheduler, store, T)
    (lease,) = await claimed(store)
    return scheduler, admitting, job, lease


async def settled(store: Store, lease: Held) -> None:
    async with store.transaction() as tx:
        assert await seeds.settle(tx, seeds.completed(lease)) == {lease}


async def unfinished(store: Store, job: UUID) -> dict[datetime, Row]:
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT * FROM runs WHERE job_id = $1", job)
    return {row["occurrence_at"]: row for row in rows}


async def holds_of(store: Store, job: UUID) -> dict[datetime, str | None]:
    return {at: row["hold"] for at, row in (await unfinished(store, job)).items()}


async def ledger(store: Store, job: UUID) -> list[tuple[str | None, str | None, str | None]]:
    async with store.transaction() as tx:
        rows = await tx.rows(
            "SELECT outcome, reason, blocking_run FROM occurrences WHERE job_id = $1 "
            "ORDER BY occurrence_at",
            job,
        )
    return [(row["outcome"], row["reason"], row["blocking_run"]) for row in rows]


def run_id(job: UUID, at: datetime) -> str:
    return str(RunKey(job, Kind.SCHEDULE, at))


# --- queue ------------------------------------------------------------------------------------


async def test_one_waits_for_the_end_of_the_other(store: Store, parts: Parts) -> None:
    scheduler, admitting, job, lease = await under_way(store, parts, "queue")
    await drive(scheduler, store, T + MINUTE)
    await admitting.tick()
    assert await holds_of(store, job) == {T: None, T + MINUTE: "overlap"}
    assert await claimed(store) == []
    await settled(store, lease)
    await admitting.tick()
    (after,) = await claimed(store)
    assert after.occurrence_at == T + MINUTE
    assert await ledger(store, job) == [("COMPLETE", None, None), (None, None, None)]
    assert not await broken(store)


async def test_a_later_one_takes_the_place_of_the_one_that_waits(
    store: Store, parts: Parts
) -> None:
    scheduler, admitting, job, lease = await under_way(store, parts, "queue")
    for n in (1, 2, 3):
        await drive(scheduler, store, T + n * MINUTE)
    await admitting.tick()
    assert await holds_of(store, job) == {T: None, T + 3 * MINUTE: "overlap"}
    skipped = ("SKIPPED", "overlap", run_id(job, T + 3 * MINUTE))
    assert (await ledger(store, job))[1:3] == [skipped, skipped]
    await settled(store, lease)
    await admitting.tick()
    (after,) = await claimed(store)
    assert after.occurrence_at == T + 3 * MINUTE
    assert not await broken(store)


async def test_the_latest_goes_next_also_when_nobody_has_looked_meanwhile(
    store: Store, parts: Parts
) -> None:
    scheduler, admitting, job, lease = await under_way(store, parts, "queue")
    await drive(scheduler, store, T + MINUTE)
    await settled(store, lease)
    await drive(scheduler, store, T + 2 * MINUTE)
    await admitting.tick()
    assert await holds_of(store, job) == {T + 2 * MINUTE: None}


@pytest.mark.parametrize("overlap", ["queue", "replace"])
async def test_what_is_triggered_waits_beside_it_and_nothing_of_it_is_lost(
    store: Store, parts: Parts, overlap: Overlap
) -> None:
    scheduler, admitting = parts.scheduler(), parts.admitting()
    job = await armed(store, overlap)
    await drive(scheduler, store, T)
    leases = await claimed(store)
    trigger = RunKey(job, Kind.TRIGGER, T + timedelta(seconds=1))
    async with store.transaction() as tx:
        at = trigger.occurrence_at
        opening = Opening(job, at, Kind.TRIGGER, seeds.TENANT, at, 1, "default", 5)
        assert await occurrences.open_now(tx, [opening], at) == 1
        await overlaps.queue(tx, trigger)
    await admitting.tick()
    assert await holds_of(store, job) == {T: None, trigger.occurrence_at: "overlap"}
    row = (await unfinished(store, job))[T]
    assert row["cancel_requested_at"] is None, "a trigger takes nobody's place"
    await settled(store, leases[0])
    await admitting.tick()
    (lease,) = await claimed(store)
    assert lease.kind == Kind.TRIGGER


# --- replace ----------------------------------------------------------------------------------


async def test_the_old_one_is_asked_to_stop_and_the_new_one_begins_when_it_has(
    store: Store, parts: Parts
) -> None:
    scheduler, admitting, job, lease = await under_way(store, parts, "replace")
    await drive(scheduler, store, T + MINUTE)
    await admitting.tick()
    old = (await unfinished(store, job))[T]
    assert old["cancel_requested_at"] is not None
    assert old["cancel_reason"] == f"replaced by run {run_id(job, T + MINUTE)}"
    assert await claimed(store) == []
    async with store.transaction() as tx:
        assert await seeds.settle(tx, seeds.stopped(lease)) == {lease}
    await admitting.tick()
    (after,) = await claimed(store)
    assert after.occurrence_at == T + MINUTE
    assert (await ledger(store, job))[0][:2] == (
        "CANCELLED",
        f"replaced by run {run_id(job, T + MINUTE)}",
    )
    assert not await broken(store)


@pytest.mark.parametrize("retrying", [False, True])
async def test_an_old_one_that_waits_makes_way_at_once(
    store: Store, parts: Parts, retrying: bool
) -> None:
    scheduler, admitting = parts.scheduler(), parts.admitting()
    job = await armed(store, "replace")
    await drive(scheduler, store, T)
    if retrying:
        (lease,) = await claimed(store)
        async with store.transaction() as tx:
            await seeds.settle(tx, seeds.retried(lease, timedelta(hours=1)))
    await drive(scheduler, store, T + MINUTE)
    await admitting.tick()
    assert await holds_of(store, job) == {T + MINUTE: None}
    (lease,) = await claimed(store)
    assert lease.occurrence_at == T + MINUTE
    assert (await ledger(store, job))[0][0] == "CANCELLED"
    assert not await broken(store)


# --- nothing is lost --------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", ["queue", "replace"])
async def test_what_was_not_told_is_found(store: Store, parts: Parts, overlap: Overlap) -> None:
    scheduler = parts.scheduler()
    job = await armed(store, overlap)
    await drive(scheduler, store, T)
    (lease,) = await claimed(store)
    await drive(scheduler, store, T + MINUTE)
    await drive(scheduler, store, T + 2 * MINUTE)
    another = parts.admitting()  # nobody has told it anything
    await another.sweep()
    found = await unfinished(store, job)
    assert {at: row["hold"] for at, row in found.items()} == {T: None, T + 2 * MINUTE: "overlap"}
    assert (found[T]["cancel_requested_at"] is not None) == (overlap == "replace")
    store.caps_moved = lambda _: None
    await settled(store, lease)
    assert await another.sweep() == 1
    assert counted(another, "runs_admitted") == 1
    assert await holds_of(store, job) == {T + 2 * MINUTE: None}
    assert await another.sweep() == 0


async def test_a_row_that_somebody_has_locked_holds_up_nobody(
    store: Store, parts: Parts, database_url: str
) -> None:
    scheduler, admitting = parts.scheduler(), parts.admitting()
    stuck, free = await armed(store, "replace"), await armed(store, "replace")
    await drive(scheduler, store, T)
    assert len(await claimed(store)) == 2
    await drive(scheduler, store, T + MINUTE)
    async with holding(database_url, "SELECT FROM runs WHERE job_id = $1 FOR UPDATE", stuck):
        await admitting.tick()
    asked = [(await unfinished(store, job))[T]["cancel_requested_at"] for job in (stuck, free)]
    assert [at is not None for at in asked] == [False, True]
    await admitting.sweep()
    assert (await unfinished(store, stuck))[T]["cancel_requested_at"] is not None
