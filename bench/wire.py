"""As little HTTP/1.1 as a benchmark needs: a client and a server that cost a few microseconds a
request, so that what is measured is Noonday."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

HEAD_END = b"\r\n\r\n"


def request(method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """A whole request, ready to be written again and again."""
    lines = [f"{method} {path} HTTP/1.1", "Host: bench", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + HEAD_END + body


def _content_length(head: bytes) -> int:
    at = head.lower().find(b"content-length:")
    return int(head[at + 15 : head.find(b"\r", at)]) if at >= 0 else 0


class Connection(asyncio.Protocol):
    """One keep-alive connection of a client: a request at a time."""

    def __init__(self) -> None:
        self._buffer = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(HEAD_END)
        if end < 0:
            return
        whole = end + 4 + _content_length(self._buffer[:end] + b"\r")
        if len(self._buffer) >= whole and self._answer is not None:
            answer = int(self._buffer[9:12]), self._buffer[end + 4 : whole]
            self._buffer = self._buffer[whole:]
            waiting, self._answer = self._answer, None
            waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None:
            self._answer.set_exception(exc or ConnectionError("the server closed the connection"))

    async def ask(self, raw: bytes) -> tuple[int, bytes]:
        """Status and body of the answer."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(raw)
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def hammer(
    address: str, connections: int, seconds: float, make: Callable[[], bytes], want: int = 202
) -> tuple[int, list[float]]:
    """Closed loop: each connection sends its next request when the last was answered.

    How many were answered with ``want``, and the time each took; any other answer is an error.
    """
    host, port = address.removeprefix("http://").rsplit(":", 1)
    loop = asyncio.get_running_loop()
    took: list[float] = []
    until = time.perf_counter() + seconds

    async def one() -> None:
        _, connection = await loop.create_connection(Connection, host, int(port))
        while time.perf_counter() < until:
            began = time.perf_counter()
            status, body = await connection.ask(make())
            if status != want:
                raise RuntimeError(f"answered {status}: {body[:300]!r}")
            took.append(time.perf_counter() - began)
        connection.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return len(took), took


class SinkConnection(asyncio.Protocol):
    """One connection of the sink: answers 200 to every request at once."""

    ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

    def __init__(self, seen: Callable[[bytes], None]) -> None:
        self._seen = seen
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(HEAD_END)) >= 0:
            head = self._buffer[:end]
            whole = end + 4 + _content_length(head + b"\r")
            if len(self._buffer) < whole:
                return
            self._buffer = self._buffer[whole:]
            self._seen(head)
            assert self._transport is not None
            self._transport.write(self.ANSWER)
