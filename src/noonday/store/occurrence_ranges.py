"""The ledger's ranges: nominal times one after the other that came to the same, on one line.

A nominal time is in the ledger once: as an occurrence of its own, or within one range.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from noonday.domain.pausing import Stretch
from noonday.store import Row, Tx

KIND: Final = -1
"""In place of an occurrence's kind: where a range stands among lines of the same nominal time."""

WRITE: Final = """
INSERT INTO occurrence_ranges (job_id, from_at, to_at, tenant_id, count, outcome, reason,
                               schedule_version, written_at, caused_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
"""


async def write(
    tx: Tx, job: Row, left_out: Stretch, outcome: str, reason: str, by: str, now: datetime
) -> None:
    """One line for what a job has left out, as long as its schedule had the version of ``job``.
    Needs the shard's exclusive lock."""
    await tx.execute(
        WRITE, job["id"], left_out.from_at, left_out.to_at, job["tenant_id"], left_out.number,
        outcome, reason, job["schedule_version"], now, by,
    )  # fmt: skip


LEDGER: Final = f"""
SELECT job_id, from_at, to_at AS occurrence_at, {KIND} AS kind, count, outcome, reason,
       schedule_version, written_at, caused_by
FROM occurrence_ranges
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
