"""Postgres: the only package with SQL, and the only one that imports the driver.

A :class:`Store` is a pool of connections; a :class:`Tx` is one open transaction on it. The
modules beside this file are plain functions that take a ``tx``: a statement is a constant in
capitals, and the function of the same name right below runs it. Functions never open
transactions; handlers and ticks do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol, Self, TypeAlias, cast

import asyncpg

from noonday.domain.errors import CommitUnknown, StoreUnavailable
from noonday.store.connections import connect_arguments, notice_silence

Row: TypeAlias = Mapping[str | int, Any]
"""A row, by column name or position."""

ROW_FAULTS: Final = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)
"""What one bad row can make a whole batch fail with; see :mod:`noonday.store.batches`."""

TURN_SEC: Final = 0.05
"""How long a look waits for its turn."""

_LOST: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server's farewell came between two statements
    asyncpg.OperatorInterventionError,
)
_UNAVAILABLE: Final = (
    *_LOST,
    asyncpg.InsufficientResourcesError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.LockNotAvailableError,
    asyncpg.TransactionRollbackError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.PostgresSystemError,  # its disk, say
    asyncpg.InvalidCachedStatementError,  # a migration, beside us; the next try plans anew
)


class Connection(Protocol):
    """The part of a driver connection that statements use."""

    async def fetch(self, query: str, *args: Any) -> list[Row]:
        """All rows."""

    async def fetchrow(self, query: str, *args: Any) -> Row | None:
        """The first row."""

    async def fetchval(self, query: str, *args: Any) -> Any:
        """The first column of the first row."""

    async def execute(self, query: str, *args: Any) -> str:
        """The command tag."""

    async def copy_records_to_table(
        self, table_name: str, *, records: Iterable[Sequence[Any]], columns: Sequence[str]
    ) -> str:
        """The command tag of a COPY."""


class Copy(NamedTuple):
    """Appends rows to a table. Costs less than an INSERT of as many arrays: nothing is planned, and
    rows are written by the page (``docs/decisions/0003-shared-commits.md``)."""

    table: str
    columns: tuple[str, ...]

    @property
    def text(self) -> str:
        """The statement, as the driver sends it."""
        names = ", ".join(f'"{name}"' for name in self.columns)
        return f'COPY "{self.table}"({names}) FROM STDIN (FORMAT binary)'


class Tx:
    """An open transaction. ``now`` is the bound test time, or None: then Postgres tells it."""

    __slots__ = ("_connection", "caps", "now", "opening", "wakes")

    def __init__(
        self, connection: Connection, now: datetime | None = None, opening: str = ""
    ) -> None:
        self._connection = connection
        self.now = now
        self.opening = opening
        """The statement that was sent along with its BEGIN."""
        self.wakes: set[str] = set()
        """Kinds of wake-ups that are due once this is committed."""
        self.caps: set[str] = set()
        """Caps under which it leaves runs waiting, or of which it has freed slots. What holds or
        frees runs notes them here; the store passes them on once it is committed."""

    async def rows(self, statement: str, *args: Any) -> list[Row]:
        """All rows of ``statement``."""
        return await self._connection.fetch(statement, *args)

    async def row(self, statement: str, *args: Any) -> Row | None:
        """The first row, or None."""
        return await self._connection.fetchrow(statement, *args)

    async def one(self, statement: str, *args: Any) -> Row:
        """The row of a statement that always has one."""
        row = await self.row(statement, *args)
        if row is None:
            raise LookupError("a statement that always has a row had none")
        return row

    async def value(self, statement: str, *args: Any) -> Any:
        """The first column of the first row, or None."""
        return await self._connection.fetchval(statement, *args)

    async def execute(self, statement: str, *args: Any) -> int:
        """Run ``statement``; how many rows it touched."""
        tag = await self._connection.execute(statement, *args)
        count = tag.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    async def open_with(self, opening: str) -> None:
        """Run an opening, unless the transaction was opened with it."""
        if self.opening != opening:
            await self.execute(opening)

    async def copy(self, into: Copy, rows: Sequence[Sequence[Any]]) -> None:
        """Append ``rows``, with the columns that ``into`` names."""
        if not rows:
            return
        try:
            await self._connection.copy_records_to_table(
                into.table, records=rows, columns=into.columns
            )
        except (TypeError, ValueError, OverflowError) as error:  # the driver's own verdict
            raise asyncpg.DataError(f"a value does not fit its column: {error}") from error

    async def clock(self) -> datetime:
        """The transaction's time, as the database tells it (or the bound test time)."""
        if self.now is not None:
            return self.now
        return cast(datetime, await self.value("SELECT now()"))

    async def moment(self) -> datetime:
        """The database's time now, not when the transaction began: it may have waited since."""
        if self.now is not None:
            return self.now
        return cast(datetime, await self.value("SELECT clock_timestamp()"))


