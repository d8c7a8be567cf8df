"""How partitions stand, and what can come between the steps of looking after them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

from noonday.domain.model import shard_of
from noonday.drill.checks.database import direct
from noonday.store import DirectConnection, Store, Tx, partitions, timers
from noonday.store.partitions import is_read_for_long
from noonday.store.timers import Timer
from tests.support import seeds
from tests.support.database import execute

NOW = datetime(2027, 3, 14, 12, tzinfo=UTC)
TABLES = ("timers", "occurrences", "executions", "audit_log")

BOUNDS = """
SELECT b[1]::timestamptz AS starts_at, b[2]::timestamptz AS ends_at
FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid,
     regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \\(''(.*)''\\) TO \\(''(.*)''\\)') AS b
WHERE i.inhparent = $1::text::regclass AND NOT i.inhdetachpending ORDER BY 1
"""
PARTITIONS = """
SELECT string_agg(inhrelid::regclass::text, ', ') FROM pg_inherits
WHERE inhparent = ANY($1::text[]::regclass[])
"""
NAMES = "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relname ~ $1 ORDER BY 1"


class Span(NamedTuple):
    """From when to when partitions cover all there is."""

    starts_at: datetime
    ends_at: datetime


@contextmanager
def template_at(server_url: str, template: str, now: datetime = NOW) -> Iterator[str]:
    """A template whose partitions are those of a service that began at ``now``."""
    name = f"{template}_at_{now:%Y%m%d}"
    asyncio.run(execute(server_url, f"CREATE DATABASE {name} TEMPLATE {template}"))
    asyncio.run(_begin_at(urlunsplit(urlsplit(server_url)._replace(path=f"/{name}")), now))
    yield name
    asyncio.run(execute(server_url, f"DROP DATABASE {name}"))


async def _begin_at(url: str, now: datetime) -> None:
    async with direct(url) as connection, connection.transaction(now) as tx:
        await tx.execute(f"DROP TABLE {await tx.value(PARTITIONS, list(TABLES))}")
        await tx.execute("DELETE FROM ledger_start")
        await partitions.create_first(tx)


async def covered(tx: Tx, table: str, since: datetime | None = None) -> Span:
    """What a table's partitions cover, read from the catalog; fails when there is a hole, be it
    after ``since``."""
    rows = await tx.rows(BOUNDS, table)
    bounds = [row for row in rows if since is None or row["ends_at"] > since]
    for before, after in pairwise(bounds):
        assert before["ends_at"] == after["starts_at"], f"a hole in {table} after {before}"
    return Span(bounds[0]["starts_at"], bounds[-1]["ends_at"])


async def tables(store: Store, pattern: str) -> list[str]:
    """The names of tables, partitions or not, that match a regular expression."""
    async with store.transaction() as tx:
        return [row["relname"] for row in await tx.rows(NAMES, f"^{pattern}$")]


async def arm(store: Store, dues: Sequence[datetime]) -> list[UUID]:
    """A timer for each of ``dues``, of jobs that are not there, exactly where it says."""
    ids = [seeds.job_id() for _ in dues]
    async with store.transaction() as tx:
        rows = [Timer(id, due, due, 1, 0, shard_of(id)) for id, due in zip(ids, dues, strict=True)]
        await timers.arm(tx, rows, min(dues))
    return ids


async def dues(store: Store) -> list[datetime]:
    """Where the timers stand."""
    async with store.transaction() as tx:
        return [row["due_at"] for row in await tx.rows("SELECT due_at FROM timers ORDER BY 1")]


@asynccontextmanager
async def a_reader(store: Store, *reads: str, for_long: bool = True) -> AsyncIterator[None]:
    """A dump: a transaction that has read the given tables, and stays open.

    ``for_long``: it has been open for so long that it cannot be one of ours.
    """
    async with store.direct() as connection:
        await connection.execute("SET idle_in_transaction_session_timeout = 0")
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        for table in reads:
            await connection.value(f"SELECT count(*) FROM {table}")
        async with store.direct() as other:
            until = time.monotonic() + 10
            while for_long and not await is_read_for_long(other, reads[0]):
                assert time.monotonic() < until, "the reader does not get old"
        yield
        await connection.execute("COMMIT")


class Died(Exception):
    """The process is no more."""


class Mortal:
    """A driver's connection whose process dies just before a statement, counted from 0."""

    def __init__(self, connection: Any, dies_at: int) -> None:
        self._connection = connection
        self._left = dies_at

    def _live(self) -> None:
        if self._left == 0:
            raise Died
        self._left -= 1

    async def execute(self, query: str, *args: Any) -> Any:
        self._live()
        return await self._connection.execute(query, *args)

    async def fetch(self, query: str, *args: Any) -> Any:
        self._live()
        return await self._connection.fetch(query, *args)

    async def fetchrow(self, query: str, *args: Any) -> Any:
        self._live()
        return await self._connection.fetchrow(query, *args)

    async def fetchval(self, query: str, *args: Any) -> Any:
        self._live()
        return await self._connection.fetchval(query, *args)

    def transaction(self) -> Any:
        return self._connection.transaction()


@asynccontextmanager
async def mortal(store: Store, dies_at: int) -> AsyncIterator[DirectConnection]:
    """A direct connection of a process that dies before its ``dies_at``-th statement."""
    async with store.direct() as connection:
        yield DirectConnection(Mortal(connection._connection, dies_at))
