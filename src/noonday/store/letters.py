"""Dead letters as they are shown: lists, groups, one. Nothing here writes.

A tenant may have a million of them: a page looks at a bounded number, and so does counting.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from noonday.domain.model import EPOCH, RunKey
from noonday.store import Row, Tx
from noonday.store.reports import END

SCANNED: Final = 5_000
"""Letters that one page of a filtered list looks at, at most."""
COUNTED: Final = 200_000
"""Letters that are looked at to be counted, at most."""
MOST_GROUPS: Final = 200

_LETTER: Final = """job_id, occurrence_at, kind, state, reason, fingerprint, http_status, error,
       request, response, attempts, deaths, payload_version, target_host,
       coalesce(first_dead_at, dead_at) AS first_dead_at, dead_at, replayed_at, replay_id,
       replay_outcome, discarded_at, discarded_by, discard_reason"""


class LetterFilter(NamedTuple):
    """What a list of dead letters is narrowed by; None does not narrow."""

    fingerprint: str | None = None
    job_id: UUID | None = None
    state: str | None = None
    dead_from: datetime | None = None
    dead_to: datetime | None = None
    reason: str | None = None
    target_host: str | None = None


class LetterPosition(NamedTuple):
    """Just before this dead letter."""

    dead_at: datetime = END
    job_id: UUID = UUID(int=0)
    occurrence_at: datetime = EPOCH
    kind: int = 0


# By what an index knows: this is what is looked at. The rest picks among it. (The plan is made for
# the values, so that what is not given is not in it.)
_LOOKED_AT: Final = """
    FROM dead_letters
    WHERE tenant_id = $1
      AND ($2::text IS NULL OR fingerprint = $2)
      AND ($3::uuid IS NULL OR job_id = $3)
      AND ($4::text IS NULL OR $4 <> 'DEAD' OR state = 'DEAD')
      AND ($5::timestamptz IS NULL OR dead_at >= $5)
      AND ($6::timestamptz IS NULL OR dead_at < $6)"""
_PICKED: Final = """($4::text IS NULL OR state = $4)
  AND ({0}::text IS NULL OR reason = {0})
  AND ({1}::text IS NULL OR target_host = {1})"""
_BEFORE: Final = """
      AND dead_at <= $7 AND (dead_at, job_id, occurrence_at, kind) < ($7, $8, $9, $10)
    ORDER BY dead_at DESC, job_id DESC, occurrence_at DESC, kind DESC"""

DEAD_LETTERS: Final = f"""
SELECT {_LETTER} FROM (SELECT * {_LOOKED_AT} {_BEFORE} LIMIT $11) AS d
WHERE {_PICKED.format("$12", "$13")}
ORDER BY dead_at DESC, job_id DESC, occurrence_at DESC, kind DESC LIMIT $14
"""
SCAN_ENDS: Final = f"""
SELECT dead_at, job_id, occurrence_at, kind {_LOOKED_AT} {_BEFORE} OFFSET $11 - 1 LIMIT 1
"""


class LettersPage(NamedTuple):
    """Letters, and where to go on; a filtered page may be short, or empty, and not be the last."""

    rows: list[Row]
    next_before: LetterPosition | None


async def dead_letters(
    tx: Tx,
    tenant_id: int,
    before: LetterPosition,
    by: LetterFilter,
    limit: int,
    scanned: int = SCANNED,
) -> LettersPage:
    """A page of a tenant's dead letters, those replayed and discarded included, newest first."""
    rows = await tx.rows(DEAD_LETTERS, tenant_id, *by[:5], *before, scanned, *by[5:], limit + 1)
    if len(rows) > limit:
        return LettersPage(rows[:limit], position_of(rows[limit - 1]))
    end = await tx.row(SCAN_ENDS, tenant_id, *by[:5], *before, scanned)
    return LettersPage(rows, position_of(end) if end is not None else None)


