"""A peer at work: its database, its worker processes, and what both consume.

An adapter is told ``setup``, ``bulk KIND COUNT`` or ``work KIND``. ``bulk`` inserts and writes how
long that took, as JSON; ``work`` writes a line when it is ready, begins at a line of its input, and
from then on writes how many jobs it has begun and when the first was, as JSON, until it is ended.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from bench.figures import Figures
from bench.harness import Service
from bench.processes import cpu_sec
from noonday.store import Store

BEGIN_SEC = 60.0
LONGEST_SEC = 120.0


class Workers:
    """A database for one peer, dropped at the end, and its processes."""

    def __init__(
        self,
        running: Service,
        database: str,
        pending: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        workers: int,
    ) -> None:
        self._running = running
        self._database = database
        self._pending = pending
        self._command = command
        self._environment = environment
        self._workers = workers
        self._processes: list[asyncio.subprocess.Process] = []
        self._began: dict[int, tuple[int, float]] = {}

    async def __aenter__(self) -> Self:
        self._store = await self._running.store()
        await self._admin(f"DROP DATABASE IF EXISTS {self._database} WITH (FORCE)")
        await self._admin(f"CREATE DATABASE {self._database}")
        await self._run("setup")
        own = str(self._running.settings.database_url).replace("/noonday?", f"/{self._database}?")
        self._own = await Store.open(own, size=1)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        await self._own.close()
        await self._admin(f"DROP DATABASE IF EXISTS {self._database} WITH (FORCE)")
        await self._store.close()

    async def bulk(self, kind: str, count: int) -> Figures:
        """Insert; per second as the adapter saw it."""
        before = _reaped()
        async with self._running.measuring(self._store, f"peer {self._database} bulk") as section:
            told = json.loads((await self._run("bulk", kind, str(count))).splitlines()[-1])
        return _theirs(section.figures(count, seconds=told["seconds"]), _reaped() - before)

    async def drain(self, kind: str, count: int) -> Figures:
        """Insert, then let the workers have it: from the first job begun until none is left."""
        await self._run("bulk", kind, str(count))
        async with self._own.direct() as connection:
            await connection.execute("VACUUM ANALYZE")
        for _ in range(self._workers):
            process = await self._spawn("work", kind)
            assert process.stdout is not None
            async with asyncio.timeout(BEGIN_SEC):
                if not await process.stdout.readline():
                    raise RuntimeError("a worker did not start")
            self._processes.append(process)
        async with self._running.measuring(self._store, f"peer {self._database}") as section:
            before = self._used()
            reading = [asyncio.create_task(self._read(each)) for each in self._processes]
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.write(b"go\n")
            async with asyncio.timeout(LONGEST_SEC):
                ended = await self._until_done(count)
            used = self._used() - before
        for task in reading:
            task.cancel()
        first = min(began for _, began in self._began.values() if began)
        return _theirs(section.figures(count, seconds=ended - first), used)

    async def _until_done(self, count: int) -> float:
        while sum(begun for begun, _ in self._began.values()) < count:
            if any(process.returncode is not None for process in self._processes):
                raise RuntimeError("a worker has ended")
            await asyncio.sleep(0.01)
        while True:
            async with self._own.transaction() as tx:
                if not await tx.value(self._pending):
                    return time.time()
            await asyncio.sleep(0.01)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            told = json.loads(line)
            self._began[process.pid] = told["count"], told["first"]

    def _used(self) -> float:
        return sum(cpu_sec(process.pid) for process in self._processes)

    async def _admin(self, statement: str) -> None:
        async with self._store.direct() as connection:
            await connection.execute(statement)

    async def _spawn(self, *words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command, *words, env=self._environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def _run(self, *words: str) -> bytes:
        process = await self._spawn(*words)
        async with asyncio.timeout(LONGEST_SEC):
            told, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}")
        return told


def _reaped() -> float:
    """Processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _theirs(row: Figures, used_sec: float) -> Figures:
    """The processes are a peer's, not ours."""
    theirs = used_sec / row["count"] * 1e6
    row.pop("memory_mb", None)
    return row | {"noonday_us": theirs, "cpu_us": row["postgres_us"] + theirs}
