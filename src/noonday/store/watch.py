"""What the watchdog reads: where the timers of recurring jobs stand, and where they should."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from noonday.store import Row, Tx, columns

# By the index of what recurs; one-off jobs are passed over.
SLICE: Final = """
SELECT id, tenant_id, spec FROM jobs
WHERE schedule_type <> 'once' AND state = 'ACTIVE' AND id > $1 ORDER BY id LIMIT $2
"""


async def active(tx: Tx, after: UUID, limit: int) -> list[Row]:
    """The next recurring jobs that are in service, by their ids."""
    return await tx.rows(SLICE, after, limit)


_LOOKED_UP: Final = """
SELECT w.job_id, t.seq FROM unnest($1::uuid[], $2::timestamptz[]) AS w(job_id, due_at)
CROSS JOIN LATERAL (
    SELECT t.seq FROM timers AS t WHERE t.job_id = w.job_id AND t.due_at {0} w.due_at LIMIT 1
) AS t
"""
ARMED: Final = _LOOKED_UP.format("=")
OVERDUE: Final = _LOOKED_UP.format("<=")


async def armed(tx: Tx, expected: Sequence[tuple[UUID, datetime]]) -> dict[UUID, int]:
    """Which of these jobs have a timer that is due when it should be, and the number of the
    occurrence that it stands at."""
    return {row["job_id"]: row["seq"] for row in await tx.rows(ARMED, *columns(expected, 2))}


async def overdue(tx: Tx, job_ids: Sequence[UUID], now: datetime) -> set[UUID]:
    """Which of these jobs have a timer that is still to be fired."""
    rows = await tx.rows(OVERDUE, *columns([(job_id, now) for job_id in job_ids], 2))
    return {row["job_id"] for row in rows}


COUNT: Final = """
SELECT (SELECT count(*) FROM (SELECT FROM occurrences
                              WHERE job_id = $1 AND occurrence_at >= $2 AND kind = 0
                              LIMIT $3) AS few)::int
       + coalesce((SELECT sum(coalesce(count, $4)) FROM occurrence_ranges
                   WHERE job_id = $1 AND to_at >= $2), 0)::int
"""


async def count(tx: Tx, job_id: UUID, since: datetime, most: int, uncounted: int) -> int:
    """How many of a job's nominal times are on record, counted up to ``most``; ranges that are not
    counted are taken for ``uncounted``."""
    found: int = await tx.value(COUNT, job_id, since, most, uncounted)
    return found
