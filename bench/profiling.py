"""What a measured section spends its time and bytes on: flame graphs, statements, WAL records.

``py``: an SVG for each process of ours, by py-spy. ``sql``: the dearest statements, as
``pg_stat_statements`` counts them. ``wal``: bytes by type of record and by relation, of what
``pg_waldump`` reads. All of it costs something: figures of a profiled run are not to be quoted.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
HERE = "SELECT pg_current_wal_flush_lsn()::text"
FILES = """
SELECT pg_relation_filenode(oid)::text AS file, relname::text AS name FROM pg_class
WHERE pg_relation_filenode(oid) IS NOT NULL
"""
RECORD = re.compile(r"rmgr: (\w+) +len \(rec/tot\): +\d+/ *(\d+),.* desc: (\w+)")
FILE = re.compile(r"blkref #0: rel \d+/\d+/(\d+)")
PARTITION = re.compile(r"_[dfmyc]\d+(?=_|$)")


class Profile:
    """The profiles of one section; none for one without a name."""

    def __init__(
        self, options: Options, name: str, data: Path, processes: Sequence[Process]
    ) -> None:
        self._wanted = options.profile if name else frozenset()
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
            files = {row["file"]: row["name"] for row in await connection.rows(FILES)}
            self._path("wal.txt").write_text(self._records(until, files))
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

    def _records(self, until: str, relations: Mapping[str, str]) -> str:
        command = [
            *(find_binaries().program("pg_waldump"), f"--path={self._data / 'pg_wal'}"),
            *(f"--start={self._wal}", f"--end={until}"),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dump:
            assert dump.stdout is not None
            return wal_report(dump.stdout, relations)


def wal_report(lines: Iterable[str], relations: Mapping[str, str]) -> str:
    """Bytes and records of what ``pg_waldump`` writes, by type of record and by relation, which
    ``relations`` names by file number; the partitions of a table go together."""
    size: Counter[tuple[str, str]] = Counter()
    count: Counter[tuple[str, str]] = Counter()
    for line in lines:
        found = RECORD.match(line)
        if found:
            file = FILE.search(line)
            relation = relations.get(file[1], file[1]) if file else ""
            key = f"{found[1]} {found[3]}", PARTITION.sub("", relation)
            size[key] += int(found[2])
            count[key] += 1
    total = max(size.total(), 1)
    told = [
        f"{each:>14,} {count[key]:>12,} {each / total:>7.1%}  {key[0]:<32} {key[1]}"
        for key, each in size.most_common()
    ]
    head = f"{'bytes':>14} {'records':>12} {'of all':>7}  {'record':<32} relation"
    return "\n".join([head, *told, f"{size.total():>14,} {count.total():>12,}"]) + "\n"


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
