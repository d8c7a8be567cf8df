"""A link to Postgres that can be cut at the moment of a commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

Fault = Literal["none", "before commit", "after commit", "down", "silent", "forgotten"]

COMMIT = b"COMMIT;"


class Link:
    """Passes bytes on, until a fault is set: then it cuts at the next COMMIT, once.

    ``before commit``: the server never sees it and rolls back. ``after commit``: the server has
    carried it out, and its answer is lost. ``down``: it cuts whatever is sent, until it is up.
    ``silent``: it swallows whatever is sent, and nobody is told. ``forgotten``: so, too, and
    what was connected meanwhile or before stays like that for good, as behind a router that was
    started again.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._port = 0
        self._fault: Fault = "none"
        self._forget: set[asyncio.Event] = set()
        self.cuts = 0

    @property
    def fault(self) -> Fault:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        self._fault = fault
        if fault == "forgotten":
            for forget in self._forget:
                forget.set()

    @property
    def url(self) -> str:
        """The URL of the same database, over this link."""
        parts = urlsplit(self._url)
        who = f"{quote(parts.username or '')}:{quote(parts.password or '')}"
        return urlunsplit((parts.scheme, f"{who}@127.0.0.1:{self._port}", parts.path, "", ""))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Link]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await self._connect()
        cutting, forget = asyncio.Event(), asyncio.Event()
        if self.fault == "forgotten":
            forget.set()
        self._forget.add(forget)
        up = asyncio.create_task(self._up(client, to_server, cutting, forget))
        down = asyncio.create_task(self._down(server, to_client, cutting, forget))
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        self._forget.discard(forget)
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
        for writer in (to_client, to_server):
            writer.transport.abort()

    async def _up(
        self,
        client: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
        cutting: asyncio.Event,
        forget: asyncio.Event,
    ) -> None:
        while data := await client.read(65_536):
            if self.fault == "down":
                return
            if self.fault == "silent" or forget.is_set():
                continue
            if COMMIT in data and self.fault != "none":
                before = self.fault == "before commit"
                self.fault = "none"
                self.cuts += 1
                if before:
                    return
                cutting.set()
            to_server.write(data)
            await to_server.drain()

    async def _down(
        self,
        server: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        cutting: asyncio.Event,
        forget: asyncio.Event,
    ) -> None:
        while data := await server.read(65_536):
            if cutting.is_set():
                return
            if not forget.is_set():
                to_client.write(data)
                await to_client.drain()
        if forget.is_set():
            await asyncio.Event().wait()  # the client is told nothing

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self._url)
        given = parse_qs(parts.query)
        host = given.get("host", [parts.hostname or "127.0.0.1"])[0]
        port = int(given.get("port", [str(parts.port or 5432)])[0])
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)
