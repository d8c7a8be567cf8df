"""The receivers' processes, as the drill handles them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from noonday.drill.checks.received import Received, read_log
from noonday.drill.receiver import ANSWERS, REQUESTS
from noonday.drill.wires import Wire


class HeldRequest(NamedTuple):
    """A request that a receiver has written down and does not answer."""

    run_id: str
    attempt: int


class Witness:
    """One receiver process, and the wire by which workers reach it."""

    def __init__(self, folder: Path, seed: str) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._seed = seed
        self._held: asyncio.Queue[HeldRequest] = asyncio.Queue()
        self._holding = asyncio.Lock()
        self._port = 0
        self.wire = Wire(lambda: asyncio.open_connection("127.0.0.1", self._port))

    @property
    def url(self) -> str:
        """Where its jobs call it: by way of the wire."""
        return f"http://127.0.0.1:{self.wire.port}"

    async def start(self) -> None:
        """Start it; it listens when this returns."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "noonday.drill.receiver", self._folder, self._seed,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._port = json.loads(await self._process.stdout.readline())["port"]
        self._listener = asyncio.create_task(self._listen())
        await self.wire.open()

    async def close(self) -> None:
        """End it, by the end of its input."""
        await self.wire.close()
        self._listener.cancel()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 5)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def be(self, moods: Mapping[str, str]) -> None:
        """Its moods by path from now on; well where nothing is said."""
        await self._order(moods=dict(moods))

    @asynccontextmanager
    async def holding(self, within_sec: float) -> AsyncIterator[HeldRequest | None]:
        """Hold the next request while the block lasts; None when none comes in time."""
        async with self._holding:
            await self._order(hold=True)
            try:
                yield await asyncio.wait_for(self._held.get(), within_sec)
            except TimeoutError:
                yield None
            finally:
                await self._order(release=True)

    def requests(self) -> list[Received]:
        """All that it has seen so far."""
        file = self._folder / REQUESTS
        return read_log(file) if file.exists() else []

    def answers(self) -> Iterator[dict[str, Any]]:
        """What it made of each."""
        file = self._folder / ANSWERS
        for line in file.read_text().splitlines() if file.exists() else []:
            yield json.loads(line)

    async def _order(self, **what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        await self._process.stdin.drain()

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            self._held.put_nowait(HeldRequest(said["held"], said["attempt"]))
