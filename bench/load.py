"""Load on the API: closed (how much it can take) and open (how late it answers).

An open load sends at instants that were set beforehand, whether or not earlier requests have been
answered, and counts the time of each from the instant at which it was due to be sent. So a server
that stops for a second is charged for all requests of that second, not for one
("coordinated omission").
"""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.wire import Connection, Refused, connect

ANSWER_SEC = 120.0
"""How long answers may take after the last request."""


@dataclass
class Answers:
    """What came of a load; ``took`` are seconds, one for each answer."""

    seconds: float = 0.0
    took: array[float] = field(default_factory=lambda: array("d"))

    @property
    def count(self) -> int:
        return len(self.took)


def _fault(connection: Connection, status: int, body: bytes) -> Exception:
    return connection.lost or Refused(f"answered {status}: {body[:300]!r}")


async def closed(
    addresses: Sequence[str],
    connections: int,
    seconds: float,
    make: Callable[[], bytes],
    want: int = 202,
) -> Answers:
    """Each connection sends its next request when the last was answered. Raises :class:`Refused`
    for an answer other than ``want``."""
    answers, over = Answers(), asyncio.get_running_loop().create_future()
    clock = time.perf_counter
    open_ = connections

    def answered(connection: Connection, status: int, body: bytes) -> None:
        nonlocal open_
        now = clock()
        if status != want:
            if not over.done():
                over.set_exception(_fault(connection, status, body))
            return
        answers.took.append(now - connection.sent_at)
        if now < until:
            connection.sent_at = now
            connection.send(make())
        else:
            open_ -= 1
            if not open_ and not over.done():
                over.set_result(None)

    lines = await connect(addresses, answered, connections)
    began = clock()
    until = began + seconds
    for line in lines:
        line.sent_at = clock()
        line.send(make())
    try:
        await over
        answers.seconds = clock() - began
    finally:
        for line in lines:
            line.close()
    return answers


class Open:
    """An open load: ``per_sec`` requests, at random instants with that mean (or, with ``even``, at
    equal distances), over so many connections; what finds none free waits for one, and its clock
    runs."""

    def __init__(
        self,
        addresses: Sequence[str],
        per_sec: float,
        make: Callable[[], bytes],
        *,
        connections: int = 64,
        seed: int = 1,
        even: bool = False,
        want: int = 202,
    ) -> None:
        self._addresses = addresses
        self._per_sec = per_sec
        self._make = make
        self._connections = connections
        self._lots = random.Random(seed)
        self._even = even
        self._want = want
        self._free: deque[Connection] = deque()
        """The one that was used longest ago goes first: the server closes those that are idle."""
        self._late: deque[float] = deque()
        self.answers = Answers()
        self.sent = 0

    async def run(self, seconds: float) -> Answers:
        """Send for so long, wait for the last answer. Raises as :func:`closed`."""
        loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = loop.create_future()
        lines = await connect(self._addresses, self._answered, self._connections)
        self._free.extend(lines)
        began = self._due = time.perf_counter()
        self._until = began + seconds
        try:
            self._pump(loop)
            async with asyncio.timeout(seconds + ANSWER_SEC):
                await self._over
        finally:
            for line in lines:
                line.close()
        self.answers.seconds = time.perf_counter() - began
        return self.answers

    def _pump(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._over.done():
            return
        now = time.perf_counter()
        while self._due <= now and self._due < self._until:
            self._issue(self._due)
            self._due += 1 / self._per_sec if self._even else self._lots.expovariate(self._per_sec)
        if self._due < self._until:
            # (At a shorter delay than its clock has, the event loop would only spin.)
            loop.call_later(max(self._due - now, 0.001), self._pump, loop)
        else:
            self._look()

    def _issue(self, due: float) -> None:
        self.sent += 1
        if self._free:
            self._send(self._free.popleft(), due)
        else:
            self._late.append(due)

    def _send(self, line: Connection, due: float) -> None:
        line.sent_at = due
        line.send(self._make())

    def _answered(self, line: Connection, status: int, body: bytes) -> None:
        if status != self._want:
            if not self._over.done():
                self._over.set_exception(_fault(line, status, body))
            return
        self.answers.took.append(time.perf_counter() - line.sent_at)
        if self._late:
            self._send(line, self._late.popleft())
        else:
            self._free.append(line)
            self._look()

    def _look(self) -> None:
        """Whether the last one has been answered."""
        ended = self._due >= self._until and self.answers.count == self.sent
        if ended and not self._over.done():
            self._over.set_result(None)
