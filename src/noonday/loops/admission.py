"""Admission: lets runs go on that were held because of their target.

A target whose pause is over is tried with a few of them; one that has closed gets the rest at a
ramp, slowly at first, so that a receiver that has just come back is not knocked over again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import structlog

from noonday.domain.breaker import KEY_PREFIX, admissible
from noonday.domain.ranking import Ranks, by_time
from noonday.store import Row, Store, Tx, holds, locks, targets
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics

BATCH: Final = 1_000
"""Most runs of one key, and most keys, in one pass."""
FORGET_SEC: Final = 600.0

log = structlog.get_logger()


class Admission:
    """Safe to run in any number of processes: a lock on each key lets one at a time work on it."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        wakeups: Wakeups,
        pauses: Sequence[timedelta],
        ranks: Ranks = by_time,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._wakeups = wakeups
        self._pause = pauses[0]
        self._ranks = ranks
        self._after = ""
        self._forgot_at = time.monotonic()

    async def tick(self) -> int:
        """Look once at each target for which there is something to do; how many runs were let go.

        One target that fails does not keep the others from being looked after.
        """
        count, failed = 0, None
        for key in await self._keys():
            try:
                count += await self._let_go(key)
            except Exception as error:
                failed = error
        await self._forget()
        if count:
            self._wakeups.runs()
        if failed is not None:
            raise failed
        return count

    async def _keys(self) -> list[str]:
        async with self._store.in_turn() as tx:
            held = await holds.keys(tx, KEY_PREFIX, self._after, BATCH)
            found = await targets.to_do(tx, held)
        self._after = held[-1] if len(held) == BATCH else ""
        return found

    async def _let_go(self, key: str) -> int:
        async with self._store.transaction() as tx:
            if not all(await locks.try_keys(tx, [locks.hashed("hold", key)])):
                return 0  # somebody else is at it
            # In a later statement, which sees what the one before us has done.
            row = await targets.one(tx, key)
            why, limit = await self._room(tx, key, row)
            count = await holds.admit(tx, key, limit, ranks=self._ranks) if limit else 0
        if limit and why == "half_opened":
            self._metrics.target_changed(why)
            log.info("target.half_opened", target=key)
        self._metrics.admitted("probe" if why == "half_opened" else why, count)
        return count

    async def _room(self, tx: Tx, key: str, row: Row | None) -> tuple[str, int]:
        """How many runs may go, and why."""
        if row is None:
            return "stray", BATCH  # held under what is not there: a late worker's
        if row["state"] == "OPEN":
            return "half_opened", await targets.half_open(tx, key, self._pause)
        if row["state"] == "HALF_OPEN":
            return "probe", await targets.refill(tx, key, self._pause)
        if row["state"] == "CLOSED":
            room = min(admissible(row["since_sec"], row["released_sec"]), BATCH)
            if room > 0 and await targets.released(tx, key, row["generation"]):
                return "ramp", room
        return "", 0

    async def _forget(self) -> None:
        if time.monotonic() - self._forgot_at < FORGET_SEC:
            return
        self._forgot_at = time.monotonic()
        async with self._store.transaction() as tx:
            await targets.forget(tx)
