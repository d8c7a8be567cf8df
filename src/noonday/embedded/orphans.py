"""What an owner that was killed, or a killed server, has left behind on a data directory.

Only the holder of the directory's lock may look after it: whatever still runs there is an orphan.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from noonday.embedded.errors import EmbeddedPostgresError

PROC = Path("/proc")
BACKENDS_SEC = 1.0  # backends notice by themselves that their postmaster is gone, busy ones do not
KILL_SEC = 10.0


def clear(data: Path, deadline_sec: float) -> None:
    """End every server process on ``data``, then remove a ``postmaster.pid`` that names none.

    Postgres itself trusts the pid in that file: one of a zombie, or one given to another process
    since, would keep it from starting for ever. Without ``/proc`` that judgement is left to it.
    """
    pid_file = data / "postmaster.pid"
    if not (PROC / "self" / "cwd").exists() or not data.exists():
        return
    postmaster = _named_in(pid_file)
    if postmaster in servers_on(data):
        _signal(postmaster, signal.SIGINT)
        _wait_until_gone(data, deadline_sec)
    elif servers_on(data):
        _wait_until_gone(data, BACKENDS_SEC)
    for pid in servers_on(data):
        _signal(pid, signal.SIGQUIT)
    if not _wait_until_gone(data, KILL_SEC):
        raise EmbeddedPostgresError(f"processes {servers_on(data)} on {data} do not end")
    pid_file.unlink(missing_ok=True)


def servers_on(data: Path) -> list[int]:
    """Pids of the Postgres processes that work in ``data``; zombies are not among them."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir(PROC))) if _works_in(pid, data)]


def _works_in(pid: int, data: Path) -> bool:
    place = PROC / str(pid)
    try:
        program = (place / "exe").readlink().name.removesuffix(" (deleted)")
        return program == "postgres" and (place / "cwd").samefile(data)
    except OSError:  # gone, a zombie, or another user's: none of ours
        return False


def _named_in(pid_file: Path) -> int:
    try:
        return int(pid_file.read_text().partition("\n")[0])
    except (FileNotFoundError, ValueError):
        return 0


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait_until_gone(data: Path, patience_sec: float) -> bool:
    until = time.monotonic() + patience_sec
    while servers_on(data):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
