"""Ledgers as the sum of their nominal times: what is within a range counts for itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from noonday.domain.model import JobSpec
from noonday.domain.schedule import next_after
from noonday.store import Row, Store

LINES = """
SELECT o.job_id, j.spec, o.occurrence_at AS from_at, o.occurrence_at AS to_at, 1 AS count,
       o.outcome, o.reason
FROM occurrences AS o LEFT JOIN jobs AS j ON j.id = o.job_id
WHERE $1::uuid IS NULL OR o.job_id = $1
UNION ALL
SELECT r.job_id, j.spec, r.from_at, r.to_at, r.count, r.outcome, r.reason
FROM occurrence_ranges AS r JOIN jobs AS j ON j.id = r.job_id
WHERE $1::uuid IS NULL OR r.job_id = $1
ORDER BY from_at
"""


class Line(NamedTuple):
    """What became of a nominal time of a job."""

    job_id: UUID
    at: datetime
    outcome: str | None
    reason: str | None


async def lines(store: Store, job_id: UUID | None = None) -> list[Line]:
    """The ledger of a job, or of all, in order of time. (Ranges are those of the schedule as it
    is.)"""
    async with store.transaction() as tx:
        rows = await tx.rows(LINES, job_id)
    return sorted((line for row in rows for line in _apart(row)), key=lambda line: line.at)


def _apart(row: Row) -> Iterator[Line]:
    at, count = row["from_at"], 1
    yield Line(row["job_id"], at, row["outcome"], row["reason"])
    while at < row["to_at"]:
        wanted = msgspec.json.decode(row["spec"], type=JobSpec).schedule
        at = next_after(wanted, at, row["job_id"])
        assert at is not None
        count += 1
        yield Line(row["job_id"], at, row["outcome"], row["reason"])
    assert (at, count) == (row["to_at"], row["count"])
