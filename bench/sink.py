"""A receiver in a process of its own: counts deliveries and how late each came.

Says its port on the first line of its output. At the end of its standard input it writes how many
came, as a line, and then two arrays of doubles, in seconds: how late each was, and when it came.
With ``hold`` it answers nobody; with ``any`` it listens on all addresses.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
from array import array
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import uvloop

from bench.processes import cpu_sec
from bench.wire import SinkConnection

OPEN: list[Sink] = []
"""Those that run now."""


@dataclass(frozen=True)
class Seen:
    """What a sink saw: seconds after the nominal time, and seconds since 1970."""

    late: array[float]
    came: array[float]

    @property
    def count(self) -> int:
        return len(self.came)


class Sink:
    """The receiver process; :meth:`stop` gives what it saw."""

    def __init__(self, *how: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.sink", *how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        OPEN.append(self)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def cpu_sec(self) -> float:
        return cpu_sec(self._process.pid)

    def stop(self) -> Seen:
        told, _ = self._process.communicate()
        OPEN.remove(self)
        head, _, rest = told.partition(b"\n")
        both = array("d", rest)
        return Seen(both[: int(head)], both[int(head) :])


async def serve(how: set[str]) -> None:
    loop = asyncio.get_running_loop()
    late: array[float] = array("d")
    came: array[float] = array("d")

    def seen(head: bytes) -> None:
        now = time.time()
        at = head.find(b"X-Occurrence: ") + 14
        end = head.find(b"\r", at)
        stamp = head[at:end] if end > 0 else head[at:]
        came.append(now)
        late.append(now - datetime.fromisoformat(stamp.decode()).timestamp())

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    server = await loop.create_server(
        partial(SinkConnection, seen, answers="hold" not in how),
        "0.0.0.0" if "any" in how else "127.0.0.1",
        0,
        backlog=4_096,
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()

    def told() -> None:
        if not os.read(sys.stdin.fileno(), 1):
            ended.set()

    loop.add_reader(sys.stdin.fileno(), told)
    await ended.wait()
    sys.stdout.buffer.write(b"%d\n" % len(came) + late.tobytes() + came.tobytes())
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    uvloop.run(serve(set(sys.argv[1:])))
