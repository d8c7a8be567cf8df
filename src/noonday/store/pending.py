"""How many jobs of a tenant have not ended, for tenants that have a quota of them.

The count stands as of a moment in ``pending_bases``. Since then each process notes what came and
what ended, by the database's time of each, in rows of its own that stand for ten seconds. A recount
looks at a moment that is past: at what was there by then, and had not ended by then. So it needs no
snapshot, is done slice by slice, and fits what was noted, which counts from that moment on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from noonday.domain.model import EPOCH
from noonday.store import Row, Tx, columns

BUCKET: Final = timedelta(seconds=10)
RECENT: Final = timedelta(seconds=60)
"""The rate at which a tenant's jobs end is taken of so long."""
KEPT: Final = timedelta(seconds=90)


def bucket_of(at: datetime) -> datetime:
    """The beginning of the ten seconds in which something was."""
    return at - (at - EPOCH) % BUCKET


# --- who has such a quota ---------------------------------------------------------------------

# A quota that is set anew begins with a count; one that is changed keeps it.
WATCH: Final = """
INSERT INTO pending_bases (tenant_id, watched_at) VALUES ($1, coalesce($2, clock_timestamp()))
ON CONFLICT DO NOTHING
"""
UNWATCH: Final = "DELETE FROM pending_bases WHERE tenant_id = $1"


async def watch(tx: Tx, tenant_id: int) -> None:
    """Have the processes note a tenant's jobs; the count follows."""
    await tx.execute(WATCH, tenant_id, tx.now)


async def unwatch(tx: Tx, tenant_id: int) -> None:
    """The tenant has no such quota any more."""
    await tx.execute(UNWATCH, tenant_id)


WATCHED: Final = "SELECT tenant_id FROM pending_bases"


async def watched(tx: Tx) -> set[int]:
    """The tenants whose jobs are to be noted."""
    return {row["tenant_id"] for row in await tx.rows(WATCHED)}


# --- what a process has noted -----------------------------------------------------------------


class Noted(NamedTuple):
    """All that a process has noted of a tenant in the ten seconds from ``since`` on."""

    tenant_id: int
    since: datetime
    delta: int
    ended: int


# Totals, not steps: writing them once more, when the answer to a COMMIT was lost, does no harm.
NOTE: Final = """
INSERT INTO pending_counts AS c (tenant_id, process_id, since, delta, ended)
SELECT n.tenant_id, $1, n.since, n.delta, n.ended
FROM unnest($2::int[], $3::timestamptz[], $4::int[], $5::int[])
     AS n(tenant_id, since, delta, ended)
ORDER BY n.tenant_id, n.since
ON CONFLICT (tenant_id, process_id, since) DO UPDATE
SET delta = excluded.delta, ended = excluded.ended
"""


async def note(tx: Tx, process_id: UUID, noted: Sequence[Noted]) -> None:
    """Write what a process has noted, each with its total."""
    if noted:
        await tx.execute(NOTE, process_id, *columns(noted, 4))


class Standing(NamedTuple):
    """A tenant's jobs that have not ended, and how many end a second of late."""

    pending: int
    ending_per_sec: float


STANDING: Final = """
SELECT b.tenant_id, (b.jobs + coalesce(c.delta, 0))::int AS pending,
       (coalesce(c.ended, 0) / greatest(extract(epoch FROM coalesce($2, now()) - c.first_end), 10)
       )::float8 AS ending_per_sec
FROM pending_bases AS b CROSS JOIN LATERAL (
    SELECT sum(delta) FILTER (WHERE since >= b.counted_at) AS delta,
           sum(ended) FILTER (WHERE since >= coalesce($2, now()) - $3::interval) AS ended,
           min(since) FILTER (WHERE since >= coalesce($2, now()) - $3::interval AND ended > 0)
               AS first_end
    FROM pending_counts AS n WHERE n.tenant_id = b.tenant_id
) AS c
WHERE b.tenant_id = ANY($1::int[]) AND b.counted_at IS NOT NULL
"""


async def standing(tx: Tx, tenant_ids: Sequence[int]) -> dict[int, Standing]:
    """How it stands with tenants, as far as was written; those not counted yet are missing."""
    rows = await tx.rows(STANDING, tenant_ids, tx.now, RECENT)
    return {
        row["tenant_id"]: Standing(max(row["pending"], 0), row["ending_per_sec"] or 0.0)
        for row in rows
    }


# --- the recount ------------------------------------------------------------------------------

# Whether a job was there at a moment and had not ended: a one-off job by the ledger row of its
# nominal time, or by itself as long as there is none; any other by itself. (What was reopened
# after the moment had ended by then.)
_PENDING: Final = """(
    j.created_at < {at} AND CASE WHEN j.schedule_type <> 'once' THEN {itself}
    ELSE coalesce(
        (SELECT (o.outcome IS NULL OR o.ended_at >= {at})
                AND (SELECT true FROM dead_letters AS d
                     WHERE d.job_id = o.job_id AND d.occurrence_at = o.occurrence_at
                       AND d.kind = o.kind AND d.replayed_at >= {at} LIMIT 1) IS NULL
         FROM occurrences AS o
         WHERE o.job_id = j.id AND o.occurrence_at = j.first_at AND o.kind = 0 LIMIT 1),
        j.first_at >= (SELECT starts_at FROM ledger_start) AND {itself}) END)"""
