"""What a worker's attempts take: told to those who rank, when it is not what they expect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from noonday.store import Store, costs

TELL_SEC: Final = 3.0
"""How often costs are told at most."""
MOST_TOLD: Final = 500
"""Costs that are told at a time."""
MOST_KEPT: Final = 10_000
"""Tenants and hosts of which a worker knows what they take; then it forgets the oldest."""
WORTH_TELLING: Final = 0.2
"""By how much, in parts, a cost has to differ from what is expected."""
NEWS: Final = 1 / 8
"""What part of the moving average the last attempt is."""
LEAST_SEC: Final = 0.001


class Costs:
    """A moving average by tenant and host. ``expected`` says what those who rank expect."""

    def __init__(self, store: Store, expected: Callable[[int, str], float | None]) -> None:
        self._store = store
        self._expected = expected
        self._seen: dict[tuple[int, str], float] = {}
        self._fresh: set[tuple[int, str]] = set()

    def note(self, tenant_id: int, target_host: str, seconds: float) -> None:
        """An attempt has taken so long."""
        key, seconds = (tenant_id, target_host), max(seconds, LEAST_SEC)
        before = self._seen.pop(key, seconds)
        self._seen[key] = before + NEWS * (seconds - before)
        self._fresh.add(key)
        if len(self._seen) > MOST_KEPT:
            oldest = next(iter(self._seen))
            del self._seen[oldest]
            self._fresh.discard(oldest)

    async def tick(self) -> int:
        """Tell what is not as expected; how many costs that were."""
        told = [(*key, self._seen[key]) for key in self._fresh if self._is_news(key)]
        chosen = sorted(told[:MOST_TOLD])
        if chosen:
            async with self._store.transaction() as tx:
                await costs.tell(tx, chosen)
        left = {(tenant_id, host) for tenant_id, host, _ in told[MOST_TOLD:]}
        self._fresh = left & self._seen.keys()
        return len(chosen)

    def _is_news(self, key: tuple[int, str]) -> bool:
        expected = self._expected(*key)
        return expected is None or abs(self._seen[key] - expected) > WORTH_TELLING * expected
