"""An attempt in flight: the lease it runs under, and how long we may trust it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from math import inf
from typing import Final

from noonday.domain.breaker import target_of
from noonday.domain.lifecycle import Lease, Transition, is_too_late
from noonday.domain.model import JobSpec, Outcome
from noonday.executors import Sent
from noonday.store import Row
from noonday.store.cancels import Asked
from noonday.store.runs import Held, held_key, lease_of

MARGIN: Final = 0.2
"""The part of a lease before whose end we give up, lest somebody else begins meanwhile."""


TIMER_SEC: Final = 0.001
"""Timers may go off earlier by this."""
BEAT_SEC: Final = 0.5
"""How often a worker looks after its leases."""


class Flight:
    """Bookkeeping of one attempt. All times are of the monotonic clock, in seconds."""

    __slots__ = (
        "asked", "capped", "claimed", "deadline", "decision", "duplicate_cause", "extended",
        "granted_at", "held", "in_doubt", "keeps_response", "lease", "lease_sec", "lost",
        "not_before", "overtime", "probe", "sent", "settling", "spec", "stop", "target", "task",
        "watch",
    )  # fmt: skip

    def __init__(
        self, lease: Lease, held: Held, spec: JobSpec, lease_sec: int, asked: float
    ) -> None:
        self.lease = lease
        self.held = held
        self.spec = spec
        self.lease_sec = lease_sec
        self.asked = asked
        self.claimed = time.monotonic()
        self.extended = asked
        self.target = target_of(lease.tenant_id, spec.target.url)
        self.probe: tuple[str, int] | None = None
        """The permit that it goes by: the key of a target that is tried, and its generation."""
        self.capped = False
        """Whether its lane has a cap, so that its end makes room for another."""
        self.granted_at: datetime | None = None
        """The instant, by the database's clock, at which its rates let it be sent."""
        self.not_before: float | None = None
        """The same by our own clock, when it lies ahead."""
        self.sent = Sent()
        self.lost = False
        self.in_doubt = False
        self.settling = False
        self.decision: Transition | None = None
        self.stop: Asked | None = None
        """Set when it is to be cut off, since its run is cancelled."""
        self.duplicate_cause: str | None = None
        self.keeps_response = False
        self.deadline = inf
        """When its executor is cut off, should it not keep its own deadline."""
        self.overtime = False
        """Whether it was."""
        self.watch: Watch | None = None
        """Who looks after it."""
        self.task: asyncio.Task[Outcome] | None = None

    @classmethod
    def of(cls, row: Row, leased_at: datetime, spec: JobSpec, asked: float) -> Flight:
        """The flight of a claimed run; ``asked`` is from before the claim was sent."""
        return cls(lease_of(row, leased_at), held_key(row), spec, row["lease_sec"], asked)

    @property
    def too_late(self) -> bool:
        """Whether it was held back until it was too old to be tried again."""
        return is_too_late(self.lease, self.spec.retry_policy, self.lease.leased_at)

    @property
    def landed(self) -> bool:
        """Whether the executor is done with it."""
        return self.task is not None and self.task.done()

    def wants_heartbeat(self) -> bool:
        """Whether a third of the lease has passed. A landed attempt keeps its lease until it is
        settled; while that is under way its row is left alone, lest two batches of ours wait for
        each other's rows in a circle."""
        if self.lost or self.settling:
            return False
        return time.monotonic() - self.extended > self.lease_sec / 3

    def presses(self) -> bool:
        """Whether a heartbeat that it wants can wait no longer for others to go with it: for a
        twelfth of the lease, a beat included."""
        patience = max(self.lease_sec / 12 - BEAT_SEC, 0.0)
        return time.monotonic() - self.extended > self.lease_sec / 3 + patience

    @property
    def trusted_until(self) -> float:
        """When we give up, unless an extension is confirmed before."""
        return self.extended + self.lease_sec * (1 - MARGIN)

    async def wait(self) -> None:
        """Until the instant at which its rates let it be sent, or a moment later."""
        left = 0.0 if self.not_before is None else self.not_before - time.monotonic()
        if left > 0:
            await asyncio.sleep(left + TIMER_SEC)

    def extend(self, asked: float) -> None:
        """An extension asked for at ``asked`` was confirmed."""
        self.extended = asked

    def cut_off(self, asked: Asked) -> None:
        """Stop the attempt, since its run is cancelled. Asked for again, it changes nothing."""
        if self.stop is None and not self.landed:
            self.stop = asked
            self.cancel()

    def cancel(self) -> None:
        """Stop the attempt now."""
        if self.task is not None:
            self.task.cancel()


class Watch:
    """Sees to it that attempts which were claimed together end in time: nobody goes on when the
    lease may be somebody else's soon, since no extension was confirmed, nor an executor that does
    not keep its deadline. They share a timer, and nothing that hangs can hold it up."""

    def __init__(self, overdue: Callable[[Flight], None], flights: Sequence[Flight]) -> None:
        """``overdue`` is called with a flight whose lease is trusted no longer."""
        self._overdue = overdue
        self._flights = set(flights)
        self._alarm: asyncio.TimerHandle | None = None
        self._rings_at = inf
        for flight in flights:
            flight.watch = self
        if flights:
            self._ring_at(min(flight.trusted_until for flight in flights))

    def begins(self, flight: Flight, within_sec: float) -> None:
        """Its executor begins, and is cut off after so many seconds."""
        flight.deadline = time.monotonic() + within_sec
        self._ring_at(flight.deadline)

    def landed(self, flight: Flight) -> None:
        """It needs no more looking after."""
        self._flights.discard(flight)
        if not self._flights and self._alarm is not None:
            self._alarm.cancel()
            self._alarm, self._rings_at = None, inf

    def _ring_at(self, instant: float) -> None:
        if instant >= self._rings_at:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        left = max(instant - time.monotonic(), 0.0) + TIMER_SEC
        self._rings_at = instant
        self._alarm = asyncio.get_running_loop().call_later(left, self.look)

    def look(self) -> None:
        """End what is overdue."""
        now, ahead = time.monotonic(), inf
        self._alarm, self._rings_at = None, inf
        for flight in list(self._flights):
            if flight.trusted_until <= now:
                self._flights.discard(flight)
                self._overdue(flight)
                continue
            if flight.deadline <= now:
                flight.deadline, flight.overtime = inf, True
                flight.cancel()
            ahead = min(ahead, flight.trusted_until, flight.deadline)
        if ahead < inf:
            self._ring_at(ahead)
