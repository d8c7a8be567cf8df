"""The HTTP client underneath: connections and parser of aiohttp, requests that are ours.

A session of aiohttp takes longer than all the rest, for what is not wanted here: cookies,
redirects, proxies, decompression, sending again.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final, NamedTuple, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.http import StreamWriter
from multidict import CIMultiDictProxy
from yarl import URL

from noonday.executors.addresses import Resolver, guarded_socket

MAX_HEADER: Final = 256 * 1024
MAX_RECEIVED: Final = 1024 * 1024
KEEPALIVE_SEC: Final = 4.0
"""Below the 5 s after which many servers close: a request must not meet a closing connection."""

_READ_AHEAD: Final = 16 * 1024
_PIECE: Final = 64 * 1024
_NO_LIMITS: Final = aiohttp.ClientTimeout()
"""An attempt has one deadline, and it is kept elsewhere."""


class TooMuch(aiohttp.ClientError):
    """More came than any answer has whose body is read to its limit."""


class Response(NamedTuple):
    """An answer, as soon as its head has come."""

    status: int
    headers: CIMultiDictProxy[str]
    content: aiohttp.StreamReader

    @property
    def content_length(self) -> int | None:
        """The length of its body by its own word."""
        length = self.headers.get("Content-Length")
        return None if length is None else int(length)


class Wire(ResponseHandler):
    """A connection's protocol that bounds what it takes in, and does not lose a status."""

    _room = MAX_RECEIVED
    _at_head = True

    def expect_answer(self) -> None:
        """Call when a request is about to be sent."""
        if self.transport is None or self.should_close:
            # Gone, or said something unasked since its last answer, which would pass for this one.
            raise aiohttp.ServerDisconnectedError
        self._room = MAX_RECEIVED
        self._at_head = True
        self.set_response_params(
            read_until_eof=True,
            auto_decompress=False,
            read_bufsize=_READ_AHEAD,
            max_line_size=MAX_HEADER,
            max_field_size=MAX_HEADER,
        )

    def send(self, head: bytes, body: bytes) -> asyncio.Task[None] | None:
        """Send a request; a long one piece by piece, by the task that is given back, so that others
        get their turn."""
        cast("asyncio.Transport", self.transport).write(head + body[:_PIECE])
        return asyncio.create_task(self._send_rest(body)) if len(body) > _PIECE else None

    async def _send_rest(self, body: bytes) -> None:
        writer, rest = StreamWriter(self, self._loop), memoryview(body)
        try:
            for begin in range(_PIECE, len(body), _PIECE):
                await writer.write(rest[begin : begin + _PIECE])
        except Exception as error:
            self.set_exception(error)

    async def answer(self) -> Response:
        """The answer to what was sent; not those that only say that it goes on."""
        while True:
            message, content = await self.read()
            if not 100 <= message.code < 200 or message.code == 101:
                return Response(message.code, message.headers, content)

    def data_received(self, data: bytes) -> None:
        """Take ``data``, if there is still room for it."""
        self._room -= len(data)
        if self._room < 0:
            self.set_exception(TooMuch())
            if self.transport is not None:
                self.transport.abort()
            return
        # The parser drops what it has read when the same piece turns bad further on: a body
        # behind a 204, or a broken chunk, would take the status with it.
        end = data.find(b"\r\n\r\n") + 4 if self._at_head else 0
        if 4 <= end < len(data):
            self._at_head = False
            super().data_received(data[:end])
            data = data[end:]
        super().data_received(data)
        if self.exception() is not None and self._payload is not None:
            # Nobody else tells whoever is reading the body, who would wait until the deadline.
            self._payload.set_exception(aiohttp.ClientPayloadError())


class Destination(aiohttp.ClientRequest):
    """Where connections lead, in the form in which the connector wants to be told."""

    def __init__(self, origin: URL) -> None:
        super().__init__("GET", origin, loop=asyncio.get_running_loop())
        self._key = super().connection_key

    @property
    def connection_key(self) -> ConnectionKey:
        """What connections have in common that can be used for one another."""
        return self._key


class Connector(aiohttp.TCPConnector):
    """Connects to addresses that the guard lets pass, whether they come from a name or not."""

    def __init__(self, resolver: Resolver, *, allow_private: bool, **options: Any) -> None:
        super().__init__(
            resolver=resolver,
            use_dns_cache=False,
            socket_factory=partial(guarded_socket, allow_private=allow_private),
            keepalive_timeout=KEEPALIVE_SEC,
            **options,
        )
        self._factory = cast("partial[ResponseHandler]", partial(Wire, loop=self._loop))

    async def reach(self, destination: Destination) -> Connection:
        """A connection that leads there, used before or new. Whoever gets it lets it go again."""
        return await self.connect(destination, [], _NO_LIMITS)
