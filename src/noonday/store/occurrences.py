"""The ledger: occurrences, and how each nominal time came out.

Materializing is one statement: the timer goes, its ledger rows come, a run for each ledger row
that was really inserted and is open, and the next timer. The unique key decides: whoever comes
second inserts nothing and so makes no run.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from noonday.store import Row, Tx, caps, columns, dependencies, occurrence_ranges, overlaps, runs
from noonday.store.occurrence_ranges import OccurrenceRange
from noonday.store.timers import Timer


class Fired(NamedTuple):
    """A due timer as it was read: the guard under which it may fire."""

    job_id: UUID
    due_at: datetime
    schedule_version: int
    seq: int
    shard: int
    epoch: int | None
    """None: it is fired by whoever changes its job."""


_NOTHING: Final = (None, None, None, None)
"""In place of a timer's next occurrence, its due time, its number and what it catches up on."""


class Entry(NamedTuple):
    """A ledger row to write for a fired timer: to run, or MISSED or SKIPPED with its reason."""

    job_id: UUID
    occurrence_at: datetime
    due_at: datetime
    outcome: str | None
    reason: str | None
    overlap: str | None
    """What becomes of it while any run of the job is unfinished: ``skip`` it, or have it wait
    (``queue``, ``replace``); None: it runs beside."""
    rank: datetime | None = None
    """Where its run queues; None: by the time at which it is written."""


