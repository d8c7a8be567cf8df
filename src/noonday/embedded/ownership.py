"""Who owns a data directory: the process that holds an ``flock`` in its home.

The lock ends with the process, however it ends, so it never names a dead owner; a pid in a file
would, and could by then be somebody else's.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from noonday.embedded.errors import EmbeddedPostgresError

LOCK = "owner.lock"
PATIENCE_SEC = 0.5  # outlasts a look by `owner_of`, which holds the lock for an instant


class Ownership:
    """Our claim on the server that lives in ``home``."""

    def __init__(self, home: Path) -> None:
        self._path = home / LOCK
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """Whether we are the owner."""
        return self._fd is not None

    def acquire(self) -> None:
        """Become the owner; raises ``EmbeddedPostgresError`` naming the pid of another one."""
        if self._fd is not None:
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + PATIENCE_SEC
        while not _locks(fd, fcntl.LOCK_EX):
            if time.monotonic() > until:
                owner = os.pread(fd, 20, 0).decode()
                os.close(fd)
                raise EmbeddedPostgresError(
                    f"process {owner} owns the embedded Postgres in {self._path.parent}; "
                    "connect to that one, or use another state directory"
                )
            time.sleep(0.01)
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Let somebody else own it; nothing happens if we do not."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def owner_of(home: Path) -> int | None:
    """The pid of the process that owns the server in ``home``, if one does."""
    try:
        fd = os.open(home / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return None if _locks(fd, fcntl.LOCK_SH) else int(os.pread(fd, 20, 0) or 0)
    finally:
        os.close(fd)


def _locks(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
