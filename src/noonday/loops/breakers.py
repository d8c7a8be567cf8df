"""What a worker process knows of its targets, and what it tells of them.

It counts what came of its calls, opens the breaker of a target that fails, and keeps a list of
those that are not CLOSED, read every second. A claimed run whose target is on it is put on hold
within the claim's transaction, or goes as one of the few that try the target. What is to be written
waits here and is written by ``tick``, apart from settles: those never wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import structlog

from noonday.domain import lifecycle
from noonday.domain.breaker import HOLD, Target, Trip, Windows, is_healthy, reason_of
from noonday.domain.errors import CommitUnknown, StoreUnavailable
from noonday.domain.model import Outcome, OutcomeKind
from noonday.loops.flight import Flight
from noonday.store import Row, Store, Tx, settlements, targets
from noonday.store.runs import Held
from noonday.store.settlements import Settlement
from noonday.telemetry import Metrics

MOST_PENDING: Final = 10_000
_NOTHING: Final = Outcome(OutcomeKind.NOT_SENT)

log = structlog.get_logger()


class _Opening(NamedTuple):
    tenant_id: int
    target: Target
    trip: Trip
    reason: str


class _Gone(NamedTuple):
    tenant_id: int
    target: Target
    began: float
    reason: str


class _Tried(NamedTuple):
    """What came of the runs that were let through under one generation of a target."""

    successes: int
    failure: str | None


class Breakers:
    """One worker process's part in the breakers of its targets."""

    def __init__(self, store: Store, metrics: Metrics, pauses: Sequence[timedelta]) -> None:
        self._store = store
        self._metrics = metrics
        self._pauses = pauses
        self._windows = Windows()
        self._not_closed: set[str] | None = None
        self._openings: dict[str, _Opening] = {}
        self._gone: dict[str, _Gone] = {}
        self._tried: dict[tuple[str, int], _Tried] = {}
        self.wake: Callable[[], None] = lambda: None
        """Called when something waits to be written."""

    # --- claims ---------------------------------------------------------------------------

    async def hold(self, tx: Tx, flights: Sequence[Flight]) -> set[Held]:
        """Of runs that this transaction has claimed, put on hold those that may not be sent now;
        which. While nothing is open this asks the database nothing."""
        if self._not_closed == set():
            return set()
        # What is too late ends without a request: it needs no permit, and waits for nothing.
        met = [each for each in flights if self._met(each) and not each.too_late]
        if not met:
            return set()
        found = await targets.permit(tx, self._wanted(met))
        stopped = [(flight.held, key) for flight in met if (key := _stopped_by(flight, found))]
        if not stopped:
            return set()
        held = await settlements.apply(
            tx, [Settlement(lease, lifecycle.hold(HOLD, key), _NOTHING) for lease, key in stopped]
        )
        self._metrics.held(HOLD, len(held))
        return held

    def _met(self, flight: Flight) -> bool:
        """Whether its target is known not to be CLOSED. Before the first look any may be."""
        target, known = flight.target, self._not_closed
        if target is None or known is None:
            return target is not None
        return target.key in known or target.url_key in known

    def _wanted(self, met: Sequence[Flight]) -> dict[str, int]:
        """Each target that was met, and how many runs want to go there."""
        wanted: dict[str, int] = {}
        for target in (flight.target for flight in met if flight.target is not None):
            suspended = self._not_closed is not None and target.url_key in self._not_closed
            if suspended or self._not_closed is None:
                wanted[target.url_key] = 0
            wanted[target.key] = wanted.get(target.key, 0) + (not suspended)
        return wanted

    # --- outcomes -------------------------------------------------------------------------

    def note(self, flight: Flight, outcome: Outcome) -> None:
        """An executor came to ``outcome``: count it, and see what follows for its target."""
        target, tenant_id = flight.target, flight.lease.tenant_id
        if target is None:
            return
        if outcome.kind is OutcomeKind.GONE and len(self._gone) < MOST_PENDING:
            gone = _Gone(tenant_id, target, flight.asked, reason_of(outcome))
            self._gone.setdefault(target.url_key, gone)
            self.wake()
        healthy = is_healthy(outcome)
        if healthy is None:
            return
        if flight.probe is not None:
            self._try(flight.probe, None if healthy else reason_of(outcome))
        elif target.key not in (self._not_closed or ()):
            trip = self._windows.note(target.key, healthy, flight.asked, time.monotonic())
            if trip is not None and len(self._openings) < MOST_PENDING:
                self._openings[target.key] = _Opening(tenant_id, target, trip, trip.reason(outcome))
                self.wake()

    def _try(self, probe: tuple[str, int], failure: str | None) -> None:
        successes, before = self._tried.get(probe, _Tried(0, None))
        self._tried[probe] = _Tried(successes + (failure is None), before or failure)
        self.wake()

    # --- the loop -------------------------------------------------------------------------

    async def tick(self) -> int:
        """Write what waits, each in a transaction of its own, and read which targets are not
        CLOSED; how many were written. What cannot be written now waits for the next time."""
        written, failed = 0, None
        for waiting, write in self._waiting():
            try:
                written += await _write_each(waiting, write)
            except Exception as error:
                failed = error
        await self._read()
        if failed is not None:
            raise failed
        return written

    def _waiting(self) -> tuple[tuple[dict[Any, Any], Callable[..., Awaitable[bool]]], ...]:
        return (
            (self._openings, self._open), (self._gone, self._suspend), (self._tried, self._judge),
        )  # fmt: skip

    async def _open(self, _key: str, opening: _Opening) -> bool:
        tenant_id, target, trip, reason = opening
        seen_for = timedelta(seconds=time.monotonic() - trip.first)
        async with self._store.transaction() as tx:
            opened = await targets.open(tx, tenant_id, target, reason, seen_for, self._pauses)
        # What was counted has been told, or was of another time.
        self._windows.reset(target.key, time.monotonic())
        if opened:
            self._changed("opened", target.key, reason)
        return opened

    async def _suspend(self, _key: str, gone: _Gone) -> bool:
        tenant_id, target, began, reason = gone
        seen_for = timedelta(seconds=time.monotonic() - began)
        async with self._store.transaction() as tx:
            suspended = await targets.suspend(tx, tenant_id, target, reason, seen_for)
        if suspended:
            self._changed("suspended", target.url_key, reason)
        return suspended

    async def _judge(self, probe: tuple[str, int], tried: _Tried) -> bool:
        async with self._store.transaction() as tx:
            if tried.failure is None:
                changed = await targets.probe_succeeded(tx, *probe, tried.successes)
            else:
                changed = await targets.probe_failed(tx, *probe, tried.failure, self._pauses)
        if changed:
            what = "closed" if tried.failure is None else "opened_again"
            self._changed(what, probe[0], tried.failure)
        return changed

    async def _read(self) -> None:
        async with self._store.in_turn() as tx:
            found = await targets.not_closed(tx)
        now = time.monotonic()
        for key in (self._not_closed or set()) - found:
            self._windows.reset(key, now)  # what was counted is of another time
        self._not_closed = found

    def _changed(self, what: str, key: str, reason: str | None) -> None:
        self._metrics.target_changed(what)
        log.warning(f"target.{what}", target=key, reason=reason)


async def _write_each(waiting: dict[Any, Any], write: Callable[..., Awaitable[bool]]) -> int:
    """Write what waits, one by one; how much of it has changed something.

    What could not be written waits on, unless something newer has taken its place. Should it be
    lost, as when nobody knows whether it was committed, the next outcomes tell the same.
    """
    written = 0
    for key in list(waiting):
        item = waiting.pop(key)
        try:
            written += await write(key, item)
        except CommitUnknown:
            raise
        except StoreUnavailable:
            waiting.setdefault(key, item)
            raise
    return written


def _stopped_by(flight: Flight, found: dict[str, Row]) -> str | None:
    """The key under which a run has to wait; None when it may go, perhaps by a permit."""
    target = flight.target
    if target is None:
        return None
    if target.url_key in found:
        return target.url_key
    row = found.get(target.key)
    if row is None:
        return None
    if row["permits"] == 0:
        return target.key
    found[target.key] = {**row, "permits": row["permits"] - 1}
    flight.probe = (target.key, row["generation"])
    return None