# An occurrence below the start of the ledger is not materialized: it may have run already and
# been pruned. (Its timer goes on.)
#
# The planner takes what a DELETE or an INSERT returns for one row, and compares such rows each with
# each: a quarter of a million pairs where 500 fire. So entries, of which it knows the number, are
# on the outer side of outer joins, and are filtered by what it cannot turn into inner ones (CASE).
MATERIALIZE: Final = f"""
WITH fired AS (
    DELETE FROM timers AS t
    USING unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::int[], $5::int[], $6::bigint[],
                 $7::timestamptz[], $8::timestamptz[], $9::int[], $10::timestamptz[])
          AS f(job_id, due_at, schedule_version, seq, shard, epoch, next_at, next_due_at, next_seq,
               catch_up_to),
          jobs AS j
    WHERE t.job_id = f.job_id AND t.due_at = f.due_at AND t.seq = f.seq
      AND t.schedule_version = f.schedule_version
      AND t.due_at >= $18 AND t.due_at <= $19
      AND j.id = f.job_id AND j.schedule_version = f.schedule_version AND j.state = 'ACTIVE'
    RETURNING t.job_id, j.tenant_id, j.lane, j.priority, j.payload_version, f.epoch, t.awaited,
              j.target_host, j.concurrency_key, f.schedule_version, f.shard, f.next_at,
              f.next_due_at, f.next_seq, f.catch_up_to
), entry AS (
    SELECT e.*, f.tenant_id, f.lane, f.priority, f.payload_version, f.epoch, f.awaited,
           f.target_host, f.concurrency_key, f.schedule_version,
           CASE WHEN e.overlap = 'skip' THEN busy.run END AS blocker,
           CASE WHEN e.overlap <> 'skip' THEN {overlaps.KEY.format("f")} END AS overlap_key,
           coalesce(e.overlap <> 'skip' AND busy.run IS NOT NULL, false) AS waits
    FROM unnest($11::uuid[], $12::timestamptz[], $13::timestamptz[], $14::text[], $15::text[],
                $16::text[], $17::timestamptz[])
         AS e(job_id, occurrence_at, due_at, outcome, reason, overlap, rank)
    LEFT JOIN fired AS f ON f.job_id = e.job_id
    LEFT JOIN LATERAL (
        SELECT {runs.RUN_ID.format("r")} AS run FROM runs AS r WHERE r.job_id = e.job_id LIMIT 1
    ) AS busy ON e.overlap IS NOT NULL AND e.outcome IS NULL
    WHERE CASE WHEN f.job_id IS NULL THEN false ELSE true END
), ledger AS (
    INSERT INTO occurrences (job_id, occurrence_at, kind, tenant_id, due_at, materialized_at,
                             shard_epoch, outcome, reason, blocking_run, ended_at, attempts,
                             schedule_version)
    SELECT job_id, occurrence_at, 0, tenant_id, due_at, $20::timestamptz, epoch,
           CASE WHEN blocker IS NULL THEN outcome ELSE 'SKIPPED' END,
           CASE WHEN blocker IS NULL THEN reason ELSE 'overlap' END,
           blocker,
           CASE WHEN outcome IS NOT NULL OR blocker IS NOT NULL THEN $20::timestamptz END, 0,
           nullif(schedule_version, 1)
    FROM entry WHERE occurrence_at >= (SELECT starts_at FROM ledger_start)
    ON CONFLICT DO NOTHING
    RETURNING job_id, occurrence_at, due_at, outcome
), ready AS (
    INSERT INTO runs (job_id, occurrence_at, kind, tenant_id, payload_version, lane, priority,
                      rank, state, due_at, ready_at, awaited, overlap_key, {caps.COLUMNS})
    SELECT e.job_id, e.occurrence_at, 0, e.tenant_id, e.payload_version, e.lane, e.priority,
           coalesce(e.rank, $20::timestamptz), 'READY', e.due_at, $20::timestamptz,
           e.awaited, e.overlap_key,
           CASE WHEN e.waits THEN 'overlap' WHEN c.waits_for IS NOT NULL THEN 'cap' END,
           CASE WHEN e.waits THEN e.overlap_key ELSE c.waits_for END,
           NOT e.waits AND c.waits_for IS NULL, {caps.NAMED}
    FROM entry AS e
    LEFT JOIN ledger AS l ON l.job_id = e.job_id AND l.occurrence_at = e.occurrence_at
    {caps.of("e")}
    WHERE CASE WHEN l.job_id IS NULL OR l.outcome IS NOT NULL THEN false ELSE true END
    RETURNING hold_key
), armed AS (
    INSERT INTO timers (job_id, occurrence_at, due_at, schedule_version, seq, shard, catch_up_to)
    SELECT job_id, next_at, greatest(next_due_at, $20::timestamptz), schedule_version, next_seq,
           shard, catch_up_to
    FROM fired WHERE next_at IS NOT NULL
)
SELECT (SELECT count(*) FROM fired) AS fired, (SELECT count(*) FROM ready) AS ready,
       (SELECT count(*) FROM ledger WHERE outcome = 'MISSED') AS missed,
       (SELECT count(*) FROM ledger WHERE outcome = 'SKIPPED') AS skipped,
       (SELECT array_agg((e.job_id, e.occurrence_at)) FROM entry AS e
        WHERE e.awaited AND (e.outcome IS NOT NULL
                             OR e.occurrence_at < (SELECT starts_at FROM ledger_start))) AS awaited,
       (SELECT array_agg(DISTINCT hold_key) FROM ready WHERE hold_key IS NOT NULL) AS waited_for,
       (SELECT array_agg(job_id) FROM fired WHERE $21::bool) AS jobs
"""


class Written(NamedTuple):
    """What came of timers that were due: how many have fired, and what became of how many nominal
    times."""

    fired: int
    ready: int
    missed: int
    skipped: int


async def materialize(
    tx: Tx,
    fired: Sequence[Fired],
    entries: Sequence[Entry],
    rearm: Sequence[Timer],
    now: datetime,
    ranges: Sequence[OccurrenceRange] = (),
) -> Written:
    """Turn due timers into lines of the ledger, runs and next timers; how many of each.

    The caller holds the fence of all shards. A timer whose job has changed since it was read
    does nothing.
    """
    dues = [timer.due_at for timer in fired]
    after = {
        timer.job_id: (timer.occurrence_at, timer.due_at, timer.seq, timer.catch_up_to)
        for timer in rearm
    }
    armed = columns([after.get(timer.job_id, _NOTHING) for timer in fired], 4)
    written = await tx.one(
        MATERIALIZE, *columns(fired, 6), *armed, *columns(entries, 7), min(dues), max(dues), now,
        bool(ranges),
    )  # fmt: skip
    missed = [(job_id, at, "MISSED") for job_id, at in written["awaited"] or ()]
    await dependencies.note(tx, missed)
    tx.caps.update(written["waited_for"] or ())
    done = set(written["jobs"] or ())
    ranges = [each for each in ranges if each.job_id in done]
    counts = {"MISSED": written["missed"], "SKIPPED": written["skipped"]}
    for row in await occurrence_ranges.write(tx, ranges, occurrence_ranges.BY_ITSELF, now):
        counts[row["outcome"]] += row["count"]
    return Written(written["fired"], written["ready"], counts["MISSED"], counts["SKIPPED"])


