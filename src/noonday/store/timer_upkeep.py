"""The partitions of timers as their time comes near, and once it is over.

A coarse range is cut into finer ones while few timers stand in it, a range that comes near gets
its due index, and one that is over is taken off and dropped. At any time they cover all dates
from now on that are accepted.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from noonday.store import DirectConnection, Tx, partitions
from noonday.store.ranges import Range, finer

SPLIT_ROWS: Final = 50_000
"""A bigger range is left as it is: its inserts would wait for too long while rows are moved."""
INDEX_AT_THE_LATEST: Final = timedelta(days=1)
"""From this long before a partition's time on, its due index may hold its inserts up."""
OVER: Final = timedelta(hours=1)
"""A partition is over when its end is this long past: no transaction of ours is so old."""
LEFT_OVER_BATCH: Final = 1_000
LEFT_OVER_BATCHES: Final = 100


# --- coarse ranges ----------------------------------------------------------------------------


async def coarse(tx: Tx, now: datetime) -> list[Range]:
    """The ranges that should be cut into finer ones by now."""
    have = await partitions.existing(tx, "timers")
    return [part for part in have if finer(part, now, partitions.INDEX_AHEAD)]


async def split(connection: DirectConnection, part: Range, now: datetime) -> bool:
    """Replace a coarse partition by finer ones, moving its rows; False when it is not the time.

    What takes time is done before the parent is locked: making the tables, and moving the rows
    under a lock on the coarse partition alone. An insert into that one that waits for the lock
    has the parent open, so then this gives up; it has weeks to succeed in.
    """
    pieces = finer(part, now, partitions.INDEX_AHEAD)
    async with connection.transaction() as tx:
        await tx.execute(partitions.SHORT_LOCKS)
        if await _is_big(tx, part) or await partitions.is_read_for_long(tx, part.table):
            return False
        for piece in pieces:
            await partitions.build(tx, piece)
        await tx.execute(f"LOCK TABLE {part.name} IN EXCLUSIVE MODE")
        await tx.execute("; ".join(_move(part, piece) for piece in pieces))
        # In one message, so that the parent is locked for as short as it can be.
        detach = f"ALTER TABLE {part.table} DETACH PARTITION {part.name}"
        attach = [partitions.attach(piece) for piece in pieces]
        await tx.execute("; ".join([detach, *attach, f"DROP TABLE {part.name}"]))
    return True


def _move(part: Range, piece: Range) -> str:
    return (
        f"INSERT INTO {piece.name} SELECT * FROM {part.name} WHERE "
        f"due_at >= '{piece.starts_at.isoformat()}' AND due_at < '{piece.ends_at.isoformat()}'"
    )


async def _is_big(tx: Tx, part: Range) -> bool:
    rows = f"SELECT FROM {part.name} LIMIT {SPLIT_ROWS + 1}"
    return bool(await tx.value(f"SELECT count(*) > {SPLIT_ROWS} FROM ({rows}) AS counted"))


# --- due indexes ------------------------------------------------------------------------------

SNAPSHOT_FOR_LONG: Final = """
SELECT count(*) > 0 FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND backend_xmin IS NOT NULL AND xact_start < clock_timestamp() - interval '1 second'
"""


async def unindexed(tx: Tx, now: datetime) -> list[Range]:
    """The partitions whose time comes near, or has come, and that have no due index yet."""
    near = now + partitions.INDEX_AHEAD
    found = await partitions.due_indexes(tx)
    return [part for part, ready, _ in found if not ready and part.starts_at < near]


async def index(connection: DirectConnection, part: Range, now: datetime) -> bool:
    """Build a partition's due index, and remove what half-built ones were left; False when it is
    not the time.

    Concurrently, unless a snapshot is held for long: that would never end. Then it is put off,
    and in the end built in the ordinary way, for without it the timers would not fire at all.
    """
    if not await connection.value(SNAPSHOT_FOR_LONG):
        await _index_concurrently(connection, part)
        return True
    if now < part.starts_at - INDEX_AT_THE_LATEST:
        return False
    async with connection.transaction() as tx:
        await tx.execute(partitions.SHORT_LOCKS)
        await tx.execute(partitions.due_index(part))
    return True


async def _index_concurrently(connection: DirectConnection, part: Range) -> None:
    for found in await partitions.due_indexes(connection):
        for name in found.broken if found.part == part else ():
            await partitions.outside(connection, f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
    await partitions.outside(
        connection, f"CREATE INDEX CONCURRENTLY {part.name}_due ON {part.name} (due_at, shard)"
    )


# --- what is over -----------------------------------------------------------------------------


async def over(tx: Tx, now: datetime) -> list[Range]:
    """The partitions whose time is over, and those that have been taken off already."""
    found = await partitions.find(tx, "timers")
    return [part for part, attached in found if not attached or part.ends_at < now - OVER]


async def retire(connection: DirectConnection, part: Range, bound: datetime | None) -> bool:
    """Take a partition that is over off its parent and drop it; whether it is gone.

    One that still has timers is left to the scheduler: after an outage it fires them in the
    order in which they were due. Should one have come in between, it is armed again, for now
    (``bound`` is the bound test time).
    """
    if await partitions.is_attached(connection, part):
        if await connection.value(f"SELECT EXISTS (SELECT FROM {part.name})"):
            return False
        if not await partitions.detach(connection, part):
            return False
    for _ in range(LEFT_OVER_BATCHES):
        async with connection.transaction(bound) as tx:
            await tx.execute(partitions.SHORT_LOCKS)
            if await rearm(tx, part) < LEFT_OVER_BATCH:
                break
    return await partitions.drop(connection, part, only_empty=True)


ALL_BUT_DUE: Final = """
SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
WHERE attrelid = 'timers'::regclass AND attnum > 0 AND NOT attisdropped AND attname <> 'due_at'
"""


async def rearm(tx: Tx, part: Range) -> int:
    """Move timers from a partition that is off to where they fire at once; how many."""
    rest = await tx.value(ALL_BUT_DUE)
    return await tx.execute(
        f"""
        WITH moved AS (
            DELETE FROM {part.name} WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM {part.name} LIMIT {LEFT_OVER_BATCH} FOR UPDATE SKIP LOCKED))
            RETURNING {rest}, due_at
        )
        INSERT INTO timers ({rest}, due_at)
        SELECT {rest}, greatest(due_at, coalesce($1::timestamptz, now())) FROM moved
        """,
        tx.now,
    )
