"""A fresh database for a test, copied from a template that was migrated once."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

from noonday.store import DirectConnection, Store
from noonday.store.migrate import apply_role_settings, migrate

SERVER_LOCK = 0x7E57
"""Copying a template fails while anybody is connected to it, also another worker of the run."""


def url_of(server_url: str, database: str) -> str:
    """The URL of another database on the same server."""
    return urlunsplit(urlsplit(server_url)._replace(path=f"/{database}"))


async def migrated_template(server_url: str) -> str:
    """The name of a database that holds this release's schema and nothing else."""
    name = f"template_{secrets.token_hex(4)}"
    await execute(server_url, f"CREATE DATABASE {name}")
    store = await Store.open(url_of(server_url, name), size=1)
    try:
        await migrate(store)
    finally:
        await store.close()
    return name


@asynccontextmanager
async def copied(server_url: str, template: str) -> AsyncIterator[str]:
    """The URL of a copy of ``template``, dropped afterwards."""
    name = f"test_{secrets.token_hex(6)}"
    await execute(server_url, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    url = url_of(server_url, name)
    try:
        # Settings of a role in a database are not copied with it.
        async with direct(url) as connection:
            await apply_role_settings(connection)
        yield url
    finally:
        await execute(server_url, f"DROP DATABASE {name} WITH (FORCE)")


async def execute(url: str, statement: str) -> None:
    """Run one statement on a connection of its own."""
    async with direct(url) as connection:
        await connection.execute(statement)


@asynccontextmanager
async def direct(url: str) -> AsyncIterator[DirectConnection]:
    """A connection of its own to ``url``."""
    store = await Store.open(url, size=1)
    try:
        async with store.direct() as connection:
            yield connection
    finally:
        await store.close()
