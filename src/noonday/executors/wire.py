"""The HTTP client underneath, made to sign late, to say when it sends, and to read little."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

from noonday.domain.model import Attempt
from noonday.executors.addresses import Resolver, guarded_socket
from noonday.executors.sending import Sent, now
from noonday.executors.signing import sign

MAX_HEADER: Final = 256 * 1024
MAX_RECEIVED: Final = 1024 * 1024
KEEPALIVE_SEC: Final = 4.0
"""Below the 5 s after which many servers close: a request must not meet a closing connection."""


class Sending:
    """One attempt on its way, as its request needs to know it."""

    __slots__ = ("_headers", "_sent")

    def __init__(self, attempt: Attempt, own: dict[str, str], sent: Sent) -> None:
        self._headers: Callable[[], dict[str, str]] | None = partial(_signed, attempt, own)
        self._sent = sent

    def begin(self) -> dict[str, str]:
        """Call once, just before the first byte may leave: gives our headers, signed as of now."""
        # Connections outlive attempts and keep the context they were made in: hold on to nothing.
        headers, self._headers = self._headers, None
        if headers is None:
            raise RuntimeError("an attempt is sent once")
        self._sent.maybe = True
        return headers()


def _signed(attempt: Attempt, own: dict[str, str]) -> dict[str, str]:
    return own | sign(attempt, own, int(now(attempt)))


SENDING: Final[ContextVar[Sending]] = ContextVar("sending")


class Request(aiohttp.ClientRequest):
    """Marks the attempt as sent and signs it once it has a connection, which can take long."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        """Write the request to ``conn``."""
        if isinstance(conn.protocol, Wire):
            conn.protocol.expect_answer()
        self.headers.update(SENDING.get().begin())
        return await super().send(conn)


class TooMuch(aiohttp.ClientError):
    """More came than any answer has whose body is read to its limit."""


class Wire(ResponseHandler):
    """A connection's protocol that bounds what it takes in, and does not lose a status."""

    _room = MAX_RECEIVED
    _at_head = True

    def expect_answer(self) -> None:
        """Call when a request is about to be sent."""
        if self.should_close:
            # Said something unasked since its last answer, which would pass for this one's.
            raise aiohttp.ServerDisconnectedError
        self._room = MAX_RECEIVED
        self._at_head = True

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


def new_session(connector: Connector) -> aiohttp.ClientSession:
    """A session without memory or surprises: no cookies, proxies, decompression or resending."""
    session = aiohttp.ClientSession(
        connector=connector,
        request_class=Request,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(),
        trust_env=False,
        auto_decompress=False,
        read_bufsize=16 * 1024,
        max_line_size=MAX_HEADER,
        max_field_size=MAX_HEADER,
    )
    # It would send a PUT, GET or DELETE again by itself when the connection drops, behind our back.
    session._retry_connection = False
    return session
