"""Who runs next: the order of READY runs, and where a claim may start to look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from noonday.domain.model import EPOCH, PRIORITIES

AGEING_STEP: Final = timedelta(seconds=6)
"""A priority step is worth this much waiting: a lower priority is a constant behind, so it
overtakes newer urgent work once it has waited long enough."""

LATE_COMMIT: Final = timedelta(seconds=5)
"""A floor stays this far below the clock: no transaction that makes a run READY takes longer."""


class Work(NamedTuple):
    """What the rank of a run is made of: whose it is, where it queues, and whom it calls."""

    tenant_id: int
    lane: str
    priority: int
    target_host: str


Ranks = Callable[[Sequence[Work], datetime], Sequence[datetime]]
"""Gives each of some runs that become claimable at an instant its rank, in their order."""


def by_time(works: Sequence[Work], now: datetime) -> list[datetime]:
    """Ranks as if nobody queued: whoever comes first goes first."""
    return [now] * len(works)


def effective(rank: datetime, priority: int) -> datetime:
    """What READY runs of one lane are claimed by, lowest first."""
    return rank + priority * AGEING_STEP


class Floors:
    """For each priority of a lane the rank below which nothing is claimable any more.

    Entries below a floor are RUNNING or dead, and cost a claim nothing. What a commit later than
    ``LATE_COMMIT`` leaves below is found by a sweep from the very beginning, see :meth:`lower`.
    """

    def __init__(self) -> None:
        self._floors = dict.fromkeys(PRIORITIES, EPOCH)

    def each(self) -> list[tuple[int, datetime]]:
        """``(priority, floor)`` for all priorities."""
        return list(self._floors.items())

    def claimed(
        self,
        used: Sequence[tuple[int, datetime]],
        lowest: Mapping[int, datetime],
        clock: datetime,
        *,
        everything: bool,
    ) -> None:
        """Raise floors after a claim that looked from ``used`` on.

        ``lowest`` has the lowest READY rank it saw of each priority, taken or not;
        ``everything`` says that it was not cut off by its limit, so that a priority without any
        has nothing below the clock.
        A floor that was lowered while the claim was under way stays: the claim did not look there.
        """
        ceiling = clock - LATE_COMMIT
        for priority, floor in used:
            if self._floors[priority] == floor:
                rank = lowest.get(priority, ceiling if everything else floor)
                self._floors[priority] = max(floor, min(rank, ceiling))

    def lower(self, priority: int, rank: datetime) -> bool:
        """Take note of a READY run of this rank; True when it stood below the floor."""
        below = rank < self._floors[priority]
        if below:
            self._floors[priority] = rank
        return below
