"""What a worker process knows of the rates of deliveries, and how it keeps to them.

A claimed run whose tenant or host has a rate takes an instant of it within the claim's transaction.
With one that is near it waits in the worker, and is sent then; else it goes on hold. Instants are
given out once and never taken back: those of a worker that dies pass unused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import Final, NamedTuple

import structlog

from noonday.domain import lifecycle
from noonday.domain.errors import StoreUnavailable
from noonday.domain.model import Outcome, OutcomeKind
from noonday.domain.rates import (
    HOLD,
    KEY_PREFIX,
    PUSHED_SEC,
    SLOWEST,
    Granted,
    Pace,
    Refused,
    Wish,
    grant,
    host_key,
    tenant_key,
)
from noonday.loops.flight import Flight
from noonday.store import Row, Store, Tx, rates, settlements, targets
from noonday.store.runs import Held
from noonday.store.settlements import Settlement
from noonday.telemetry import Metrics

READ_SEC: Final = 1.0
SLOWED_AGAIN: Final = timedelta(seconds=5)
"""A rate is not slowed down again sooner than this: what was under way is answered first."""
TOO_MANY: Final = 429
_NOTHING: Final = Outcome(OutcomeKind.NOT_SENT)
_AT_ONCE: Final = timedelta()

log = structlog.get_logger()


class _Wanting(NamedTuple):
    flight: Flight
    tenant: str | None
    host: str | None

    @property
    def waited(self) -> bool:
        """Whether it was claimed before: it may have been let go just now."""
        return self.flight.lease.lease_version > 1


class Rates:
    """One worker process's part in the rates of tenants and hosts."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._limited: dict[str, float] | None = None
        self._read_at = float("-inf")
        self._refused: dict[str, timedelta] = {}
        self._told: dict[str, float] = {}
        self._shut: dict[str, float] = {}
        """Until when, by the monotonic clock, rates have nothing for those that come newly."""
        self.wake: Callable[[], None] = lambda: None
        """Called when something waits to be written."""

    # --- claims ---------------------------------------------------------------------------

    async def hold(self, tx: Tx, flights: Sequence[Flight], room: int) -> set[Held]:
        """Of runs that this transaction has claimed, put on hold those that no rate has an instant
        for now; which. The others know when they may be sent, and no more than ``room`` of them
        have to wait. For what has no rate this asks the database nothing."""
        if self._limited is None:  # nothing may go before it is known how fast
            self._limited = await rates.limited(tx)
        if not self._limited:
            return set()
        wanting = [found for flight in flights if (found := self._wants(flight)) is not None]
        if not wanting:
            return set()
        shut = [(one.flight, key) for one in wanting if (key := self._shut_for(one)) is not None]
        asking = [one for one in wanting if self._shut_for(one) is None] if shut else wanting
        refused = shut + (await self._ask(tx, asking, room) if asking else [])
        return await self._put_on_hold(tx, refused) if refused else set()

    def _shut_for(self, one: _Wanting) -> str | None:
        """The rate that is known to have nothing yet for one that comes newly. (So that a flood
        goes on hold without keeping the others from the rate.)"""
        if one.waited:
            return None
        now = time.monotonic()
        keys = (key for key in (one.host, one.tenant) if key is not None)
        return next((key for key in keys if self._shut.get(key, now) > now), None)

    async def _ask(
        self, tx: Tx, wanting: Sequence[_Wanting], room: int
    ) -> list[tuple[Flight, str]]:
        """Give each an instant; those for which there is none, with the rate that refused."""
        keys = {key for one in wanting for key in (one.tenant, one.host) if key is not None}
        rows = await rates.lock(tx, sorted(keys))
        answered = time.monotonic()
        now = max(row["now"] for row in rows)
        paces = {row["key"]: self._pace(row, now) for row in rows}
        answers = grant([_wish(one, paces) for one in wanting], room)
        moved = {key: _at(now, pace.next_sec) for key, pace in paces.items() if pace.taken}
        if moved:
            await rates.move(tx, moved)
        self._shut |= {key: answered + pace.shut_sec for key, pace in paces.items()}
        for one, answer in zip(wanting, answers, strict=True):
            if isinstance(answer, Granted):
                _let(one.flight, answer.at_sec, now, answered)
        return [
            (one.flight, answer.key)
            for one, answer in zip(wanting, answers, strict=True)
            if isinstance(answer, Refused)
        ]

    def _wants(self, flight: Flight) -> _Wanting | None:
        """The rates that it needs an instant of. What is too late ends without a request."""
        limited, target, tenant_id = self._limited or {}, flight.target, flight.lease.tenant_id
        if target is None or flight.too_late:
            return None
        tenant, host = tenant_key(tenant_id), host_key(tenant_id, target.host)
        found = _Wanting(
            flight, tenant if tenant in limited else None, host if host in limited else None
        )
        return None if found.tenant is None and found.host is None else found

    def _pace(self, row: Row, now: datetime) -> Pace:
        per_sec = (self._limited or {})[row["key"]]
        next_sec = (row["next_at"] - now).total_seconds()
        let_go = row["let_go_at"]
        let_go_sec = None if let_go is None else (let_go - now).total_seconds()
        return Pace(row["key"], per_sec, row["slowed"], next_sec, let_go_sec)

    async def _put_on_hold(self, tx: Tx, refused: Sequence[tuple[Flight, str]]) -> set[Held]:
        held = await settlements.apply(
            tx,
            [
                Settlement(flight.held, lifecycle.hold(HOLD, f"{KEY_PREFIX}{key}"), _NOTHING)
                for flight, key in refused
            ],
        )
        for flight, _ in refused:
            if flight.probe is not None:  # another may try the target instead
                await targets.give_back(tx, *flight.probe)
        self._metrics.held(HOLD, len(held))
        return held

    # --- outcomes -------------------------------------------------------------------------

    def note(self, flight: Flight, outcome: Outcome) -> None:
        """An executor came to ``outcome``: see whether the receiver wants less of it."""
        if outcome.http_status != TOO_MANY or flight.target is None:
            return
        key = host_key(flight.lease.tenant_id, flight.target.host)
        if key not in (self._limited or ()):
            return
        wait = min(outcome.retry_after or _AT_ONCE, timedelta(seconds=PUSHED_SEC))
        told_for = time.monotonic() - self._told.get(key, float("-inf"))
        if told_for >= SLOWED_AGAIN.total_seconds() or wait > self._refused.get(key, _AT_ONCE):
            self._told[key] = time.monotonic()
            self._refused[key] = max(wait, self._refused.get(key, _AT_ONCE))
            self.wake()

    # --- the loop -------------------------------------------------------------------------

    async def tick(self) -> int:
        """Tell of the hosts that want less, and read what has a rate; how many were slowed down."""
        slowed = 0
        for key in list(self._refused):
            slowed += await self._slow(key, self._refused.pop(key))
        if time.monotonic() - self._read_at >= READ_SEC / 2:
            await self._read()
        return slowed

    async def _read(self) -> None:
        async with self._store.in_turn() as tx:
            found = await rates.limited(tx)
        before, self._limited, self._read_at = self._limited or {}, found, time.monotonic()
        self._told = {key: at for key, at in self._told.items() if key in found}
        same = (key for key in self._shut if found.get(key) == before.get(key))
        self._shut = {key: self._shut[key] for key in same if self._shut[key] > self._read_at}

    async def _slow(self, key: str, wait: timedelta) -> bool:
        try:
            async with self._store.transaction() as tx:
                done = await rates.slow(tx, key, wait, SLOWEST, SLOWED_AGAIN)
        except StoreUnavailable:
            self._told.pop(key, None)  # the next one who says so is heard
            raise
        if done:
            self._metrics.target_changed("slowed")
            log.warning("rate.slowed", target=key, wait_sec=wait.total_seconds())
        return done


def _wish(one: _Wanting, paces: dict[str, Pace]) -> Wish:
    return Wish(
        None if one.tenant is None else paces[one.tenant],
        None if one.host is None else paces[one.host],
        waited=one.waited,
    )


def _at(now: datetime, sec: float) -> datetime:
    """So many seconds from ``now`` on, never earlier: to the next microsecond."""
    return now + timedelta(microseconds=ceil(sec * 1e6))


def _let(flight: Flight, at_sec: float, now: datetime, answered: float) -> None:
    """It may be sent, so many seconds from ``now`` on; when, by our own clock as well. (Counted
    from when we were answered, for the database's ``now`` had passed then: it is never early.)"""
    flight.granted_at = _at(now, max(at_sec, 0.0))
    flight.not_before = answered + at_sec if at_sec > 0 else None
