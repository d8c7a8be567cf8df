"""The slots in which a worker carries out the runs of one lane, and when it claims for them.

Each lane has a pool of its own: one whose slots are all taken, whose claims fail or whose answer
was lost, holds up no other.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final

from noonday.domain.lane_clock import LaneClock, LaneReport
from noonday.domain.model import EPOCH
from noonday.domain.ranking import Floors

PACE_SEC: Final = 0.01
"""For few free slots it is not claimed more often than this."""
IDLE_PACE_SEC: Final = {"long": 0.1}
"""Nor is a lane whose last claim found nothing, although it is woken for the others' runs."""


class Pool:
    """Bookkeeping of one lane's slots. Times are of the monotonic clock, in seconds."""

    def __init__(self, lane: str, slots: int) -> None:
        self.lane = lane
        self.slots = slots
        self.busy = 0
        """Slots that an attempt runs in."""
        self.floors = Floors()
        self.order = LaneClock()
        """In which order its runs are claimed."""
        self.more = False
        """Whether runs are known to wait that the last claim did not take."""
        self.in_doubt = False
        """Whether a claim may have taken runs that this process does not know of."""
        self.clock: datetime = EPOCH
        """The database's time at the last claim that was answered."""
        self._claimed_at = float("-inf")
        self._put_off = False

    @property
    def free(self) -> int:
        """Slots that nothing runs in."""
        return self.slots - self.busy

    def may_claim(self) -> bool:
        """Whether to claim now; what is too soon is put off, see :meth:`sleep_for`."""
        self._put_off = self.free > 0 and self._wait() > 0
        return self.free > 0 and not self._put_off

    def report(self) -> LaneReport:
        """What others have to know to rank what comes into the lane."""
        return self.order.report(self.slots, has_room=self.free > 0)

    def claiming(self) -> float:
        """A claim is about to be sent; now, which is what its leases count from."""
        self._claimed_at = time.monotonic()
        self.in_doubt = True
        return self._claimed_at

    def claimed(self, clock: datetime, *, drained: bool) -> None:
        """The claim was answered at the database's time ``clock``."""
        self.clock, self.in_doubt, self.more = clock, False, not drained

    def sleep_for(self) -> float | None:
        """Seconds until the next claim, while free slots and waiting runs may meet."""
        if self.free > 0 and (self.more or self._put_off):
            return max(self._wait(), PACE_SEC)
        return None

    def _wait(self) -> float:
        """A claim for few slots costs nearly what one for many does: let more become free."""
        pace = PACE_SEC if self.free < self.slots // 8 else 0.0
        if not self.more:
            pace = max(pace, IDLE_PACE_SEC.get(self.lane, 0.0))
        return self._claimed_at + pace - time.monotonic()
