"""How much stands in each lane: one query, for the metrics of one process."""

from __future__ import annotations

from typing import Final

from noonday.store import Row, Tx

LANES: Final = """
SELECT lane,
       count(*) FILTER (WHERE state = 'READY' AND claimable) AS ready,
       coalesce(extract(epoch FROM coalesce($1, now()) -
           min(ready_at) FILTER (WHERE state = 'READY' AND claimable)), 0)::float8 AS oldest_age_sec,
       count(*) FILTER (WHERE state = 'RUNNING') AS running,
       count(*) FILTER (WHERE state = 'RUNNING' AND locked_until < coalesce($1, now())) AS past_lease
FROM runs GROUP BY lane
"""


async def lanes(tx: Tx) -> list[Row]:
    """Depth and oldest runnable age of each lane that has unfinished runs."""
    return await tx.rows(LANES, tx.now)
