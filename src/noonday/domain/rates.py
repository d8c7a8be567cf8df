"""Rates of deliveries: which of the runs that were claimed may go, and at which instant.

A rate gives out instants, each a spacing after the one before (the generic cell rate algorithm,
ITU-T I.371). Here they are seconds from now on: 0 is now, below are those that nobody has used.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

HOLD: Final = "rate"
"""The kind of hold that a run is under while its rate is used up."""
KEY_PREFIX: Final = "rate:"
"""Comes before the rate's key in the key of such a hold."""

AHEAD_SEC: Final = 1.0
"""A run whose instant is no further ahead waits for it in the worker."""
BURST_SEC: Final = 0.1
"""Instants that nobody has used are made up for, but no more than of so long."""
SKIPPED_SEC: Final = 0.1
"""A run that has to wait longer than this for its host does not make its tenant's rate skip it."""
PUSHED_SEC: Final = 60.0
"""The longest that a receiver's ``Retry-After`` stops its host for."""
SLOWEST: Final = 1 / 64
SHORTEST_SEC: Final = 1e-6
LONGEST_SEC: Final = 1e9
"""No spacing is shorter or longer than these, whatever a rate says."""
_MOMENT: Final = 1e-6
"""What arithmetic may be off by."""


def tenant_key(tenant_id: int) -> str:
    """The rate of all that a tenant sends."""
    return f"tenant:{tenant_id}"


def host_key(tenant_id: int, host: str) -> str:
    """The rate of what a tenant sends to a host, whatever the port."""
    return f"host:{tenant_id}:{host}"


def burst(per_sec: float) -> float:
    """How many may go at once after a pause."""
    return max(1.0, per_sec * BURST_SEC)


class Pace:
    """One rate, and the next instant that it gives out."""

    __slots__ = ("key", "let_go_sec", "next_sec", "spacing_sec", "taken")

    def __init__(
        self, key: str, per_sec: float, slowed: float, next_sec: float, let_go_sec: float | None
    ) -> None:
        """``let_go_sec`` is up to which instant runs were let go that waited; None when none
        ever did. Instants that lie further ahead than they can are of a rate that was lower."""
        self.key = key
        self.spacing_sec = min(max(1 / (per_sec * slowed), SHORTEST_SEC), LONGEST_SEC)
        furthest = max(AHEAD_SEC + self.spacing_sec, PUSHED_SEC)
        earliest = -(burst(per_sec) - 1) * self.spacing_sec
        self.next_sec = max(min(next_sec, furthest), earliest)
        self.let_go_sec = 0.0 if let_go_sec is None else min(let_go_sec, furthest)
        self.taken = 0
        """How many instants were given out."""

    @property
    def behind(self) -> bool:
        """Whether runs wait for it: those that come newly have to go behind them."""
        return self.let_go_sec > 0

    @property
    def shut_sec(self) -> float:
        """For how long it surely has nothing for runs that come newly."""
        return max(self.let_go_sec, self.next_sec - AHEAD_SEC)

    def take(self, at_sec: float) -> None:
        """This instant is given out."""
        self.next_sec = at_sec + self.spacing_sec
        self.taken += 1


class Wish(NamedTuple):
    """A run that was claimed and needs an instant of its tenant's and of its host's rate."""

    tenant: Pace | None
    host: Pace | None
    waited: bool
    """Whether it was claimed before: it may have been let go just now."""


class Granted(NamedTuple):
    """It may go at this instant, or at once when that has passed."""

    at_sec: float


class Refused(NamedTuple):
    """It has to wait until this rate lets it go."""

    key: str


def grant(wishes: Sequence[Wish], room: int) -> list[Granted | Refused]:
    """Give out instants, to each run one that is its tenant's and its host's at the same time.

    At most ``room`` of them lie ahead. Who is next goes at the earliest instant that is left, but
    a run whose host comes later lets others of its tenant go before. Nothing is taken for what is
    refused.
    """
    answers: dict[int, Granted | Refused] = {}
    of_tenants: dict[str | None, list[int]] = {}
    for n, wish in enumerate(wishes):
        of_tenants.setdefault(None if wish.tenant is None else wish.tenant.key, []).append(n)
    for numbers in of_tenants.values():
        for n in _in_turn(wishes, numbers):
            answers[n] = answer = _decide(wishes[n], may_wait=room > 0)
            room -= isinstance(answer, Granted) and answer.at_sec > _MOMENT
    return [answers[n] for n in range(len(wishes))]


def _in_turn(wishes: Sequence[Wish], numbers: Sequence[int]) -> Iterator[int]:
    """The runs of a tenant, each to be decided before the next one is asked for."""
    hosts: list[tuple[float, int, str]] = []
    queues: dict[str, deque[int]] = {}

    def come(host: str) -> None:
        if queues[host]:
            first = queues[host][0]
            heapq.heappush(hosts, (_soonest(wishes[first].host), first, host))
        else:
            del queues[host]

    for n in numbers:
        tenant, host = wishes[n].tenant, wishes[n].host
        while hosts and hosts[0][0] <= _soonest(tenant):
            key = heapq.heappop(hosts)[2]
            yield queues[key].popleft()
            come(key)
        if host is not None and host.key in queues:
            queues[host.key].append(n)
        elif host is not None and _soonest(host) > _soonest(tenant):
            queues[host.key] = deque((n,))
            come(host.key)
        else:
            yield n
    while hosts:
        key = heapq.heappop(hosts)[2]
        yield queues[key].popleft()
        come(key)


def _soonest(pace: Pace | None) -> float:
    return 0.0 if pace is None else max(pace.next_sec, 0.0)


def _decide(wish: Wish, may_wait: bool) -> Granted | Refused:
    tenant, host, furthest = wish.tenant, wish.host, AHEAD_SEC if may_wait else 0.0
    furthest += _MOMENT
    for pace in (host, tenant):
        if pace is not None and (pace.next_sec > furthest or (pace.behind and not wish.waited)):
            return Refused(pace.key)
    if host is not None and tenant is not None and _skips(host, tenant):
        return Refused(host.key)
    paces = [pace for pace in (tenant, host) if pace is not None]
    at_sec = max((pace.next_sec for pace in paces), default=0.0)
    for pace in paces:
        pace.take(at_sec)
    return Granted(at_sec)


def _skips(host: Pace, tenant: Pace) -> bool:
    return host.next_sec > _soonest(tenant) + SKIPPED_SEC


class Release(NamedTuple):
    """How many runs that wait for a rate to let go now, and up to which instant that is."""

    runs: int
    let_go_sec: float
    next_sec: float
    """The next instant that the rate gives out: not so far ahead as when it was lower."""


def release(
    per_sec: float,
    slowed: float,
    next_sec: float,
    let_go_sec: float | None,
    within_sec: float,
    most: int,
) -> Release:
    """What to let go of those that wait for a rate: as many as have an instant ``within_sec``
    that is neither taken nor meant for one that was let go before."""
    pace = Pace("", per_sec, slowed, next_sec, let_go_sec)
    start = pace.next_sec
    if let_go_sec is not None:
        start = max(start, min(let_go_sec, within_sec + pace.spacing_sec))
    if start > within_sec:
        return Release(0, start, pace.next_sec)
    count = min(1 + int((within_sec - start) / pace.spacing_sec + 1e-6), most)
    return Release(count, start + count * pace.spacing_sec, pace.next_sec)