_ITSELF: Final = "(j.state IN ('ACTIVE', 'PAUSED') OR j.state_changed_at >= {at})"
_THEN: Final = _PENDING.format(at="$3::timestamptz", itself=_ITSELF.format(at="$3::timestamptz"))
_NOW: Final = _PENDING.format(
    at="'infinity'::timestamptz", itself=_ITSELF.format(at="'infinity'::timestamptz")
)

SLICE: Final = f"""
SELECT count(*)::int AS looked_at, count(*) FILTER (WHERE pending)::int AS pending,
       (array_agg(id ORDER BY id DESC))[1] AS last_id
FROM (SELECT j.id, {_THEN} AS pending FROM (
    SELECT * FROM jobs WHERE tenant_id = $1 AND id > $2 ORDER BY id LIMIT $4) AS j) AS looked
"""


class Slice(NamedTuple):
    """What is pending among some jobs of a tenant."""

    pending: int
    ends_at: UUID | None
    """Where to go on; None: there are no more."""


async def count(tx: Tx, tenant_id: int, after: UUID, at: datetime, limit: int) -> Slice:
    """How many of the next ``limit`` jobs after one had not ended at a moment that is past."""
    row = await tx.one(SLICE, tenant_id, after, at, limit)
    return Slice(row["pending"], row["last_id"] if row["looked_at"] == limit else None)


STILL: Final = f"""
SELECT j.id FROM unnest($1::uuid[]) AS i(id)
CROSS JOIN LATERAL (SELECT * FROM jobs AS j WHERE j.id = i.id LIMIT 1) AS j WHERE {_NOW}
"""


async def still(tx: Tx, job_ids: Sequence[UUID]) -> set[UUID]:
    """Which of these jobs have not ended."""
    return {row["id"] for row in await tx.rows(STILL, list(job_ids))} if job_ids else set()


ONE_OFF: Final = """
SELECT count(*)::int FROM unnest($1::uuid[]) AS i(id)
CROSS JOIN LATERAL (SELECT schedule_type FROM jobs AS j WHERE j.id = i.id LIMIT 1) AS j
WHERE j.schedule_type = 'once'
"""


async def one_off(tx: Tx, job_ids: Sequence[UUID]) -> int:
    """How many of these jobs are to run once: of these a run that is reopened reopens the job."""
    count: int = await tx.value(ONE_OFF, list(job_ids))
    return count


# Not for as long as some process may not have noted yet, nor before what began earlier must have
# come to its end.
DUE: Final = """
SELECT tenant_id, watched_at, counted_at FROM pending_bases
WHERE watched_at <= $1 AND (counted_at IS NULL OR counted_at <= $2)
ORDER BY counted_at NULLS FIRST, tenant_id LIMIT $3
"""


async def due(tx: Tx, watched_by: datetime, counted_by: datetime, limit: int) -> list[Row]:
    """Tenants that are to be counted, those first that were not yet."""
    return await tx.rows(DUE, watched_by, counted_by, limit)


BEFORE: Final = """
SELECT (b.jobs + coalesce((SELECT sum(delta) FROM pending_counts AS c
        WHERE c.tenant_id = b.tenant_id AND c.since >= b.counted_at AND c.since < $2), 0))::int
FROM pending_bases AS b WHERE b.tenant_id = $1 AND b.counted_at < $2
"""
REBASE: Final = """
UPDATE pending_bases SET jobs = $3, counted_at = $2
WHERE tenant_id = $1 AND watched_at = $4 AND (counted_at IS NULL OR counted_at < $2)
"""


async def rebase(tx: Tx, base: Row, at: datetime, jobs: int) -> int | None:
    """Let the count go on from what was counted; by how much it had been wrong, None at first."""
    noted: int | None = await tx.value(BEFORE, base["tenant_id"], at)
    done = await tx.execute(REBASE, base["tenant_id"], at, jobs, base["watched_at"])
    return None if noted is None or not done else jobs - noted


FORGET: Final = """
DELETE FROM pending_counts WHERE ctid = ANY (ARRAY(
    SELECT c.ctid FROM pending_counts AS c LEFT JOIN pending_bases AS b USING (tenant_id)
    WHERE c.since < coalesce($1, now()) - $2::interval
      AND (b.tenant_id IS NULL OR c.since < b.counted_at)
    LIMIT $3))
"""


async def forget(tx: Tx, limit: int) -> int:
    """Delete what was noted before the last count, or of tenants without a quota; how many."""
    return await tx.execute(FORGET, tx.now, KEPT, limit)
