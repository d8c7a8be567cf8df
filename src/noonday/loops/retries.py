"""Retries: runs that wait for a time become READY when it has come."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final

from noonday.domain.model import EPOCH
from noonday.domain.ranking import LATE_COMMIT, Ranks, by_time
from noonday.store import Store, runs
from noonday.store.wakeups import Wakeups

BATCH: Final = 1_000
FULL_PASS_SEC: Final = 10.0
"""How often it is looked below the floor, for what was committed later than anything should be."""


class Retries:
    """Safe to run in any number of processes: each takes what the others have not locked."""

    def __init__(self, store: Store, wakeups: Wakeups, ranks: Ranks = by_time) -> None:
        self._store = store
        self._wakeups = wakeups
        self._ranks = ranks
        self._sleep_sec: float | None = None
        self._floor = EPOCH
        self._passed_at = 0.0

    def sleep_for(self) -> float | None:
        """Seconds until the next run's time comes, when one waits."""
        return self._sleep_sec

    async def tick(self) -> int:
        """Make due runs READY, at most ``BATCH``; how many."""
        floor, count = self._start_at(), 0
        async with self._store.in_turn() as tx:
            now, following = await runs.next_retry(tx, floor)
        if following is not None and following <= now:
            async with self._store.transaction() as tx:
                count = await runs.retry_due(tx, BATCH, floor, ranks=self._ranks)
                now, following = await runs.next_retry(tx, floor)
        # Entries of runs that wait no more are passed over once, not at every look.
        self._floor = min(following or now, now - LATE_COMMIT)
        self._sleep_sec = (following - now).total_seconds() if following else None
        if count:
            self._wakeups.runs()
        return count

    def _start_at(self) -> datetime:
        now = time.monotonic()
        if now - self._passed_at < FULL_PASS_SEC:
            return self._floor
        self._passed_at = now
        return EPOCH
