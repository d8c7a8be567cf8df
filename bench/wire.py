"""As little HTTP/1.1 as a benchmark needs: it costs a few microseconds a request, so that what is
measured is Noonday."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import cast

HEAD_END = b"\r\n\r\n"


class Refused(RuntimeError):
    """An answer that the bench does not expect."""


def request(method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """A whole request, ready to be written again and again."""
    lines = [f"{method} {path} HTTP/1.1", "Host: bench", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + HEAD_END + body


def post(token: str, path: str, body: object) -> bytes:
    """A POST to the API."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    return request("POST", path, json.dumps(body).encode(), headers)


def _content_length(buffer: bytes, end: int) -> int:
    """What the head, which reaches to ``end``, says of the body."""
    at = buffer.find(b"content-length:", 0, end)
    if at < 0:
        at = buffer[:end].lower().find(b"content-length:")
    return int(buffer[at + 15 : buffer.find(b"\r", at)]) if at >= 0 else 0


class Connection(asyncio.Protocol):
    """One keep-alive connection of a client, a request at a time; ``answered`` is called with
    itself, the status and the body."""

    def __init__(self, answered: Callable[[Connection, int, bytes], None]) -> None:
        self._answered = answered
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self.lost: Exception | None = None
        self.sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        end = buffer.find(HEAD_END)
        whole = end + 4 + _content_length(buffer, end) if end >= 0 else 0
        if end < 0 or len(buffer) < whole:
            self._buffer = buffer
            return
        self._buffer = b""
        self._answered(self, int(buffer[9:12]), buffer[end + 4 : whole])

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc or ConnectionError("the server closed the connection")
        self._answered(self, 0, b"")

    def send(self, raw: bytes) -> None:
        """Write a request; the last one has to be answered."""
        assert self._transport is not None
        self._transport.write(raw)

    def close(self) -> None:
        """Hear of nothing more."""
        self._answered = lambda *_: None
        if self._transport is not None:
            self._transport.close()


async def connect(
    addresses: Sequence[str], answered: Callable[[Connection, int, bytes], None], count: int
) -> list[Connection]:
    """Connections to each ``http://host:port`` in turn."""
    made = []
    for address in islice(cycle(addresses), count):
        host, port = address.removeprefix("http://").rsplit(":", 1)
        loop = asyncio.get_running_loop()
        made.append(
            (await loop.create_connection(lambda: Connection(answered), host, int(port)))[1]
        )
    return made


class Caller:
    """One connection to the API, with a key: calls that are not measured."""

    def __init__(self, address: str, token: str) -> None:
        self._address = address
        self.token = token
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._connection: Connection | None = None

    def _answered(self, connection: Connection, status: int, body: bytes) -> None:
        if self._answer is not None and not self._answer.done():
            if connection.lost is not None:
                self._answer.set_exception(connection.lost)
            else:
                self._answer.set_result((status, body))

    async def ask(self, raw: bytes) -> bytes:
        """The body of an answer that must be one of success."""
        if self._connection is None:
            (self._connection,) = await connect([self._address], self._answered, 1)
        self._answer = asyncio.get_running_loop().create_future()
        self._connection.send(raw)
        status, body = await self._answer
        if not 200 <= status < 300:
            raise Refused(f"answered {status}: {body[:300]!r}")
        return body

    async def call(self, method: str, path: str, body: object) -> dict[str, object]:
        """The document that the answer holds."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        found: dict[str, object] = json.loads(
            await self.ask(request(method, path, json.dumps(body).encode(), headers)) or b"{}"
        )
        return found

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class SinkConnection(asyncio.Protocol):
    """One connection of the sink: answers 200 to every request at once, or never."""

    ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

    def __init__(self, seen: Callable[[bytes], None], *, answers: bool) -> None:
        self._seen = seen
        self._answers = answers
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(HEAD_END)) >= 0:
            head = self._buffer[:end]
            whole = end + 4 + _content_length(self._buffer, end)
            if len(self._buffer) < whole:
                return
            self._buffer = self._buffer[whole:]
            self._seen(head)
            if self._answers:
                assert self._transport is not None
                self._transport.write(self.ANSWER)
