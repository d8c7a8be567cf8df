"""Advisory locks, all of them bound to the transaction: there are no session locks.

Two key spaces: ``(class, key)`` pairs of integers, and single 64-bit keys for what is hashed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from noonday.store import Tx

MIGRATIONS: Final = 0x6E6F6F6E646179
SHARD: Final = 1
TENANT: Final = 3  # 2: families, see `dependencies`

OWN_SHARD: Final = "SELECT pg_advisory_xact_lock($1::int, $2::int)"
TRY_SHARD: Final = "SELECT pg_try_advisory_xact_lock($1::int, $2::int)"
TRY_KEYS: Final = """
SELECT pg_try_advisory_xact_lock(key)
FROM unnest($1::bigint[]) WITH ORDINALITY AS t(key, n) ORDER BY n
"""
WAIT_KEY: Final = "SELECT set_config('lock_timeout', '2s', true), pg_advisory_xact_lock($1)"


OWN_KEY: Final = "SELECT pg_advisory_xact_lock($1::bigint)"


def sharing(shards: Iterable[int]) -> str:
    """Opens a transaction during which none of these shards changes hands or jobs."""
    each = ",".join(map(str, sorted(shards)))
    return (
        f"SELECT pg_advisory_xact_lock_shared({SHARD}, shard) FROM unnest('{{{each}}}'::int[])"
        " AS shard"
    )


async def own_shard(tx: Tx, shard: int) -> None:
    """Keep every tick off a shard until the transaction ends: for changing a job, for takeover."""
    await tx.value(OWN_SHARD, SHARD, shard)


OWN_TENANT: Final = "SELECT pg_advisory_xact_lock($1::int, $2::int)"
GIVE: Final = """
SELECT set_config('synchronous_commit', 'off', true), pg_advisory_xact_lock($1::int, $2::int)
"""


async def own_tenant(tx: Tx, tenant_id: int, *, to_give: bool = False) -> None:
    """Be the only one who gives slots of a tenant's caps, until the transaction ends. What is
    counted in a later statement is so.

    ``to_give`` is for a transaction that does nothing but give them: nobody waits for the disk
    then. Should Postgres crash before it is there, they are given again; what follows from it (a
    claim) cannot be there without it.
    """
    await tx.value(GIVE if to_give else OWN_TENANT, TENANT, tenant_id)


async def try_own_shard(tx: Tx, shard: int) -> bool:
    """Own a shard if nobody else has its lock in any mode."""
    return bool(await tx.value(TRY_SHARD, SHARD, shard))


async def try_keys(tx: Tx, keys: Sequence[int]) -> list[bool]:
    """Which of ``keys`` this transaction has now; the others are in somebody else's hands."""
    return [row[0] for row in await tx.rows(TRY_KEYS, keys)]


async def wait_key(tx: Tx, key: int) -> None:
    """Wait at most two seconds for ``key``; :class:`StoreUnavailable` when it stays taken."""
    await tx.value(WAIT_KEY, key)


async def own_key(tx: Tx, key: int) -> None:
    """Wait for ``key``; :class:`StoreUnavailable` when it stays taken for seconds."""
    await tx.value(OWN_KEY, key)


def hashed(*parts: object) -> int:
    """A signed 64-bit key for whatever names the thing."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
