"""How a receiver behaves: well, or badly in one of many ways."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

WELL: Final = "well"
RETRY_AFTER: Final = (
    "-5", "soon", "0", "1e9", "999999999999", "9" * 80, "Fri, 31 Dec 1999 23:59:59 GMT",
    "Fri, 31 Dec 9999 23:59:59 GMT", "\t", "1, 2",
)  # fmt: skip
"""What a hostile receiver asks for; two of these are honest enough to be honoured for hours."""
HUGE_BYTES: Final = 2_000_000
DRIP_SEC: Final = 0.4


class Mood(NamedTuple):
    """``works``: the receiver does what it was asked to, whatever it says then."""

    works: bool
    answer: Callable[[asyncio.StreamWriter, random.Random, bool], Awaitable[bool]]
    """Answers; whether the connection can be used again."""


def _head(status: int, *lines: str, length: int = 0) -> bytes:
    return "\r\n".join(
        [f"HTTP/1.1 {status} Drill", f"Content-Length: {length}", *lines, "", ""]
    ).encode()


async def _well(to: asyncio.StreamWriter, _chance: random.Random, repeated: bool) -> bool:
    to.write(_head(200, *(["X-Noonday-Duplicate: 1"] if repeated else [])))
    return True


async def _error(to: asyncio.StreamWriter, chance: random.Random, _repeated: bool) -> bool:
    to.write(_head(chance.choice([500, 502, 503])))
    return True


async def _busy(to: asyncio.StreamWriter, chance: random.Random, _repeated: bool) -> bool:
    to.write(_head(429, f"Retry-After: {chance.choice(RETRY_AFTER)}"))
    return True


async def _refusing(to: asyncio.StreamWriter, _chance: random.Random, _repeated: bool) -> bool:
    to.write(_head(404))
    return True


async def _redirecting(to: asyncio.StreamWriter, _chance: random.Random, _repeated: bool) -> bool:
    to.write(_head(302, "Location: http://169.254.169.254/latest"))
    return True


async def _hanging(to: asyncio.StreamWriter, _chance: random.Random, _repeated: bool) -> bool:
    await to.wait_closed()  # until the other side gives up
    return False


async def _dripping(to: asyncio.StreamWriter, _chance: random.Random, _repeated: bool) -> bool:
    for byte in _head(200, "X-Drip: " + "x" * 60):
        to.write(bytes([byte]))
        await to.drain()
        await asyncio.sleep(DRIP_SEC)
    return True


async def _breaking_off(to: asyncio.StreamWriter, _chance: random.Random, _repeated: bool) -> bool:
    to.write(_head(200, length=100) + b"half of")
    await to.drain()
    to.transport.abort()
    return False


async def _closing(to: asyncio.StreamWriter, _chance: random.Random, _repeated: bool) -> bool:
    to.close()
    return False


async def _resetting(to: asyncio.StreamWriter, _chance: random.Random, _repeated: bool) -> bool:
    to.transport.abort()
    return False


async def _huge(to: asyncio.StreamWriter, _chance: random.Random, _repeated: bool) -> bool:
    to.write(_head(200, length=HUGE_BYTES))
    for _ in range(HUGE_BYTES // 50_000):
        to.write(b"x" * 50_000)
        await to.drain()
    return True


async def _garbage(to: asyncio.StreamWriter, chance: random.Random, _repeated: bool) -> bool:
    to.write(chance.randbytes(200))
    await to.drain()
    to.close()
    return False


MOODS: Final[dict[str, Mood]] = {
    WELL: Mood(True, _well),
    "error": Mood(False, _error),
    "busy": Mood(False, _busy),
    "refusing": Mood(False, _refusing),
    "redirecting": Mood(False, _redirecting),
    "hanging": Mood(False, _hanging),
    "dripping": Mood(True, _dripping),
    "breaking off": Mood(True, _breaking_off),
    "closing": Mood(False, _closing),
    "resetting": Mood(False, _resetting),
    "working, then silent": Mood(True, _resetting),
    "huge": Mood(True, _huge),
    "garbage": Mood(False, _garbage),
}
HOSTILE: Final = tuple(name for name in MOODS if name != WELL)
