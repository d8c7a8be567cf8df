"""What comes into a lane, how long it keeps a slot, and what its timers will bring.

Measured from counters that only rise, so that whoever looks needs no history but its own looks.
Times are seconds of one clock; which one does not matter.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

RATE_SEC: Final = 60.0
"""Arrivals are counted over this time."""
SERVICE_SEC: Final = 600.0
"""The time over which it is measured how long a run keeps a slot."""
ENOUGH: Final = 10
"""When so many ended, the last ``RATE_SEC`` alone tell how long one keeps a slot."""
UNKNOWN_SERVICE_SEC: Final = 1.0
"""How long a run is taken to keep a slot where none was seen yet."""
SLICE_SEC: Final = 10
"""What is due is counted by slices of this length."""
LEAST_WEIGHT: Final = 0.2
"""Of a new estimate of a slice: the mean of several is closer than one sample."""


class Work(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one process did in a lane since it started, and its slots that serve it: other lanes
    may share them."""

    slots: int = 0
    free: int = 0
    started: int = 0
    ended: int = 0
    busy_sec: float = 0.0
    """Seconds of all slots in which an attempt ran."""


def slots(processes: Iterable[Mapping[str, Work]]) -> dict[str, int]:
    """How many slots serve each lane; those that lanes share count for each of them."""
    found: Counter[str] = Counter()
    for works in processes:
        found.update({lane: work.slots for lane, work in works.items()})
    return found


class Tally:
    """The work of all processes together, although they come and go."""

    def __init__(self) -> None:
        self._last: dict[UUID, dict[str, Work]] | None = None
        self.total: dict[str, Work] = {}
        """By lane; ``slots`` and ``free`` are those that there are now."""

    def note(self, processes: Mapping[UUID, Mapping[str, Work]]) -> None:
        """What each living process says. What a process did before the first look counts for
        nothing; one that comes later is new, so that all it did counts."""
        last = processes if self._last is None else self._last
        lanes = {lane for works in processes.values() for lane in works} | self.total.keys()
        for lane in lanes:
            old = self.total.get(lane, Work())
            now = [
                (works[lane], last.get(process, {}).get(lane, Work()))
                for process, works in processes.items()
                if lane in works
            ]
            self.total[lane] = Work(
                sum(work.slots for work, _ in now),
                sum(work.free for work, _ in now),
                old.started + sum(work.started - before.started for work, before in now),
                old.ended + sum(work.ended - before.ended for work, before in now),
                old.busy_sec + sum(work.busy_sec - before.busy_sec for work, before in now),
            )
        self._last = {process: dict(works) for process, works in processes.items()}


class _Look(NamedTuple):
    at: float
    ready: int
    running: int
    work: Work


class Flow:
    """One lane. ``service_sec`` is how long a run was known to keep a slot."""

    def __init__(self, service_sec: float = UNKNOWN_SERVICE_SEC) -> None:
        self.service_sec = service_sec
        """How long a run keeps a slot, on average."""
        self.arrivals_per_sec = 0.0
        """How many runs become claimable, for whatever reason."""
        self._looks: deque[_Look] = deque()

    def note(self, at: float, ready: int, running: int, work: Work) -> None:
        """How the lane stands; ``work`` is what was done in it in all."""
        look = _Look(at, ready, running, work)
        while len(self._looks) > 1 and self._looks[1].at <= at - SERVICE_SEC:
            self._looks.popleft()
        self._looks.append(look)
        self._measure_arrivals(look)
        self._measure_service(look)

    def _measure_arrivals(self, look: _Look) -> None:
        before = self._since(look.at - RATE_SEC)
        came = look.work.started - before.work.started + look.ready - before.ready
        # Over the whole time even where less of it was seen: a burst is not a rate.
        self.arrivals_per_sec = max(came, 0) / RATE_SEC

    def _measure_service(self, look: _Look) -> None:
        """Slot-seconds by attempts that ended. While fewer ended than run, all that is known is
        how long these have run."""
        if len(self._looks) > 1 and look.work.busy_sec == self._looks[-2].work.busy_sec:
            return  # an idle lane: of what ended before, only the ends are left in the window
        for window in (RATE_SEC, SERVICE_SEC):
            before = self._since(look.at - window).work
            ended, busy = look.work.ended - before.ended, look.work.busy_sec - before.busy_sec
            if busy > 0 and ended >= max(look.running, ENOUGH if window == RATE_SEC else 1):
                self.service_sec = busy / ended
                return
        if look.running:
            self.service_sec = max(self.service_sec, busy / look.running)

    def _since(self, at: float) -> _Look:
        """The last look up to ``at``, else the first one there is."""
        found = self._looks[0]
        for look in self._looks:
            if look.at > at:
                break
            found = look
        return found


class Due(NamedTuple):
    """Runs that timers will bring in a while."""

    in_sec: float
    runs: float


class Outlook:
    """How many runs the timers of each lane bring in each slice of time, from repeated reads.

    A read may be a sample: several of the same slice are averaged.
    """

    def __init__(self) -> None:
        self._runs: dict[int, dict[str, float]] = {}
        """By slice and lane, also of slices that have just passed."""
        self._reads: dict[int, int] = {}
        self._now = 0.0

    def note(
        self, now: float, until: float, found: Mapping[int, Mapping[str, float]], *, exact: bool
    ) -> None:
        """``found``: all that is due from ``now`` until then, by slice and lane."""
        self._now, current = now, int(now // SLICE_SEC)
        for slice in range(current + 1, ceil(until / SLICE_SEC)):
            # (Of the current slice a part is over; what was known of the whole stays.)
            self._reads[slice] = reads = self._reads.get(slice, 0) + 1
            weight = 1.0 if exact else max(1 / reads, LEAST_WEIGHT)
            old, new = self._runs.get(slice, {}), found.get(slice, {})
            self._runs[slice] = {
                lane: (1 - weight) * old.get(lane, 0.0) + weight * new.get(lane, 0.0)
                for lane in old.keys() | new.keys()
                if not exact or lane in new
            }
        oldest = current - int(RATE_SEC // SLICE_SEC)
        for slice in [slice for slice in self._runs if slice < oldest]:
            del self._runs[slice]
            self._reads.pop(slice, None)

    def due(self, lane: str) -> list[Due]:
        """What is to come of a lane, in order."""
        return [
            Due(slice * SLICE_SEC - self._now, runs[lane])
            for slice, runs in sorted(self._runs.items())
            if lane in runs and slice * SLICE_SEC > self._now
        ]

    def lately_per_sec(self, lane: str) -> float:
        """How many runs of a lane timers brought in the last ``RATE_SEC``, by what was known."""
        begun = (
            runs.get(lane, 0.0)
            for slice, runs in self._runs.items()
            if slice * SLICE_SEC <= self._now
        )
        return sum(begun) / RATE_SEC

    def lanes(self) -> set[str]:
        """Those of which something is known."""
        return {lane for runs in self._runs.values() for lane in runs}
