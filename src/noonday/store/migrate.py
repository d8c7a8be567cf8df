"""Numbered, forward-only migrations, and the settings that the role must have.

Each migration runs in a transaction of its own that first takes an advisory lock, so any number
of processes may start it at once. A file that was edited after it ran, and a gap in the numbers,
are refused. Migrations need a direct connection, not one through a transaction pooler.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import Final

from noonday.domain.errors import SchemaMismatch, UnsafeDatabase
from noonday.store import DirectConnection, Store, Tx, partitions
from noonday.store.connections import BOUNDED_MS, ROLE_SETTINGS, SERVER_SETTINGS
from noonday.store.locks import MIGRATIONS

HISTORY: Final = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""
LOCK: Final = "SELECT pg_advisory_xact_lock($1)"
NO_TIMEOUTS: Final = (
    "SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '60s', true)"
)
APPLIED: Final = "SELECT number, name, checksum FROM schema_migrations ORDER BY number"
RECORD: Final = "INSERT INTO schema_migrations (number, name, checksum) VALUES ($1, $2, $3)"
HISTORY_EXISTS: Final = "SELECT to_regclass('schema_migrations') IS NOT NULL"
SERVER: Final = """
SELECT current_setting('server_version_num')::int AS version,
       array(SELECT name FROM pg_settings WHERE name = ANY($1) AND setting = 'off') AS unsafe
"""
HERE: Final = (
    "SELECT quote_ident(current_user) AS role, quote_ident(current_database()) AS database"
)
ROLE: Final = "SELECT name, setting FROM pg_settings WHERE name = ANY($1)"


@dataclass(frozen=True)
class Migration:
    """One file of ``migrations/``: ``0001_initial.sql`` has number 1 and name ``initial``."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """What proves that the file is the one that ran."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> list[Migration]:
    """The migrations of this release, in order; a gap in the numbers is a fault of the release."""
    found = []
    for file in resources.files("noonday.store").joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text()))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise SchemaMismatch("the migrations of this release have a gap")
    return found


async def migrate(store: Store) -> list[Migration]:
    """Bring the database to this release; the migrations that were applied.

    Safe to run at any time, also beside the previous release and beside another ``migrate``.
    """
    async with store.direct() as connection:
        await _check_version(
            await connection.value("SELECT current_setting('server_version_num')::int")
        )
        async with connection.transaction() as tx:
            await tx.execute(NO_TIMEOUTS)
            await tx.value(LOCK, MIGRATIONS)
            await apply_role_settings(connection)
        applied = []
        for migration in migrations():
            async with connection.transaction() as tx:
                await tx.execute(NO_TIMEOUTS)
                await tx.value(LOCK, MIGRATIONS)
                if await _apply(tx, migration):
                    applied.append(migration)
        async with connection.transaction(store.now) as tx:
            await tx.execute(NO_TIMEOUTS)
            await tx.value(LOCK, MIGRATIONS)
            await partitions.create_first(tx)
    return applied


async def apply_role_settings(connection: DirectConnection) -> None:
    """Give the role its settings in this database; they hold for connections made from now on."""
    here = (await connection.rows(HERE))[0]
    altered = [
        f"ALTER ROLE {here['role']} IN DATABASE {here['database']} SET {setting} = '{value}'"
        for setting, value in ROLE_SETTINGS.items()
    ]
    await connection.execute("; ".join(altered))


async def _apply(tx: Tx, migration: Migration) -> bool:
    """Run one migration unless it ran before; a changed file is refused."""
    await tx.execute(HISTORY)
    for row in await tx.rows(APPLIED):
        if row["number"] == migration.number:
            if row["checksum"] != migration.checksum:
                raise SchemaMismatch(f"migration {migration.number} was edited after it ran")
            return False
    await tx.execute(migration.sql)
    await tx.execute(RECORD, migration.number, migration.name, migration.checksum)
    return True


async def check(store: Store, *, allow_unsafe: bool = False) -> list[str]:
    """Refuse a database this release cannot serve safely; warnings that were allowed.

    Raises :class:`SchemaMismatch` when a migration is missing or was edited or the role lacks a
    setting, :class:`UnsafeDatabase` when a committed job could be lost. Migrations of a later
    release do no harm: each is safe beside this one.
    """
    async with store.transaction() as tx:
        if not await tx.value(HISTORY_EXISTS):
            raise SchemaMismatch("the database is empty: run `noonday migrate`")
        known = [(m.number, m.name, m.checksum) for m in migrations()]
        applied = [(row["number"], row["name"], row["checksum"]) for row in await tx.rows(APPLIED)]
        if applied[: len(known)] != known:
            raise SchemaMismatch("the database is behind this release: run `noonday migrate`")
        server = await tx.one(SERVER, list(SERVER_SETTINGS))
        await _check_version(server["version"])
        await _check_role(tx)
    warnings = [f"{name} is off: a committed job can be lost" for name in server["unsafe"]]
    if warnings and not allow_unsafe:
        raise UnsafeDatabase(
            "; ".join(warnings) + ' (set unsafe_database to "allow" to start anyway)'
        )
    return warnings


async def _check_version(version: int) -> None:
    if not 150000 <= version < 190000:
        raise SchemaMismatch(f"Postgres {version // 10000} is not supported: 15 to 18 are")


async def _check_role(tx: Tx) -> None:
    names = ["plan_cache_mode", "synchronous_commit", *BOUNDED_MS]
    have = {row["name"]: row["setting"] for row in await tx.rows(ROLE, names)}
    wrong = [name for name, most in BOUNDED_MS.items() if not 0 < int(have[name]) <= most]
    if have["plan_cache_mode"] != "force_custom_plan":
        wrong.append("plan_cache_mode")
    if have["synchronous_commit"] == "off":
        wrong.append("synchronous_commit")
    if wrong:
        raise SchemaMismatch(
            f"the role lacks its settings in this database ({', '.join(sorted(wrong))}): run "
            "`noonday migrate`, and let a pooler make its connections anew"
        )