class DirectConnection:
    """A connection outside any transaction, for DDL that wants none, and for LISTEN."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def execute(self, statement: str, *args: Any) -> str:
        """Run one statement on its own."""
        return str(await self._connection.execute(statement, *args))

    async def rows(self, statement: str, *args: Any) -> list[Row]:
        """All rows of ``statement``."""
        return list(await self._connection.fetch(statement, *args))

    async def value(self, statement: str, *args: Any) -> Any:
        """The first column of the first row, or None."""
        return await self._connection.fetchval(statement, *args)

    @asynccontextmanager
    async def transaction(self, now: datetime | None = None) -> AsyncIterator[Tx]:
        """A transaction on this connection, as a ``Tx``."""
        async with self._connection.transaction():
            yield Tx(self._connection, now)

    async def listen(self, channel: str, heard: Callable[[str], None]) -> None:
        """Call ``heard`` with the payload of each notification on ``channel``."""
        await self._connection.add_listener(channel, lambda *message: heard(message[3]))

    def on_close(self, closed: Callable[[], None]) -> None:
        """Call ``closed`` when the connection ends, for whatever reason."""
        self._connection.add_termination_listener(lambda _: closed())


class Store:
    """A pool of connections to one database."""

    def __init__(self, pool: asyncpg.Pool, direct_dsn: str) -> None:
        self._pool = pool
        self._direct_dsn = direct_dsn
        self.now: datetime | None = None
        """Bound by tests; in service always None."""
        self.wake: Callable[[str], None] = lambda _: None
        """Called with each kind of wake-up that a transaction asked for, once it is committed."""
        self._turn = asyncio.Lock()
        self.caps_moved: Callable[[set[str]], None] = lambda _: None
        """Called after a commit with the caps that the transaction has noted: somebody who waits
        for one of them may have a slot now."""

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        size: int = 4,
        pgbouncer: bool = False,
        direct_dsn: str | None = None,
        name: str = "noonday",
    ) -> Self:
        """Connect with up to ``size`` connections.

        ``pgbouncer`` is for a pooler in transaction mode: no prepared statements are kept.
        ``direct_dsn`` goes round it, for migrations, wake-ups and the upkeep of partitions.
        Raises :class:`StoreUnavailable`.
        """
        with unavailable():
            pool = await asyncpg.create_pool(
                dsn, min_size=0, max_size=size, **connect_arguments(pgbouncer, name)
            )
        return cls(pool, direct_dsn or dsn)

    async def close(self, within_sec: float = 5.0) -> None:
        """Close all connections, by force after ``within_sec``."""
        try:
            await asyncio.wait_for(self._pool.close(), within_sec)
        except TimeoutError:
            self._pool.terminate()

    @asynccontextmanager
    async def transaction(self, opening: str = "") -> AsyncIterator[Tx]:
        """One READ COMMITTED transaction; commits when the block ends, else rolls back.

        ``opening`` is a statement without parameters or an answer that is sent along with BEGIN.
        Raises :class:`StoreUnavailable` when Postgres cannot be reached or refuses, and its
        subclass :class:`CommitUnknown` when the answer to COMMIT was lost.
        """
        connection = await self._acquire()
        try:
            with unavailable():
                try:
                    await connection.execute(f"BEGIN;{opening}")
                    tx = Tx(connection, self.now, opening)
                    yield tx
                except BaseException:
                    await _roll_back(connection)
                    raise
            try:
                await _commit(connection)
            finally:
                if tx.caps:  # also where nobody knows: a look too many costs little
                    self.caps_moved(tx.caps)
        finally:
            await _release(self._pool, connection)
        for kind in tx.wakes:
            self.wake(kind)

    @asynccontextmanager
    async def singly(self) -> AsyncIterator[Tx]:
        """Statements that are each a transaction of their own, and so save the round trips of BEGIN
        and COMMIT: looks that need no common snapshot, and single writes that may get lost.

        Raises :class:`StoreUnavailable`.
        """
        connection = await self._acquire()
        try:
            with unavailable():
                yield Tx(connection, self.now)
        finally:
            await _release(self._pool, connection)

    @asynccontextmanager
    async def in_turn(self) -> AsyncIterator[Tx]:
        """The same for what is in no hurry: one after the other on one connection, since a backend
        that is awake answers at less cost than one that has to wake up. Whoever is slow holds the
        next up for no longer than ``TURN_SEC``."""
        in_turn = await self._wait_for_turn()
        try:
            async with self.singly() as tx:
                yield tx
        finally:
            if in_turn:
                self._turn.release()

    async def _wait_for_turn(self) -> bool:
        if not self._turn.locked():
            return await self._turn.acquire()
        try:
            async with asyncio.timeout(TURN_SEC):
                return await self._turn.acquire()
        except TimeoutError:
            return False

    async def _acquire(self) -> Any:
        with unavailable():
            return await self._pool.acquire(timeout=5.0)

    @asynccontextmanager
    async def direct(self) -> AsyncIterator[DirectConnection]:
        """A connection of one's own, beside the pool and without time limits: for migrations,
        the upkeep of partitions, and wake-ups."""
        arguments = connect_arguments(False, "noonday upkeep") | {"command_timeout": None}
        with unavailable():
            connection = await asyncpg.connect(self._direct_dsn, **arguments)
        try:
            with unavailable():
                notice_silence(connection)
                await connection.execute("SET statement_timeout = 0")
                yield DirectConnection(connection)
        finally:
            connection.terminate()


async def _commit(connection: Any) -> None:
    with unavailable():
        try:
            await connection.execute("COMMIT;")
        except _LOST as error:
            raise CommitUnknown(f"the answer to COMMIT was lost: {error}") from error


async def _roll_back(connection: Any) -> None:
    """Roll back; a connection that cannot is closed, so that nothing of it lives on."""
    try:
        await connection.execute("ROLLBACK;")
    except (Exception, asyncio.CancelledError):
        _cut(connection)


async def _release(pool: Any, connection: Any) -> None:
    """Give the connection back, unless it is gone: the pool makes a new one when asked."""
    try:
        await asyncio.shield(pool.release(connection, timeout=2.0))
    except asyncio.CancelledError:
        raise
    except Exception:
        _cut(connection)


def _cut(connection: Any) -> None:
    with suppress(asyncpg.InterfaceError):  # the pool has noticed before us, and let go of it
        connection.terminate()


class unavailable:  # noqa: N801 - reads as a statement
    """Turn what says "no database" into :class:`StoreUnavailable`; all else passes."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, StoreUnavailable):
            return
        if isinstance(error, asyncpg.CheckViolationError) and not error.constraint_name:
            # Not the row's fault: it fits into no partition, since the janitor is behind.
            raise StoreUnavailable(f"a partition is missing: {error}") from error
        if isinstance(error, _UNAVAILABLE):
            raise StoreUnavailable(f"{type(error).__name__}: {error}") from error


def columns(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """Turn rows into the columns that ``unnest`` wants; ``width`` serves the empty batch."""
    return (
        [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
    )
