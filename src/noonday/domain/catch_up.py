"""Catching up: what is long overdue is fired beside what is due now, and at its expense never.

After an outage a million timers may be overdue. They are *late*, and get a share of each tick and
of the time; what is due now has the rest, so it never waits for them. Times are the database's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from math import ceil
from typing import Final, NamedTuple

import msgspec

from noonday.domain.model import PRIORITIES

LATE: Final = timedelta(seconds=60)
"""What is overdue by more than this is late: longer than a restart takes, or a failover."""
SHARE: Final = 0.5
"""The share of what is late, unless the settings say otherwise."""
LIMIT_SEC: Final = 30.0
"""How long runs of a lane may have waited for recurring late timers of it to be fired, unless the
settings say otherwise."""
RATE_SEC: Final = 60.0
"""The time over which it is measured how fast it goes ..."""
LEAST_RATE_SEC: Final = 5.0
"""... and at least, where it has just begun."""

UNKNOWN_PER_SEC: Final = 500.0
"""How many timers a process is taken to fire in a second before it has fired many."""
TELLING: Final = 50
"""A tick that fired so many tells how many it can fire ..."""
WEIGHT: Final = 0.2
"""... by this part."""
BURST_SEC: Final = 1.0
"""So much of what has its turn again later may come at once."""


class Budget:
    """How much of its time a scheduler gives to what is late: after it has spent some, it rests
    from that for as long as its share demands."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._until: datetime | None = None

    def spend(self, at: datetime, took_sec: float, part: float) -> None:
        """A tick took so long until ``at``, and that part of it was for what is late."""
        if part > 0.0:
            rest = timedelta(seconds=took_sec * part * (1.0 / self.share - 1.0))
            self._until = max(self._until or at, at) + rest

    def rest(self, at: datetime) -> timedelta:
        """For how long still nothing of it is to be taken."""
        return timedelta(0) if self._until is None else max(self._until - at, timedelta(0))


class Pace:
    """When a timer that has more of an outage to catch up on has its turn again: one after the
    other, no faster than the share of what can be fired, so that they do not come all at once."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._per_sec = UNKNOWN_PER_SEC
        self._next: datetime | None = None

    def fired(self, count: int, took_sec: float) -> None:
        """A tick fired so many."""
        if count >= TELLING and took_sec > 0.0:
            self._per_sec += WEIGHT * (count / took_sec - self._per_sec)

    def slot(self, due_at: datetime, now: datetime) -> datetime:
        """When it is due; not before ``due_at``."""
        step = timedelta(seconds=1.0 / (self._share * self._per_sec))
        self._next = max(self._next or now, now) + step
        return max(due_at, self._next - timedelta(seconds=BURST_SEC))

    def left(self, now: datetime) -> timedelta:
        """How long it takes until all had their turn."""
        last = (self._next or now) - timedelta(seconds=BURST_SEC)
        return max(last - now, timedelta(0))


class Rate:
    """How many were fired lately."""

    def __init__(self) -> None:
        self._fired: deque[tuple[datetime, int]] = deque()

    def note(self, at: datetime, count: int) -> None:
        """So many were fired."""
        if count:
            self._fired.append((at, count))
            self._forget(at)

    def per_sec(self, now: datetime) -> float:
        """On average over the last ``RATE_SEC``, or since it began."""
        self._forget(now)
        if not self._fired:
            return 0.0
        passed = (now - self._fired[0][0]).total_seconds()
        return sum(count for _, count in self._fired) / max(passed, LEAST_RATE_SEC)

    def _forget(self, now: datetime) -> None:
        while self._fired and self._fired[0][0] <= now - timedelta(seconds=RATE_SEC):
            self._fired.popleft()


class Delay(msgspec.Struct, frozen=True):
    """Late recurring timers of a lane are not fired, since runs wait in it already."""

    since: datetime
    waited_sec: float
    """How long the oldest of these runs has waited."""
    priority: int
    """This priority waits, and all that are less urgent."""


def least_urgent(waited_sec: float, limit_sec: float) -> int | None:
    """From which priority on late recurring timers are not fired; None when all are. The least
    urgent wait as soon as the limit is passed, the most urgent from twice the limit on."""
    if waited_sec <= limit_sec:
        return None
    steps = PRIORITIES[-1] * (2.0 - waited_sec / limit_sec)
    return max(ceil(round(steps, 6)), 0)


class LaneWaits(NamedTuple):
    """How long the oldest claimable run of a lane has waited."""

    lane: str
    waited_sec: float


def delays(
    before: Mapping[str, Delay], standing: Iterable[LaneWaits], limit_sec: float, now: datetime
) -> dict[str, Delay]:
    """What is to wait, by lane, as the lanes stand; one that did ``before`` goes on to."""
    found = {}
    for lane, waited_sec in standing:
        priority = least_urgent(waited_sec, limit_sec)
        if priority is not None:
            since = before[lane].since if lane in before else now
            found[lane] = Delay(since, waited_sec, priority)
    return found


def lets_go(before: Mapping[str, Delay], after: Mapping[str, Delay]) -> bool:
    """Whether something that had to wait does not have to any more."""
    return any(
        lane not in after or after[lane].priority > delay.priority for lane, delay in before.items()
    )


class Report(msgspec.Struct, frozen=True):
    """How one scheduler catches up."""

    share: float
    limit_sec: float
    per_sec: float = 0.0
    """Late timers that it fired lately, each second."""
    passed_over: int = 0
    """Late timers that it found to be delayed when it last went through all of them."""
    spread_sec: float = 0.0
    """How long it takes until all have had their turn that have more to catch up on."""
    delays: dict[str, Delay] = {}


class Summary(NamedTuple):
    """How all schedulers catch up together."""

    share: float
    limit_sec: float
    per_sec: float
    passed_over: int
    spread_sec: float
    delays: dict[str, Delay]

    def eta_sec(self, remaining: int) -> float | None:
        """How long it takes still at this rate; None when it does not go on at present, since
        none was fired lately or all that is left is delayed."""
        if remaining and (not self.per_sec or remaining <= self.passed_over):
            return None
        left = remaining / self.per_sec if remaining else 0.0
        return round(max(left, self.spread_sec), 1)


def summed(reports: Iterable[Report]) -> Summary | None:
    """What several schedulers say; None when there is none. Should they have been given different
    settings, the greatest share is told and the shortest limit."""
    told = list(reports)
    if not told:
        return None
    found: dict[str, Delay] = {}
    for report in told:
        for lane, delay in report.delays.items():
            known = found.get(lane, delay)
            found[lane] = Delay(
                min(known.since, delay.since),
                max(known.waited_sec, delay.waited_sec),
                min(known.priority, delay.priority),
            )
    return Summary(
        max(report.share for report in told),
        min(report.limit_sec for report in told),
        sum(report.per_sec for report in told),
        sum(report.passed_over for report in told),
        max(report.spread_sec for report in told),
        dict(sorted(found.items())),
    )
