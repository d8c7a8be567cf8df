"""One process of the service, as ``noonday up`` starts it: to be killed, stopped and cut off."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

import aiohttp

from noonday import listening
from noonday.drill.links import Link
from noonday.supervisor import Child

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108
LEFT_BY_FAKETIME: Final = ("faketime_shm_{}", "sem.faketime_sem_{}")
ASK: Final = aiohttp.ClientTimeout(total=2)


class Member:
    """A process at its place: started again there, it has the same ports, link and log."""

    def __init__(self, name: str, child: Child, link: Link, log: Path, clock: Path | None) -> None:
        self.name = name
        self.link = link
        self.admin = listening.address_of(child.admin)
        self.struck = asyncio.Lock()
        """Held by the fault that it suffers: one at a time."""
        self.pid = 0
        self.kills = self.starts = self.unasked = 0
        self._child = child
        self._log = log
        self._clock = clock
        self._pids: list[int] = []

    @property
    def role(self) -> str:
        """What it is: api, scheduler or worker."""
        return self._child.role

    def start(self) -> None:
        """Start it, or start it again."""
        with self._log.open("ab") as log:
            self._child.errors = log.fileno()
            self._child.start()
        assert self._child.process is not None
        self.pid = self._child.process.pid
        self._pids.append(self.pid)
        self.starts += 1

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        process = self._child.process
        return process is not None and process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended: its pid is ours until we have looked after it."""
        if self.runs:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """``kill -9``; gone when this returns."""
        self.signal(signal.SIGKILL)
        self._child.wait(time.monotonic() + 10)
        self.kills += 1

    async def stop(self, within_sec: float) -> int | None:
        """SIGTERM, and its exit code; None when it took longer and was killed."""
        process = self._child.process
        if process is None:
            return None
        self.signal(signal.SIGTERM)
        until = time.monotonic() + within_sec
        while process.poll() is None and time.monotonic() < until:
            await asyncio.sleep(0.02)
        code = process.poll()
        if code is None:
            self.kill()
        else:
            self._child.wait(time.monotonic() + 1)
        return code

    def look_after(self) -> None:
        """Start it again when it has ended by itself, as a supervisor does."""
        if not self.struck.locked() and self._child.process is not None and not self.runs:
            self._child.wait(time.monotonic() + 1)
            self.unasked += 1
            self.start()

    def close(self) -> None:
        """End it, whatever its state."""
        self.signal(signal.SIGCONT)
        self._child.tell_to_stop()
        self._child.wait(time.monotonic() + 5)
        self._child.admin.close()
        for pid in self._pids:
            for name in LEFT_BY_FAKETIME:
                (SHARED_MEMORY / name.format(pid)).unlink(missing_ok=True)

    def step_clock(self, seconds: float) -> None:
        """Let its wall clock be wrong by so much; its monotonic one goes on."""
        assert self._clock is not None
        unfinished = self._clock.with_suffix(".new")
        unfinished.write_text(f"{seconds:+g}\n")
        unfinished.rename(self._clock)

    async def clock_error(self) -> float | None:
        """By how many seconds its wall clock is wrong, as it says itself in an answer."""
        try:
            async with aiohttp.request("GET", f"{self.admin}/healthz", timeout=ASK) as answer:
                said = parsedate_to_datetime(answer.headers["Date"])
        except (aiohttp.ClientError, TimeoutError):
            return None
        return said.timestamp() - time.time()

    async def is_ready(self) -> bool:
        """Whether it says that it can do its work."""
        try:
            async with aiohttp.request("GET", f"{self.admin}/readyz", timeout=ASK) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def settled(self, within_sec: float) -> bool:
        """Whether it is ready before so long."""
        until = time.monotonic() + within_sec
        while not await self.is_ready():
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.1)
        return True


def clock_environment(library: Path, clock: Path) -> Mapping[str, str]:
    """What makes a process take its wall clock's error from the file ``clock``."""
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }
