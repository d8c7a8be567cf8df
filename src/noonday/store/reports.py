"""What is read to be shown. Nothing here writes, and nothing here is on the way of a run.

Lists are pages from just before a position, newest first. Ids of jobs are ordered by creation.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from noonday.domain.model import EPOCH, RunKey
from noonday.store import Row, Tx, columns
from noonday.store.jobs import Filter

END: Final = datetime(9999, 12, 31, tzinfo=UTC)
"""Later than any time in the database: where a list begins that is read backwards."""

SCANNED: Final = 5_000
"""Jobs that one page of a filtered list looks at, at most."""

# How a job stands is told by its state, its runs and its last ledger row, one that became a run
# if there was one lately. Whether a timer is
# armed follows: a recurring job has one until it is stopped, another until its ledger row is
# there. What happened before the start of the ledger is known only of what failed.
_JOB: Final = """j.id, j.tenant_id, j.created_at, j.created_by, j.version, j.state, j.state_reason,
       j.schedule_type, j.first_at, j.name, j.lane, j.priority, j.lease_sec, j.target_host,
       j.labels, j.spec, j.secret_headers, j.payload_bytes, j.payload_version, j.content_type,
       j.after, j.concurrency_key,
       CASE WHEN j.state = 'PAUSED' THEN
           (SELECT p.until_at FROM pauses AS p WHERE p.job_id = j.id) END AS paused_until,
       CASE WHEN j.state = 'PAUSED' THEN
           (SELECT p.occurrence_at FROM pauses AS p WHERE p.job_id = j.id) END AS paused_at,
       CASE WHEN j.state = 'PAUSED' THEN
           (SELECT p.seq FROM pauses AS p WHERE p.job_id = j.id) END AS paused_seq"""
_STANDING: Final = """
    LEFT JOIN LATERAL (
        SELECT r.state, r.attempt, r.due_at, r.retry_at FROM runs AS r WHERE r.job_id = j.id
        ORDER BY r.state = 'RUNNING' DESC, r.occurrence_at DESC LIMIT 1
    ) AS run ON true
    LEFT JOIN LATERAL (
        SELECT true AS fired FROM occurrences AS o
        WHERE j.schedule_type = 'once'
          AND o.job_id = j.id AND o.occurrence_at = j.first_at AND o.kind = 0
        UNION ALL
        SELECT true FROM ledger_start AS l
        WHERE j.schedule_type = 'once' AND j.first_at < l.starts_at LIMIT 1
    ) AS own ON true
    LEFT JOIN LATERAL (
        SELECT outcome, attempts, materialized_at FROM (
            SELECT o.occurrence_at, o.kind, o.outcome, o.attempts, o.materialized_at
            FROM occurrences AS o WHERE o.job_id = j.id
            ORDER BY o.occurrence_at DESC, o.kind DESC LIMIT 10
        ) AS recent
        ORDER BY outcome IS NOT NULL AND outcome IN ('SKIPPED', 'MISSED'),
                 occurrence_at DESC, kind DESC LIMIT 1
    ) AS last ON true"""
_STATUS: Final = """CASE
        WHEN j.state NOT IN ('ACTIVE', 'ENDED') THEN j.state
        WHEN run.state = 'RUNNING' THEN 'RUNNING'
        WHEN run.state IS NOT NULL OR (own.fired IS NULL AND j.state = 'ACTIVE') THEN 'PENDING'
        WHEN last.outcome IN ('COMPLETE', 'CANCELLED') THEN last.outcome
        WHEN j.state = 'ENDED' AND last.outcome IN ('SKIPPED', 'MISSED') THEN 'COMPLETE'
        WHEN last.outcome IS NOT NULL THEN 'FAILED'
        WHEN EXISTS (SELECT FROM dead_letters AS d WHERE d.job_id = j.id) THEN 'FAILED'
        ELSE 'COMPLETE' END AS status"""
_SHOWN: Final = f"""{_JOB}, run.state AS run_state, run.due_at AS run_due_at,
       run.retry_at AS run_retry_at, coalesce(run.attempt, last.attempts, 0) AS attempts,
       last.materialized_at AS last_at, own.fired, {_STATUS}"""

JOB: Final = f"SELECT {_SHOWN} FROM jobs AS j {_STANDING} WHERE j.id = $1 AND j.tenant_id = $2"


async def job(tx: Tx, job_id: UUID, tenant_id: int) -> Row | None:
    """A tenant's job and how it stands; None also for somebody else's."""
    return await tx.row(JOB, job_id, tenant_id)


JOBS: Final = f"""
SELECT * FROM (
    SELECT {_SHOWN}
    FROM (SELECT * FROM jobs WHERE tenant_id = $1 AND id < $2 AND id >= $3
          ORDER BY id DESC LIMIT $4) AS j {_STANDING}
    WHERE ($5::text IS NULL OR j.schedule_type = $5)
      AND ($6::text IS NULL OR j.lane = $6)
      AND ($7::text IS NULL OR starts_with(j.name, $7))
      AND ($8::text IS NULL OR j.labels ->> $8 = $9)
      AND ($10::text IS NULL OR j.target_host = $10)
      AND ($11::timestamptz IS NULL OR j.created_at >= $11)
      AND ($12::timestamptz IS NULL OR j.created_at < $12)
) AS shown
WHERE $13::text IS NULL OR status = $13
ORDER BY id DESC LIMIT $14
"""
SCAN_ENDS: Final = """
SELECT id FROM jobs WHERE tenant_id = $1 AND id < $2 AND id >= $3
ORDER BY id DESC OFFSET $4 - 1 LIMIT 1
"""


class JobsPage(NamedTuple):
    """Jobs, and where to go on; a filtered page may be short, or empty, and not be the last."""

    rows: list[Row]
    next_before: UUID | None


async def jobs(
    tx: Tx, tenant_id: int, before: UUID | None, limit: int, by: Filter, scanned: int = SCANNED
) -> JobsPage:
    """A page of a tenant's jobs, newest first, with how each stands.

    A page looks at ``scanned`` jobs at most, so that a filter that matches little stays cheap.
    """
    start = _first_id(by.created_from) if by.created_from else UUID(int=0)
    if before is None:
        before = _first_id(min(by.created_to or END, END) + timedelta(milliseconds=1))
    label, value = by.label or (None, None)
    found = await tx.rows(
        JOBS, tenant_id, before, start, scanned, by.schedule_type, by.lane, by.name_prefix, label,
        value, by.target_host, by.created_from, by.created_to, by.status, limit + 1,
    )  # fmt: skip
    if len(found) > limit:
        return JobsPage(found[:limit], found[limit - 1]["id"])
    return JobsPage(found, await tx.value(SCAN_ENDS, tenant_id, before, start, scanned))


TIMERS: Final = """
SELECT t.job_id, t.occurrence_at, t.due_at, t.seq
FROM unnest($1::uuid[], $2::timestamptz[]) AS w(job_id, due_at)
JOIN timers AS t ON t.job_id = w.job_id AND t.due_at = w.due_at
WHERE t.due_at >= $3 AND t.due_at <= $4
"""
TIMERS_ANYWHERE: Final = (
    "SELECT job_id, occurrence_at, due_at, seq FROM timers WHERE job_id = ANY($1::uuid[])"
)


async def timers(tx: Tx, wanted: Sequence[tuple[UUID, datetime]]) -> dict[UUID, Row]:
    """The armed timers of jobs, each given with the time at which it should be due.

    Only those that are not there are looked for everywhere, which costs a look into each
    partition.
    """
    if not wanted:
        return {}
    dues = [due_at for _, due_at in wanted]
    rows = await tx.rows(TIMERS, *columns(wanted, 2), min(dues), max(dues))
    found = {row["job_id"]: row for row in rows}
    rest = [job_id for job_id, _ in wanted if job_id not in found]
    if rest:
        found |= {row["job_id"]: row for row in await tx.rows(TIMERS_ANYWHERE, rest)}
    return found


LAST_ERRORS: Final = """
SELECT w.job_id, e.error FROM unnest($1::uuid[]) AS w(job_id)
CROSS JOIN LATERAL (
    SELECT error, status FROM executions AS e
    WHERE e.job_id = w.job_id AND e.finished_at >= $2
    ORDER BY e.finished_at DESC, e.attempt DESC LIMIT 1
) AS e WHERE e.status <> 'SUCCESS'
"""


async def last_errors(tx: Tx, job_ids: Sequence[UUID], since: datetime) -> dict[UUID, str | None]:
    """What the last attempt of each job failed with, if it did, and ended after ``since``."""
    if not job_ids:
        return {}
    rows = await tx.rows(LAST_ERRORS, job_ids, since)
    return {row["job_id"]: row["error"] for row in rows}


EXECUTIONS: Final = """
SELECT job_id, occurrence_at, kind, attempt, lease_version, worker_id, status, leased_at,
       finished_at, retry_at, http_status, error, unknown, response, duplicate_cause
FROM executions
WHERE job_id = $1 AND tenant_id = $2 AND finished_at <= $3
  AND (finished_at, occurrence_at, kind, attempt) < ($3, $4, $5, $6)
ORDER BY finished_at DESC, occurrence_at DESC, kind DESC, attempt DESC LIMIT $7
"""


class ExecutionPosition(NamedTuple):
    """Just before this execution; the default is before none."""

    finished_at: datetime = END
    occurrence_at: datetime = END
    kind: int = 0
    attempt: int = 0


async def executions(
    tx: Tx, job_id: UUID, tenant_id: int, before: ExecutionPosition, limit: int
) -> list[Row]:
    """A job's attempts that ended, newest first."""
    return await tx.rows(EXECUTIONS, job_id, tenant_id, *before, limit)


RUNNING: Final = """
SELECT job_id, occurrence_at, kind, attempt, lease_version, worker_id, leased_at FROM runs
WHERE job_id = $1 AND tenant_id = $2 AND state = 'RUNNING' ORDER BY leased_at DESC LIMIT $3
"""


async def running(tx: Tx, job_id: UUID, tenant_id: int, limit: int) -> list[Row]:
    """A job's attempts that are under way, from their leases."""
    return await tx.rows(RUNNING, job_id, tenant_id, limit)


