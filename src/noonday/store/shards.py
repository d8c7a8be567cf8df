"""Shards: who materializes which slice of timers, fenced by an epoch.

An owner's lease is short and renewed by one statement. A new owner takes the shard's lock
exclusively while it raises the epoch, so it waits for a tick in flight, and no tick of the old
owner can follow: each reads the epochs again after taking the lock in shared mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, cast
from uuid import UUID

from noonday.domain.errors import FenceLost
from noonday.store import Row, Tx, locks

LEASE: Final = timedelta(seconds=10)

ALL: Final = "SELECT shard, epoch, owner_id, leased_until FROM shards ORDER BY shard"


async def every(tx: Tx) -> list[Row]:
    """All shards with their owners."""
    return await tx.rows(ALL)


FREE: Final = """
SELECT shard FROM shards
WHERE owner_id IS NULL OR leased_until < coalesce($1, now()) ORDER BY shard LIMIT $2
"""
TAKE: Final = """
UPDATE shards
SET owner_id = $2, epoch = epoch + 1, leased_until = coalesce($3, now()) + $4::interval
WHERE shard = ANY($1::int[]) AND (owner_id IS NULL OR leased_until < coalesce($3, now()))
RETURNING shard, epoch
"""


async def acquire(tx: Tx, owner_id: UUID, limit: int) -> dict[int, int]:
    """Own up to ``limit`` shards that nobody living owns; their new epochs.

    A shard whose lock is taken (a tick of the old owner in flight) is left for the next try.
    """
    found = [row["shard"] for row in await tx.rows(FREE, tx.now, limit)]
    free = [shard for shard in found if await locks.try_own_shard(tx, shard)]
    rows = await tx.rows(TAKE, free, owner_id, tx.now, LEASE)
    return {row["shard"]: row["epoch"] for row in rows}


RENEW: Final = """
UPDATE shards SET leased_until = coalesce($2, now()) + $3::interval
WHERE owner_id = $1 AND leased_until >= coalesce($2, now())
RETURNING shard, epoch
"""


async def renew(tx: Tx, owner_id: UUID) -> dict[int, int]:
    """Extend the leases of all shards still owned; their epochs."""
    return {row["shard"]: row["epoch"] for row in await tx.rows(RENEW, owner_id, tx.now, LEASE)}


RELEASE: Final = """
UPDATE shards SET owner_id = NULL, leased_until = NULL
WHERE owner_id = $1 AND shard = ANY($2::int[])
"""


async def release(tx: Tx, owner_id: UUID, shards: Sequence[int]) -> int:
    """Give shards up for others to take: at shutdown, or because others have fewer."""
    return await tx.execute(RELEASE, owner_id, shards)


EPOCHS: Final = """
SELECT shard, epoch, coalesce($3, clock_timestamp()) AS clock FROM shards
WHERE shard = ANY($1::int[]) AND owner_id = $2 AND leased_until >= coalesce($3, now())
"""


async def fence(tx: Tx, owner_id: UUID, epochs: Mapping[int, int]) -> datetime:
    """Make sure that every shard in ``epochs`` is still ours, until the transaction ends; the time
    then. One that was opened with :func:`locks.sharing` has their locks already.

    Raises :class:`FenceLost`. READ COMMITTED matters: the epochs are read by a later statement
    than the one that waited for the lock.
    """
    await tx.open_with(locks.sharing(epochs))
    rows = await tx.rows(EPOCHS, sorted(epochs), owner_id, tx.now)
    if {row["shard"]: row["epoch"] for row in rows} != dict(epochs):
        raise FenceLost("a shard has another owner by now")
    return cast(datetime, rows[0]["clock"])
