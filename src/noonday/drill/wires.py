"""A TCP connection that passes through our hands, and can be disturbed there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum
from typing import Final

CHUNK: Final = 65_536
DELAY_SEC: Final = 0.3
Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Weather(StrEnum):
    """What a wire does with what it carries."""

    FAIR = "fair"
    CUT = "cut"
    """Connections are reset, and new ones too."""
    SILENT = "silent"
    """Nothing passes in either direction, and nobody is told; what was sent comes later."""
    ONE_WAY = "one-way"
    """Requests pass, answers do not."""
    SLOW = "slow"
    """Each piece takes ``DELAY_SEC`` longer."""


class Wire:
    """Listens on loopback and passes on to wherever ``connect`` leads."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._weather = Weather.FAIR
        self._changed = asyncio.Event()
        self._serving: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self.port = 0
        self.disturbed = 0
        """Connections and pieces that a fault has met."""

    async def open(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Cut all and listen no more."""
        self._server.close()
        self.cut()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def turn(self, weather: Weather) -> None:
        """Carry on like this from now on."""
        self._weather = weather
        self._changed.set()
        self._changed = asyncio.Event()
        if weather is Weather.CUT:
            self.cut()

    def cut(self) -> None:
        """Reset all connections that there are."""
        for writers in self._serving.values():
            self.disturbed += 1
            for writer in writers:
                writer.transport.abort()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = [to_client]
        try:
            if self._weather is Weather.CUT:
                self.disturbed += 1
                return
            server, to_server = await self._connect()
            self._serving[task].append(to_server)
            await self._carry(client, to_client, server, to_server)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # whoever it was notices at the other end
        finally:
            for writer in self._serving.pop(task):
                writer.transport.abort()

    async def _carry(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        """Both directions, until one ends."""
        ways = (
            asyncio.create_task(self._up(client, to_server)),
            asyncio.create_task(self._down(server, to_client)),
        )
        await join(*ways)

    async def _up(self, client: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        while data := await client.read(CHUNK):
            await self._pass(data, to_server, answer=False)

    async def _down(self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        while data := await server.read(CHUNK):
            await self._pass(data, to_client, answer=True)

    async def _pass(self, data: bytes, to: asyncio.StreamWriter, *, answer: bool) -> None:
        while self._stands_still(answer):
            self.disturbed += 1
            await self._changed.wait()
        if self._weather is Weather.SLOW:
            self.disturbed += 1
            await asyncio.sleep(DELAY_SEC)
        to.write(data)
        await to.drain()

    def _stands_still(self, answer: bool) -> bool:
        return self._weather is Weather.SILENT or (answer and self._weather is Weather.ONE_WAY)


async def join(*ways: asyncio.Task[None]) -> None:
    """Return when the first of them has ended; none is left running."""
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*ways, return_exceptions=True)
