"""Retries: runs that wait for a time become READY when it has come."""

from __future__ import annotations

from typing import Final

from noonday.store import Store, runs
from noonday.store.wakeups import Wakeups

BATCH: Final = 1_000


class Retries:
    """Safe to run in any number of processes: each takes what the others have not locked."""

    def __init__(self, store: Store, wakeups: Wakeups) -> None:
        self._store = store
        self._wakeups = wakeups
        self._sleep_sec: float | None = None

    def sleep_for(self) -> float | None:
        """Seconds until the next run's time comes, when one waits."""
        return self._sleep_sec

    async def tick(self) -> int:
        """Make due runs READY, at most ``BATCH``; how many."""
        async with self._store.transaction() as tx:
            count = await runs.retry_due(tx, BATCH)
            following = await runs.next_retry(tx)
            now = await tx.clock()
        self._sleep_sec = (following - now).total_seconds() if following else None
        if count:
            self._wakeups.runs()
        return count
