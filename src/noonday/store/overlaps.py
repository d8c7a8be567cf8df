"""Runs of a job that do not run side by side: who waits, who makes way, and who goes next.

Of a job whose schedule has ``overlap: queue`` or ``replace`` a run that is made while another is
unfinished is held under the job's key. What follows from that is decided later, by whoever gives
slots, under the tenant's lock: each statement here says what is to be done as things stand, so it
does no harm to do it again, and what is lost with a process is found by the next look.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from noonday.domain.model import RunKey
from noonday.domain.ranking import Ranks, by_time
from noonday.store import Row, Tx, columns, holds
from noonday.store.runs import CAPS, RUN_ID, SAME_RUN, WORK, free

KEY: Final = "'job:' || {0}.tenant_id || ':' || replace({0}.job_id::text, '-', '')"
"""The key of the job of a row: what its runs wait under."""
POLICY: Final = "coalesce(j.spec -> 'schedule' ->> 'overlap', 'allow')"

_BATCH: Final = 1_000

# Of occurrences that wait the latest takes the place of the others; what a person has triggered
# waits beside it. (What somebody else has locked is left to the next look. Runs are looked up key
# by key: a join with all of them is planned where statistics are behind.)
_WAITING: Final = "r.hold_key = k.key AND r.hold = 'overlap'"
_LATEST: Final = f"""CROSS JOIN LATERAL (
    SELECT r.job_id, r.occurrence_at, {RUN_ID.format("r")} AS run FROM runs AS r
    WHERE {_WAITING} AND r.kind = 0 ORDER BY r.occurrence_at DESC LIMIT 1
) AS n"""
_OLDER: Final = f"""CROSS JOIN LATERAL (
    SELECT r.ctid AS place, r.occurrence_at, r.state FROM runs AS r
    WHERE {_WAITING} AND r.kind = 0 AND r.occurrence_at < n.occurrence_at LIMIT {_BATCH}{{0}}
) AS r"""
_LOCKED: Final = " FOR UPDATE SKIP LOCKED"
_FOUND: Final = f"""
SELECT r.*, n.run AS by FROM unnest($1::text[]) AS k(key) {_LATEST} {{0}}
"""
OLDER: Final = _FOUND.format(_OLDER.format(_LOCKED))
_END: Final = f"""
WITH ended AS (
    DELETE FROM runs AS r USING unnest($1::tid[], $2::text[]) AS i(place, by)
    WHERE r.ctid = ANY ($1::tid[]) AND r.ctid = i.place AND r.state <> 'RUNNING'
    RETURNING r.job_id, r.occurrence_at, r.kind, r.attempt, i.by, {CAPS}
), ledger AS (
    UPDATE occurrences AS o SET {{0}}, ended_at = coalesce($3, now()), attempts = e.attempt
    FROM ended AS e
    WHERE {SAME_RUN.format("o", "e")} AND o.outcome IS NULL
      AND o.occurrence_at >= $4 AND o.occurrence_at <= $5
)
SELECT {CAPS} FROM ended
"""
SUPERSEDE: Final = _END.format("outcome = 'SKIPPED', reason = 'overlap', blocking_run = e.by")


async def supersede(tx: Tx, keys: Sequence[str]) -> int:
    """READY, held → SKIPPED for all that wait under these keys but the latest; how many."""
    rows = await tx.rows(OLDER, keys)
    return await _end(tx, SUPERSEDE, rows)


async def _end(tx: Tx, statement: str, rows: Sequence[Row]) -> int:
    if not rows:
        return 0
    batch = [(row["place"], row["by"]) for row in rows]
    each = [row["occurrence_at"] for row in rows]
    ended = await tx.rows(statement, *columns(batch, 2), tx.now, min(each), max(each))
    free(tx, ended)
    return len(ended)


# Where the schedule says so, what is unfinished makes way for the latest that waits. (A backfill is
# to lose nothing: its runs are waited for.)
_OTHERS: Final = f"""CROSS JOIN LATERAL (
    SELECT r.ctid AS place, r.occurrence_at, r.state FROM runs AS r
    WHERE r.job_id = n.job_id AND r.hold IS DISTINCT FROM 'overlap' AND r.kind <> 2
      AND (r.state <> 'RUNNING' OR r.cancel_requested_at IS NULL)
      AND (SELECT {POLICY} FROM jobs AS j WHERE j.id = n.job_id LIMIT 1) = 'replace'
    LIMIT {_BATCH}{{0}}
) AS r"""
OTHERS: Final = _FOUND.format(_OTHERS.format(_LOCKED))
MAKE_WAY: Final = _END.format("outcome = 'CANCELLED', reason = 'replaced by run ' || e.by")
STOP: Final = """
UPDATE runs AS r
SET cancel_reason = coalesce(cancel_reason, 'replaced by run ' || i.by),
    cancel_requested_at = coalesce($3, now())
