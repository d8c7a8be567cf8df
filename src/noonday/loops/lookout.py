"""The lookout: wakes the loops for which there is something to do, and lets the others sleep.

Holds, replays, bulk actions and the like are seldom there. One statement looks for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from noonday.store import Store, signs

LOOK_SEC: Final = 0.5
SLOWLY: Final = 2
"""Some are woken at every other look only."""


class Lookout:
    """One process's. What it wakes looks by itself as well, seldom."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wakes: list[tuple[str, int, Callable[[], None]]] = []
        self._looks = 0

    def on(self, sign: str, wake: Callable[[], None], *, every: int = 1) -> None:
        """Call ``wake`` at every so manieth look that finds a sign; see ``store.signs``."""
        self._wakes.append((sign, every, wake))

    async def tick(self) -> int:
        """Look once; how many were woken."""
        async with self._store.in_turn() as tx:
            found = await signs.look(tx)
        self._looks += 1
        due = [
            wake for sign, every, wake in self._wakes if sign in found and self._looks % every == 0
        ]
        for wake in due:
            wake()
        return len(due)
