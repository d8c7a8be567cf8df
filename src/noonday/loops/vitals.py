"""Vitals: each process says every few seconds how it does, for the alerts and for scaling.

Counts are differences between what the metrics say now and what they said a window ago, so that
whoever evaluates needs neither Prometheus nor the history of attempts; what was done in each lane
is counted since the start.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final
from uuid import UUID

from noonday.domain.flow import Work
from noonday.domain.vitals import WINDOW, Vitals, p99
from noonday.store import Store, workers
from noonday.telemetry import Metrics, Totals

WINDOW_SEC: Final = WINDOW.total_seconds()


class Reporter:
    """One process. ``stalled`` names its loops that have not ticked well lately."""

    def __init__(
        self,
        store: Store,
        id: UUID,
        metrics: Metrics,
        stalled: Callable[[], list[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._id = id
        self._metrics = metrics
        self._stalled = stalled
        self._clock = clock
        self._past: deque[tuple[float, Totals]] = deque()

    async def tick(self) -> int:
        """Write how this process does."""
        vitals = self.read()
        async with self._store.in_turn() as tx:
            await workers.note_vitals(tx, self._id, vitals)
        return 0

    def read(self) -> Vitals:
        """The last ``WINDOW`` in numbers, or less when the process is younger."""
        now, totals = self._clock(), self._metrics.totals()
        while len(self._past) > 1 and self._past[1][0] <= now - WINDOW_SEC:
            self._past.popleft()
        before = self._past[0][1] if self._past else Totals()
        self._past.append((now, totals))
        works = {lane: Work(*work) for lane, work in self._metrics.works().items()}
        return _between(before, totals, tuple(self._stalled()), works)


def _between(
    before: Totals, now: Totals, stalled: tuple[str, ...], works: dict[str, Work]
) -> Vitals:
    old = before.ticks or [(bound, 0.0) for bound, _ in now.ticks]
    ticks = [
        (bound, count - less) for (bound, count), (_, less) in zip(now.ticks, old, strict=True)
    ]
    errors = {
        loop: int(count - before.loop_errors.get(loop, 0))
        for loop, count in now.loop_errors.items()
    }
    return Vitals(
        p99(ticks),
        int(now.leases_expired - before.leases_expired),
        int(now.successes - before.successes),
        int(now.unexplained - before.unexplained),
        {loop: count for loop, count in errors.items() if count},
        stalled,
        works,
    )
