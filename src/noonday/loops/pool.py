"""The slots in which a worker carries out runs, the lanes that they serve, and when it claims.

Each pool has a claim loop of its own: one whose slots are all taken, or whose claims fail, holds up
no other. Within a pool each lane has its own floors and its own doubt about a lost answer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from noonday.domain import pools
from noonday.domain.lane_clock import LaneClock, LaneReport
from noonday.domain.lanes import Lane
from noonday.domain.model import EPOCH
from noonday.domain.pools import EVERY_OTHER, Asking, Shares
from noonday.domain.ranking import Floors

PACE_SEC: Final = 0.01
"""For few free slots it is not claimed more often than this."""
IDLE_PACE_SEC: Final = {"long": 0.1}
"""Nor for a pool whose last claim found nothing, although it is woken for the runs of others."""


class Served:
    """What a pool knows of one of its lanes. Times are of the monotonic clock, in seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 1.0
        self.busy = 0
        """Slots that an attempt of it runs in."""
        self.floors = Floors()
        self.order = LaneClock()
        """In which order its runs are claimed."""
        self.more = False
        """Whether runs are known to wait that the last claim did not take."""
        self.in_doubt = False
        """Whether a claim may have taken runs that this process does not know of."""
        self.clock: datetime = EPOCH
        """The database's time at the last claim that was answered."""
        self.version: int | None = None
        """That of the lane when it was last claimed, if it had no cap."""
        self._ended_less_began = 0.0

    def began(self, count: int) -> None:
        """So many attempts take a slot each."""
        self.busy += count
        self._ended_less_began -= count * time.monotonic()

    def landed(self) -> None:
        """An attempt gives its slot back."""
        self.busy -= 1
        self._ended_less_began += time.monotonic()

    def asking(self, now: float) -> Asking:
        """What its share goes by."""
        used_sec = self._ended_less_began + self.busy * now
        return Asking(self.name, self.weight, self.busy, used_sec)

    def claimed(self, clock: datetime, *, more: bool) -> None:
        """A claim was answered at the database's time ``clock``."""
        self.clock, self.in_doubt, self.more = clock, False, more


class Pool:
    """Bookkeeping of one pool. Times are of the monotonic clock, in seconds."""

    def __init__(self, plan: pools.Pool, elsewhere: frozenset[str] = frozenset()) -> None:
        """``elsewhere``: the lanes that any pool of the worker names."""
        self.name = plan.name
        self.slots = plan.slots
        self.lanes: dict[str, Served] = {}
        """All that it has served since it was made."""
        self.serving: list[Served] = []
        """Those that it serves now."""
        self._plan = plan
        self._elsewhere = elsewhere
        self._shares = Shares(plan.slots)
        self._waits: list[float] = []
        self._claimed_at = float("-inf")
        self._put_off = False
        self.serve({})

    @property
    def is_alone(self) -> bool:
        """Whether it serves one lane and no other: then nothing has to be known of lanes."""
        return len(self._plan.lanes) == 1 and EVERY_OTHER not in self._plan.lanes

    def serve(self, known: Mapping[str, Lane]) -> None:
        """Take note of the lanes that there are, of their weights, and of those that wait."""
        names = self._plan.serves(known, self._elsewhere)
        for name in names:
            lane = self.lanes.setdefault(name, Served(name))
            lane.weight = known[name].weight if name in known else lane.weight
        closed = {name for name, lane in known.items() if lane.closed}
        self.serving = [self.lanes[name] for name in names if name not in closed]

    @property
    def busy(self) -> int:
        """Slots that an attempt runs in."""
        return sum(lane.busy for lane in self.lanes.values())

    @property
    def free(self) -> int:
        """Slots that nothing runs in."""
        return self.slots - self.busy

    @property
    def more(self) -> bool:
        """Whether runs are known to wait that the last claims did not take."""
        return any(lane.more for lane in self.serving)

    @property
    def doubtful(self) -> list[Served]:
        """The lanes that a claim may have taken runs of which this process does not know."""
        return [lane for lane in self.lanes.values() if lane.in_doubt]

    def shares(self, waiting: Sequence[Served], most: int) -> dict[str, int]:
        """How many slots to claim for, by lane, of those in which runs wait."""
        now = time.monotonic()
        return self._shares.deal(min(self.free, most), [lane.asking(now) for lane in waiting])

    @property
    def room(self) -> int:
        """In how many slots more a run may wait for the instant that a rate gives it: a quarter of
        them in all, so that those without a rate find slots."""
        now = time.monotonic()
        self._waits = [until for until in self._waits if until > now]
        return max(1, self.slots // 4) - len(self._waits)

    def waits(self, until: float) -> None:
        """In one slot a run waits for its instant."""
        self._waits.append(until)

    def may_claim(self) -> bool:
        """Whether to claim now; what is too soon is put off, see :meth:`sleep_for`."""
        self._put_off = self.free > 0 and self._wait() > 0
        return self.free > 0 and not self._put_off

    def report(self) -> dict[str, LaneReport]:
        """What others have to know to rank what comes into its lanes, by lane."""
        has_room = self.free > 0
        return {
            name: lane.order.report(self.slots, has_room=has_room and lane in self.serving)
            for name, lane in self.lanes.items()
        }

    def claiming(self, lane: Served) -> float:
        """A claim is about to be sent; now, which is what its leases count from."""
        self._claimed_at = time.monotonic()
        lane.in_doubt = True
        return self._claimed_at

    def looked(self) -> None:
        """It was asked whether anything waits."""
        self._claimed_at = time.monotonic()

    def sleep_for(self) -> float | None:
        """Seconds until the next claim, while free slots and waiting runs may meet."""
        if self.free > 0 and (self.more or self._put_off):
            return max(self._wait(), PACE_SEC)
        return None

    def _wait(self) -> float:
        """A claim for few slots costs nearly what one for many does: let more become free."""
        pace = PACE_SEC if self.free < self.slots // 8 else 0.0
        if not self.more:
            pace = max(pace, IDLE_PACE_SEC.get(self.name, 0.0))
        return self._claimed_at + pace - time.monotonic()
