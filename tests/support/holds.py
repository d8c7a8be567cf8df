"""Hold other sessions at an exact point inside Postgres, so that a kill is no matter of luck."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from noonday.drill.checks.database import direct
from noonday.store import DirectConnection, Store

WAITING = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND query ~ $1
"""
GATE = 4_711
# A deferred trigger runs when COMMIT does, before anything of the transaction is to be seen.
STOP_AT_GATE = f"""
CREATE FUNCTION stop_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({GATE});
    RETURN NULL;
END $$
"""
GUARD = """
CREATE CONSTRAINT TRIGGER gate AFTER {events} ON {table}
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION stop_at_gate()
"""


async def eventually(ask: Callable[[], Any], deadline_sec: float = 15) -> Any:
    """What ``ask`` (a function or a coroutine function) answers, as soon as that is true; fails
    the test when it is not in time."""
    async with asyncio.timeout(deadline_sec):
        while True:
            answer = ask()
            if isinstance(answer, Awaitable):
                answer = await answer
            if answer:
                return answer
            await asyncio.sleep(0.01)


async def blocked(store: Store, query: str, deadline_sec: float = 15) -> int:
    """The pid of a backend that waits for a lock in a statement matching the pattern."""

    async def ask() -> Any:
        async with store.transaction() as tx:
            return await tx.value(WAITING, query)

    return int(await eventually(ask, deadline_sec))


@asynccontextmanager
async def holding(dsn: str, statement: str, *args: object) -> AsyncIterator[None]:
    """A transaction that has done ``statement`` and keeps its locks; rolled back at the end."""
    async with direct(dsn) as connection:
        await connection.execute("SET idle_in_transaction_session_timeout = 0")
        await connection.execute("BEGIN")
        await connection.rows(statement, *args)
        try:
            yield
        finally:
            await connection.execute("ROLLBACK")


class Gate:
    """Transactions that changed a table wait in their COMMIT while the gate is closed."""

    def __init__(self, connection: DirectConnection) -> None:
        self._connection = connection

    @classmethod
    @asynccontextmanager
    async def closed(cls, dsn: str, table: str, events: str = "INSERT") -> AsyncIterator[Gate]:
        """A gate that is closed until it is opened, or the block ends."""
        async with direct(dsn) as connection:
            await connection.execute(STOP_AT_GATE)
            await connection.execute(GUARD.format(table=table, events=events))
            await connection.execute(f"SELECT pg_advisory_lock({GATE})")
            yield cls(connection)

    async def open(self) -> None:
        await self._connection.execute(f"SELECT pg_advisory_unlock({GATE})")

    @staticmethod
    async def reached(store: Store, deadline_sec: float = 15) -> int:
        """The pid of a backend that waits at the gate."""
        return await blocked(store, "^COMMIT", deadline_sec)
