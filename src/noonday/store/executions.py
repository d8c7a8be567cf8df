"""Executions: the history of attempts. Written by the statements of ``runs.py`` that end one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from noonday.store import Tx, columns
from noonday.store.runs import Held, held_key

# The reaper's word on a lease is not its holder's.
WRITTEN: Final = """
SELECT e.job_id, e.occurrence_at, e.kind, e.lease_version
FROM unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::int[])
     AS i(job_id, occurrence_at, kind, lease_version)
JOIN executions AS e ON e.job_id = i.job_id AND e.occurrence_at = i.occurrence_at
     AND e.kind = i.kind AND e.lease_version = i.lease_version
WHERE e.finished_at > coalesce($5, now()) - interval '1 day' AND e.status <> 'LEASE_EXPIRED'
"""


async def written(tx: Tx, leases: Sequence[Held]) -> set[Held]:
    """Which of ``leases`` were settled by their holders: the look-up after an unknown settle."""
    return {held_key(row) for row in await tx.rows(WRITTEN, *columns(leases, 4), tx.now)}


# Whatever went before explains it; what could not be known, first.
CAUSES: Final = """
SELECT i.*, coalesce(
    (SELECT CASE WHEN bool_or(e.status = 'LEASE_EXPIRED') THEN 'lease_expired'
                 WHEN bool_or(e.status = 'INTERRUPTED') THEN 'interrupted'
                 WHEN bool_or(e.unknown) THEN 'lost_answer'
                 WHEN count(*) FILTER (WHERE e.lease_version > d.lease_version) > 0
                      THEN 'failed_answer'
                 WHEN bool_or(d.job_id IS NOT NULL) THEN 'replay'
                 WHEN count(*) > 0 THEN 'failed_answer' END
     FROM executions AS e
     LEFT JOIN dead_letters AS d ON d.job_id = e.job_id AND d.occurrence_at = e.occurrence_at
          AND d.kind = e.kind AND d.replayed_at IS NOT NULL
     WHERE e.job_id = i.job_id AND e.occurrence_at = i.occurrence_at AND e.kind = i.kind
       AND e.lease_version < i.lease_version),
    'unexplained') AS cause
FROM unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::int[])
     AS i(job_id, occurrence_at, kind, lease_version)
"""


async def causes(tx: Tx, leases: Sequence[Held]) -> dict[Held, str]:
    """Why a receiver may have done before what it was sent under each of these leases."""
    return {held_key(row): row["cause"] for row in await tx.rows(CAUSES, *columns(leases, 4))}
