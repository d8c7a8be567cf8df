"""The drill's own Postgres, owned by a process of its own: the drill's event loop never waits for
it, and when the drill is killed it goes, too.

Run as a program it obeys lines of its standard input: ``stop`` (at once, as a crash), ``start``,
``fill`` and ``free`` (the volume, up to its last byte). With a size it mounts a small file system
in memory first, in a mount namespace that ends with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from noonday.embedded import EmbeddedPostgres, EmbeddedPostgresError, find_binaries

CONNECTIONS: Final = 100
SETTINGS: Final = {
    "shared_buffers": "64MB",
    "max_wal_size": "128MB",
    "min_wal_size": "32MB",
    "checkpoint_timeout": "1min",
}
BALLAST: Final = "ballast"
FULL: Final = "No space left on device"
PREFIX: Final = ("unshare", "--mount", "--propagation", "private")


class Database:
    """The Postgres of a drill, in ``folder``."""

    def __init__(self, folder: Path, size_mb: int = 0) -> None:
        self._folder = folder
        self._size_mb = size_mb
        self._asking = asyncio.Lock()
        self.dsn = ""
        self.pid = 0

    async def open(self) -> None:
        """Start the owner and the server; raises ``EmbeddedPostgresError``."""
        self._folder.mkdir(parents=True)
        prefix = PREFIX if self._size_mb else ()
        argv = [*prefix, sys.executable, "-m", "noonday.drill.postgres", self._folder]
        self._owner = await asyncio.create_subprocess_exec(
            *argv, str(self._size_mb),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        await self.ask("start")

    async def close(self) -> None:
        """End it all: the owner stops the server when its input ends."""
        assert self._owner.stdin is not None
        self._owner.stdin.close()
        await self._owner.wait()

    async def ask(self, order: str) -> dict[str, Any]:
        """Have ``order`` carried out, and what it came to; raises ``EmbeddedPostgresError``."""
        async with self._asking:
            assert self._owner.stdin is not None
            assert self._owner.stdout is not None
            self._owner.stdin.write(order.encode() + b"\n")
            line = await self._owner.stdout.readline()
        answer: dict[str, Any] = json.loads(line or b'{"error": "its owner has gone"}')
        if "error" in answer:
            raise EmbeddedPostgresError(answer["error"])
        self.dsn, self.pid = answer.get("dsn", self.dsn), answer.get("pid", self.pid)
        return answer


def can_mount() -> bool:
    """Whether a small file system can be mounted for the data, so that it can be filled up."""
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return False
    argv = [*PREFIX, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/mnt"]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


class _Owner:
    def __init__(self, folder: Path, size_mb: int) -> None:
        if size_mb:
            options = f"size={size_mb}m,mode=755"
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],  # noqa: S607
                check=True,
            )
        self._folder = folder
        self._log = folder / "postgres" / "postgres.log"
        self._server = EmbeddedPostgres(
            folder, binaries=find_binaries(), settings=SETTINGS, max_connections=CONNECTIONS
        )

    def obey(self, order: str) -> dict[str, Any]:
        match order:
            case "start":
                self._server.start()
                return {"dsn": self._server.dsn(), "pid": self._server.pid}
            case "stop":
                self._server.stop_immediate()
            case "fill":
                self._fill()
            case "free":
                (self._folder / BALLAST).unlink(missing_ok=True)
                return {"refusals": self._log.read_text(errors="replace").count(FULL)}
        return {}

    def _fill(self) -> None:
        with (self._folder / BALLAST).open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"\0" * 65_536)

    def close(self) -> None:
        self._server.stop_immediate()
        if self._log.exists():
            shutil.copy(self._log, self._folder.parent / "postgres.log")


def main() -> None:
    """Obey until the input ends."""
    try:
        owner = _Owner(Path(sys.argv[1]), int(sys.argv[2]))
    except (EmbeddedPostgresError, OSError, subprocess.CalledProcessError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    try:
        for line in sys.stdin:
            try:
                answer = owner.obey(line.strip())
            except EmbeddedPostgresError as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)
    finally:
        owner.close()


if __name__ == "__main__":
    main()
