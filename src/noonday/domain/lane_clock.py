"""The virtual time of a lane, as one worker process knows it from its claims.

While a queue waits, virtual time is that of what is next in it; else it stands where it came to. It
never goes by the clock: while a flood comes in of which no worker has told yet, others would be
placed behind it. Claims order both bands by their *key*, in seconds of virtual time: that of a
queued run is its tag, that of one in front lies before what is next in the queue by as much virtual
time as passed while it waited. A priority step puts each behind by the virtual time that passes
within the lane's ageing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from noonday.domain.model import PRIORITIES
from noonday.domain.ranking import (
    AGEING_SEC,
    Band,
    Range,
    Span,
    is_queued,
    queued,
    seconds,
    tag_of,
)

LEAST_RATE: Final = 1e-4
MOST_RATE: Final = 10.0
"""Bounds of how fast virtual time passes: one tenant of weight 1 that fills a lane makes it 1."""
MEASURE_SEC: Final = 1.0
"""How long the pace is measured for at a time."""
NEWS: Final = 0.4
"""What part of the pace is that of the last measurement."""


class LaneReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker says of a lane: its slots there, and how virtual time stood at its last claim.

    Nothing in it changes while the lane is idle.
    """

    slots: int = 0
    open: bool = False
    """Nothing queued, and slots are free."""
    waiting: bool = False
    """Runs are queued."""
    v: tuple[float, ...] = ()
    """Where new work begins in virtual time, in seconds, by priority."""
    rate: float = 1.0
    """How many seconds of virtual time pass in one."""
    clock: float = 0.0
    """The database's time of the last claim, in seconds since the epoch."""
    emptied: float = 0.0
    """The same of the last claim after which nothing was queued."""


class LaneClock:
    """The order in which one worker claims the runs of a lane."""

    def __init__(self, ageing_sec: float = AGEING_SEC) -> None:
        self.ageing_sec = ageing_sec
        self.rate = 1.0
        self._clock = self._emptied = 0.0
        self._starts = [0.0] * len(PRIORITIES)
        self._waiting = False
        self._anchor: tuple[float, float, int] | None = None

    @property
    def step(self) -> float:
        """What one priority is behind the next more urgent one, in seconds of virtual time."""
        return self.ageing_sec * self.rate

    @property
    def v(self) -> float:
        """The virtual time, of that priority which is furthest behind."""
        return min(self._starts)

    def start(self, priority: int) -> float:
        """Where new work of a priority begins: no start tag below is given from now on."""
        return self._starts[priority]

    def ranges(self, spans: Sequence[Span]) -> list[Range]:
        """How a claim compares what it finds in ``spans``."""
        base = queued(self.v)
        return [
            Range(
                *span,
                base if is_queued(span.floor) else None,
                1.0 if is_queued(span.floor) else self.rate,
                span.priority * self.step,
            )
            for span in spans
        ]

    def key(self, rank: datetime, priority: int, now: datetime) -> float:
        """What READY runs are claimed by at ``now``, lowest first, as the database computes it."""
        if is_queued(rank):
            return tag_of(rank) - self.v + priority * self.step
        return self.rate * (rank - now).total_seconds() + priority * self.step

    def claimed(
        self,
        left: Mapping[Band, datetime],
        clock: datetime,
        *,
        everything: bool,
        highest: datetime | None = None,
    ) -> None:
        """A claim was answered at the database's time ``clock``.

        ``left`` has the lowest rank of each priority and band that it saw and did not take, and
        ``highest`` is the highest rank that it took; ``everything`` says that it saw all there is.
        """
        now = seconds(clock)
        tags = {band.priority: tag_of(rank) for band, rank in left.items() if band.queued}
        if tags:
            self._clock, self._waiting = now, True
            self._pass(tags, now)
        elif everything:
            self._clock = self._emptied = now
            self._waiting, self._anchor = False, None
            taken = tag_of(highest) if highest is not None and is_queued(highest) else 0.0
            self._starts = [max(taken, *self._starts)] * len(PRIORITIES)
        elif not self._clock:
            self._clock = now

    def _pass(self, tags: Mapping[int, float], now: float) -> None:
        """New work begins beside what is next of its priority, if that is at its turn; else with
        what is at its turn, but behind nothing that is less urgent, and before nothing that is as
        urgent. It never begins earlier than before."""
        step = self.step
        keys = {priority: tag + priority * step for priority, tag in tags.items()}
        key = min(keys.values())
        at_turn = [each for each in keys if keys[each] <= key + step / 2]
        urgent, patient = min(at_turn), max(at_turn)
        self._starts = [
            max(
                self._starts[priority],
                min(
                    key - min(max(priority, urgent), patient) * step,
                    tags.get(priority, float("inf")),
                ),
            )
            for priority in PRIORITIES
        ]
        self._measure(key - patient * step, patient, now)

    def _measure(self, v: float, patient: int, now: float) -> None:
        if self._anchor is None or self._anchor[2] != patient:
            self._anchor = now, v, patient
        elif now - self._anchor[0] >= MEASURE_SEC:
            rate = (v - self._anchor[1]) / (now - self._anchor[0])
            self.rate += NEWS * (min(max(rate, LEAST_RATE), MOST_RATE) - self.rate)
            self._anchor = now, v, patient

    def report(self, slots: int, *, has_room: bool) -> LaneReport:
        """What others are told; ``has_room`` says that slots are free."""
        if not self._waiting and has_room:
            return LaneReport(slots, open=True, v=(self.v,))
        if not self._waiting:
            return LaneReport(slots, v=(self.v,), clock=self._clock, emptied=self._emptied)
        return LaneReport(
            slots, waiting=True, v=tuple(self._starts), rate=self.rate, clock=self._clock,
            emptied=self._emptied,
        )  # fmt: skip
