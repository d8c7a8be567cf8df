"""All rows of all tables, to show that something changed just this, or nothing at all."""

from __future__ import annotations

from typing import TypeAlias

from noonday.store import Tx

Dump: TypeAlias = dict[str, list[str]]

# Partitions are shown by their parent.
TABLES = """
SELECT relname FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
ORDER BY relname
"""
ROWS = "SELECT xmin::text || ' ' || to_jsonb(t)::text AS row FROM {} AS t ORDER BY 1"


async def dump(tx: Tx) -> Dump:
    """Every table with its rows, each with the transaction that wrote it: a row that was written
    again as it was has changed as well."""
    tables = [row["relname"] for row in await tx.rows(TABLES)]
    return {table: [row["row"] for row in await tx.rows(ROWS.format(table))] for table in tables}


def changes(before: Dump, after: Dump) -> dict[str, tuple[int, int]]:
    """For each table that differs, how many rows went and how many came."""
    counted = {
        table: (len(set(before[table]) - set(rows)), len(set(rows) - set(before[table])))
        for table, rows in after.items()
    }
    return {table: counts for table, counts in counted.items() if counts != (0, 0)}
