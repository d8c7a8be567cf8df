"""A store whose database misbehaves now and then, by a seed: a wrapper below the real one.

It stands where the driver is, so that whatever goes wrong takes the product's own way up: what
Postgres says is said by the real one, whose transaction is really over then, and an error of the
connection is one of the driver's. What is not injected runs for real.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar, Final, Self

import asyncpg

from noonday.store import DirectConnection, Store, unavailable


class Kind(StrEnum):
    """What goes wrong. The first is found when a connection is taken, the last three at COMMIT."""

    TOO_MANY = "too many connections (53300)"

    SERIALIZATION = "serialization failure (40001)"
    DEADLOCK = "deadlock (40P01)"
    LOCKED = "lock not available (55P03)"
    READ_ONLY = "read-only transaction (25006)"
    TERMINATED = "backend terminated before a statement (57P01)"
    CUT = "connection lost after a statement"
    SLOW = "slow before a statement"
    LINGERING = "slow after a statement"

    REFUSED = "rolled back at COMMIT (40001)"
    UNSAID = "connection lost before COMMIT"
    UNHEARD = "executed but reported as failed"


AT_COMMIT: Final = (Kind.REFUSED, Kind.UNSAID, Kind.UNHEARD)
AT_STATEMENT: Final = tuple(kind for kind in Kind if kind not in (Kind.TOO_MANY, *AT_COMMIT))
CODES: Final = {
    Kind.SERIALIZATION: "40001",
    Kind.DEADLOCK: "40P01",
    Kind.LOCKED: "55P03",
    Kind.REFUSED: "40001",
}
RAISE: Final = "DO $$ BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = '{}'; END $$"
TERMINATE: Final = "SELECT pg_terminate_backend(pg_backend_pid())"
READ_ONLY: Final = "SET LOCAL transaction_read_only = on"
PAUSE: Final = "SELECT pg_sleep(0.003)"


class Faults:
    """Which fault comes when. None comes until it is told to, and none after it has been healed."""

    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(seed)
        self._rate = 0.0
        self._kinds: Sequence[Kind] = ()
        self._next: Kind | None = None
        self._after = 0
        self.met: Counter[Kind] = Counter()
        """How often each has come."""

    def rage(self, rate: float, kinds: Sequence[Kind] = tuple(Kind)) -> None:
        """From now on each connection taken, statement and COMMIT goes wrong with this chance."""
        self._rate, self._kinds = rate, kinds

    def heal(self) -> None:
        """All is well from now on."""
        self._rate, self._next = 0.0, None

    def once(self, kind: Kind, after: int = 0) -> None:
        """The next chance for ``kind`` is taken, when ``after`` others have been let pass."""
        self._next, self._after = kind, after

    @property
    def waits(self) -> bool:
        """Whether what was to come once has not come."""
        return self._next is not None

    def draw(self, among: Sequence[Kind]) -> Kind | None:
        """What goes wrong here, if anything."""
        kind, possible = None, [kind for kind in among if kind in self._kinds]
        if self._next in among and self._after:
            self._after -= 1
        elif self._next in among:
            kind, self._next = self._next, None
        elif possible and self._chance.random() < self._rate:
            kind = self._chance.choice(possible)
        if kind is not None:
            self.met[kind] += 1
        return kind


class FaultyStore(Store):
    """A :class:`Store` under ``faults``, which those of one class share."""

    faults: ClassVar[Faults]

    def __init__(self, pool: Any, direct_dsn: str) -> None:
        super().__init__(_Pool(pool, self.faults), direct_dsn)

    @classmethod
    def under(cls, faults: Faults) -> type[FaultyStore]:
        """The class of stores that these faults befall."""
        return type("StoreUnderFaults", (cls,), {"faults": faults})

    @asynccontextmanager
    async def direct(self) -> AsyncIterator[DirectConnection]:
        with unavailable():
            _refuse(self.faults)
        async with super().direct() as connection:
            yield DirectConnection(_Connection(connection._connection, self.faults))


def _refuse(faults: Faults) -> None:
    if faults.draw([Kind.TOO_MANY]):
        raise asyncpg.TooManyConnectionsError("sorry, too many clients already (injected)")


class _Around:
    """Everything of the real thing, but for what a subclass does."""

    def __init__(self, real: Any, faults: Faults) -> None:
        self.real = real
        self.faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class _Pool(_Around):
    async def acquire(self, **how: Any) -> _Connection:
        _refuse(self.faults)
        return _Connection(await self.real.acquire(**how), self.faults)

    async def release(self, connection: _Connection, **how: Any) -> None:
        await self.real.release(connection.real, **how)


class _Connection(_Around):
    async def fetch(self, query: str, *args: Any) -> Any:
        return await self._run(self.real.fetch, query, *args)

    async def fetchrow(self, query: str, *args: Any) -> Any:
        return await self._run(self.real.fetchrow, query, *args)

    async def fetchval(self, query: str, *args: Any) -> Any:
        return await self._run(self.real.fetchval, query, *args)

    async def execute(self, query: str, *args: Any) -> Any:
        if query == "COMMIT;":
            commit, undo = (partial(self.real.execute, each) for each in (query, "ROLLBACK;"))
            return await _commit(self.real, self.faults, commit, undo)
        if query in ("BEGIN;", "ROLLBACK;"):
            return await self.real.execute(query)
        return await self._run(self.real.execute, query, *args)

    async def copy_records_to_table(self, table_name: str, **what: Any) -> Any:
        return await self._run(self.real.copy_records_to_table, table_name, **what)

    def transaction(self) -> _Transaction:
        return _Transaction(self.real.transaction(), self.real, self.faults)

    async def _run(self, run: Callable[..., Any], *args: Any, **what: Any) -> Any:
        kind = self.faults.draw(AT_STATEMENT)
        await self._before(kind)
        result = await run(*args, **what)
        if kind is Kind.CUT:
            await _lose(self.real, "after a statement")
        if kind is Kind.LINGERING:
            await self.real.execute(PAUSE)
        return result

    async def _before(self, kind: Kind | None) -> None:
        if kind in CODES:
            await self.real.execute(RAISE.format(CODES[kind]))
        elif kind is Kind.TERMINATED:
            await self.real.execute(TERMINATE)
        elif kind is Kind.READ_ONLY and self.real.is_in_transaction():
            await self.real.execute(READ_ONLY)
        elif kind is Kind.SLOW:
            await self.real.execute(PAUSE)


class _Transaction(_Around):
    def __init__(self, real: Any, connection: Any, faults: Faults) -> None:
        super().__init__(real, faults)
        self._connection = connection

    async def commit(self) -> None:
        await _commit(self._connection, self.faults, self.real.commit, self.real.rollback)

    async def __aenter__(self) -> Self:
        await self.real.start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            await self.commit()
        else:
            with suppress(Exception):
                await self.real.rollback()


async def _commit(
    connection: Any,
    faults: Faults,
    commit: Callable[[], Awaitable[Any]],
    roll_back: Callable[[], Awaitable[Any]],
) -> None:
    kind = faults.draw(AT_COMMIT)
    if kind is Kind.REFUSED:
        try:
            await connection.execute(RAISE.format(CODES[kind]))
        finally:
            await roll_back()
    if kind is Kind.UNSAID:
        await _lose(connection, "before COMMIT")
    await commit()
    if kind is Kind.UNHEARD:
        await _lose(connection, "after COMMIT")


async def _lose(connection: Any, when: str) -> None:
    """The connection is gone: nothing more is heard of it, and the server rolls back soon."""
    connection.terminate()
    raise asyncpg.ConnectionDoesNotExistError(f"connection was closed {when} (injected)")
