"""The wall clock of one process, set apart from all others while it runs, with libfaketime; and the
time zone that this one is in.

The monotonic clock is left alone, as it is when an operator or NTP sets a machine's time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LIBRARY = "usr/lib/*/faketime/libfaketimeMT.so.1"


class WallClock:
    """A clock that stands ``offset_sec`` from the true one; ``environment`` makes it a process's.

    Needs Debian's package faketime.
    """

    def __init__(self, file: Path, offset_sec: int = 0) -> None:
        self._file = file
        self.offset_sec = offset_sec
        self.set(offset_sec)

    def set(self, offset_sec: int) -> None:
        """Move it, for processes that run already, too."""
        self.offset_sec = offset_sec
        written = self._file.with_suffix(".new")
        written.write_text(f"{offset_sec:+d}\n")
        os.replace(written, self._file)  # it is read at any moment

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(next(Path("/").glob(LIBRARY))),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


@contextmanager
def local_zone(name: str) -> Iterator[None]:
    """This process is in another time zone until the block ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", name)
        time.tzset()
        yield
    time.tzset()
