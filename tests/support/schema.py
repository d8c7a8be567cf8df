"""``store/schema.sql``: the tables as all migrations leave them, to be read on one page.

``python -m tests.support.schema --write`` brings it up to date; a test checks it. It is read from
the catalogue, since what ``pg_dump`` writes differs between versions.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import noonday.store
from noonday.store import Row, Store, Tx
from noonday.store.migrate import migrate
from tests.support.postgres import open_folder, start_postgres

FILE = Path(noonday.store.__file__).parent / "schema.sql"
HEAD = """\
-- The tables as all migrations leave them, for reading; `migrations/` says how they come about.
-- Partitions are not shown. To bring this up to date: python -m tests.support.schema --write
"""

TABLES = """
SELECT c.oid, c.relname, pg_get_partkeydef(c.oid) AS partitioned_by,
       array_to_string(c.reloptions, ', ') AS options
FROM pg_class AS c
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
  AND NOT c.relispartition
ORDER BY c.relname
"""
COLUMNS = """
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod)
       || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
       || CASE WHEN a.attidentity = 'a' THEN ' GENERATED ALWAYS AS IDENTITY' ELSE '' END
       || coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), '') AS definition
FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
CONSTRAINTS = """
SELECT 'CONSTRAINT ' || conname || ' ' || pg_get_constraintdef(oid) AS definition
FROM pg_constraint WHERE conrelid = $1 AND contype IN ('p', 'u', 'f', 'c')
ORDER BY array_position(ARRAY['p', 'u', 'f', 'c']::"char"[], contype), conname
"""
INDEXES = """
SELECT replace(pg_get_indexdef(x.indexrelid), ' ON ONLY public.', ' ON ') AS definition
FROM pg_index AS x
WHERE x.indrelid = $1
  AND NOT EXISTS (SELECT FROM pg_constraint AS c WHERE c.conindid = x.indexrelid)
ORDER BY x.indexrelid::regclass::text
"""


async def schema(tx: Tx) -> str:
    """The whole file, from a migrated database."""
    return "\n".join([HEAD, *[await _table(tx, row) for row in await tx.rows(TABLES)]])


async def _table(tx: Tx, table: Row) -> str:
    columns = await tx.rows(COLUMNS, table["oid"])
    width = max(len(column["name"]) for column in columns)
    inside = [f"{column['name']:{width}} {column['definition']}" for column in columns]
    inside += [row["definition"] for row in await tx.rows(CONSTRAINTS, table["oid"])]
    how = f" PARTITION BY {table['partitioned_by']}" if table["partitioned_by"] else ""
    how += f" WITH ({table['options']})" if table["options"] else ""
    lines = ",\n".join(f"    {line}" for line in inside)
    indexes = [row["definition"] for row in await tx.rows(INDEXES, table["oid"])]
    ends = "".join(f"{index.replace(' ON public.', ' ON ')};\n" for index in indexes)
    return f"CREATE TABLE {table['relname']} (\n{lines}\n){how};\n{ends}"


async def _of_a_fresh_database(url: str) -> str:
    store = await Store.open(url, size=1)
    try:
        await migrate(store)
        async with store.transaction() as tx:
            return await schema(tx)
    finally:
        await store.close()


def _main() -> None:
    with open_folder() as folder:
        server = start_postgres(folder)
        try:
            text = asyncio.run(_of_a_fresh_database(server.dsn()))
        finally:
            server.stop()
    if "--write" in sys.argv:
        FILE.write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    _main()
