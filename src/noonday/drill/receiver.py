"""A receiver: a process of its own, which no fault touches, and the witness of what was sent.

It writes each request down, raw and synced, before it answers; what it answered is in a second
file. Its standard input tells it its moods, one JSON document a line; when that ends, so does it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from typing import Any, Final

from noonday.drill.checks.received import Received, read
from noonday.drill.moods import MOODS, WELL

REQUESTS: Final = "requests.jsonl"
ANSWERS: Final = "answers.jsonl"


class Receiver:
    """Answers by the mood of the path that is called."""

    def __init__(self, folder: Path, seed: str) -> None:
        self._requests = (folder / REQUESTS).open("ab", buffering=0)
        self._answers = (folder / ANSWERS).open("ab", buffering=0)
        self._chance = random.Random(seed)
        self._moods: dict[str, str] = {}
        self._done: set[str] = set()
        self._holds_next = False
        self._released = asyncio.Event()
        self._serving: set[asyncio.Task[Any] | None] = set()

    def obey(self, order: dict[str, Any]) -> None:
        """``moods`` by path, ``hold`` the next request, ``release`` what is held."""
        self._moods = order.get("moods", self._moods)
        if order.get("hold"):
            self._holds_next = True
            self._released = asyncio.Event()
        if order.get("release"):
            self._holds_next = False
            self._released.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        task = asyncio.current_task()
        self._serving.add(task)  # nobody else holds on to it
        try:
            while await self._serve_one(reader, writer):
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # they hung up
        finally:
            self._serving.discard(task)
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await read(reader)
        self._requests.write(request.line())
        os.fsync(self._requests.fileno())
        if self._holds_next:
            await self._hold(request)
        name = self._moods.get(request.path, WELL)
        mood = MOODS[name]
        repeated = request.run_id in self._done
        if mood.works:
            self._done.add(request.run_id)
        note = {
            "at": request.at, "run_id": request.run_id, "attempt": request.attempt,
            "lease_version": request.lease_version, "mood": name, "worked": mood.works,
            "repeated": repeated,
        }  # fmt: skip
        self._answers.write(json.dumps(note).encode() + b"\n")
        return await mood.answer(writer, self._chance, repeated)

    async def _hold(self, request: Received) -> None:
        self._holds_next = False
        released = self._released
        say(held=request.run_id, attempt=request.attempt)
        await released.wait()


def say(**what: object) -> None:
    """One line for whoever started this."""
    print(json.dumps(what), flush=True)


async def main(folder: Path, seed: str) -> None:
    """Serve until the input ends."""
    receiver = Receiver(folder, seed)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(orders), sys.stdin
    )
    say(port=server.sockets[0].getsockname()[1])
    while line := await orders.readline():
        receiver.obey(json.loads(line))
    os._exit(0)  # all is written, and whoever still waits for an answer gets none


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
