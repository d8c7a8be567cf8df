"""Pools: the slots of a worker, the lanes that each of them serves, and in which shares."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

EVERY_OTHER: Final = "*"
MEMORY_SEC: Final = 1.0
"""A lane that had a slot too few for so long is owed one."""


class Pool(NamedTuple):
    """Slots, and the lanes that share them; ``*`` is every lane that no pool of its worker has."""

    lanes: tuple[str, ...]
    slots: int

    @property
    def name(self) -> str:
        """Its lanes, as they were written."""
        return ",".join(self.lanes)

    def serves(self, known: Iterable[str], elsewhere: frozenset[str]) -> list[str]:
        """The lanes it serves of those ``known``; ``elsewhere`` are those that any pool names."""
        own = [lane for lane in self.lanes if lane != EVERY_OTHER]
        if EVERY_OTHER in self.lanes:
            own += [lane for lane in known if lane not in elsewhere]
        return own


def named(pools: Iterable[Pool]) -> frozenset[str]:
    """Every lane that a pool names, so that ``*`` does not mean it."""
    return frozenset(lane for pool in pools for lane in pool.lanes)


# --- shares -----------------------------------------------------------------------------------


class Asking(NamedTuple):
    """A lane of which runs wait."""

    lane: str
    weight: float
    busy: int
    """Slots that its runs have."""
    used_sec: float
    """Slot-seconds that its runs have had since the pool was made."""


class Shares:
    """Deals out the slots of one pool among the lanes of which runs wait, by their weights.

    What counts is slots, held for some time, not runs started: a lane with runs of minutes gets no
    more than its share. A lane that nothing waits in gets nothing, is owed nothing and owes
    nothing, and the others have all.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._owed: dict[str, float] = {}
        self._used: dict[str, float] = {}

    def deal(self, free: int, asking: Sequence[Asking]) -> dict[str, int]:
        """How many of ``free`` slots each lane gets."""
        self._remember(asking)
        weights = sum(each.weight for each in asking)
        # The lowest of a heap is the one that has the most coming to it.
        heap = [
            (each.busy - self._slots * each.weight / weights - self._owed[each.lane], n)
            for n, each in enumerate(asking)
        ]
        heapq.heapify(heap)
        dealt = [0] * len(asking)
        for _ in range(free if asking else 0):
            lead, n = heap[0]
            dealt[n] += 1
            heapq.heapreplace(heap, (lead + 1, n))
        return {each.lane: count for each, count in zip(asking, dealt, strict=True) if count}

    def _remember(self, asking: Sequence[Asking]) -> None:
        """What each has had too little or too much of, while others waited as well."""
        before, self._used = self._used, {each.lane: each.used_sec for each in asking}
        old = [each for each in asking if each.lane in before]
        weights = sum(each.weight for each in old)
        total = sum(each.used_sec - before[each.lane] for each in old)
        owed = {each.lane: 0.0 for each in asking}
        for each in old:
            had = each.used_sec - before[each.lane]
            owes = self._owed[each.lane] + (total * each.weight / weights - had) / MEMORY_SEC
            owed[each.lane] = min(max(owes, -self._slots), self._slots)
        self._owed = owed
