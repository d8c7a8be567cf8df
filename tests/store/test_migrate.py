from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

import pytest

from noonday.domain.errors import SchemaMismatch, StoreUnavailable, UnsafeDatabase
from noonday.embedded import EmbeddedPostgres
from noonday.store import Store, migrate
from tests.support.database import drop, execute, open_store
from tests.support.postgres import open_folder


@pytest.fixture
async def empty_url(postgres_url: str) -> AsyncIterator[str]:
    name = f"noonday_empty_{secrets.token_hex(6)}"
    await execute(postgres_url, f"CREATE DATABASE {name}")
    yield urlunsplit(urlsplit(postgres_url)._replace(path=f"/{name}"))
    await drop(postgres_url, name)


@pytest.fixture(scope="module")
def unsafe_server() -> Iterator[EmbeddedPostgres]:
    with open_folder() as folder:
        settings = {"fsync": "off", "full_page_writes": "off"}
        with EmbeddedPostgres(folder, settings=settings) as server:
            yield server


async def test_many_migrations_at_once_apply_each_file_once(empty_url: str) -> None:
    stores = [await Store.open(empty_url, size=1) for _ in range(4)]
    applied = await asyncio.gather(*(migrate.migrate(store) for store in stores))
    assert (
        sorted(
            (file for files in applied for file in files), key=lambda migration: migration.number
        )
        == migrate.migrations()
    )
    assert await migrate.check(stores[0]) == []
    for store in stores:
        await store.close()


async def test_an_empty_database_is_refused_with_the_command_to_run(empty_url: str) -> None:
    store = await Store.open(empty_url, size=1)
    with pytest.raises(SchemaMismatch, match="noonday migrate"):
        await migrate.check(store)
    await store.close()


async def test_a_migration_that_was_edited_after_it_ran_is_refused(database_url: str) -> None:
    await execute(database_url, "UPDATE schema_migrations SET checksum = 'x' WHERE number = 1")
    store = await Store.open(database_url, size=1)
    with pytest.raises(SchemaMismatch, match="migration 1 was edited"):
        await migrate.migrate(store)
    with pytest.raises(SchemaMismatch):
        await migrate.check(store)
    await store.close()


async def test_migrations_of_a_later_release_do_no_harm(database_url: str) -> None:
    later = "INSERT INTO schema_migrations (number, name, checksum) VALUES (9999, 'later', 'y')"
    await execute(database_url, later)
    store = await Store.open(database_url, size=1)
    assert await migrate.check(store) == []
    await store.close()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("plan_cache_mode", "auto"),
        ("synchronous_commit", "off"),
        ("statement_timeout", "0"),
        ("statement_timeout", "60s"),
        ("idle_in_transaction_session_timeout", "0"),
        ("lock_timeout", "1min"),
    ],
)
async def test_a_role_without_its_settings_is_refused_by_their_name(
    database_url: str, setting: str, value: str
) -> None:
    name = urlsplit(database_url).path.removeprefix("/")
    altered = f"ALTER ROLE CURRENT_USER IN DATABASE {name} SET {setting} = '{value}'"
    await execute(database_url, altered)
    store = await Store.open(database_url, size=1)
    with pytest.raises(SchemaMismatch, match=setting):
        await migrate.check(store)
    await store.close()


async def test_the_settings_of_the_role_hold_on_every_connection(database_url: str) -> None:
    store = await open_store(database_url, size=1)
    async with store.transaction() as tx:
        assert await tx.value("SELECT current_setting('plan_cache_mode')") == "force_custom_plan"
        assert await tx.value("SELECT current_setting('statement_timeout')") == "5s"
    await store.close()


async def test_a_server_that_may_lose_commits_is_refused_unless_that_is_allowed(
    unsafe_server: EmbeddedPostgres,
) -> None:
    store = await Store.open(unsafe_server.dsn(), size=1)
    await migrate.migrate(store)
    with pytest.raises(UnsafeDatabase, match=r"fsync.*full_page_writes"):
        await migrate.check(store)
    warnings = await migrate.check(store, allow_unsafe=True)
    assert [warning.split()[0] for warning in sorted(warnings)] == ["fsync", "full_page_writes"]
    await store.close()


async def test_a_migration_beside_a_running_service_costs_it_a_retry_at_most(
    store: Store,
) -> None:
    async with store.transaction() as tx:
        await tx.rows("SELECT * FROM shards")
    async with store.direct() as connection:
        await connection.execute("ALTER TABLE shards ADD COLUMN novelty int")
    with suppress(StoreUnavailable):  # "cached plan must not change result type"
        async with store.transaction() as tx:
            await tx.rows("SELECT * FROM shards")
    async with store.transaction() as tx:
        assert len(await tx.rows("SELECT * FROM shards")) == 64
