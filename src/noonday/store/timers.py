"""Timers: the armed next occurrence of each active job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from noonday.store import Copy, Row, Tx


class Timer(NamedTuple):
    """A timer to arm. ``due_at`` is never before the transaction's time; see :func:`arm`."""

    job_id: UUID
    occurrence_at: datetime
    due_at: datetime
    schedule_version: int
    seq: int
    """The number of its occurrence among those of its job, the first being 1."""
    shard: int
    catch_up_to: datetime | None = None
    """The last occurrence of an outage of which all are to run, while that is caught up on."""


ARM: Final = Copy("timers", Timer._fields)


async def arm(tx: Tx, timers: Sequence[Timer], now: datetime) -> None:
    """Insert timers; ``due_at`` is clamped to ``now``, the nominal time stays."""
    await tx.copy(ARM, [t if t.due_at >= now else t._replace(due_at=now) for t in timers])


# The due index serves the order; `$1` and `$2` are values, so other partitions are not planned.
# Jobs are looked up one by one: a join is planned for a whole batch, by reading all jobs where
# those are few, and most ticks find a handful.
_WITH_JOBS: Final = """
    SELECT t.job_id, t.occurrence_at, t.due_at, t.schedule_version, t.seq, t.shard, t.catch_up_to,
           j.schedule_version = t.schedule_version AND j.state = 'ACTIVE' AS current, j.spec,
           j.tenant_id, j.lane, j.priority, j.target_host, j.concurrency_key,
           j.schedule_type <> 'once' AS recurs
    FROM ({}) AS t
    LEFT JOIN LATERAL (SELECT * FROM jobs WHERE id = t.job_id LIMIT 1) AS j ON true
"""
_DUE: Final = """
    SELECT * FROM timers
    WHERE due_at >= $1 AND due_at <= $2 AND due_at <= coalesce($5, now())
      AND shard = ANY($3::int[])
    ORDER BY due_at LIMIT $4
"""
DUE: Final = f"""
SELECT n.clock, d.*
FROM (SELECT coalesce($5, now()) AS clock) AS n
LEFT JOIN ({_WITH_JOBS.format(_DUE)}) AS d ON true
ORDER BY d.due_at
"""


async def due(
    tx: Tx, floor: datetime, until: datetime, shards: Sequence[int], limit: int
) -> tuple[datetime, list[Row]]:
    """The transaction's time, and the timers from ``floor`` to ``until`` that are due by then,
    oldest first, with what their jobs say now."""
    rows = await tx.rows(DUE, floor, until, shards, limit, tx.now)
    return rows[0]["clock"], [row for row in rows if row["job_id"] is not None]


ARM_AWAITED: Final = """
UPDATE timers SET awaited = true WHERE job_id = $1 AND due_at >= $2 AND due_at <= $3
"""


async def arm_again(tx: Tx, timer: Timer, now: datetime, *, awaited: bool) -> None:
    """Arm the timer of a job that had one before, for which children may wait."""
    await arm(tx, [timer], now)
    if awaited:
        due_at = max(timer.due_at, now)
        await tx.execute(ARM_AWAITED, timer.job_id, due_at, due_at)


class Place(NamedTuple):
    """A place in the order of due timers, for going on from there. Where many are due at the same
    instant, shard and job tell them apart."""

    due_at: datetime
    shard: int
    job_id: UUID


# (The index has the first two in order; those of one instant and shard are sorted.)
_BEYOND: Final = """
    SELECT * FROM timers
    WHERE due_at >= $1 AND due_at <= $2 AND shard = ANY($3::int[])
      AND (due_at, shard, job_id) > ($1, $5::int, $6::uuid)
    ORDER BY due_at, shard, job_id LIMIT $4
"""
BEYOND: Final = f"{_WITH_JOBS.format(_BEYOND)} ORDER BY t.due_at, t.shard, t.job_id"


async def beyond(
    tx: Tx, place: Place, until: datetime, shards: Sequence[int], limit: int
) -> list[Row]:
    """The timers after ``place`` up to ``until``, which is past, as :func:`due` has them."""
    return await tx.rows(BEYOND, place.due_at, until, shards, limit, place.shard, place.job_id)


NEXT_DUE: Final = """
SELECT due_at FROM timers
WHERE due_at >= $1 AND due_at < $2 AND shard = ANY($3::int[]) ORDER BY due_at LIMIT 1
"""


async def next_due(
    tx: Tx, after: datetime, before: datetime, shards: Sequence[int]
) -> datetime | None:
    """When the next timer is due, if it is within ``[after, before)``."""
    found: datetime | None = await tx.value(NEXT_DUE, after, before, shards)
    return found


OF_JOB: Final = """
SELECT occurrence_at, due_at, schedule_version, seq, catch_up_to FROM timers
WHERE job_id = $1 AND due_at >= $2 AND due_at <= $3
"""
OF_JOB_ANYWHERE: Final = """
SELECT occurrence_at, due_at, schedule_version, seq, catch_up_to FROM timers WHERE job_id = $1
"""


async def of_job(tx: Tx, job_id: UUID, around: datetime | None = None) -> Row | None:
    """A job's timer, if it has one.

    ``around`` is where its due time should be: it is looked for there first, since a look into
    each partition costs milliseconds.
    """
    if around is not None:
        found = await tx.row(OF_JOB, job_id, around, around)
        if found is not None:
            return found
    return await tx.row(OF_JOB_ANYWHERE, job_id)


DISARM: Final = """
DELETE FROM timers WHERE job_id = $1
RETURNING occurrence_at, due_at, seq, awaited, catch_up_to
"""


async def disarm(tx: Tx, job_id: UUID) -> Row | None:
    """Delete a job's timer, wherever it stands, and say for which occurrence it stood, with what
    number, and whether children wait for that; the shard must be owned exclusively."""
    return await tx.row(DISARM, job_id)
