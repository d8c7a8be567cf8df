"""The ledger's ranges: nominal times one after the other that came to the same, on one line.

A nominal time is in the ledger once: as an occurrence of its own, or within one range.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from noonday.domain.schedule import Missed
from noonday.store import Row, Tx, columns
from noonday.store.runs import RUN_ID

KIND: Final = -1
"""In place of an occurrence's kind: where a range stands among lines of the same nominal time."""

BY_ITSELF: Final = "noonday scheduler"
"""What has caused a line, when it is no person."""


class OccurrenceRange(NamedTuple):
    """Nominal times of a job that came to the same, one after the other; ``number`` is None where
    they are too many to be counted."""

    job_id: UUID
    from_at: datetime
    to_at: datetime
    number: int | None
    outcome: str
    reason: str

    @classmethod
    def of(cls, job_id: UUID, missed: Missed) -> OccurrenceRange:
        """What a job has missed."""
        return cls(
            job_id, missed.from_at, missed.to_at, missed.number, missed.outcome, missed.reason
        )


WRITE: Final = """
INSERT INTO occurrence_ranges (job_id, from_at, to_at, tenant_id, count, outcome, reason,
                               schedule_version, written_at, caused_by)
SELECT i.job_id, i.from_at, i.to_at, j.tenant_id, i.count, i.outcome, i.reason,
       j.schedule_version, $1, $2
FROM unnest($3::uuid[], $4::timestamptz[], $5::timestamptz[], $6::int[], $7::text[], $8::text[])
     AS i(job_id, from_at, to_at, count, outcome, reason)
CROSS JOIN LATERAL (SELECT j.* FROM jobs AS j WHERE j.id = i.job_id LIMIT 1) AS j
WHERE i.to_at >= (SELECT starts_at FROM ledger_start)
RETURNING outcome, count
"""


async def write(tx: Tx, ranges: Sequence[OccurrenceRange], by: str, now: datetime) -> Sequence[Row]:
    """A line each, of the version that the schedule of its job has now, but for what lies below the
    start of the ledger; their outcomes and numbers. Needs the shards' locks."""
    return await tx.rows(WRITE, now, by, *columns(ranges, 6)) if ranges else ()


SUPERSEDED_BY: Final = f"""
CASE WHEN l.reason = 'superseded' THEN (
    SELECT run FROM (
        (SELECT o.occurrence_at AS at, {RUN_ID.format("o")} AS run FROM occurrences AS o
         WHERE o.job_id = l.job_id AND o.occurrence_at > l.{{0}} AND o.kind = 0
           AND (o.reason IS NULL OR o.reason NOT IN ('superseded', 'dst_gap'))
         ORDER BY o.occurrence_at LIMIT 1)
        UNION ALL
        (SELECT r.to_at, NULL FROM occurrence_ranges AS r
         WHERE r.job_id = l.job_id AND r.to_at > l.{{0}}
           AND r.reason NOT IN ('superseded', 'dst_gap')
         ORDER BY r.to_at LIMIT 1)
    ) AS following ORDER BY at LIMIT 1) END AS superseded_by"""
"""The occurrence that was decided in place of what a line ``l`` of the ledger is about; null where
none was: what came after it was left out."""
LEDGER: Final = f"""
SELECT job_id, from_at, to_at AS occurrence_at, {KIND} AS kind, count, outcome, reason,
       schedule_version, written_at, caused_by, {SUPERSEDED_BY.format("to_at")}
FROM occurrence_ranges AS l
WHERE job_id = $1 AND tenant_id = $2 AND to_at <= $3 AND (to_at, {KIND}) < ($3, $4::int)
ORDER BY to_at DESC LIMIT $5
"""


async def ledger(
    tx: Tx, job_id: UUID, tenant_id: int, before: datetime, before_kind: int, limit: int
) -> list[Row]:
    """A job's ranges, newest last nominal time first, from just before a position."""
    return await tx.rows(LEDGER, job_id, tenant_id, before, before_kind, limit)


FORGET: Final = """
DELETE FROM occurrence_ranges WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM occurrence_ranges WHERE to_at < (SELECT starts_at FROM ledger_start)
    ORDER BY to_at LIMIT $1))
"""


async def forget(tx: Tx, limit: int) -> int:
    """Delete what lies below the start of the ledger as a whole; how many."""
    return await tx.execute(FORGET, limit)
