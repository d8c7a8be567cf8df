"""A real webhook receiver on loopback: the witness of what was sent, independent of the sender.

It reads HTTP/1.1 by itself, so that a test sees the very bytes of a request.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from noonday.drill.checks.received import Received, read


@dataclass(frozen=True)
class Answer:
    """What a receiver does with a request that it has read and recorded."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    hold: bool = False
    """Wait for ``release`` before answering."""
    delay_sec: float = 0
    """What it does takes so long."""
    drop: Literal["no", "before", "within"] = "no"
    """Cut the connection before the answer, or within its body."""

    def bytes(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} Status", f"Content-Length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


class RecordingReceiver:
    """Use as ``async with``. Answers 200 unless told otherwise for a path.

    Args:
        log: A file to which each request is written and synced before it is answered.
        port: A fixed port, so that a test can stop a receiver and start it again.
        tls: Serve https.
    """

    def __init__(
        self, *, log: Path | None = None, port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self.requests: list[Received] = []
        self.connections = 0
        self.hang_ups = 0
        """Connections that the other side has closed."""
        self._log = log
        self._port = port
        self._tls = tls
        self._answers: defaultdict[str, deque[Answer]] = defaultdict(lambda: deque([Answer()]))
        self._released: dict[str | None, asyncio.Event] = defaultdict(asyncio.Event)
        self._changed = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self._port, ssl=self._tls
        )
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        scheme, host = ("https", "localhost") if self._tls else ("http", "127.0.0.1")
        return f"{scheme}://{host}:{self._port}"

    def answer(self, path: str, *answers: Answer | int) -> None:
        """Answer requests for ``path`` one after the other like this; the last one stays."""
        self._answers[path] = deque(
            answer if isinstance(answer, Answer) else Answer(answer) for answer in answers
        )

    def release(self, path: str | None = None) -> None:
        """Let all held requests go on, and those that come later; or only those for ``path``."""
        self._released[path].set()

    def hold(self) -> None:
        """From now on keep again what is to be held."""
        self._released.clear()

    def of(self, path: str) -> list[Received]:
        return [request for request in self.requests if request.path == path]

    async def wait_for(
        self, count: int, deadline_sec: float = 5, *, path: str | None = None
    ) -> list[Received]:
        """The requests so far, as soon as there are ``count``; fails when there are not in time."""

        def found() -> list[Received]:
            return self.requests if path is None else self.of(path)

        await self._until(lambda: len(found()) >= count, deadline_sec)
        return found()

    async def wait_for_hang_up(self, count: int = 1, deadline_sec: float = 5) -> None:
        """Return when the other side has closed ``count`` connections."""
        await self._until(lambda: self.hang_ups >= count, deadline_sec)

    async def _until(self, condition: Callable[[], bool], deadline_sec: float) -> None:
        async with asyncio.timeout(deadline_sec):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self.connections += 1
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hang_ups += 1
        except asyncio.CancelledError:
            pass  # stopped by the test
        finally:
            self._changed.set()
            self._serving.discard(task)
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await read(reader)
        self._record(request)
        answers = self._answers[request.path]
        answer = answers[0] if len(answers) == 1 else answers.popleft()
        if answer.hold and not await self._held(reader, request.path):
            raise ConnectionResetError
        await asyncio.sleep(answer.delay_sec)
        if answer.drop == "before":
            writer.transport.abort()
            return False
        data = answer.bytes()
        writer.write(data if answer.drop == "no" else data[:-1])
        await writer.drain()
        return answer.drop == "no"

    async def _held(self, reader: asyncio.StreamReader, path: str) -> bool:
        """Wait for the release; False when the other side has hung up before it."""
        released = [asyncio.ensure_future(self._released[key].wait()) for key in (None, path)]
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((*released, gone), return_when=asyncio.FIRST_COMPLETED)
            return any(each.done() for each in released)
        finally:
            for each in (*released, gone):
                each.cancel()
            await asyncio.wait((*released, gone))  # else the next read meets this one

    def _record(self, request: Received) -> None:
        if self._log is not None:
            with self._log.open("ab", buffering=0) as file:
                file.write(request.line())
                os.fsync(file.fileno())
        self.requests.append(request)
        self._changed.set()
