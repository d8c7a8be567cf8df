"""The service under test: an embedded Postgres and real role processes, and what they consume."""

from __future__ import annotations

import asyncio
import atexit
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench import wire
from bench.figures import Figures, Usage, per_job, spread
from bench.options import Options
from bench.processes import Process, cpu_sec, memory_mb, tree_sec
from bench.profiling import Profile
from bench.sink import OPEN
from noonday import listening
from noonday.embedded import EmbeddedPostgres
from noonday.server import prepare
from noonday.settings import Settings
from noonday.store import Store

DATABASE: dict[str, str] = {}
"""Version and settings of the Postgres that was measured last."""
SHOWN = (
    *("server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_compression"),
    *("shared_buffers", "max_wal_size", "checkpoint_timeout", "plan_cache_mode"),
)
WAL = """
SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS wal, sum(xact_commit)::bigint AS commits
FROM pg_stat_database
"""
POOLS = ("critical,default,batch,*=256", "long=32")


@dataclass
class Section:
    """A stretch of time that is measured; complete once its block has ended."""

    seconds: float = 0.0
    before: Usage = field(default_factory=Usage)
    after: Usage = field(default_factory=Usage)
    memory: Figures = field(default_factory=dict)

    def figures(
        self, count: int, took: Sequence[float] = (), seconds: float | None = None
    ) -> Figures:
        """Per job; ``took`` are seconds of each, ``seconds`` what the rate goes by if it is not
        the length of the section."""
        used = self.seconds if seconds is None else seconds
        return per_job(count, used, self.before, self.after) | spread(took) | self.memory


class Service:
    """A fresh database and the processes of some roles. Everything is removed at the end."""

    def __init__(
        self, postgres: EmbeddedPostgres, settings: Settings, token: str, options: Options
    ) -> None:
        self.postgres = postgres
        self.settings = settings
        self.token = token
        self.options = options
        self.children: list[Process] = []
        self.addresses: list[str] = []
        self._stack = ExitStack()

    def start(
        self, role: str, *, module: str = "noonday.supervisor", claims: Path | None = None
    ) -> Process:
        """Start one more process of ``role``. ``module`` may be ``bench.role``, and ``claims`` a
        file for what that notes."""
        api = None
        if role == "api":
            api = self._stack.enter_context(listening.bind("127.0.0.1", 0))
            self.addresses.append(listening.address_of(api))
        told = {"BENCH_CLAIMS": str(claims)} if claims else None
        child = Process(role, self.settings, api=api, module=module, environment=told)
        self.children.append(child)
        return child

    def stop(self, role: str = "") -> None:
        """Stop the processes of a role, or all."""
        stopping = [each for each in self.children if role in ("", each.role)]
        for child in stopping:
            child.tell_to_stop()
        for child in stopping:
            child.wait()
            self.children.remove(child)

    def close(self) -> None:
        self.stop()
        self._stack.close()

    async def store(self, size: int = 2) -> Store:
        return await Store.open(str(self.settings.database_url), size=size)

    def caller(self, token: str = "") -> wire.Caller:
        return wire.Caller(self.addresses[0], token or self.token)

    async def up(self, store: Store, **roles: int) -> None:
        """Wait until so many processes of each role have reported, and the API answers."""
        wanted = {role: count for role, count in roles.items() if count}
        async with asyncio.timeout(60):
            while True:
                async with store.transaction() as tx:
                    found = await tx.rows("SELECT role, count(*) FROM workers GROUP BY role")
                if wanted.items() <= {row["role"]: row["count"] for row in found}.items():
                    return
                await asyncio.sleep(0.05)

    async def usage(self, store: Store) -> Usage:
        """CPU of Postgres (with all its children, also those gone), of ours, of the bench; WAL."""
        async with store.transaction() as tx:
            row = await tx.one(WAL)
        return Usage(
            postgres_sec=tree_sec(self.postgres.pid or 0),
            noonday_sec=sum(cpu_sec(child.pid) for child in self.children),
            generator_sec=time.process_time() + sum(sink.cpu_sec for sink in OPEN),
            wal_bytes=int(row["wal"]),
            commits=row["commits"],
        )

    def memory(self) -> Figures:
        """The most that a process of each role ever had resident, and the biggest of all."""
        found: Figures = {}
        for child in self.children:
            name = f"{child.role}_mb"
            found[name] = max(found.get(name, 0.0), memory_mb(child.pid, "VmHWM"))
        return found | {"memory_mb": max(found.values(), default=0.0)}

    @asynccontextmanager
    async def measuring(self, store: Store, name: str) -> AsyncIterator[Section]:
        """Measure what the block does; ``name`` is for the profiles that were asked for."""
        section = Section()
        data = self.settings.home / "postgres" / "data"
        profile = Profile(self.options, name, data, self.children)
        async with store.direct() as connection:
            await profile.begin(connection)
        section.before, began = await self.usage(store), time.perf_counter()
        yield section
        section.seconds = time.perf_counter() - began
        section.after, section.memory = await self.usage(store), self.memory()
        async with store.direct() as connection:
            await profile.end(connection)


@contextmanager
def _folder() -> Iterator[Path]:
    # Next to the sources: /tmp may be memory, and fsync would cost nothing there.
    with tempfile.TemporaryDirectory(prefix=".noonday-bench-", dir=Path.cwd()) as name:
        Path(name).chmod(0o755)
        yield Path(name)


_new = ExitStack()
atexit.register(_new.close)
_made: list[tuple[Path, str]] = []


async def _copy_of_new(home: Path) -> str:
    """A migrated database in ``home``, made once in a run; its admin key."""
    if not _made:
        first = _new.enter_context(_folder())
        postgres = EmbeddedPostgres(first)
        postgres.start()
        try:
            token = (await prepare(Settings(home=first, database_url=postgres.dsn()))).token
        finally:
            postgres.stop()
        _made.append((first, token or ""))
    first, token = _made[0]
    subprocess.run(["cp", "-a", f"{first}/.", home], check=True)
    return token


@asynccontextmanager
async def service(
    options: Options, *roles: str, pools: tuple[str, ...] = POOLS
) -> AsyncIterator[Service]:
    """A service with one process for each of ``roles``, on disk, with ``fsync`` on."""
    with _folder() as home:
        token = await _copy_of_new(home)
        postgres = EmbeddedPostgres(home)
        postgres.start()
        try:
            settings = Settings(
                home=home,
                database_url=postgres.dsn(),
                allow_private_targets=True,
                allowed_ports=(),
                worker_pools=pools,
                worker_grace_sec=0.0,
                log_level="warning",
            )
            running = Service(postgres, settings, token, options)
            store = await running.store(1)
            async with store.transaction() as tx:
                for shown in SHOWN:
                    DATABASE[shown] = await tx.value("SELECT current_setting($1)", shown)
            try:
                for role in roles:
                    running.start(role)
                await running.up(store, **{role: roles.count(role) for role in roles})
                yield running
            finally:
                await store.close()
                running.close()
        finally:
            postgres.stop()


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
    }
