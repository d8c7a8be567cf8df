"""Serve an ASGI application on a socket of ours, inside a running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from noonday import pulse

BACKLOG: Final = 2_048
DATE_SEC: Final = 1.0
"""How often the Date header is written anew."""
FINISH_SEC: Final = 10.0
"""How long requests under way get when the server stops."""
MOST_JOINED: Final = 65_536
"""Copying a bigger body costs more than sending its head by itself."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process stops its parts in its own order. And it
    does not look ten times a second whether it is to stop: it is told."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()

    def stop(self) -> None:
        """Have it end once requests under way have."""
        self.should_exit = True
        self._told.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # the tick that writes the Date header anew
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pulse.left(DATE_SEC)):
                    await self._told.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Joining:
    """A transport that keeps the head of an answer until its body comes, and sends both in one go:
    a system call and a packet less for each answer."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send, or keep, what uvicorn has written."""
        if self._head:
            head, self._head = self._head, b""
            if len(data) > MOST_JOINED:
                self._transport.write(head)
                self._transport.write(data)
            else:
                self._transport.write(head + data)
        elif data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100"):
            self._head = data
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Send a head that no body followed."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Send what is kept, and end the connection."""
        self.flush()
        self._transport.close()


class _Protocol(HttpToolsProtocol):
    """uvicorn's, with answers that go out in one piece."""

    def connection_made(self, transport: Any) -> None:
        self._joining = _Joining(transport)
        super().connection_made(self._joining)  # type: ignore[arg-type]

    def on_response_complete(self) -> None:
        self._joining.flush()
        super().on_response_complete()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ``OSError``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, or asyncio does not see that it is TCP and leaves Nagle on: 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """The ``http://host:port`` of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@asynccontextmanager
async def serving(app: Any, listener: socket.socket) -> AsyncIterator[str]:
    """Serve ``app`` on ``listener`` until the block ends; gives the address."""
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(FINISH_SEC),
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        if task.done():
            task.result()
            raise OSError("the HTTP server ended before it began")
        await asyncio.sleep(0.005)
    try:
        yield address_of(listener)
    finally:
        server.stop()
        await task
        listener.close()
