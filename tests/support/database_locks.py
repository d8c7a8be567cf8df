"""Hold a table so that a transaction of the service stands still where a test wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from noonday.store import Store


async def value(store: Store, statement: str, *args: Any) -> Any:
    """What a statement answers, in a transaction of its own."""
    async with store.transaction() as tx:
        return await tx.value(statement, *args)


@asynccontextmanager
async def locked(store: Store, table: str) -> AsyncIterator[None]:
    """Nobody can write to ``table`` until the block ends."""
    async with store.transaction() as tx:
        await tx.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")
        yield


async def until(condition: Callable[[], Awaitable[bool]], within_sec: float = 15) -> None:
    """Wait until an asynchronous condition holds."""
    async with asyncio.timeout(within_sec):
        while not await condition():  # noqa: ASYNC110 - only the database knows
            await asyncio.sleep(0.01)


async def until_blocked(store: Store, times: int = 1) -> None:
    """Wait until so many statements wait for a lock in the store's database."""

    async def blocked() -> bool:
        waiting = """SELECT count(*) FROM pg_stat_activity
                     WHERE wait_event_type = 'Lock' AND datname = current_database()"""
        return int(await value(store, waiting)) >= times

    await until(blocked)
