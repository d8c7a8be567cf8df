"""Payloads too big for the database.

A blob is written before the row that names it and deleted after that row, so a crash leaves at
most a blob that nothing names. It is never changed: its reference belongs to one payload alone,
even if another has the same content, so that deleting one cannot take away the other.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol, TypeVar

import uuid_utils

from noonday.domain.errors import BlobMissing, StoreUnavailable

REFERENCE: Final = re.compile(r"[0-9A-Za-z]{1,64}(-[0-9A-Za-z]{1,64}){0,3}")
THREADS: Final = 4
ABANDONED_SEC: Final = 3_600.0
"""A temporary file this old was left by a process that died: no write takes so long."""

_T = TypeVar("_T")


def new_reference() -> str:
    """A reference that nothing has yet."""
    return uuid_utils.uuid7().hex


class BlobStore(Protocol):
    """Keeps immutable bytes by reference.

    All of these raise :class:`StoreUnavailable` when the storage fails, and ``ValueError`` for
    text that cannot be a reference.
    """

    async def put(self, reference: str, data: bytes) -> bool:
        """Make ``data`` durable under ``reference`` unless that exists; whether it was written.

        Whichever the answer, the blob of that reference is whole and survives a power cut.
        """

    async def get(self, reference: str) -> bytes:
        """The bytes; raises :class:`BlobMissing`."""

    async def delete(self, reference: str) -> None:
        """Forget a blob; nothing happens when there is none."""

    async def sweep(self, older_than_sec: float = ABANDONED_SEC) -> int:
        """Remove what writes that never ended have left; how many."""


class LocalBlobs:
    """Blobs as files: ``<folder>/<2 hex digits>/<reference>``, written under ``<folder>/tmp``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unfinished = folder / "tmp"
        self._known: set[Path] = set()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="blobs")

    def close(self) -> None:
        """Let what is under way end."""
        self._threads.shutdown()

    async def put(self, reference: str, data: bytes) -> bool:
        """Make ``data`` durable under ``reference`` unless that exists; whether it was written."""
        path = self._path(reference)
        return await self._in_thread(lambda: self._write(path, data))

    async def get(self, reference: str) -> bytes:
        """The bytes; raises :class:`BlobMissing`."""
        path = self._path(reference)
        return await self._in_thread(lambda: _read(path))

    async def delete(self, reference: str) -> None:
        """Forget a blob; nothing happens when there is none."""
        path = self._path(reference)
        await self._in_thread(lambda: path.unlink(missing_ok=True))

    async def sweep(self, older_than_sec: float = ABANDONED_SEC) -> int:
        """Remove temporary files that nobody has written to for so long; how many."""
        return await self._in_thread(lambda: self._sweep(older_than_sec))

    def _path(self, reference: str) -> Path:
        if not REFERENCE.fullmatch(reference):
            raise ValueError(f"not a blob's reference: {reference!r}")
        # Time-ordered references begin alike, so the folder is chosen by a hash of them.
        return self._folder / sha256(reference.encode()).hexdigest()[:2] / reference

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        with _unavailable():
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _write(self, path: Path, data: bytes) -> bool:
        self._ensure(self._unfinished)
        self._ensure(path.parent)
        temporary = self._unfinished / f"{new_reference()}-{os.getpid()}"
        try:
            _write_durably(temporary, data)
            written = _link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        # Also when another process has linked it: that one may not have come to this yet.
        _sync_folder(path.parent)
        return written

    def _ensure(self, folder: Path) -> None:
        """Make a folder that survives a power cut; its name lies in the one above it."""
        if folder in self._known and folder.is_dir():
            return
        if folder.parent == self._folder or not folder.parent.is_dir():
            self._ensure(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync_folder(folder.parent)
        self._known.add(folder)

    def _sweep(self, older_than_sec: float) -> int:
        removed = 0
        limit = time.time() - older_than_sec
        with suppress(FileNotFoundError):
            for entry in os.scandir(self._unfinished):
                # Another process may sweep at the same time, or finish its write.
                with suppress(FileNotFoundError):
                    if entry.stat().st_mtime <= limit:
                        os.unlink(entry)
                        removed += 1
        return removed


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise BlobMissing(f"there is no blob {path.name}") from None


def _write_durably(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _link(temporary: Path, path: Path) -> bool:
    """Give the finished file its name, unless that is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"blobs: {error.strerror}") from error
