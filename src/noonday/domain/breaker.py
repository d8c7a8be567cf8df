"""The breaker of a target: when it is left alone, how it is tried again, how runs flow back.

Whoever counts is handed the time, in seconds of a clock that never goes back. What a breaker stands
at is a row of the table ``targets``; here is what it goes by.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from datetime import timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from noonday.domain.model import Outcome, OutcomeKind
from noonday.domain.target import parse_url

HOLD: Final = "breaker"
"""The kind of hold that a run is under while its target is left alone."""
KEY_PREFIX: Final = "target:"

WINDOW_SEC: Final = 60.0
BUCKETS: Final = 6
MIN_REQUESTS: Final = 10
"""Fewer in the window than this say nothing: one failure of two is no outage."""
FAILURE_RATIO: Final = 0.5
MOST_TARGETS: Final = 4_096
"""How many targets a process watches; those that it called last."""

PAUSE_SEC: Final = 30.0
LONGEST_PAUSE: Final = 10
"""A pause grows up to this many times the first one: 5 minutes."""
TRIPS_FORGOTTEN: Final = timedelta(minutes=10)
"""Closed for as long as this, it begins with the shortest pause again."""
HALF_OPEN_RUNS: Final = 3
"""How many runs are let through to try a target; all have to succeed."""
ASK_AGAIN: Final = timedelta(seconds=5)
"""Permits that nobody takes for so long are offered to other runs that wait."""

FIRST_RATE: Final = 10
FASTEST_RATE: Final = 1_000
DOUBLED_EVERY_SEC: Final = 10.0
CATCH_UP_SEC: Final = 2.0
"""Whoever lets runs flow back and comes late makes up for no more than this."""

LONGEST_REASON: Final = 200

_SAYS_NOTHING: Final = frozenset((408, 425, 429))
_MEASURED: Final = frozenset(
    (
        OutcomeKind.SUCCESS,
        OutcomeKind.TRANSIENT,
        OutcomeKind.TIMEOUT,
        OutcomeKind.PERMANENT,
        OutcomeKind.GONE,
    )
)


class Target(NamedTuple):
    """What a tenant calls. Ports that its scheme does not imply are targets of their own."""

    host: str
    port: int
    url: str
    """Without its query, which may hold secrets."""
    key: str
    """What runs are held under while the host is left alone."""
    url_key: str
    """The same for this one URL, its query included."""


@lru_cache(MOST_TARGETS)
def target_of(tenant_id: int, url: str) -> Target | None:
    """The target of a URL; None for one that cannot be called at all."""
    try:
        endpoint = parse_url(url)
    except ValueError:
        return None
    key = f"{KEY_PREFIX}{tenant_id}:{endpoint.authority}"
    whole = f"{endpoint.origin}{endpoint.resource}"
    digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
    return Target(endpoint.host, endpoint.port, whole.partition("?")[0], key, f"{key}#{digest}")


def is_healthy(outcome: Outcome) -> bool | None:
    """What an executor's outcome says of the target; None when it says nothing.

    An answer below 500 comes from a target that works, whatever it thinks of the request. One that
    asks for patience (408, 425, 429) is neither well nor out of order, and what was not sent or
    was cut off by us tells nothing.
    """
    if outcome.kind not in _MEASURED:
        return None
    if outcome.kind is OutcomeKind.SUCCESS:
        return True
    status = outcome.http_status
    if status is None or status >= 500 or outcome.kind is OutcomeKind.TIMEOUT:
        return False
    if status in _SAYS_NOTHING:
        return None
    return status >= 300  # below, an answer that began well has broken off


def reason_of(outcome: Outcome) -> str:
    """What went wrong, for people: one short printable line."""
    text = outcome.error or outcome.kind.value
    return "".join(mark if mark.isprintable() else " " for mark in text[:LONGEST_REASON])


# --- when it opens ----------------------------------------------------------------------------


class _Bucket:
    __slots__ = ("failed", "first_failed", "healthy", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.healthy = self.failed = 0
        self.first_failed = float("inf")


class _Window:
    __slots__ = ("buckets", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.buckets: list[_Bucket] = []


class Trip(NamedTuple):
    """A target that fails too often: what was counted, and when the first failed call began."""

    requests: int
    failures: int
    first: float

    def reason(self, last: Outcome) -> str:
        """Why it opens, for people."""
        return f"{self.failures} of {self.requests} requests failed, the last: {reason_of(last)}"


class Windows:
    """Counts what came of calls in the last minute, target by target."""

    def __init__(self, most: int = MOST_TARGETS) -> None:
        self._most = most
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def note(self, key: str, healthy: bool, began: float, now: float) -> Trip | None:
        """One more call, which began at ``began``; a trip when the target fails too often.

        A call that began before the last :meth:`reset` tells of other times.
        """
        window = self._window(key, float("-inf"))
        if began < window.since:
            return None
        bucket = self._bucket(window, int(now // (WINDOW_SEC / BUCKETS)))
        if healthy:
            bucket.healthy += 1
            return None
        bucket.failed += 1
        bucket.first_failed = min(began, bucket.first_failed)
        return _trip(window)

    def reset(self, key: str, now: float) -> None:
        """Begin anew: only calls that begin from now on count."""
        self._windows.pop(key, None)
        self._window(key, now)

    def _window(self, key: str, since: float) -> _Window:
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(since)
            if len(self._windows) > self._most:
                self._windows.popitem(last=False)
        self._windows.move_to_end(key)
        return window

    @staticmethod
    def _bucket(window: _Window, number: int) -> _Bucket:
        if not window.buckets or window.buckets[-1].number < number:
            window.buckets.append(_Bucket(number))
        if window.buckets[0].number <= number - BUCKETS:
            window.buckets[:] = [each for each in window.buckets if each.number > number - BUCKETS]
        return window.buckets[-1]


def _trip(window: _Window) -> Trip | None:
    failures = sum(bucket.failed for bucket in window.buckets)
    requests = failures + sum(bucket.healthy for bucket in window.buckets)
    if requests < MIN_REQUESTS or failures < FAILURE_RATIO * requests:
        return None
    return Trip(requests, failures, min(bucket.first_failed for bucket in window.buckets))


def pauses(first_sec: float = PAUSE_SEC) -> list[timedelta]:
    """How long a target is left alone the first time, the second, and so on; the last one stays."""
    factors = [1, 2, 4, 8, LONGEST_PAUSE]
    return [timedelta(seconds=first_sec * factor) for factor in factors]


# --- how runs flow back -----------------------------------------------------------------------


def rate(elapsed_sec: float) -> float:
    """How many held runs a second flow back, so long after the breaker has closed."""
    steps = min(int(max(elapsed_sec, 0.0) // DOUBLED_EVERY_SEC), 16)
    return float(min(FIRST_RATE * 2**steps, FASTEST_RATE))


def released(elapsed_sec: float) -> int:
    """How many may have flowed back in all, so long after it has closed."""
    total, at = 0.0, 0.0
    while at < elapsed_sec:
        speed = rate(at)
        until = elapsed_sec if speed >= FASTEST_RATE else min(at + DOUBLED_EVERY_SEC, elapsed_sec)
        total += speed * (until - at)
        at = until
    return int(total + 1e-6)


def admissible(since_sec: float, last_sec: float) -> int:
    """How many may flow back now: ``since_sec`` ago it closed, ``last_sec`` ago some did."""
    room = released(since_sec) - released(since_sec - last_sec)
    return min(room, int(rate(since_sec) * CATCH_UP_SEC))
