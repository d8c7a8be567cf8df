"""What is seen of the service at one moment, and which conditions of alerts that makes.

The limits stand here once; ``deploy/alerts.yml`` has the same ones, and a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec

from noonday.domain.alerts import AlertName, Condition
from noonday.domain.flow import Work

WINDOW: Final = timedelta(minutes=10)
"""The time that counts are of."""
DEAD_LETTERS: Final = 10
LEASES_EXPIRED: Final = 3
LOOP_ERRORS: Final = 20
"""More than so many in ``WINDOW`` are too many."""
TICK_SEC: Final = 1.0
"""A longer p99 of a scheduler's tick is too long."""
PAST_LEASE_SEC: Final = 30.0
"""The reaper has looked three times by then."""
LEAST_TICKS: Final = 20
"""Of fewer ticks no p99 is told."""
BY_HAND: Final = frozenset({"killed"})
"""Reasons of dead letters that a person chose."""

MOST_SAMPLES: Final = 3
LONGEST_SAMPLE: Final = 200

# What a URL carries beside its place may be a secret.
_SECRET_PARTS: Final = (
    (re.compile(r"(\w://[^\s?#]*)[?#]\S*"), r"\1"),
    (re.compile(r"(\w://)[^\s/?#]*@"), r"\1"),
)


class Vitals(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one process says of itself: the last ``WINDOW`` in numbers, and what stands still."""

    tick_p99_sec: float | None = None
    leases_expired: int = 0
    successes: int = 0
    unexplained: int = 0
    """Duplicates that nothing explains."""
    loop_errors: dict[str, int] = {}
    stalled: tuple[str, ...] = ()
    works: dict[str, Work] = {}
    """A worker's lanes, since it started."""


class Letters(NamedTuple):
    """Dead letters of one reason."""

    reason: str
    number: int
    samples: Sequence[str]


class Seen(NamedTuple):
    """All that is looked at. A lane has ``oldest_age_sec``, ``past_lease_sec`` and, where it has an
    objective of its own, ``objective_sec``."""

    lanes: Sequence[Mapping[str | int, Any]]
    letters: Sequence[Letters] = ()
    processes: Sequence[Vitals] = ()
    unowned: int = 0
    absent: Sequence[str] = ()


def conditions(seen: Seen, objective: Callable[[str], float]) -> Iterator[Condition]:
    """What is wrong; ``objective`` gives the seconds that runs of a lane without an objective of
    its own may wait."""
    for lane in seen.lanes:
        if lane["oldest_age_sec"] > (lane.get("objective_sec") or objective(lane["lane"])):
            yield Condition(AlertName.QUEUE_AGE, lane["lane"], lane["oldest_age_sec"])
        if lane["past_lease_sec"] > PAST_LEASE_SEC:
            yield Condition(AlertName.PAST_LEASE, lane["lane"], lane["past_lease_sec"])
    for letters in seen.letters:
        if letters.number > DEAD_LETTERS and letters.reason not in BY_HAND:
            samples = tuple(map(sample, letters.samples[:MOST_SAMPLES]))
            yield Condition(AlertName.DEAD_LETTERS, letters.reason, letters.number, samples)
    yield from _of_processes(seen.processes)
    if seen.unowned:
        yield Condition(AlertName.SHARDS_UNOWNED, "", seen.unowned)
    for role in seen.absent:
        yield Condition(AlertName.ROLE_ABSENT, role, 0)


def _of_processes(processes: Sequence[Vitals]) -> Iterator[Condition]:
    slowest = max((each.tick_p99_sec or 0.0 for each in processes), default=0.0)
    if slowest > TICK_SEC:
        yield Condition(AlertName.TICK_SLOW, "", slowest)
    expired = sum(each.leases_expired for each in processes)
    if expired > LEASES_EXPIRED and expired > sum(each.successes for each in processes):
        yield Condition(AlertName.LEASES_EXPIRE, "", expired)
    if unexplained := sum(each.unexplained for each in processes):
        yield Condition(AlertName.DUPLICATES, "", unexplained)
    for loop in sorted({loop for each in processes for loop in each.loop_errors}):
        most = max(each.loop_errors.get(loop, 0) for each in processes)
        if most > LOOP_ERRORS:
            yield Condition(AlertName.LOOP_FAILING, loop, most)
    for loop in sorted({loop for each in processes for loop in each.stalled}):
        count = sum(loop in each.stalled for each in processes)
        yield Condition(AlertName.LOOP_STALLED, loop, count)


def sample(text: str) -> str:
    """An error text as it may leave the service: short, printable, no secrets in its URLs."""
    for pattern, kept in _SECRET_PARTS:
        text = pattern.sub(kept, text)
    return "".join(mark if mark.isprintable() else " " for mark in text)[:LONGEST_SAMPLE]


def p99(buckets: Sequence[tuple[float, float]]) -> float | None:
    """The p99 of a histogram, as the upper bound of its bucket; None of too few.

    ``buckets`` are upper bounds with cumulative counts, the last one with all of them. What lies
    above all bounds is told as the highest of them.
    """
    total = buckets[-1][1] if buckets else 0
    if total < LEAST_TICKS:
        return None
    bounds = [bound for bound, _ in buckets if bound != float("inf")]
    return next(
        (bound for bound, count in buckets if count >= 0.99 * total and bound in bounds),
        bounds[-1],
    )
