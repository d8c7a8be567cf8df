"""How many slots a lane needs, so that its runs start within its objective.

``need`` says it for one moment; ``Wanted`` follows it: up at once, down only after some time
without need, in steps. What timers will bring counts before it is due, since a slot takes a while
to come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from math import ceil
from typing import Final, NamedTuple

from noonday.domain.flow import UNKNOWN_SERVICE_SEC, Due

BUSY: Final = 0.75
"""The part of its slots that a steady load may keep busy."""
AIM: Final = 0.5
"""The part of the objective within which runs shall start."""
SHORTEST: Final = 0.25
"""The part of the objective in which what has waited for longer than that is to be started."""
GROWTH: Final = 1.5
"""When runs wait for too long although all slots are busy, so many times those are wanted in which
some of them run."""
ALL_BUSY: Final = 0.9
SLACK: Final = 0.2
"""Fewer slots are wanted only where more than this part of them is not needed."""
REGRET_SEC: Final = 86_400.0
"""A number that was fallen from and wanted again is kept for so long while no more than one slot of
it is not needed: a load at the edge between two numbers would go to and fro."""
STEPS: Final = 5
"""So many steps down are taken, at most, in the time after which slots that nobody needs go."""
MOST: Final = 10_000
HORIZON_SEC: Final = 600
"""How far ahead timers are looked at."""


class Load(NamedTuple):
    """What is seen of a lane at one moment."""

    ready: int = 0
    """Runs that may be claimed."""
    oldest_age_sec: float = 0.0
    running: int = 0
    slots: int = 0
    """Those that serve it, be it with other lanes."""
    free: int = 0
    arrivals_per_sec: float = 0.0
    of_timers_per_sec: float = 0.0
    """The part of the arrivals that timers brought: what they will bring is in ``due``."""
    service_sec: float = UNKNOWN_SERVICE_SEC
    """How long a run keeps its slot."""
    due: Sequence[Due] = ()
    objective_sec: float = 60.0
    """How long a run may wait."""


class Need(NamedTuple):
    """How many slots, and what for."""

    slots: int
    why: str

    def up_to(self, most: int | None) -> Need:
        """The same where no more than ``most`` may run at once; None is no cap."""
        if most is None or self.slots <= most:
            return self
        return Need(most, f"no more may run at once: {self.why}")


NOTHING: Final = Need(0, "nothing to do")


def need(load: Load, ahead_sec: float) -> Need:
    """What a lane needs now and for what is due in the next ``ahead_sec`` seconds."""
    return max(_needs(load, ahead_sec), key=lambda need: need.slots)


def _needs(load: Load, ahead_sec: float) -> Iterator[Need]:
    yield NOTHING
    each = f"{load.service_sec:.3g} s each"
    steady = load.arrivals_per_sec * load.service_sec / BUSY  # Little's law
    yield Need(_whole(steady), f"{load.arrivals_per_sec:.3g} arrive a second, {each}")
    waits = (
        f"{load.running} run and {load.ready} wait, for up to {load.oldest_age_sec:.0f} s, {each}"
    )
    yield Need(_whole(_for_what_waits(load)), waits)
    due = [one for one in load.due if one.in_sec <= ahead_sec]
    runs = sum(one.runs for one in due)
    yield Need(_whole(_for_what_is_due(load, due)), f"{runs:.0f} are due soon, {each}")
    all_busy = 0 < load.slots * ALL_BUSY <= load.slots - load.free
    if load.oldest_age_sec > load.objective_sec and all_busy:
        late = f"{load.ready} wait for too long, though all {load.slots} slots are busy"
        yield Need(min(ceil(max(load.running, 1) * GROWTH), MOST), late)


def _for_what_waits(load: Load) -> float:
    left = _left(load)
    return _others(load, left) + _share(load, load.ready, left)


def _for_what_is_due(load: Load, due: Sequence[Due]) -> float:
    """So many that every stretch of what comes is begun in time, even what waits before it."""
    aim, most = AIM * load.objective_sec, 0.0
    runs: float = load.ready
    for last in due:
        runs += last.runs
        within = max(last.in_sec + aim, _left(load))
        most = max(most, _others(load, within) + _share(load, runs, within))
    return max(most, _unforeseen(load) + _densest(due, aim, load.service_sec) if due else 0.0)


def _densest(due: Sequence[Due], aim: float, service_sec: float) -> float:
    """What the densest stretch of what comes takes: as :func:`_share`, thousands of times."""
    most = 0.0
    for n, first in enumerate(due):
        runs, start = 0.0, first.in_sec - aim
        for last in due[n:]:
            runs += last.runs
            within = last.in_sec - start
            most = max(most, runs * service_sec / within if within > service_sec else runs)
    return most


def _left(load: Load) -> float:
    """Within what time all that waits is to be begun."""
    return max(AIM * load.objective_sec - load.oldest_age_sec, SHORTEST * load.objective_sec)


def _share(load: Load, runs: float, within_sec: float) -> float:
    """Slots that begin so many runs in that time: one can begin several, if they are short."""
    return runs * min(1.0, load.service_sec / within_sec)


def _others(load: Load, within_sec: float) -> float:
    """Slots that others keep meanwhile: what runs now, or what comes without a timer."""
    return max(_unforeseen(load), _share(load, load.running, within_sec))


def _unforeseen(load: Load) -> float:
    rate = max(load.arrivals_per_sec - load.of_timers_per_sec, 0.0)
    return rate * load.service_sec / BUSY


def _whole(slots: float) -> int:
    return min(ceil(slots - 1e-9), MOST)


class Wanted:
    """How many slots are wanted of one lane. ``slots`` is what was wanted so far."""

    def __init__(self, slots: int, why: str, now: float, keep_sec: float) -> None:
        self.slots = slots
        self.why = why
        self._keep_sec = keep_sec
        self._needs: deque[tuple[float, int]] = deque([(now, slots)])
        self._fell_at = now - keep_sec
        self._fell_from = 0
        self._regrets_until = now

    def follow(self, now: float, needed: Need, coming: Need) -> bool:
        """``needed`` is what it takes now, ``coming`` what it takes up to the horizon: for that no
        slot comes yet, but none goes either. True when another number is wanted than before."""
        while self._needs and self._needs[0][0] <= now - self._keep_sec:
            self._needs.popleft()
        self._needs.append((now, needed.slots))
        if needed.slots > self.slots:
            if needed.slots <= self._fell_from:
                self._regrets_until = now + REGRET_SEC
            self.slots, self.why = needed.slots, needed.why
            return True
        least = max(coming.slots, *(slots for _, slots in self._needs))
        step_sec = self._keep_sec / STEPS
        spare = max(self.slots * SLACK, 1 if least and now < self._regrets_until else 0)
        if self.slots - least <= spare or now - self._fell_at < step_sec:
            return False
        self._fell_from = self.slots
        self.slots, self.why = max(least, self.slots // 2), needed.why
        self._fell_at = now
        return True
