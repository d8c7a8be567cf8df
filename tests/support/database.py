"""A fresh database for a test, copied from a template that is migrated once per process."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from noonday.drill.checks.database import direct
from noonday.store import Store
from noonday.store.migrate import apply_role_settings, migrate
from tests.support.pgbouncer import POOLER_FOLDER, pooled


@pytest.fixture(scope="session")
def database_template(postgres_url: str) -> Iterator[str]:
    """The name of a database that holds this release's schema and nothing else."""
    name = f"noonday_template_{secrets.token_hex(4)}"
    asyncio.run(_make_template(postgres_url, name))
    yield name
    asyncio.run(drop(postgres_url, name))


@pytest.fixture
async def database_url(postgres_url: str, database_template: str) -> AsyncIterator[str]:
    """The URL of a fresh, migrated database, dropped after the test."""
    name = f"noonday_test_{secrets.token_hex(6)}"
    url = _url_of(postgres_url, name)
    await execute(postgres_url, f"CREATE DATABASE {name} TEMPLATE {database_template}")
    try:
        # What a role is set to in a database is not copied with it.
        async with direct(url) as connection:
            await apply_role_settings(connection)
        yield url
    finally:
        await drop(postgres_url, name)


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """A store on a fresh, migrated database."""
    opened = await open_store(database_url, size=8)
    try:
        yield opened
    finally:
        await opened.close()


async def open_store(url: str, kind: type[Store] = Store, **how: Any) -> Store:
    """A store on the database at ``url``, by way of the run's pooler when it has one."""
    where = database_settings(url)
    return await kind.open(
        where["database_url"],
        pgbouncer=where.get("pgbouncer", False),
        direct_dsn=where.get("database_direct_url"),
        **how,
    )


def database_settings(url: str) -> dict[str, Any]:
    """The settings of a process that works with the database at ``url``, in the same way."""
    folder = os.environ.get(POOLER_FOLDER)
    if folder is None:
        return {"database_url": url}
    by_pooler = pooled(url, Path(folder))
    return {"database_url": by_pooler, "database_direct_url": url, "pgbouncer": True}


async def execute(url: str, statement: str) -> None:
    """Run one statement on a connection of its own, outside a transaction."""
    async with direct(url) as connection:
        await connection.execute(statement)


async def drop(server_url: str, name: str) -> None:
    """Not ``WITH (FORCE)``: that is refused while autovacuum works there, whose process belongs to
    a superuser. A plain ``DROP`` sends it away, and waits for those that are on their way out."""
    async with direct(server_url) as connection:
        await connection.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = $1 AND usename = current_user",
            name,
        )
        await connection.execute(f"DROP DATABASE {name}")


async def _make_template(server_url: str, name: str) -> None:
    await execute(server_url, f"CREATE DATABASE {name}")
    store = await Store.open(_url_of(server_url, name), size=1)
    try:
        await migrate(store)
    finally:
        await store.close()


def _url_of(server_url: str, database: str) -> str:
    return urlunsplit(urlsplit(server_url)._replace(path=f"/{database}"))
