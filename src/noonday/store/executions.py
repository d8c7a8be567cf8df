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