CLOCK: Final = """
SELECT coalesce($1, now()) AS now, starts_at, pg_try_advisory_xact_lock($2::bigint)
FROM ledger_start
"""


async def clock(tx: Tx, lock: int) -> tuple[datetime, datetime]:
    """The transaction's time, and the start of the ledger, below which nothing is opened. Until
    the transaction ends it holds ``lock``, by which others see that it is under way."""
    row = await tx.one(CLOCK, tx.now, lock)
    return row["now"], row["starts_at"]


class Opening(NamedTuple):
    """An occurrence that starts at once, without a timer: posted due now, triggered, backfilled."""

    job_id: UUID
    occurrence_at: datetime
    kind: int
    tenant_id: int
    due_at: datetime
    payload_version: int
    lane: str
    priority: int
    rank: datetime | None = None
    """Where its run queues; None: by the time at which it is written."""
    target_host: str = ""
    concurrency_key: str | None = None


# `{0}` says what becomes of a row that is in the ledger already, `{1}` which runs there are then.
_OPEN: Final = f"""
WITH ledger AS (
    INSERT INTO occurrences (job_id, occurrence_at, kind, tenant_id, due_at, materialized_at,
                             attempts)
    SELECT job_id, occurrence_at, kind, tenant_id, due_at, $12::timestamptz, 0
    FROM unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::int[], $5::timestamptz[])
         AS o(job_id, occurrence_at, kind, tenant_id, due_at)
    {{0}}
)
INSERT INTO runs (job_id, occurrence_at, kind, tenant_id, payload_version, lane, priority, rank,
                  state, due_at, ready_at, {caps.COLUMNS})
SELECT o.job_id, o.occurrence_at, o.kind, o.tenant_id, o.payload_version, o.lane, o.priority,
       coalesce(o.rank, $12::timestamptz), 'READY', o.due_at, $12::timestamptz,
       {caps.VALUES}
FROM unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::int[], $5::timestamptz[], $6::int[],
            $7::text[], $8::int[], $9::timestamptz[], $10::text[], $11::text[])
     AS o(job_id, occurrence_at, kind, tenant_id, due_at, payload_version, lane, priority, rank,
          target_host, concurrency_key)
{{1}}
{caps.of("o")}
RETURNING hold_key
"""

OPEN: Final = _OPEN.format(
    "ON CONFLICT DO NOTHING RETURNING job_id, occurrence_at, kind",
    "JOIN ledger AS l ON l.job_id = o.job_id AND l.occurrence_at = o.occurrence_at "
    "AND l.kind = o.kind",
)
# A conflict costs a confirmation of each row, and a join. With a new id there cannot be one.
OPEN_NEW: Final = _OPEN.format("", "")


async def open_now(tx: Tx, openings: Sequence[Opening], now: datetime) -> int:
    """Ledger row and READY run for each, held where it has a cap; how many were new."""
    return await _open(tx, OPEN, openings, now)


async def open_new(tx: Tx, openings: Sequence[Opening], now: datetime) -> None:
    """The same for jobs that are made in this transaction."""
    await _open(tx, OPEN_NEW, openings, now)


async def _open(tx: Tx, statement: str, openings: Sequence[Opening], now: datetime) -> int:
    if not openings:
        return 0
    rows = await tx.rows(statement, *columns(openings, 11), now)
    tx.caps.update(row["hold_key"] for row in rows if row["hold_key"] is not None)
    return len(rows)


