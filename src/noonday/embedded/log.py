"""The server's log: one file that Postgres appends to, kept from growing without bound.

A file and not a pipe: a pipe would stall the server whenever its reader is stopped.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import IO

LIMIT_BYTES = 8 << 20
LOOK_EVERY_SEC = 10.0


class ServerLog:
    """``path``, and beside it ``path.1`` with what came before."""

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path = path
        self._limit_bytes = limit_bytes
        self._start = 0
        self._ended = threading.Event()

    def open(self) -> IO[bytes]:
        """The file for a server that starts now, to be given to it."""
        self.trim()
        file = self.path.open("ab")
        self._start = file.tell()
        return file

    def trim(self) -> None:
        """Move the content aside once it is over the limit."""
        if self.path.exists() and self.path.stat().st_size > self._limit_bytes:
            shutil.copyfile(self.path, self.path.with_name(f"{self.path.name}.1"))
            # Cut, not renamed: the server goes on appending to the file it was given.
            with self.path.open("r+b") as file:
                file.truncate()

    def keep_trimmed(self) -> None:
        """Trim in the background until ``release``."""
        self.release()
        ended = self._ended = threading.Event()

        def trim_until_ended() -> None:
            while not ended.wait(LOOK_EVERY_SEC):
                self.trim()

        threading.Thread(target=trim_until_ended, name="postgres-log", daemon=True).start()

    def release(self) -> None:
        """Stop trimming."""
        self._ended.set()

    def since_start(self) -> str:
        """What the server last opened for has written, as far as it is still there."""
        with self.path.open("rb") as file:
            file.seek(self._start)
            return file.read().decode(errors="replace")