# In one statement, so that a run that ends at this moment is seen once, before or after.
RUN: Final = """
SELECT o.job_id, o.occurrence_at, o.kind, o.due_at, o.outcome, o.reason, o.ended_at, o.attempts,
       r.state, r.lane, r.priority, r.attempt, r.lease_version, r.worker_id, r.leased_at,
       r.locked_until, r.retry_at, r.hold, r.hold_key, r.cancel_reason, r.cancel_requested_at,
       r.cancel_told_at, t.reason AS hold_reason, t.since AS hold_since
FROM occurrences AS o
LEFT JOIN runs AS r ON r.job_id = $1 AND r.occurrence_at = $2 AND r.kind = $3
LEFT JOIN targets AS t ON t.hold_key = r.hold_key
WHERE o.job_id = $1 AND o.occurrence_at = $2 AND o.kind = $3 AND o.tenant_id = $4
  AND (r.state IS NOT NULL OR o.outcome NOT IN ('SKIPPED', 'MISSED'))
"""


async def run(tx: Tx, key: RunKey, tenant_id: int) -> Row | None:
    """A run, unfinished or ended; None for an occurrence that never became one."""
    return await tx.row(RUN, key.job_id, key.occurrence_at, key.kind, tenant_id)


def _first_id(at: datetime) -> UUID:
    """The lowest id that a job created at this instant, to the millisecond, can have."""
    millis = (at - EPOCH) // timedelta(milliseconds=1)
    return UUID(int=max(millis, 0) << 80)
