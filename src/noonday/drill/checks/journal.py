"""A journal of everything that is committed to the tables that matter.

For drills and tests: it is never part of the schema of a service.

Triggers write it, and they fire at COMMIT: entries of one row are in the order of its changes,
entries of different transactions in the order of their commits, but for the last microseconds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from noonday.domain.model import Kind, RunKey
from noonday.drill.checks.database import direct
from noonday.store import Tx

TABLES = ("runs", "timers", "occurrences", "shards")

TABLE = """
CREATE TABLE journal (
    n        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    txid     bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    began_at timestamptz NOT NULL DEFAULT now(),
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    source   text NOT NULL,
    before   jsonb,
    after    jsonb
)
"""
# The text of a jsonb time depends on the session; the service's sessions keep UTC.
WRITER = """
CREATE FUNCTION write_journal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO journal (source, before, after)
    VALUES (TG_ARGV[0], CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END,
            CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END);
    RETURN NULL;
END $$
"""
TRIGGER = """
CREATE CONSTRAINT TRIGGER journal AFTER INSERT OR UPDATE OR DELETE ON {table}
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION write_journal('{table}')
"""
ENTRIES = "SELECT * FROM journal ORDER BY n"
LEFT_OUT = frozenset(
    ("tenant_id", "payload_version", "lane", "priority", "rank", "claimable", "due_at", "ready_at",
     "retry_at", "materialized_at", "ended_at", "blocking_run", "seq")
)  # fmt: skip
"""Columns of which no rule wants to know how they changed: a long drill has many entries."""


@dataclass(frozen=True)
class Entry:
    """One row that a transaction changed. ``began_at`` is its ``now()``, ``at`` its commit."""

    n: int
    txid: int
    began_at: datetime
    at: datetime
    source: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    @property
    def row(self) -> dict[str, Any]:
        """The row as it is now, or as it was last."""
        row = self.before if self.after is None else self.after
        assert row is not None
        return row

    @property
    def job_id(self) -> UUID:
        return UUID(self.row["job_id"])

    @property
    def run(self) -> RunKey:
        row = self.row
        return RunKey(self.job_id, Kind(row["kind"]), moment(row["occurrence_at"]))


def moment(text: str) -> datetime:
    """A time of a journalled row."""
    return datetime.fromisoformat(text)


async def install(dsn: str) -> None:
    """Keep a journal in the database at ``dsn`` from now on."""
    async with direct(dsn) as connection:
        await connection.execute(TABLE)
        await connection.execute(WRITER)
        for table in TABLES:
            await connection.execute(TRIGGER.format(table=table))


async def read(tx: Tx) -> list[Entry]:
    """The whole journal, in order."""
    return [_entry(dict(row)) for row in await tx.rows(ENTRIES)]  # type: ignore[arg-type]


def _entry(row: dict[str, Any]) -> Entry:
    for side in ("before", "after"):
        document = None if row[side] is None else json.loads(row[side])
        row[side] = document and {k: v for k, v in document.items() if k not in LEFT_OUT}
    return Entry(**row)
