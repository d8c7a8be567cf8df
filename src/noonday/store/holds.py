"""Runs that may not be claimed yet, and what lets them go on.

Whatever holds a READY run back says so on its row: ``hold`` is the kind, ``hold_key`` what has to
let it go. Only :func:`let_go` frees it again, and ``caps`` what waits for a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from noonday.domain.ranking import Ranks, by_time
from noonday.store import Row, Tx, columns
from noonday.store.runs import (
    AGAIN,
    CAPS,
    FIND,
    GUARD,
    RANKED,
    RETURNED,
    STILL,
    WORK,
    Held,
    freed,
    ranked,
    waited_for,
)

HOLD: Final = f"""
WITH held AS MATERIALIZED (
    SELECT r.row, i.lease_version, i.hold, i.hold_key
{
    FIND.format(
        input="unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::int[], $5::text[], $6::text[])"
        " AS i(job_id, occurrence_at, kind, lease_version, hold, hold_key)",
        guard=GUARD,
    )
}
)
UPDATE runs AS r
SET state = 'READY', claimable = false, hold = h.hold, hold_key = h.hold_key,
    attempt = r.attempt - 1, worker_id = NULL, leased_at = NULL, locked_until = NULL
FROM held AS h WHERE {STILL}
RETURNING {RETURNED}, {CAPS}
"""


async def hold(tx: Tx, leases: Sequence[tuple[Held, str, str]]) -> set[Held]:
    """RUNNING → READY, held: nothing was sent. Each lease with the kind of hold and its key."""
    batch = [(*held, kind, key) for held, kind, key in leases]
    return freed(tx, await tx.rows(HOLD, *columns(batch, 6)))


# In the order in which they would have been claimed. (What waits for a slot is let go by `caps`.)
CANDIDATES: Final = f"""
SELECT {WORK} FROM (
    SELECT *, ctid AS place FROM runs WHERE hold_key = $1 AND hold <> 'cap'
    ORDER BY priority, ready_at LIMIT $2 FOR UPDATE SKIP LOCKED
) AS r ORDER BY r.priority, r.ready_at
"""
ADMIT: Final = f"""
UPDATE runs AS r
SET {AGAIN}, rank = i.rank, ready_at = $3
{RANKED} AND r.hold IS NOT NULL
"""


async def admit(tx: Tx, hold_key: str, limit: int, *, ranks: Ranks = by_time) -> int:
    """READY, held → READY for the first ``limit`` under a key; how many. Those with a cap are held
    on until they have a slot."""
    return await let_go(tx, await tx.rows(CANDIDATES, hold_key, limit), ranks)


async def let_go(tx: Tx, rows: Sequence[Row], ranks: Ranks) -> int:
    """The same for rows that are locked, each as ``runs.WORK`` has it."""
    if not rows:
        return 0
    tx.caps.update(waited_for(rows))
    now = await tx.clock()
    return await tx.execute(ADMIT, *ranked(rows, ranks, now), now)


# A skip scan: one look into the index for each key, however many runs it holds. (Keys are compared
# byte by byte: what begins alike stands together.)
_NEXT_KEY: Final = """
    SELECT hold_key FROM runs WHERE hold_key > {0} AND hold_key < $3 ORDER BY hold_key LIMIT 1"""
KEYS: Final = f"""
WITH RECURSIVE each(key) AS (
    ({_NEXT_KEY.format("$1")})
    UNION ALL
    SELECT ({_NEXT_KEY.format("each.key")}) FROM each WHERE each.key IS NOT NULL
)
SELECT key FROM each WHERE key IS NOT NULL LIMIT $2
"""


async def keys(tx: Tx, prefix: str, after: str = "", limit: int = 1_000) -> list[str]:
    """The keys under which runs are held and that begin with ``prefix``, which ends with a colon;
    in order, from just after one."""
    found = await tx.rows(KEYS, max(after, prefix), limit, prefix[:-1] + ";")
    return [row["key"] for row in found]