FROM unnest($1::tid[], $2::text[]) AS i(place, by)
WHERE r.ctid = ANY ($1::tid[]) AND r.ctid = i.place AND r.state = 'RUNNING'
"""


async def replace(tx: Tx, keys: Sequence[str]) -> int:
    """READY and RETRYING → CANCELLED for what is to make way, and RUNNING is asked to stop; how
    many."""
    rows = await tx.rows(OTHERS, keys)
    running = [(row["place"], row["by"]) for row in rows if row["state"] == "RUNNING"]
    if running:
        await tx.execute(STOP, *columns(running, 2), tx.now)
    waiting = [row for row in rows if row["state"] != "RUNNING"]
    return len(running) + await _end(tx, MAKE_WAY, waiting)


_FREE: Final = """(SELECT true FROM runs AS o
    WHERE o.job_id = r.job_id AND o.hold IS DISTINCT FROM 'overlap' LIMIT 1) IS NULL"""
NEXT: Final = f"""
SELECT {WORK} FROM unnest($1::text[]) AS k(key)
CROSS JOIN LATERAL (
    SELECT *, ctid AS place FROM runs AS r WHERE {_WAITING}
    ORDER BY priority, ready_at, occurrence_at LIMIT 1 FOR UPDATE SKIP LOCKED
) AS r
WHERE {_FREE}
"""


async def follow(tx: Tx, keys: Sequence[str], ranks: Ranks = by_time) -> int:
    """READY, held → READY for the first that waits under each key of a job of which nothing is
    unfinished; how many. Needs the tenant's lock."""
    return await holds.let_go(tx, await tx.rows(NEXT, keys), ranks)


TO_DO: Final = f"""
SELECT k.key FROM unnest($1::text[]) AS k(key)
WHERE EXISTS (SELECT FROM (SELECT * FROM runs AS r WHERE {_WAITING} LIMIT 1) AS r WHERE {_FREE})
   OR EXISTS (SELECT FROM (SELECT) AS one {_LATEST} {_OLDER.format("")})
   OR EXISTS (SELECT FROM (SELECT) AS one {_LATEST} {_OTHERS.format("")})
"""


async def to_do(tx: Tx, keys: Sequence[str]) -> list[str]:
    """Those keys under which something waits that should not, or others should make way for."""
    return [row["key"] for row in await tx.rows(TO_DO, keys)]


QUEUE: Final = f"""
UPDATE runs AS r
SET overlap_key = {KEY.format("r")}, hold = 'overlap', hold_key = {KEY.format("r")},
    claimable = false
WHERE r.job_id = $1 AND r.occurrence_at = $2 AND r.kind = $3 AND r.state = 'READY'
RETURNING hold_key
"""


async def queue(tx: Tx, run: RunKey) -> None:
    """READY → READY, held: a run that was made in this transaction waits for those of its job that
    are unfinished. Needs the shard's exclusive lock."""
    key = await tx.value(QUEUE, run.job_id, run.occurrence_at, int(run.kind))
    tx.caps.add(key)


TELL: Final = f"""
UPDATE runs AS r SET overlap_key = {KEY.format("r")}
FROM unnest($2::timestamptz[]) AS i(occurrence_at)
WHERE r.job_id = $1 AND r.occurrence_at = i.occurrence_at AND r.kind = $3
"""


async def tell(tx: Tx, job_id: UUID, kind: int, moments: Sequence[datetime]) -> None:
    """Have the end of runs that were made in this transaction be told to those that wait for it.
    Needs the shard's exclusive lock."""
    await tx.execute(TELL, job_id, list(moments), kind)
