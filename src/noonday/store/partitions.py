"""Partitions: made ahead, attached, detached and dropped without anybody waiting for it.

A new one is built beside its parent and attached. (``CREATE TABLE ... PARTITION OF`` would wait
behind any open reader of the parent, and every insert behind it.) An old one is detached
concurrently and then dropped. Each step is safe to be the last one of a process, waits 200 ms
for a lock at most, and is tried again at the next pass. All of it needs a direct connection;
nothing here relies on what an earlier statement set in the session.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import asyncpg

from noonday.store import DirectConnection, Tx
from noonday.store.ranges import Range, Step, cover, cover_future, parse

# What is made ahead, from a while back to a while ahead. Nominal times can lie in the past.
AHEAD: Final = (
    ("occurrences", Step.MONTH, timedelta(days=31), timedelta(days=62)),
    ("executions", Step.DAY, timedelta(days=1), timedelta(days=8)),
    ("audit_log", Step.MONTH, timedelta(days=1), timedelta(days=62)),
)
# Each ledger row is updated once, when its run ends; with room for that on the page it is HOT.
STORAGE: Final = {
    "timers": "",
    "occurrences": " WITH (fillfactor = 48)",
    "executions": "",
    "audit_log": "",
}
INDEX_AHEAD: Final = timedelta(days=2)
"""A timer partition gets its due index this long before its time. Random inserts into an index
over a big far future would cost kilobytes of WAL each."""
DETACH_TRIES: Final = 10

SHORT_LOCKS: Final = (
    "SELECT set_config('lock_timeout', '200ms', true), set_config('statement_timeout', '0', true)"
)
SHORT_LOCKS_OUTSIDE: Final = "SET lock_timeout = '200ms'; SET statement_timeout = 0"


class Found(NamedTuple):
    """A partition as it stands; one that is not attached was left on its way out, or in."""

    part: Range
    attached: bool


FIND: Final = """
SELECT c.relname::text AS name, i.inhrelid IS NOT NULL AS attached
FROM pg_class AS c
LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid AND i.inhparent = $1::text::regclass
WHERE c.relkind = 'r' AND c.relname ~ ('^' || $1 || '_[dfmyc][0-9]+$')
  AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = $1::text::regclass)
"""


async def find(source: Tx | DirectConnection, table: str) -> list[Found]:
    """The partitions of ``table``, attached or not, in order of time."""
    rows = [(parse(row["name"]), row["attached"]) for row in await source.rows(FIND, table)]
    found = [Found(part, attached) for part, attached in rows if part is not None]
    return sorted(found, key=lambda one: (one.part.starts_at, one.part.name))


async def existing(source: Tx | DirectConnection, table: str) -> list[Range]:
    """The attached partitions of ``table``, in order of time."""
    return [one.part for one in await find(source, table) if one.attached]


# --- making -----------------------------------------------------------------------------------

LEDGER_START: Final = "SELECT starts_at FROM ledger_start"
RAISE_LEDGER_START: Final = """
INSERT INTO ledger_start (starts_at) VALUES ($1)
ON CONFLICT (only_row) DO UPDATE
SET starts_at = greatest(ledger_start.starts_at, excluded.starts_at)
"""


async def create_first(tx: Tx) -> None:
    """All partitions that must exist before the first job; nothing that is there already."""
    now = await tx.clock()
    if not await existing(tx, "timers"):
        for part in cover_future(now - timedelta(days=1)):
            await attach_new(tx, part)
            if part.starts_at < now + INDEX_AHEAD:
                await tx.execute(due_index(part))
    for part in await missing(tx, now):
        await attach_new(tx, part)
    ledger = await existing(tx, "occurrences")
    await tx.execute(RAISE_LEDGER_START, ledger[0].starts_at)


async def missing(tx: Tx, now: datetime) -> list[Range]:
    """The partitions that should exist by now and do not.

    The ledger has no hole and never grows backwards: it reaches from its start, which only
    rises, into the future, however long nobody looked after it. Timers have all that is to come,
    unless the clock was set back.
    """
    timers = await existing(tx, "timers")
    wanted = list(cover("timers", Step.DAY, now, timers[0].starts_at))
    ledger_start: datetime | None = await tx.value(LEDGER_START)
    for table, step, behind, ahead in AHEAD:
        start = ledger_start if table == "occurrences" and ledger_start else now - behind
        have = {part.name for part in await existing(tx, table)}
        parts = cover(table, step, start, now + ahead)
        wanted += [part for part in parts if part.name not in have]
    return wanted


async def make(connection: DirectConnection, part: Range) -> bool:
    """Build and attach one partition that is missing."""
    async with connection.transaction() as tx:
        await tx.execute(SHORT_LOCKS)
        await attach_new(tx, part)
    return True


async def attach_new(tx: Tx, part: Range) -> None:
    """Build an empty partition beside its parent and attach it; or the one that was detached."""
    if not await is_there(tx, part):
        await build(tx, part)
    await tx.execute(attach(part))


async def build(tx: Tx, part: Range) -> None:
    """Build an empty table that can become a partition."""
    await tx.execute(
        f"CREATE TABLE {part.name} (LIKE {part.table} INCLUDING DEFAULTS "
        f"INCLUDING CONSTRAINTS INCLUDING INDEXES){STORAGE[part.table]}"
    )


def attach(part: Range) -> str:
    """The statement that makes a table a partition of its parent."""
    return (
        f"ALTER TABLE {part.table} ATTACH PARTITION {part.name} "
        f"FOR VALUES FROM ('{part.starts_at.isoformat()}') TO ('{part.ends_at.isoformat()}')"
    )


# --- due indexes ------------------------------------------------------------------------------

# A due index is known by its first column: one of them may have been built under another name.
DUE_INDEXES: Final = """
SELECT c.relname::text AS name, coalesce(bool_or(x.indisvalid), false) AS ready,
       coalesce(array_agg(d.relname::text) FILTER (WHERE NOT x.indisvalid), '{}') AS broken
FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
LEFT JOIN (pg_index AS x JOIN pg_class AS d ON d.oid = x.indexrelid
           JOIN pg_attribute AS a ON a.attrelid = x.indrelid AND a.attnum = x.indkey[0]
                AND a.attname = 'due_at') ON x.indrelid = c.oid
WHERE i.inhparent = 'timers'::regclass
GROUP BY c.relname
"""


class Indexed(NamedTuple):
    """A timer partition: whether its due index is ready, and the names of those half-built."""

    part: Range
    ready: bool
    broken: list[str]


async def due_indexes(source: Tx | DirectConnection) -> list[Indexed]:
    """How each timer partition stands, in order of time."""
    rows = [
        (parse(row["name"]), row["ready"], row["broken"]) for row in await source.rows(DUE_INDEXES)
    ]
    found = [Indexed(part, ready, broken) for part, ready, broken in rows if part is not None]
    return sorted(found, key=lambda one: one.part.starts_at)


async def indexed_until(tx: Tx) -> datetime:
    """Up to when every timer partition has its due index: a tick never scans one without."""
    horizon = None
    for part, ready, _ in await due_indexes(tx):
        if not ready:
            return part.starts_at
        horizon = part.ends_at
    return horizon or await tx.clock()


def due_index(part: Range) -> str:
    """The statement that builds a timer partition's due index, holding its inserts up."""
    return f"CREATE INDEX ON {part.name} (due_at, shard)"


# --- taking away ------------------------------------------------------------------------------

IS_THERE: Final = "SELECT to_regclass($1::text) IS NOT NULL"
IS_ATTACHED: Final = """
SELECT count(*) > 0 FROM pg_inherits
WHERE inhrelid = to_regclass($1::text) AND inhparent = $2::text::regclass
"""
LEAVING: Final = """
SELECT c.relname::text FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = $1::text::regclass AND i.inhdetachpending
"""
# A transaction whose start we may not see, since it is another role's, counts as old.
READ_FOR_LONG: Final = """
SELECT count(*) > 0 FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.relation = $1::text::regclass
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.pid IS DISTINCT FROM pg_backend_pid()
  AND coalesce(a.xact_start < clock_timestamp() - interval '1 second', true)
"""


async def is_there(tx: Tx, part: Range) -> bool:
    """Whether there is a table of that name, attached or not."""
    return bool(await tx.value(IS_THERE, part.name))


async def is_attached(source: Tx | DirectConnection, part: Range) -> bool:
    """Whether ``part`` belongs to its parent, be it on its way out."""
    return bool(await source.value(IS_ATTACHED, part.name, part.table))


async def is_read_for_long(source: Tx | DirectConnection, table: str) -> bool:
    """Whether a transaction that is not one of ours, such as a dump, has ``table`` open.

    To wait for it is pointless, and to queue for a lock that it is in the way of would hold up
    everybody behind us: better not to try before it has gone.
    """
    return bool(await source.value(READ_FOR_LONG, table))


async def detach(connection: DirectConnection, part: Range) -> bool:
    """Take a partition off its parent without stopping anybody; whether it is off.

    Also finishes what was left half-done: until then nobody sees that partition's rows, and
    Postgres detaches no other one.
    """
    for _ in range(DETACH_TRIES):
        leaving = await connection.value(LEAVING, part.table)
        if leaving is not None:
            step = f"DETACH PARTITION {leaving} FINALIZE"
        elif not await is_attached(connection, part):
            return True
        elif await is_read_for_long(connection, part.table):
            return False
        else:
            step = f"DETACH PARTITION {part.name} CONCURRENTLY"
        with suppress(asyncpg.LockNotAvailableError):
            await outside(connection, f"ALTER TABLE {part.table} {step}")
    return not await is_attached(connection, part)


async def drop(connection: DirectConnection, part: Range, *, only_empty: bool = False) -> bool:
    """Drop a table that is no partition any more; whether it is gone. An attached one is left."""
    async with connection.transaction() as tx:
        await tx.execute(SHORT_LOCKS)
        # Under this lock nobody can attach it or write to it between the look and the drop.
        await tx.execute(f"LOCK TABLE {part.name} IN ACCESS EXCLUSIVE MODE")
        if await is_attached(tx, part):
            return False
        if only_empty and await tx.value(f"SELECT EXISTS (SELECT FROM {part.name})"):
            return False
        await tx.execute(f"DROP TABLE {part.name}")
    return True


async def outside(connection: DirectConnection, statement: str) -> None:
    """Run a statement that refuses to be in a transaction."""
    await connection.execute(SHORT_LOCKS_OUTSIDE)
    await connection.execute(statement)