CLOSE_STALE: Final = """
DELETE FROM timers AS t USING unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::int[])
     AS f(job_id, due_at, schedule_version, seq)
WHERE t.job_id = f.job_id AND t.due_at = f.due_at AND t.seq = f.seq
  AND t.schedule_version = f.schedule_version AND t.due_at >= $5 AND t.due_at <= $6
  AND NOT EXISTS (SELECT FROM jobs AS j WHERE j.id = t.job_id AND j.state = 'ACTIVE'
                  AND j.schedule_version = t.schedule_version)
"""


async def drop_stale(tx: Tx, timers: Sequence[tuple[UUID, datetime, int, int]]) -> int:
    """Delete timers, each by job, due time, schedule version and sequence number, that no active
    job stands behind any more."""
    if not timers:
        return 0
    dues = [timer[1] for timer in timers]
    return await tx.execute(CLOSE_STALE, *columns(timers, 4), min(dues), max(dues))


CLOSE: Final = """
INSERT INTO occurrences (job_id, occurrence_at, kind, tenant_id, due_at, materialized_at, outcome,
                         reason, ended_at, attempts, schedule_version)
SELECT $1, o.occurrence_at, 0, $2, o.occurrence_at + $3::interval, $4::timestamptz, o.outcome,
       o.reason, $4, 0, nullif($8::int, 1)
FROM unnest($5::timestamptz[], $6::text[], $7::text[]) AS o(occurrence_at, outcome, reason)
WHERE o.occurrence_at >= (SELECT starts_at FROM ledger_start)
ON CONFLICT DO NOTHING
"""


async def close(
    tx: Tx,
    job: Row,
    jitter: timedelta,
    closed: Sequence[tuple[datetime, str, str]],
    now: datetime,
) -> int:
    """Ledger rows that end as they begin, each with its outcome and reason; how many were new."""
    of, version = (job["id"], job["tenant_id"], jitter, now), job["schedule_version"]
    return await tx.execute(CLOSE, *of, *columns(closed, 3), version)


IS_THERE: Final = """
SELECT EXISTS (SELECT FROM occurrences WHERE job_id = $1 AND occurrence_at = $2 AND kind = 0)
    OR EXISTS (SELECT FROM occurrence_ranges WHERE job_id = $1 AND from_at <= $2 AND to_at >= $2)
"""


async def is_there(tx: Tx, job_id: UUID, occurrence_at: datetime) -> bool:
    """Whether a nominal time of a job's schedule is in the ledger, by itself or within a range."""
    found: bool = await tx.value(IS_THERE, job_id, occurrence_at)
    return found


ACCOUNTED: Final = """
SELECT decided_at, greatest(decided_at,
    (SELECT max(until_at) FROM schedule_versions WHERE job_id = $1),
    (SELECT starts_at - interval '1 microsecond' FROM ledger_start)) AS until_at
FROM (SELECT greatest(
    (SELECT occurrence_at FROM occurrences WHERE job_id = $1 AND kind = 0
     ORDER BY occurrence_at DESC LIMIT 1),
    (SELECT max(to_at) FROM occurrence_ranges WHERE job_id = $1)) AS decided_at) AS d
"""


class Accounted(NamedTuple):
    """How far a job's ledger reaches."""

    decided_at: datetime | None
    """The last nominal time that is on record."""
    until_at: datetime
    """Up to here nominal times are on record, were so and have been pruned, or are those of a
    schedule that the job had."""


async def accounted(tx: Tx, job_id: UUID) -> Accounted:
    """Up to when a job's nominal times are accounted for."""
    return Accounted(*(await tx.one(ACCOUNTED, job_id)).values())


LEDGER: Final = f"""
SELECT job_id, occurrence_at, kind, due_at, materialized_at, outcome, reason, blocking_run,
       ended_at, attempts, schedule_version,
       {occurrence_ranges.SUPERSEDED_BY.format("occurrence_at")}
FROM occurrences AS l
WHERE job_id = $1 AND tenant_id = $2 AND (occurrence_at, kind) < ($3, $4)
ORDER BY occurrence_at DESC, kind DESC LIMIT $5
"""


async def ledger(
    tx: Tx, job_id: UUID, tenant_id: int, before: datetime, before_kind: int, limit: int
) -> list[Row]:
    """A job's ledger, newest nominal time first, from just before a position."""
    return await tx.rows(LEDGER, job_id, tenant_id, before, before_kind, limit)
