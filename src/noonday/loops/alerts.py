"""Alerts: evaluates what may be wrong, writes how each alert stands, and posts notices of it.

One process does it at a time, the one that owns shard 0; should two overlap for a moment, the
second finds nothing to change. Nothing but the rows is kept, so whoever takes over goes on.
``tick`` evaluates; ``tell`` posts in a loop of its own, so that a receiver that hangs holds up
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Protocol

import msgspec
import structlog

from noonday.domain.alerts import Alert, AlertState, judge
from noonday.domain.notices import notice
from noonday.domain.vitals import Seen, conditions
from noonday.store import Store, alerts, gauges, workers
from noonday.telemetry import Metrics

SEND_BEFORE_SEC: Final = 10.0
"""A notice that was claimed longer ago is not sent: the alert may have moved on."""

log = structlog.get_logger()


class Poster(Protocol):
    """Posts notices; see :class:`noonday.executors.posting.Poster`."""

    async def post(self, body: bytes) -> str | None:
        """None when it was taken, else why not."""


class Alerts:
    """Keeps the alerts. ``leads`` says whether this process is the one to do it."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        poster: Poster | None,
        *,
        objective: Callable[[str], float],
        repeat: timedelta,
        leads: Callable[[], bool],
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._poster = poster
        self._objective = objective
        self._repeat = repeat
        self._leads = leads
        self.wake_tell: Callable[[], None] = lambda: None
        """Called when a notice may be due."""

    async def tick(self) -> int:
        """Evaluate every alert once."""
        if not self._leads():
            return 0
        async with self._store.in_turn() as tx:
            now = await tx.clock()
            seen = Seen(
                await gauges.lanes(tx),
                await alerts.letters(tx),
                await workers.vitals(tx),
                await alerts.unowned(tx),
                await workers.absent(tx),
            )
            standing = [alerts.alert_of(row) for row in await alerts.every(tx)]
            found = conditions(seen, self._objective)
            if not standing and not found:
                await alerts.checked(tx)
                return 0
        # What has changed since it was read stays as it is: each write knows the version it is of.
        changes = judge({alert.key: alert for alert in standing}, found, now)
        async with self._store.transaction() as tx:
            moved = await alerts.write(tx, changes)
        for alert in (*changes.opened, *changes.moved):
            if alert.key in moved:
                _log(alert)
        if moved:
            self.wake_tell()
        return 0

    async def tell(self) -> int:
        """Post the notices that are due, all in one."""
        if self._poster is None or not self._leads():
            return 0
        claimed_at = time.monotonic()
        async with self._store.transaction() as tx:
            due = [alerts.alert_of(row) for row in await alerts.claim(tx)]
        if not due or time.monotonic() - claimed_at > SEND_BEFORE_SEC:
            return 0
        fault = await self._poster.post(msgspec.json.encode(notice(due)))
        self._metrics.told("failed" if fault else "sent")
        if fault is not None:
            log.warning("alerts.not_sent", count=len(due), error=fault)
            return 0
        async with self._store.transaction() as tx:
            await alerts.confirm(tx, due, self._repeat)
        log.info("alerts.sent", count=len(due))
        return 0


def _log(alert: Alert) -> None:
    write = log.warning if alert.state is AlertState.FIRING else log.info
    event = f"alert.{alert.state.value.lower()}"
    write(event, alert=alert.name, subject=alert.subject or None, error="; ".join(alert.samples))
