"""What a measured section spends its time and bytes on: flame graphs, statements, WAL records.

``py``: an SVG for each process of ours, by py-spy. ``sql``: the dearest statements, as
``pg_stat_statements`` counts them. ``wal``: bytes by type of record, by ``pg_waldump``. All of it
costs something: figures of a profiled run are not to be quoted.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.options import Options
from bench.processes import Process
from bench.progress import say
from noonday.embedded import find_binaries
from noonday.store import DirectConnection

RATE = 200
"""Samples of py-spy a second."""
TOP = 25

# Other sessions' statements cannot be reset by our role: what was before is subtracted.
STATEMENTS = """
SELECT queryid, query, calls, rows, total_exec_time AS ms, wal_bytes::bigint AS wal_bytes
FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
HERE = "SELECT pg_current_wal_insert_lsn()::text"


class Profile:
    """The profiles of one section."""

    def __init__(
        self, options: Options, name: str, data: Path, processes: Sequence[Process]
    ) -> None:
        self._wanted = options.profile
        self._stem = options.out / re.sub(r"[^\w]+", "-", name)
        self._data = data
        self._processes = processes
        self._spies: list[subprocess.Popen[bytes]] = []
        self._calls: dict[int, tuple[float, ...]] = {}
        self._wal = ""
        if self._wanted:
            options.out.mkdir(parents=True, exist_ok=True)

    async def begin(self, connection: DirectConnection) -> None:
        """Start what was asked for."""
        if "sql" in self._wanted:
            rows = await _statements(connection)
            self._calls = {int(str(row["queryid"])): _counts(row) for row in rows}
        if "wal" in self._wanted:
            self._wal = await connection.value(HERE)
        if "py" in self._wanted:
            seen: dict[str, int] = {}
            for process in self._processes:
                seen[process.role] = n = seen.get(process.role, 0) + 1
                self._spies.append(_spy(process.pid, self._path(f"{process.role}-{n}.svg")))

    async def end(self, connection: DirectConnection) -> None:
        """Write the files, and say where they are."""
        for spy in self._spies:
            spy.send_signal(signal.SIGINT)
        for spy in self._spies:
            spy.wait(60)
        if "sql" in self._wanted:
            rows = await _statements(connection)
            self._path("statements.txt").write_text(self._report(rows))
        if "wal" in self._wanted:
            until = await connection.value(HERE)
            self._path("wal.txt").write_text(self._records(until))
        if self._wanted:
            say(f"profiles: {self._stem}-*")

    def _path(self, name: str) -> Path:
        return self._stem.with_name(f"{self._stem.name}-{name}")

    def _report(self, rows: Sequence[dict[str, object]]) -> str:
        found = []
        for row in rows:
            before = self._calls.get(int(str(row["queryid"])), (0.0,) * 4)
            used = [now - then for now, then in zip(_counts(row), before, strict=True)]
            if used[0]:
                found.append((used, " ".join(str(row["query"]).split())))
        found.sort(key=lambda each: -each[0][2])
        lines = [f"{'calls':>10} {'rows':>12} {'ms':>12} {'WAL kB':>12}"]
        for used, query in found[:TOP]:
            calls, returned, ms, wal = used
            lines += [
                f"{calls:>10.0f} {returned:>12.0f} {ms:>12.1f} {wal / 1e3:>12.1f}",
                f"    {query[:400]}",
            ]
        return "\n".join(lines) + "\n"

    def _records(self, until: str) -> str:
        program = find_binaries().program("pg_waldump")
        done = subprocess.run(
            [program, "--stats=record", f"--path={self._data / 'pg_wal'}", f"--start={self._wal}",
             f"--end={until}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr


def _spy(pid: int, path: Path) -> subprocess.Popen[bytes]:
    program = Path(sys.executable).with_name("py-spy")
    return subprocess.Popen(
        [program, "record", "--pid", str(pid), "--output", path, "--rate", str(RATE),
         "--nonblocking", "--duration", "unlimited"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


async def _statements(connection: DirectConnection) -> list[dict[str, object]]:
    return [dict(row) for row in await connection.rows(STATEMENTS)]  # type: ignore[arg-type]


def _counts(row: dict[str, object]) -> tuple[float, ...]:
    names = ("calls", "rows", "ms", "wal_bytes")
    return tuple(float(str(row[name])) for name in names)
