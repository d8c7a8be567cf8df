"""Retention: what is kept for how long, and how the rest goes.

Whole partitions are dropped where that is possible; jobs go one by one, in batches along the
primary key. Each step leaves a state from which the next pass goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from noonday.domain.model import shard_of
from noonday.store import DirectConnection, Tx, locks, partitions
from noonday.store.ranges import Range, Step

SHORT_LOCKS: Final = "SELECT set_config('lock_timeout', '200ms', true)"


async def shorten_locks(tx: Tx) -> None:
    """Wait for locks for 200 ms at most, until the transaction ends."""
    await tx.execute(SHORT_LOCKS)


# --- executions -------------------------------------------------------------------------------


async def succeeded(tx: Tx, success_before: datetime, failure_before: datetime) -> list[Range]:
    """The days of which only the attempts that did not succeed are still to be kept."""
    return [
        part
        for part, _ in await partitions.find(tx, "executions")
        if part.step is Step.DAY and failure_before < part.ends_at <= success_before
    ]


async def compact(connection: DirectConnection, day: Range) -> bool:
    """Replace a day's partition by a smaller one without the attempts that succeeded.

    Built beside, so it is there whole or not at all; the old one goes only when it is attached.
    """
    failures = Range(day.table, Step.FAILURES, day.starts_at)
    await _build_failures(connection, day, failures)
    if not await partitions.detach(connection, day):
        return False
    async with connection.transaction() as tx:
        await tx.execute(partitions.SHORT_LOCKS)
        if not await partitions.is_attached(tx, failures):
            await tx.execute(partitions.attach(failures))
    return await partitions.drop(connection, day)


async def _build_failures(connection: DirectConnection, day: Range, failures: Range) -> None:
    async with connection.transaction() as tx:
        await tx.execute(partitions.SHORT_LOCKS)
        if not await partitions.is_there(tx, failures):
            await partitions.build(tx, failures)
            await tx.execute(
                f"INSERT INTO {failures.name} SELECT * FROM {day.name} WHERE status <> 'SUCCESS'"
            )


async def expired(tx: Tx, failure_before: datetime) -> list[Range]:
    """The days of which nothing is to be kept any more."""
    found = await partitions.find(tx, "executions")
    return [part for part, _ in found if part.ends_at <= failure_before]


async def remove(connection: DirectConnection, part: Range) -> bool:
    """Detach a partition and drop it; whether it is gone."""
    return await partitions.detach(connection, part) and await partitions.drop(connection, part)


# --- the ledger -------------------------------------------------------------------------------


async def raise_ledger_start(tx: Tx, ledger_before: datetime) -> None:
    """Close what is to be dropped: once this is committed, nothing is materialized in it."""
    kept = [
        part.starts_at
        for part in await partitions.existing(tx, "occurrences")
        if part.ends_at > ledger_before
    ]
    if kept:
        await tx.execute(partitions.RAISE_LEDGER_START, kept[0])


async def closed(tx: Tx) -> list[Range]:
    """The partitions of the ledger that lie below its start."""
    start = await tx.value(partitions.LEDGER_START)
    found = await partitions.find(tx, "occurrences")
    return [part for part, _ in found if part.ends_at <= start]


# --- idempotency keys -------------------------------------------------------------------------

KEY_PARTITIONS: Final = 16


async def forget_keys(tx: Tx, number: int, before: datetime, limit: int) -> int:
    """Delete keys that were used before ``before`` from one of the partitions; how many.

    One by one, since the join that a statement on all of them needs would read them whole.
    """
    table = f"idempotency_keys_{number}"
    return await tx.execute(
        f"""
        DELETE FROM {table} WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM {table} WHERE created_at < $1 ORDER BY created_at LIMIT $2))
        """,
        before,
        limit,
    )


# --- jobs -------------------------------------------------------------------------------------

# Scalar subqueries are carried out for each job, by an index; an EXISTS might become a join with
# all of the ledger. The ledger row decides: once it is closed, its job has no timer. A job has
# none when it was cancelled before its time, or when the ledger of that time is gone.
_ENDED: Final = """(
    j.schedule_type = 'once'
    AND (SELECT true FROM runs AS r WHERE r.job_id = j.id LIMIT 1) IS NULL
    AND (SELECT true FROM dead_letters AS d WHERE d.job_id = j.id LIMIT 1) IS NULL
    AND (SELECT true FROM dependents AS d WHERE d.job_id = j.id LIMIT 1) IS NULL
    AND (SELECT true FROM dependencies AS d WHERE d.parent_id = j.id LIMIT 1) IS NULL
    AND (SELECT true FROM occurrences AS o
         WHERE o.job_id = j.id AND o.occurrence_at >= $2 LIMIT 1) IS NULL
    AND coalesce(
        (SELECT coalesce(o.ended_at < CASE WHEN o.outcome = 'COMPLETE'
                                             OR (o.outcome = 'CANCELLED' AND o.attempts = 0)
                                           THEN $2 ELSE $3 END, false)
         FROM occurrences AS o
         WHERE o.job_id = j.id AND o.occurrence_at = j.first_at AND o.kind = 0),
        CASE j.state
        WHEN 'CANCELLED' THEN j.state_changed_at < $2
        WHEN 'ACTIVE' THEN j.first_at < (SELECT starts_at FROM ledger_start)
             AND (SELECT true FROM timers AS t
                  WHERE t.job_id = j.id AND t.due_at <= coalesce($4, now()) LIMIT 1) IS NULL
        ELSE false END))"""

ENDED: Final = f"""
SELECT j.id, j.created_at, {_ENDED} AS ended
FROM (SELECT * FROM jobs WHERE id > $1 ORDER BY id LIMIT $5) AS j
ORDER BY j.id
"""
DELETE: Final = f"""
DELETE FROM jobs AS j WHERE j.id = ANY($1::uuid[]) AND {_ENDED} RETURNING j.id, j.payload_ref
"""
DELETE_PAYLOADS: Final = """
DELETE FROM payload_versions WHERE job_id = ANY($1::uuid[]) RETURNING payload_ref
"""
DELETE_SCHEDULES: Final = "DELETE FROM schedule_versions WHERE job_id = ANY($1::uuid[])"
DELETE_RANGES: Final = "DELETE FROM occurrence_ranges WHERE job_id = ANY($1::uuid[])"


class Deleted(NamedTuple):
    """What a batch deleted, and where the next one begins."""

    jobs: int
    blobs: list[str]
    """References to delete once the transaction has committed."""
    cursor: UUID | None
    """None: what follows is too young; begin again from the start."""


async def delete_ended(
    tx: Tx, after: UUID, success_before: datetime, failure_before: datetime, limit: int
) -> Deleted:
    """Look at the next ``limit`` jobs and delete the one-off ones that ended long enough ago:

    completed, or cancelled without an attempt, before ``success_before``; failed, missed,
    skipped or cancelled later before ``failure_before``. Never one with a run or a dead letter,
    nor one that waits or is waited for.
    """
    bounds = (success_before, failure_before, tx.now)
    rows = await tx.rows(ENDED, after, *bounds, limit)
    ended = [row["id"] for row in rows if row["ended"]]
    jobs, blobs = await _delete(tx, ended, bounds) if ended else (0, [])
    # Ids rise with time, so what follows is younger still.
    at_end = len(rows) < limit or rows[-1]["created_at"] >= success_before
    return Deleted(jobs, blobs, None if at_end else rows[-1]["id"])


async def _delete(
    tx: Tx, ended: Sequence[UUID], bounds: tuple[datetime, datetime, datetime | None]
) -> tuple[int, list[str]]:
    """Look again with the shards' locks, and delete what has still ended: whoever starts a run of
    an old job holds its shard exclusively. (Ticks are not held up: they share the locks.)"""
    await tx.open_with(locks.sharing({shard_of(job_id) for job_id in ended}))
    gone = await tx.rows(DELETE, ended, *bounds)
    ids = [row["id"] for row in gone]
    payloads = await tx.rows(DELETE_PAYLOADS, ids)
    for statement in (DELETE_SCHEDULES, DELETE_RANGES):
        await tx.execute(statement, ids)
    blobs = [row["payload_ref"] for row in [*gone, *payloads] if row["payload_ref"] is not None]
    return len(gone), blobs
