"""The folder of the server's socket: private, with a short path, and the same after a restart."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from noonday.embedded.account import RunAs
from noonday.embedded.errors import EmbeddedPostgresError

PORT = 5432  # only part of the socket's name: nothing listens on TCP
LONGEST = 107  # bytes of a socket's path, its final zero not counted (unix(7))
RECORD = "socket.path"


def socket_path(folder: Path) -> Path:
    """The socket that a server puts into ``folder``."""
    return folder / f".s.PGSQL.{PORT}"


def recorded(home: Path) -> Path | None:
    """The socket folder that the server in ``home`` uses, or used last.

    None in a copy of another home: the folder is not the copy's.
    """
    try:
        folder, belongs_to = (home / RECORD).read_text().splitlines()
    except FileNotFoundError:
        return None
    return Path(folder) if belongs_to == str(home) else None


def provide(home: Path, run_as: RunAs) -> Path:
    """The folder for the server in ``home``: the last one again, so that clients find it."""
    last = recorded(home)
    if last is not None and _is_private(last, run_as):
        _clear(last)
        return last
    for parent in _parents():
        folder = Path(tempfile.mkdtemp(prefix="noonday-", dir=parent))
        run_as.own(folder)
        if run_as.can_enter(folder) and len(os.fsencode(socket_path(folder))) <= LONGEST:
            unfinished = home / f"{RECORD}.new"
            unfinished.write_text(f"{folder}\n{home}\n")
            unfinished.rename(home / RECORD)
            return folder
        folder.rmdir()
    raise EmbeddedPostgresError("no folder with a short path for the socket: set XDG_RUNTIME_DIR")


def remove(folder: Path) -> None:
    """Take the folder away with what a killed server left in it."""
    _clear(folder)
    if folder.exists():
        folder.rmdir()


def _clear(folder: Path) -> None:
    """Remove a killed server's socket and its lock, whose pid may be somebody else's by now."""
    socket = socket_path(folder)
    for leftover in (socket, socket.with_name(f"{socket.name}.lock")):
        leftover.unlink(missing_ok=True)


def _is_private(folder: Path, run_as: RunAs) -> bool:
    """Make ``folder`` again unless it is there; false where it is not (any more) ours alone."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        uid = os.geteuid() if run_as.uid is None else run_as.uid
        return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & 0o077
    except OSError:
        return False
    run_as.own(folder)
    return run_as.can_enter(folder)


def _parents() -> Iterator[Path]:
    candidates = (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp")  # noqa: S108
    yield from (Path(c) for c in candidates if c and os.access(c, os.W_OK | os.X_OK))
