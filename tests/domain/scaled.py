"""A lane in virtual time: runs arrive, slots serve them, and the number of slots follows what is
wanted, as late as workers come in practice."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from noonday.domain.flow import SLICE_SEC, Flow, Outlook, Work
from noonday.domain.scaling import HORIZON_SEC, Load, Wanted, need

LANE = "default"
LOOK_SEC = 5
AHEAD_SEC = 120.0
KEEP_SEC = 300.0
START_SEC = 30
"""From the wish for a slot until it is there."""

Comb = Callable[[int], int]


def nothing(_second: int) -> int:
    return 0


class Lane:
    """``timers`` and ``posts`` say how many runs become ready at a second; only the former are
    known before. ``fixed`` slots are all there is, however many are wanted."""

    def __init__(
        self,
        *,
        timers: Comb = nothing,
        posts: Comb = nothing,
        service_sec: float = 1.0,
        objective_sec: float = 60.0,
        fixed: int | None = None,
        lag_sec: int = 0,
    ) -> None:
        self._timers = timers
        self._posts = posts
        self._service_sec = service_sec
        self._objective_sec = objective_sec
        self._fixed = fixed
        self._lag_sec = lag_sec
        self.now = 0
        self.slots = fixed or 0
        self.wanted = Wanted(0, "", 0.0, KEEP_SEC)
        self.changes: list[tuple[int, int]] = []
        """When another number was wanted, and which."""
        self.ages: list[float] = []
        self.most_slots = 0
        self._ready: deque[int] = deque()
        self._running: list[tuple[float, float]] = []
        """When each ends, and when it began."""
        self._coming: deque[tuple[int, int]] = deque()
        self._flow, self._outlook = Flow(), Outlook()
        self._works: deque[tuple[int, Work]] = deque([(0, Work())])
        self._started = self._ended = 0
        self._busy_sec = 0.0

    def pass_by(self, seconds: int) -> None:
        for _ in range(seconds):
            self._step()

    @property
    def oldest_age(self) -> float:
        return self.now - self._ready[0] if self._ready else 0.0

    def _step(self) -> None:
        self.now += 1
        arriving = self._timers(self.now) + self._posts(self.now)
        self._ready.extend([self.now] * arriving)
        self._serve()
        self.ages.append(self.oldest_age)
        if self.now % LOOK_SEC == 0:
            self._look()
        while self._coming and self._coming[0][0] <= self.now:
            self.slots = self._coming.popleft()[1]
        self.most_slots = max(self.most_slots, self.slots)

    def _serve(self) -> None:
        """Slots that are beyond what there are now end what they began, and begin no more."""
        while self._running and self._running[0][0] <= self.now:
            ends, began = heappop(self._running)
            self._ended += 1
            self._busy_sec += ends - began
            # Within this second the slot has begun what came before it ended.
            if self._ready and len(self._running) < self.slots:
                self._begin(max(ends, self._ready[0]), self._service_sec)
        while self._ready and len(self._running) < self.slots:
            self._begin(self.now, self._service_sec)
        busy = self._busy_sec + sum(self.now - began for _, began in self._running)
        free = max(self.slots - len(self._running), 0)
        self._works.append((self.now, Work(self.slots, free, self._started, self._ended, busy)))

    def _begin(self, at: float, sec: float) -> None:
        self._ready.popleft()
        self._started += 1
        heappush(self._running, (at + sec, at))

    def _work(self) -> Work:
        """What workers have said by now, which may be some time ago."""
        while len(self._works) > 1 and self._works[1][0] <= self.now - self._lag_sec:
            self._works.popleft()
        return self._works[0][1]

    def _look(self) -> None:
        until = self.now + HORIZON_SEC
        found = {
            second // SLICE_SEC: {LANE: float(runs)}
            for second in range(self.now + 1, until)
            if (runs := self._timers(second))
        }
        self._outlook.note(self.now, until, found, exact=True)
        running = len(self._running)
        self._flow.note(self.now, len(self._ready), running, self._work())
        load = Load(
            len(self._ready),
            self.oldest_age,
            running,
            self.slots,
            max(self.slots - running, 0),
            self._flow.arrivals_per_sec,
            self._outlook.lately_per_sec(LANE),
            self._flow.service_sec,
            self._outlook.due(LANE),
            self._objective_sec,
        )
        if self.wanted.follow(self.now, need(load, AHEAD_SEC), need(load, HORIZON_SEC)):
            self.changes.append((self.now, self.wanted.slots))
            if self._fixed is None:
                # More slots take their time to come; fewer are fewer at once.
                if self.wanted.slots < self.slots:
                    self._coming.clear()
                    self.slots = self.wanted.slots
                else:
                    self._coming.append((self.now + START_SEC, self.wanted.slots))


def evenly(per_sec: float) -> Comb:
    """So many runs a second, as evenly as whole runs come."""
    return lambda second: int(second * per_sec) - int((second - 1) * per_sec)


def herd(runs: int, every_sec: int) -> Comb:
    """``runs`` at once, as crons do it."""
    return lambda second: 0 if second % every_sec else runs
