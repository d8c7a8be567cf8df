"""Processes of Noonday as the bench starts them, and what the kernel says of any process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from noonday import listening
from noonday.settings import Settings
from noonday.supervisor import Orders

TICKS = os.sysconf("SC_CLK_TCK")
GRACE_SEC = 30.0


class Process:
    """One process of a role, started as the supervisor starts it; ``module`` may be a wrapper of
    ours around it, told more by ``environment``."""

    def __init__(
        self,
        role: str,
        settings: Settings,
        *,
        api: socket.socket | None = None,
        module: str = "noonday.supervisor",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.role = role
        self._admin = listening.bind("127.0.0.1", 0)
        inherited = [each.fileno() for each in (self._admin, api) if each is not None]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            pass_fds=inherited,
            start_new_session=True,
        )
        orders = Orders(role, settings, self._admin.fileno(), api.fileno() if api else None)
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(orders, enc_hook=str) + b"\n")
        self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def admin(self) -> str:
        """The address of its admin port."""
        return listening.address_of(self._admin)

    def kill(self) -> None:
        """End it at once; it still has to be waited for."""
        self._process.kill()

    def tell_to_stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait for its end, and kill it if that takes too long."""
        try:
            self._process.wait(GRACE_SEC)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._admin.close()


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_sec(pid: int) -> float:
    """Processor time of one process, 0 if it is gone."""
    fields = _stat(pid)
    return sum(map(int, fields[11:13])) / TICKS if fields else 0.0


def children(pid: int) -> list[int]:
    """The processes that ``pid`` has started."""
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) and int(fields[1]) == pid
    ]


def tree_sec(pid: int) -> float:
    """A process, its living children, and (in the kernel's sums) those it has reaped."""
    fields = _stat(pid)
    total = sum(map(int, fields[11:15])) / TICKS if fields else 0.0
    return total + sum(cpu_sec(child) for child in children(pid))


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    """Resident memory in MB; ``VmHWM`` is the most that it ever was."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    for line in status.splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0
