"""A request as a receiver saw it, and the file that it keeps of them."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Received:
    """One request as it came. ``at`` is the wall clock, in seconds."""

    at: float
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    head: bytes = field(repr=False)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def __getitem__(self, name: str) -> str:
        """The one value of a header; fails unless it was sent exactly once."""
        (value,) = self.all(name)
        return value

    @property
    def run_id(self) -> str:
        return self["X-Run-Id"]

    @property
    def attempt(self) -> int:
        return int(self["X-Attempt"])

    @property
    def lease_version(self) -> int:
        return int(self["X-Lease-Version"])

    def line(self) -> bytes:
        """The record for the file, one line of JSON."""
        record = {
            "at": self.at,
            "method": self.method,
            "path": self.path,
            "headers": self.headers,
            "body": base64.b64encode(self.body).decode(),
        }
        return json.dumps(record).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> Self:
        """Read a record back; only the head as raw bytes is not kept."""
        record = json.loads(line)
        headers = tuple((name, value) for name, value in record["headers"])
        body = base64.b64decode(record["body"])
        return cls(record["at"], record["method"], record["path"], headers, body, b"")


def read_log(log: Path) -> list[Received]:
    """What a receiver has written to its file, also one that has been killed since."""
    return [Received.of(line) for line in log.read_bytes().splitlines()]


async def read(reader: asyncio.StreamReader) -> Received:
    """A request, read by itself, so that the very bytes are on record."""
    head = await reader.readuntil(b"\r\n\r\n")
    start, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, path, _ = start.split(" ")
    pairs = tuple(
        (name, value.strip()) for name, _, value in (line.partition(":") for line in lines)
    )
    length = next((int(value) for name, value in pairs if name.lower() == "content-length"), 0)
    body = await reader.readexactly(length)
    return Received(time.time(), method, path, pairs, body, head)
