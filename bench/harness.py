"""The service under test: an embedded Postgres and real role processes, and what they consume."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from noonday import listening
from noonday.embedded import EmbeddedPostgres
from noonday.server import prepare
from noonday.settings import Settings
from noonday.store import Store
from noonday.supervisor import Child

DATABASE: dict[str, str] = {}
"""Version and settings of the Postgres that was measured last."""
SHOWN = (
    *("server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_compression"),
    *("shared_buffers", "max_wal_size", "checkpoint_timeout", "plan_cache_mode"),
)
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """What was consumed up to a moment, to be subtracted from a later one."""

    postgres_sec: float
    noonday_sec: float
    wal_bytes: int
    commits: int


class Service:
    """A fresh database and the processes of some roles. Everything is removed at the end."""

    def __init__(self, postgres: EmbeddedPostgres, settings: Settings, token: str) -> None:
        self.postgres = postgres
        self.settings = settings
        self.token = token
        self.children: list[Child] = []
        self.address = ""
        self._stack = ExitStack()
        self._gone_sec = 0.0

    def start(self, role: str) -> Child:
        """Start one more process of ``role``."""
        api = None
        if role == "api":
            api = self._stack.enter_context(listening.bind("127.0.0.1", 0))
            self.address = listening.address_of(api)
        admin = self._stack.enter_context(listening.bind("127.0.0.1", 0))
        child = Child(role, self.settings, admin, api)
        child.start()
        self.children.append(child)
        return child

    def stop(self) -> None:
        for child in self.children:
            child.tell_to_stop()
        for child in self.children:
            child.wait(time.monotonic() + 60)
        self.children.clear()
        self._stack.close()

    async def store(self, size: int = 2) -> Store:
        return await Store.open(str(self.settings.database_url), size=size)

    async def usage(self, store: Store) -> Usage:
        """CPU of Postgres (with all its children, also those gone) and of ours, and WAL."""
        async with store.transaction() as tx:
            row = await tx.one(
                "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS wal, xact_commit AS commits "
                "FROM pg_stat_database WHERE datname = current_database()"
            )
        ours = sum(_cpu_sec(child.process.pid) for child in self.children if child.process)
        return Usage(_tree_sec(self.postgres.pid or 0), ours, int(row["wal"]), row["commits"])


@asynccontextmanager
async def service(*roles: str, slots: int = 256) -> AsyncIterator[Service]:
    """A service with one process for each of ``roles``, on disk, with ``fsync`` on."""
    # Settled next to the sources: /tmp may be memory, and fsync would cost nothing there.
    with tempfile.TemporaryDirectory(prefix=".noonday-bench-", dir=Path.cwd()) as name:
        home = Path(name)
        home.chmod(0o755)
        postgres = EmbeddedPostgres(home)
        postgres.start()
        try:
            settings = Settings(
                home=home,
                database_url=postgres.dsn(),
                allow_private_targets=True,
                allowed_ports=(),
                worker_pools=(f"critical,default,batch,*={slots}", "long=32"),
                log_level="warning",
            )
            token = (await prepare(settings)).token or ""
            running = Service(postgres, settings, token)
            store = await running.store(1)
            async with store.transaction() as tx:
                for name in SHOWN:
                    DATABASE[name] = await tx.value("SELECT current_setting($1)", name)
            await store.close()
            try:
                for role in roles:
                    running.start(role)
                yield running
            finally:
                running.stop()
        finally:
            postgres.stop()


class Sink:
    """The receiver process; :meth:`stop` gives what it saw."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.sink"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}/hook"

    def stop(self) -> dict[str, object]:
        seen, _ = self._process.communicate()
        found: dict[str, object] = json.loads(seen)
        return found


def machine() -> dict[str, object]:
    """Where figures were measured."""
    import asyncpg

    import noonday

    model = next(
        (line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), platform.machine(),
    )  # fmt: skip
    return {
        "cores": os.cpu_count(),
        "cpu": model,
        "python": platform.python_version(),
        "noonday": noonday.__version__,
        "asyncpg": asyncpg.__version__,
        "msgspec": msgspec.__version__,
        "load_1_min_at_start": os.getloadavg()[0],
    }


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _cpu_sec(pid: int) -> float:
    fields = _stat(pid)
    return sum(map(int, fields[11:13])) / TICKS if fields else 0.0


def _tree_sec(pid: int) -> float:
    """A process, its living children, and (in the kernel's sums) those it has reaped."""
    fields = _stat(pid)
    total = sum(map(int, fields[11:15])) / TICKS if fields else 0.0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            child = _stat(int(entry.name))
            if child and int(child[1]) == pid:
                total += sum(map(int, child[11:13])) / TICKS
    return total
