"""One connection to a database under check, outside the pools of the service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from noonday.store import DirectConnection, Store


@asynccontextmanager
async def direct(url: str) -> AsyncIterator[DirectConnection]:
    """A connection of its own to ``url``, without time limits."""
    store = await Store.open(url, size=1)
    try:
        async with store.direct() as connection:
            yield connection
    finally:
        await store.close()
