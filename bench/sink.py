"""A receiver in a process of its own: counts deliveries and how late each came.

Says its port on the first line of its output. At the end of its standard input it writes, as one
JSON object, the count, the CPU seconds it used, and for each delivery how late it was and when it
came, in seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from datetime import datetime
from functools import partial

import uvloop

from bench.wire import SinkConnection


async def serve() -> None:
    loop = asyncio.get_running_loop()
    late: list[float] = []
    came: list[float] = []

    def seen(head: bytes) -> None:
        now = time.time()
        at = head.find(b"X-Occurrence: ") + 14
        stamp = head[at : head.find(b"\r", at) if b"\r" in head[at:] else len(head)]
        came.append(now)
        late.append(now - datetime.fromisoformat(stamp.decode()).timestamp())

    server = await loop.create_server(partial(SinkConnection, seen), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()

    def told() -> None:
        if not os.read(sys.stdin.fileno(), 1):
            ended.set()

    loop.add_reader(sys.stdin.fileno(), told)
    await ended.wait()
    used = time.process_time()
    seen_all = {"count": len(late), "cpu_sec": used, "late_sec": late, "came_at": came}
    print(json.dumps(seen_all), flush=True)


if __name__ == "__main__":
    uvloop.run(serve())
