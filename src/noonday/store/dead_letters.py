"""Dead letters: what becomes of them. Written by the statements that end a run; see ``runs``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from noonday.domain.model import RunKey
from noonday.store import Tx, caps, columns, overlaps
from noonday.store.runs import SAME_RUN, bounds, key_of

# Of a job that does not overlap itself one run at a time: none beside an unfinished one, and the
# oldest of those that are asked for. The row of the ledger decides; where it is gone, nothing is
# reopened.
REPLAY: Final = f"""
WITH letter AS MATERIALIZED (
    SELECT d.*, j.lane, j.priority, j.concurrency_key, i.rank, coalesce($7, now()) AS clock,
           {overlaps.POLICY} = 'allow' AS overlaps, CASE
               WHEN {overlaps.POLICY} IN ('queue', 'replace') THEN {overlaps.KEY.format("d")}
           END AS overlap_key
    FROM unnest($1::uuid[], $2::timestamptz[], $3::int[], $10::timestamptz[])
         AS i(job_id, occurrence_at, kind, rank)
    JOIN dead_letters AS d ON {SAME_RUN.format("d", "i")}
    JOIN jobs AS j ON j.id = d.job_id
    WHERE d.tenant_id = $4 AND d.state = 'DEAD' AND (d.replayed_at IS NULL OR $5)
      AND (d.replay_id IS NULL OR d.replay_outcome IS NOT NULL)
      AND j.state <> 'CANCELLED'
    FOR UPDATE OF d SKIP LOCKED
), chosen AS (
    SELECT * FROM (
        SELECT *, row_number() OVER (PARTITION BY job_id ORDER BY occurrence_at, kind) AS place
        FROM letter
    ) AS l
    WHERE l.overlaps
       OR (l.place = 1 AND NOT EXISTS (SELECT FROM runs AS r WHERE r.job_id = l.job_id))
), ledger AS (
    UPDATE occurrences AS o SET outcome = NULL, reason = NULL, ended_at = NULL
    FROM chosen AS c
    WHERE {SAME_RUN.format("o", "c")} AND o.outcome = 'FAILED'
      AND o.occurrence_at >= $8 AND o.occurrence_at <= $9
    RETURNING o.job_id, o.occurrence_at, o.kind
), run AS (
    INSERT INTO runs (job_id, occurrence_at, kind, tenant_id, payload_version, lane, priority,
                      rank, state, due_at, ready_at, attempt, lease_version, overlap_key,
                      {caps.COLUMNS})
    SELECT o.job_id, o.occurrence_at, o.kind, o.tenant_id, o.payload_version, o.lane, o.priority,
           coalesce(o.rank, o.clock), 'READY', o.clock, o.clock, o.attempts, o.lease_version,
           o.overlap_key, {caps.VALUES}
    FROM chosen AS o JOIN ledger AS l ON {SAME_RUN.format("l", "o")} {caps.of("o")}
    RETURNING job_id, occurrence_at, kind, ready_at, hold_key
), noted AS (
    UPDATE dead_letters AS d
    SET state = 'REPLAYED', replayed_at = r.ready_at, replay_id = $6, replay_outcome = NULL
    FROM run AS r WHERE {SAME_RUN.format("d", "r")}
)
SELECT job_id, occurrence_at, kind, hold_key FROM run
"""


async def replay(
    tx: Tx,
    letters: Sequence[RunKey],
    tenant_id: int,
    replay_id: UUID,
    *,
    again: bool = False,
    ranks: Sequence[datetime] | None = None,
) -> set[RunKey]:
    """FAILED → READY: the same runs, with a fresh budget; those that were reopened.

    ``ranks`` says where each of them queues; None: by the time at which it is written.

    Left as they are: letters that do not lie there any more or were replayed before (unless
    ``again``), those that an earlier replay has still to count, those of cancelled jobs, those
    whose ledger row is gone, and those that would overlap an unfinished run of their job, which
    the caller keeps from starting by the shard's lock.
    """
    if not letters:
        return set()
    rows = await tx.rows(
        REPLAY, *_keys(letters), tenant_id, again, replay_id, tx.now, *bounds(letters),
        ranks or [None] * len(letters),
    )  # fmt: skip
    tx.caps.update(row["hold_key"] for row in rows if row["hold_key"] is not None)
    return {key_of(row) for row in rows}


# What a caller can do about it: nothing, or (null) try again later.
WHY: Final = f"""
SELECT CASE WHEN d.job_id IS NULL OR d.state <> 'DEAD' THEN 'not_dead'
            WHEN d.replayed_at IS NOT NULL AND NOT $5 THEN 'replayed_before'
            WHEN j.state IS NULL OR j.state = 'CANCELLED' THEN 'job_cancelled'
            WHEN o.outcome IS DISTINCT FROM 'FAILED' THEN 'ledger_gone' END AS why, count(*)
FROM unnest($1::uuid[], $2::timestamptz[], $3::int[]) AS i(job_id, occurrence_at, kind)
LEFT JOIN LATERAL (
    SELECT * FROM dead_letters AS d WHERE {SAME_RUN.format("d", "i")} AND d.tenant_id = $4 LIMIT 1
) AS d ON true
LEFT JOIN LATERAL (SELECT state FROM jobs AS j WHERE j.id = i.job_id LIMIT 1) AS j ON true
LEFT JOIN LATERAL (
    SELECT outcome FROM occurrences AS o
    WHERE {SAME_RUN.format("o", "i")} AND o.occurrence_at >= $6 AND o.occurrence_at <= $7 LIMIT 1
) AS o ON true
GROUP BY why
"""


async def why_not(
    tx: Tx, letters: Sequence[RunKey], tenant_id: int, *, again: bool = False
) -> dict[str | None, int]:
    """Why letters were not reopened, and how many for each reason: ``not_dead``,
    ``replayed_before``, ``job_cancelled``, ``ledger_gone``; None for what may do better later."""
    if not letters:
        return {}
    rows = await tx.rows(WHY, *_keys(letters), tenant_id, again, *bounds(letters))
    return {row["why"]: row["count"] for row in rows}


def _keys(letters: Sequence[RunKey]) -> list[list[Any]]:
    return columns([(key.job_id, key.occurrence_at, key.kind) for key in letters], 3)


DISCARD: Final = """
UPDATE dead_letters
SET state = 'DISCARDED', discarded_at = coalesce($7, now()), discarded_by = $5,
    discard_reason = $6
WHERE job_id = $1 AND occurrence_at = $2 AND kind = $3 AND tenant_id = $4 AND state = 'DEAD'
"""


async def discard(tx: Tx, letter: RunKey, tenant_id: int, actor: str, reason: str) -> bool:
    """A person lays a letter aside for good; whether it lay there."""
    args = (letter.job_id, letter.occurrence_at, letter.kind, tenant_id, actor, reason, tx.now)
    return await tx.execute(DISCARD, *args) == 1
