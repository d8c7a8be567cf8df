"""What runs by itself. One moving part is one file with one bounded ``tick``.

A :class:`Loop` drives a tick: again at once while there is work, after a growing pause when
there is none, earlier when woken. A tick that fails is logged with its traceback, counted, and
tried again after a pause that grows as well; it is never swallowed and never ends the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from noonday import pulse
from noonday.telemetry import Metrics

SHORTEST_PAUSE_SEC: Final = 0.005
LONGEST_BACKOFF_SEC: Final = 5.0
MANY: Final = 100
"""A tick that handled so much goes on without a rest."""

log = structlog.get_logger()


class Loop:
    """Runs ``tick`` until cancelled.

    ``pause_sec`` is how long it sleeps at most when a tick found nothing to do, or says so; a loop
    that may be woken starts with a short pause and doubles it up to that. ``rest_sec`` is how long
    it lets work gather after a tick that found some: few things cost a tick nearly what many do.
    """

    def __init__(
        self,
        name: str,
        tick: Callable[[], Awaitable[int]],
        metrics: Metrics,
        *,
        pause_sec: float | Callable[[], float] = 0.25,
        rest_sec: float = 0.0,
        steady: bool = False,
        sleep_for: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.name = name
        self._tick = tick
        self._metrics = metrics
        self._longest = pause_sec if callable(pause_sec) else lambda: pause_sec
        self._rest_sec = rest_sec
        self._steady = steady
        self._sleep_for = sleep_for
        self._woken = asyncio.Event()
        self._last_good = time.monotonic()
        self._task: asyncio.Task[None] | None = None
        self._finish = asyncio.Event()

    def wake(self) -> None:
        """There may be work: do not wait for the end of the pause."""
        self._woken.set()

    def is_ticking(self, within_sec: float = 15.0) -> bool:
        """Whether a tick has ended well lately: what readiness asks."""
        return time.monotonic() - self._last_good < within_sec + self._longest()

    def start(self) -> None:
        """Run as a task of its own."""
        self._task = asyncio.create_task(self.run(), name=self.name)

    async def finish(self, within_sec: float = 10.0) -> None:
        """Let the tick under way end, and begin no other."""
        self._finish.set()
        self.wake()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=within_sec)
            self._task.cancel()
            # What a cancelled tick puts back must be back before anybody looks for it.
            await asyncio.wait([self._task], timeout=within_sec)

    async def run(self) -> None:
        """Tick until told to finish, or cancelled."""
        idle = errors = 0
        while not self._finish.is_set():
            self._woken.clear()
            try:
                done, took = await self._timed_tick()
            except Exception as error:
                errors += 1
                self._metrics.loop_failed(self.name)
                log.exception("loop.failed", loop=self.name, error=type(error).__name__)
                await _until(self._finish, min(0.05 * 2 ** min(errors, 16), LONGEST_BACKOFF_SEC))
                continue
            errors = 0
            self._last_good = time.monotonic()
            idle = 0 if done else idle + 1
            if self._rest_sec and 0 < done < MANY:
                await _until(self._finish, self._rest_sec)
            if idle or self._steady:
                await self._pause(idle, took)

    async def _timed_tick(self) -> tuple[int, float]:
        started = time.perf_counter()
        done = await self._tick()
        took = time.perf_counter() - started
        self._metrics.ticked(self.name, took, done)
        return done, took

    async def _pause(self, idle: int, took: float) -> None:
        longest, wanted = self._longest(), self._sleep_for()
        growing = SHORTEST_PAUSE_SEC * 2 ** min(idle - 1, 16)
        if wanted is not None:
            pause = min(longest, max(wanted, 0.001))
        elif growing < longest and not self._steady:
            pause = growing
        else:
            pause = pulse.left(longest, took)  # at least half of the time is rest
        await _until(self._woken, pause)


async def _until(event: asyncio.Event, at_most_sec: float) -> None:
    """Wait for an event, but not for ever."""
    try:
        async with asyncio.timeout(at_most_sec):
            await event.wait()
    except TimeoutError:
        pass
