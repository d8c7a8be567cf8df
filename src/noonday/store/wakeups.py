"""Wake-ups: a hint that there is work, so that nobody has to poll quickly. Polling stays beneath.

A notification per job would serialise commits, so they are sent after the commit, from a
connection of their own, at most one per kind and pause. Losing one costs the poll interval.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from noonday.domain.errors import StoreUnavailable
from noonday.store import DirectConnection, Store

CHANNEL: Final = "noonday"
RUNS: Final = "runs"
TIMERS: Final = "timers"
RETRIES: Final = "retries"
PAUSE_SEC: Final = 0.004
AGAIN_SEC: Final = 1.0
NOTIFY_SEC: Final = 5.0
PROBE_SEC: Final = 10.0
POLL_SEC: Final = 0.25
"""How much later work is found without wake-ups, at most: the loops look so often when idle,"""
QUIET_SEC: Final = 1.0
"""and so often while wake-ups are heard: one is lost only with the process that was to send it."""

NOTIFY: Final = "SELECT pg_notify($1, $2)"
PROBE: Final = "SELECT 1"

log = structlog.get_logger()


class Wakeups:
    """Sends and hears wake-ups over one direct connection, made again whenever it is lost."""

    def __init__(self, store: Store, notified: Callable[[str], None] = lambda _: None) -> None:
        """``notified`` is told of each wake-up that was ``sent`` or ``heard``."""
        self._store = store
        self._notified = notified
        self._asked: set[str] = set()
        self._ask = asyncio.Event()
        self._listeners: dict[str, list[Callable[[], None]]] = {}
        self._lost = False
        self._hears = False

    def poll_sec(self) -> float:
        """How often a loop that is woken looks all the same."""
        return QUIET_SEC if self._hears else POLL_SEC

    def runs(self) -> None:
        """There are READY runs to claim."""
        self._wake(RUNS)

    def timers(self) -> None:
        """A timer is due so soon that a scheduler may sleep past it."""
        self._wake(TIMERS)

    def of(self, kind: str) -> None:
        """What a transaction asked for: for ``Store.wake``."""
        self._wake(kind)

    def on(self, kind: str, wake: Callable[[], None]) -> None:
        """Call ``wake`` at each wake-up of ``kind``; to be set before :meth:`run`."""
        self._listeners.setdefault(kind, []).append(wake)

    async def run(self) -> None:
        """Keep the connection and send what is asked for, until cancelled."""
        while True:
            try:
                async with self._store.direct() as connection:
                    await self._serve(connection)
            except StoreUnavailable as error:
                self._note_loss(str(error))
            except Exception:
                log.exception("wakeups.failed")
            await asyncio.sleep(AGAIN_SEC)

    async def _serve(self, connection: DirectConnection) -> None:
        lost = asyncio.Event()
        connection.on_close(lost.set)
        connection.on_close(self._ask.set)
        if self._listeners:
            await connection.listen(CHANNEL, self._heard)
            self._hears = True
            # What was said while nobody listened.
            for kind in self._listeners:
                self._heard(kind)
        self._note_return()
        while not lost.is_set():
            if await self._is_asked():
                await self._send(connection)
                await asyncio.sleep(PAUSE_SEC)
            else:
                # What only listens would never notice that the other end is gone, if something
                # between them keeps this end up.
                async with asyncio.timeout(NOTIFY_SEC):
                    await connection.value(PROBE)
        raise StoreUnavailable("the connection for wake-ups was lost")

    async def _is_asked(self) -> bool:
        """Wait for something to send, or for the time to probe."""
        try:
            async with asyncio.timeout(PROBE_SEC):
                await self._ask.wait()
        except TimeoutError:
            return False
        self._ask.clear()
        return True

    async def _send(self, connection: DirectConnection) -> None:
        asked, self._asked = self._asked, set()
        for kind in asked:
            async with asyncio.timeout(NOTIFY_SEC):
                await connection.value(NOTIFY, CHANNEL, kind)
            self._notified("sent")

    def _note_loss(self, error: str) -> None:
        if not self._lost:
            log.warning("wakeups.lost", error=error, wait_sec=POLL_SEC)
        self._lost = True
        if self._hears:
            self._hears = False
            for wakes in self._listeners.values():
                for wake in wakes:  # out of a long pause, into short ones
                    wake()

    def _note_return(self) -> None:
        if self._lost:
            log.info("wakeups.back")
        self._lost = False

    def _wake(self, kind: str) -> None:
        self._asked.add(kind)
        self._ask.set()

    def _heard(self, kind: str) -> None:
        self._notified("heard")
        for wake in self._listeners.get(kind, ()):
            wake()
