"""One process of a role, started as the supervisor starts it, to be killed by a test."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp

from noonday import listening
from noonday.supervisor import Child
from tests.support.holds import eventually


class Member:
    """One process of a role."""

    def __init__(self, child: Child, log: Path) -> None:
        self._child = child
        self._log = log
        self.admin = listening.address_of(child.admin)
        self.pid = 0

    @property
    def role(self) -> str:
        return self._child.role

    def start(self) -> None:
        """Start it, or start it again at the same address."""
        with self._log.open("ab") as log:
            self._child.errors = log.fileno()
            self._child.start()
        assert self._child.process is not None
        self.pid = self._child.process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.runs:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """``kill -9``; gone when this returns."""
        self.signal(signal.SIGKILL)
        self._child.wait(time.monotonic() + 10)

    def freeze(self) -> None:
        """SIGSTOP; stopped when this returns."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    @property
    def runs(self) -> bool:
        process = self._child.process
        return process is not None and process.poll() is None

    async def ended(self, deadline_sec: float) -> int:
        """The exit code, as soon as it has ended by itself."""
        process = self._child.process
        assert process is not None
        await eventually(lambda: process.poll() is not None, deadline_sec)
        self._child.wait(0)
        return process.returncode

    def close(self) -> None:
        """End it, whatever its state."""
        self.thaw()
        self._child.tell_to_stop()
        self._child.wait(time.monotonic() + 3)
        self._child.admin.close()

    def said(self, event: str) -> list[dict[str, Any]]:
        """The lines of its log with this event."""
        whole = self.log.rpartition("\n")[0].splitlines()
        lines = [json.loads(line) for line in whole if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    async def readiness(self) -> int:
        """The status of ``/readyz``; 0 when nobody answers."""
        try:
            async with aiohttp.request("GET", f"{self.admin}/readyz") as answer:
                return answer.status
        except aiohttp.ClientError:
            return 0

    async def is_red(self) -> bool:
        """Whether it says that it is not ready."""
        return await self.readiness() == 503

    async def ready(self, deadline_sec: float = 30) -> None:
        async def is_ready() -> bool:
            assert self.runs, self.log
            return await self.readiness() == 200

        await eventually(is_ready, deadline_sec)

    async def metric(self, name: str) -> float:
        """The sum over all labels of a metric."""
        async with aiohttp.request("GET", f"{self.admin}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        found = [line for line in lines if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rpartition(" ")[2]) for line in found)
