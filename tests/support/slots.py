"""How many runs of a cap were carried out at once, told from the history of attempts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import accumulate

from noonday.store import Store

# Each attempt from its claim to its settle, or, where its worker was lost, to when it was reaped.
ATTEMPTS = """
SELECT e.tenant_id, j.target_host, j.concurrency_key, j.lane, e.leased_at, e.finished_at
FROM executions AS e JOIN jobs AS j ON j.id = e.job_id
UNION ALL
SELECT r.tenant_id, j.target_host, j.concurrency_key, j.lane, r.leased_at, 'infinity'
FROM runs AS r JOIN jobs AS j ON j.id = r.job_id WHERE r.state = 'RUNNING'
"""


def peak(intervals: Iterable[tuple[datetime, datetime]]) -> int:
    """The most that were open at any instant; one that begins as another ends is not beside it."""
    events = [each for start, end in intervals for each in ((start, 1), (end, -1))]
    return max(accumulate(change for _, change in sorted(events)), default=0)


async def peaks(store: Store) -> Mapping[str, int]:
    """By cap, a lane's among them, the most attempts that were under way at any instant."""
    by_cap = defaultdict(list)
    async with store.transaction() as tx:
        for row in await tx.rows(ATTEMPTS):
            tenant, host, key, lane, start, end = row.values()
            own = (f"tenant:{tenant}", f"host:{tenant}:{host}", f"key:{tenant}:{key}")
            for cap in (*own, f"lane:{lane}"):
                by_cap[cap].append((start, end))
    return {cap: peak(each) for cap, each in by_cap.items()}