def position_of(row: Row) -> LetterPosition:
    """Where a list goes on after a letter."""
    return LetterPosition(row["dead_at"], row["job_id"], row["occurrence_at"], row["kind"])


DEAD_LETTER: Final = f"""
SELECT {_LETTER} FROM dead_letters
WHERE job_id = $1 AND occurrence_at = $2 AND kind = $3 AND tenant_id = $4
"""


async def dead_letter(tx: Tx, key: RunKey, tenant_id: int) -> Row | None:
    """The dead letter of a run."""
    return await tx.row(DEAD_LETTER, key.job_id, key.occurrence_at, key.kind, tenant_id)


# The newest of each group lends its error.
GROUPS: Final = f"""
WITH looked_at AS MATERIALIZED (
    SELECT state, reason, fingerprint, target_host, dead_at
    {_LOOKED_AT} ORDER BY dead_at DESC LIMIT $9
), grouped AS (
    SELECT CASE WHEN $10 THEN reason END AS reason,
           CASE WHEN $11 THEN fingerprint END AS fingerprint,
           count(*) AS count, min(dead_at) AS first_seen, max(dead_at) AS last_seen
    FROM looked_at WHERE {_PICKED.format("$7", "$8")}
    GROUP BY 1, 2 ORDER BY 3 DESC, 5 DESC LIMIT $12
)
SELECT n.looked_at, n.oldest, g.*, sample.error, sample.job_id, sample.occurrence_at, sample.kind
FROM (SELECT count(*) AS looked_at, min(dead_at) AS oldest FROM looked_at) AS n
LEFT JOIN grouped AS g ON true
LEFT JOIN LATERAL (
    SELECT d.error, d.job_id, d.occurrence_at, d.kind FROM dead_letters AS d
    WHERE d.tenant_id = $1 AND d.dead_at = g.last_seen
      AND (g.reason IS NULL OR d.reason = g.reason)
      AND (g.fingerprint IS NULL OR d.fingerprint = g.fingerprint)
    ORDER BY d.job_id LIMIT 1
) AS sample ON true
ORDER BY g.count DESC, g.last_seen DESC
"""


class Groups(NamedTuple):
    """Letters by what they have in common, the biggest group first."""

    rows: list[Row]
    complete: bool
    """False: there are more letters, or more groups, than were counted."""
    counted_from: datetime | None
    """The oldest letter that was looked at."""


async def groups(
    tx: Tx,
    tenant_id: int,
    by: LetterFilter,
    *,
    reason: bool,
    fingerprint: bool,
    counted: int = COUNTED,
) -> Groups:
    """Count the newest ``counted`` letters by reason, by fingerprint, or by both."""
    rows = await tx.rows(GROUPS, tenant_id, *by, counted, reason, fingerprint, MOST_GROUPS + 1)
    found = [row for row in rows if row["count"] is not None]
    complete = rows[0]["looked_at"] < counted and len(found) <= MOST_GROUPS
    return Groups(found[:MOST_GROUPS], complete, rows[0]["oldest"])


FORGET: Final = """
DELETE FROM dead_letters AS d WHERE d.ctid = ANY (ARRAY(
    SELECT d.ctid FROM dead_letters AS d
    WHERE d.state <> 'DEAD' AND coalesce(d.discarded_at, d.replayed_at) < $1
      AND (d.state = 'DISCARDED' OR (d.replay_outcome IS NOT NULL AND NOT EXISTS (
          SELECT FROM runs AS r WHERE r.job_id = d.job_id AND r.occurrence_at = d.occurrence_at
             AND r.kind = d.kind)))
    LIMIT $2 FOR UPDATE SKIP LOCKED))
  AND d.state <> 'DEAD'
"""


async def forget(tx: Tx, before: datetime, limit: int) -> int:
    """Delete letters that were discarded, or replayed and whose run has ended, before ``before``;
    how many. Those that lie there stay."""
    return await tx.execute(FORGET, before, limit)
