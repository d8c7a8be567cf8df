"""The life of a run: one statement per event of ``domain/lifecycle.py``, each for a batch.

Beside this module only ``cancels``, ``holds``, ``overlaps``, ``caps`` and ``dead_letters`` write
runs, and ``occurrences`` makes them.

States are spelled out here and nowhere else in SQL. A write by a lease's holder is guarded by
``RUNNING`` and the ``lease_version``; a run that does not come back in the answer was not
written: somebody else holds it by now, or it has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast
from uuid import UUID

from noonday.domain.lifecycle import Lease
from noonday.domain.model import EPOCH, Kind, RunKey
from noonday.domain.ranking import Band, Range, Ranks, Span, Work, by_time, is_queued
from noonday.store import Row, Tx, columns, dependencies

_KINDS: Final = tuple(Kind)
_KEYS: Final = "unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::int[]"
SAME_RUN: Final = (
    "{0}.job_id = {1}.job_id AND {0}.occurrence_at = {1}.occurrence_at AND {0}.kind = {1}.kind"
)


class Held(NamedTuple):
    """A run and the lease version under which its holder writes."""

    job_id: UUID
    occurrence_at: datetime
    kind: int
    lease_version: int


class Ended(NamedTuple):
    """An attempt that ended, for the statements that write an execution."""

    job_id: UUID
    occurrence_at: datetime
    kind: int
    lease_version: int
    status: str
    http_status: int | None
    error: str | None
    unknown: bool
    response: str | None
    duplicate_cause: str | None


class _Dated(Protocol):
    @property
    def occurrence_at(self) -> datetime: ...


def bounds(runs: Sequence[_Dated]) -> tuple[datetime, datetime]:
    """The first and the last nominal time of some runs: as values in a statement, they keep it to
    their partitions of the ledger."""
    moments = [run.occurrence_at for run in runs]
    return min(moments), max(moments)


def key_of(row: Row) -> RunKey:
    """The key of a run's, an execution's or a ledger's row."""
    return RunKey(row["job_id"], _KINDS[row["kind"]], row["occurrence_at"])


def lease_of(row: Row, leased_at: datetime) -> Lease:
    """The lease that a run's row tells of, and that began at ``leased_at``."""
    return Lease(
        run=key_of(row),
        tenant_id=row["tenant_id"],
        attempt=row["attempt"],
        lease_version=row["lease_version"],
        failures=row["failures"],
        interruptions=row["interruptions"],
        due_at=row["due_at"],
        leased_at=leased_at,
    )


def held_key(row: Row) -> Held:
    """What identifies a write that was accepted."""
    return Held(row["job_id"], row["occurrence_at"], row["kind"], row["lease_version"])


RUN_ID: Final = """replace({0}.job_id::text, '-', '') || '-' || substr('stb', {0}.kind + 1, 1)
               || (extract(epoch FROM {0}.occurrence_at) * 1000000)::bigint"""
"""The id of a row's run, as ``RunKey`` has it."""

CAPS: Final = "key_cap, host_cap, tenant_cap, overlap_key"
"""What may wait for the end of a run."""
_UNCAPPED: Final = (None, None, None)


def caps_of(row: Row) -> tuple[str, ...]:
    """The caps of a run, the one that it waits for first."""
    named = (row["key_cap"], row["host_cap"], row["tenant_cap"])
    return () if named == _UNCAPPED else tuple(cap for cap in named if cap is not None)


def free(tx: Tx, rows: Sequence[Row]) -> None:
    """The slots that these runs had are free."""
    for row in rows:
        if caps := caps_of(row):
            tx.caps.update(caps)
        if row["overlap_key"] is not None:
            tx.caps.add(row["overlap_key"])


def freed(tx: Tx, rows: Sequence[Row]) -> set[Held]:
    """What identifies writes that were accepted; the slots that those runs had are free."""
    free(tx, rows)
    return {held_key(row) for row in rows}


# --- claim ------------------------------------------------------------------------------------

ENTERED_BY: Final = "noonday.entered"
"""A setting of a transaction: whether it has the lock of the lane that it is to claim of."""
ENTERED: Final = f"current_setting('{ENTERED_BY}', true) IS NOT DISTINCT FROM 'true'"
LANE_IS_OPEN: Final = "paused_at IS NULL AND shed_at IS NULL"
"""Whether anything of a lane is to be claimed."""

# A merge of range scans, one per priority in front and one in the queue, each from its floor; a
# lower priority is a constant behind. The candidates are read without locks, then locked as they
# still stand: what another claim took meanwhile is skipped. RUNNING entries stay in the index, so
# that this update is HOT; the floors keep them out of the way. (`picked` speaks of `hold`, not of
# `claimable`: where statistics are behind, a planner that knew the claim index here would read all
# of it for each candidate. The arrays have rows fetched by their places: a join by them alone is
# planned as one with all of `runs`, as long as that has some ten thousand rows.)
# A lease begins with this statement, not with its transaction: that may have begun before the slot
# was free that the run goes by.
# With a version (`$12`) it takes nothing of a lane that has changed, has a cap, or is not open.
CLAIM: Final = f"""
WITH lane AS MATERIALIZED (
    SELECT $12::int IS NULL OR EXISTS (
        SELECT FROM lanes
        WHERE name = $1 AND version = $12 AND max_running IS NULL AND {LANE_IS_OPEN}
          AND {ENTERED}
    ) AS entered
), candidate AS MATERIALIZED (
    SELECT c.row, p.n, c.rank, p.shift + p.scale
           * extract(epoch FROM c.rank - coalesce(p.base, $10, now()))::float8 AS key
    FROM unnest($2::int[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[], $6::float8[],
                $7::float8[]) WITH ORDINALITY AS p(priority, floor, until, base, scale, shift, n)
    CROSS JOIN LATERAL (
        SELECT r.ctid AS row, r.rank FROM runs AS r
        WHERE (SELECT entered FROM lane)
          AND r.lane = $1 AND r.priority = p.priority AND r.claimable AND r.rank >= p.floor
          AND r.rank < p.until AND r.state = 'READY'
        ORDER BY r.rank LIMIT $11
    ) AS c
    ORDER BY key LIMIT $11
), picked AS MATERIALIZED (
    SELECT r.ctid AS row FROM candidate AS c JOIN runs AS r ON r.ctid = c.row
    WHERE r.ctid = ANY (ARRAY(SELECT row FROM candidate)) AND r.state = 'READY' AND r.hold IS NULL
    ORDER BY c.key LIMIT $8
    FOR UPDATE OF r SKIP LOCKED
), claimed AS (
    UPDATE runs AS r
    SET state = 'RUNNING', worker_id = $9, leased_at = coalesce($10, statement_timestamp()),
        locked_until = coalesce($10, statement_timestamp()) + j.lease_sec * interval '1 second',
        lease_version = r.lease_version + 1, attempt = r.attempt + 1
    FROM picked AS p, jobs AS j
    WHERE r.ctid = ANY (ARRAY(SELECT row FROM picked)) AND r.ctid = p.row AND j.id = r.job_id
    RETURNING r.job_id, r.occurrence_at, r.kind, r.tenant_id, r.attempt, r.lease_version,
              r.failures, r.interruptions, r.due_at, r.payload_version,
              j.payload_version AS current_payload, j.lease_sec, j.spec, j.secret_headers,
              j.payload, j.payload_ref, j.content_type, j.traceparent
)
SELECT n.*, c.*, v.payload AS old_payload, v.payload_ref AS old_payload_ref,
       v.content_type AS old_content_type
FROM (
    SELECT coalesce($10, now()) AS clock, (SELECT entered FROM lane) AS entered,
           coalesce($10, statement_timestamp()) AS leased_at,
           array_agg((n, count, lowest, left_over, first, last)) AS seen
    FROM (
        SELECT c.n, count(*)::int, min(c.rank) AS lowest,
               min(c.rank) FILTER (WHERE p.row IS NULL) AS left_over,
               min(c.rank) FILTER (WHERE p.row IS NOT NULL) AS first,
               max(c.rank) FILTER (WHERE p.row IS NOT NULL) AS last
        FROM candidate AS c LEFT JOIN picked AS p ON p.row = c.row GROUP BY c.n
    ) AS each
) AS n
FULL JOIN claimed AS c ON false
LEFT JOIN LATERAL (
    SELECT * FROM payload_versions AS v
    WHERE c.payload_version <> c.current_payload
      AND v.job_id = c.job_id AND v.version = c.payload_version LIMIT 1
) AS v ON true
"""


class Taken(NamedTuple):
    """The ranks that a claim took of a priority and band: the lowest and the highest."""

    first: datetime
    last: datetime


class Claimed(NamedTuple):
    """What a claim took."""

    rows: list[Row]
    clock: datetime
    """The transaction's time."""
    leased_at: datetime
    """When their leases began."""
    taken: dict[Band, Taken]
    lowest: dict[Band, datetime]
    """The lowest rank that was READY, by priority and band, whether or not it was taken."""
    left: dict[Band, datetime]
    """The lowest rank that was READY and was not taken, of those that it looked at."""
    saw_all: bool
    """Whether it saw every READY run from its floors on; there may be more of them if not."""
    drained: bool
    """Whether every READY run is taken now. A claim that came away with little because others
    were taking the same runs does not know that."""

    @property
    def highest(self) -> datetime | None:
        """The highest rank that it took."""
        return max((each.last for each in self.taken.values()), default=None)


async def claim(tx: Tx, lane: str, ranges: Sequence[Range], limit: int, worker_id: UUID) -> Claimed:
    """Take up to ``limit`` READY runs of a lane under a lease, with all that is needed to run them.

    ``ranges`` says where to look, and how what is found there compares. The lane was entered.
    """
    return cast(Claimed, await claim_known(tx, lane, None, ranges, limit, worker_id))


async def claim_known(
    tx: Tx,
    lane: str,
    version: int | None,
    ranges: Sequence[Range],
    limit: int,
    worker_id: UUID,
) -> Claimed | None:
    """The same without entering a lane of which this version is known, in a transaction that was
    opened to; None when it has another version by now, has a cap, or is not open."""
    looked_at = limit * 2 + 16  # others take at the same time
    rows = await tx.rows(
        CLAIM, lane, *columns(ranges, 6), limit, worker_id, tx.now, looked_at, version
    )
    told = next(row for row in rows if row["leased_at"] is not None)
    if not told["entered"]:
        return None
    rows = [row for row in rows if row is not told]
    bands = [Band(each.priority, is_queued(each.floor)) for each in ranges]
    taken, lowest, left, candidates = {}, {}, {}, 0
    for n, count, low, left_over, first, last in told["seen"] or ():
        band = bands[n - 1]
        candidates += count
        lowest[band] = low
        if left_over is not None:
            left[band] = left_over
        if first is not None:
            taken[band] = Taken(first, last)
    saw_all = candidates < looked_at
    drained = saw_all and len(rows) == candidates
    return Claimed(rows, told["clock"], told["leased_at"], taken, lowest, left, saw_all, drained)


_LOWEST: Final = """
SELECT n.clock, f.*
FROM (SELECT coalesce($5, now()) AS clock) AS n
LEFT JOIN (
    SELECT p.lane, p.priority, p.floor, c.rank
    FROM unnest($1::text[], $2::int[], $3::timestamptz[], $4::timestamptz[])
         AS p(lane, priority, floor, until)
    CROSS JOIN LATERAL (
        SELECT r.rank FROM runs AS r
        WHERE r.lane = p.lane AND r.priority = p.priority AND r.claimable AND r.rank >= p.floor
          AND r.rank < p.until{0}
        ORDER BY r.rank LIMIT 1
    ) AS c
) AS f ON true
"""
Lowest: TypeAlias = tuple[datetime, dict[str, dict[Band, datetime]]]
"""The transaction's time, and for each lane and band in which there is anything its lowest rank."""

LOOK: Final = _LOWEST.format(" AND r.state = 'READY'")


async def look(tx: Tx, spans: Mapping[str, Sequence[Span]]) -> Lowest:
    """What is READY in these spans of lanes."""
    return await _lowest(tx, LOOK, spans)


async def _lowest(tx: Tx, statement: str, spans: Mapping[str, Sequence[Span]]) -> Lowest:
    asked = [(name, *span) for name, each in spans.items() for span in each]
    rows = await tx.rows(statement, *columns(asked, 4), tx.now)
    found: dict[str, dict[Band, datetime]] = {}
    for row in rows:
        if row["rank"] is not None:
            band = Band(row["priority"], is_queued(row["floor"]))
            found.setdefault(row["lane"], {})[band] = row["rank"]
    return rows[0]["clock"], found


# --- heartbeat --------------------------------------------------------------------------------

# Each run is looked up by its key, one by one, and then written by its place: a join with the whole
# table is planned where statistics are behind, and would take seconds. Should the row move between
# look-up and write (a cancel is noted on it), nothing is written: what is missing is locked, so
# that it moves no more, and tried again.
FIND: Final = """
    FROM {input} CROSS JOIN LATERAL (
        SELECT ctid AS row, * FROM runs AS r WHERE {guard} LIMIT 1
    ) AS r"""
GUARD: Final = (
    SAME_RUN.format("r", "i") + " AND r.state = 'RUNNING' AND r.lease_version = i.lease_version"
)
STILL: Final = (
    "r.ctid = ANY (ARRAY(SELECT row FROM held)) AND r.ctid = h.row"
    " AND r.state = 'RUNNING' AND r.lease_version = h.lease_version"
)
KEY_INPUT: Final = f"{_KEYS}) AS i(job_id, occurrence_at, kind, lease_version)"
RETURNED: Final = "r.job_id, r.occurrence_at, r.kind, r.lease_version"

LOCK: Final = f"""
SELECT count(*) FROM {KEY_INPUT} CROSS JOIN LATERAL (
    SELECT FROM runs AS r WHERE {GUARD} FOR UPDATE
) AS locked
"""


async def lock(tx: Tx, leases: Sequence[Held]) -> int:
    """Lock what is still held, one by one in the order of keys; how many."""
    count: int = await tx.value(LOCK, *columns(sorted(leases), 4))
    return count


# Where somebody has locked the run, or its ledger row.
LOCKED: Final = f"""
SELECT {RETURNED} FROM {KEY_INPUT} CROSS JOIN LATERAL (SELECT * FROM runs AS r WHERE {GUARD}) AS r
WHERE NOT EXISTS (SELECT FROM (SELECT FROM runs AS o WHERE {SAME_RUN.format("o", "r")}
                               FOR UPDATE SKIP LOCKED) AS free)
   OR EXISTS (SELECT FROM occurrences AS o WHERE {SAME_RUN.format("o", "r")})
  AND NOT EXISTS (SELECT FROM (SELECT FROM occurrences AS o WHERE {SAME_RUN.format("o", "r")}
                               FOR UPDATE SKIP LOCKED) AS free)
"""


async def locked_elsewhere(tx: Tx, leases: Sequence[Held]) -> set[Held]:
    """Those that are held still, in rows that somebody else has locked; the others are locked by
    this transaction now."""
    return {held_key(row) for row in await tx.rows(LOCKED, *columns(leases, 4))}


HEARTBEAT: Final = f"""
WITH held AS MATERIALIZED (
    SELECT r.row, i.lease_version, i.lease_sec
    FROM {_KEYS}, $5::int[]) AS i(job_id, occurrence_at, kind, lease_version, lease_sec)
    CROSS JOIN LATERAL (
        SELECT ctid AS row FROM runs AS r WHERE {GUARD}
        LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
    ) AS r
)
UPDATE runs AS r SET locked_until = coalesce($6, now()) + h.lease_sec * interval '1 second'
FROM held AS h WHERE {STILL} AND r.locked_until > coalesce($6, now())
RETURNING {RETURNED}
"""
_UNEXPIRED: Final = f"{GUARD} AND r.locked_until > coalesce($5, clock_timestamp())"
STANDING: Final = f"SELECT {RETURNED} {FIND.format(input=KEY_INPUT, guard=_UNEXPIRED)}"


async def heartbeat(tx: Tx, leases: Sequence[tuple[Held, int]]) -> set[Held]:
    """Extend unexpired leases, each by its own seconds; which. It waits for nobody: a row that
    somebody has locked must not cost all the others their leases (:func:`standing` tells it from
    one that is lost)."""

    async def extend(wanted: Sequence[tuple[Held, int]]) -> set[Held]:
        batch = [(*held, lease_sec) for held, lease_sec in wanted]
        return {held_key(row) for row in await tx.rows(HEARTBEAT, *columns(batch, 5), tx.now)}

    extended = await extend(leases)
    missing = [lease for lease in leases if lease[0] not in extended]
    if missing and await standing(tx, [held for held, _ in missing]):
        extended |= await extend(missing)  # changed meanwhile, and ours as before
    return extended


async def standing(tx: Tx, leases: Sequence[Held]) -> set[Held]:
    """Those that are held still, and have not run out, as far as is committed."""
    return {held_key(row) for row in await tx.rows(STANDING, *columns(leases, 4), tx.now)}


# --- settle -----------------------------------------------------------------------------------

_EXECUTION: Final = """
    INSERT INTO executions (job_id, occurrence_at, kind, tenant_id, attempt, lease_version,
                            worker_id, status, leased_at, locked_until, finished_at, retry_at,
                            http_status, error, unknown, response, duplicate_cause)
    SELECT job_id, occurrence_at, kind, tenant_id, attempt, lease_version, worker_id, status,
           leased_at, locked_until, clock, {retry_at}, http_status, error, unknown, response,
           duplicate_cause
    FROM {source}
"""
_ENDED: Final = """unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::int[], $5::text[],
                 $6::int[], $7::text[], $8::bool[], $9::json[], $10::text[]"""
_ENDED_COLUMNS: Final = (
    "job_id, occurrence_at, kind, lease_version, status, http_status, error, unknown, response, "
    "duplicate_cause"
)
_LEASE: Final = """r.job_id, r.occurrence_at, r.kind, r.tenant_id, r.attempt, r.lease_version,
              r.worker_id, r.leased_at, r.locked_until, r.awaited, i.status, i.http_status,
              i.error, i.unknown, i.response, i.duplicate_cause, r.key_cap, r.host_cap,
              r.tenant_cap, r.overlap_key"""

_ENDED_INPUT: Final = f"{_ENDED}) AS i({_ENDED_COLUMNS})"

# The bounds of occurrence_at are values, so that only their partitions are planned and locked.
COMPLETE: Final = f"""
WITH held AS MATERIALIZED (
    SELECT r.row, {_LEASE}, i.n, coalesce($11, now()) AS clock
{FIND.format(input=f"{_ENDED}) WITH ORDINALITY AS i({_ENDED_COLUMNS}, n)", guard=GUARD)}
), ended AS (
    DELETE FROM runs AS r USING held AS h WHERE {STILL} RETURNING h.*
), ledger AS (
    UPDATE occurrences AS o SET outcome = 'COMPLETE', ended_at = e.clock, attempts = e.attempt
    FROM ended AS e
    WHERE {SAME_RUN.format("o", "e")} AND o.outcome IS NULL
      AND o.occurrence_at >= $12 AND o.occurrence_at <= $13
), execution AS ({_EXECUTION.format(source="ended", retry_at="NULL::timestamptz")})
SELECT n, awaited, {CAPS} FROM ended
"""


async def complete(tx: Tx, ended: Sequence[Ended]) -> list[int]:
    """RUNNING → COMPLETE: the run goes, the ledger and the history get their last word. Which of
    them were written, by their places."""
    rows = await tx.rows(COMPLETE, *columns(ended, 10), tx.now, *bounds(ended))
    free(tx, rows)
    written = [row["n"] - 1 for row in rows]
    awaited = [ended[row["n"] - 1] for row in rows if row["awaited"]]
    await dependencies.note(tx, [(one.job_id, one.occurrence_at, "COMPLETE") for one in awaited])
    return written


RETRY: Final = f"""
WITH held AS MATERIALIZED (
    SELECT r.row, {_LEASE}, coalesce($12, now()) AS clock,
           coalesce($12, now()) + i.delay AS retry_at
{FIND.format(input=f"{_ENDED}, $11::interval[]) AS i({_ENDED_COLUMNS}, delay)", guard=GUARD)}
), waiting AS (
    UPDATE runs AS r
    SET state = 'RETRYING', claimable = false, failures = r.failures + 1, retry_at = h.retry_at,
        worker_id = NULL, leased_at = NULL, locked_until = NULL
    FROM held AS h WHERE {STILL} RETURNING h.*
), execution AS ({_EXECUTION.format(source="waiting", retry_at="retry_at")})
SELECT job_id, occurrence_at, kind, lease_version, {CAPS} FROM waiting
"""


async def retry(tx: Tx, ended: Sequence[tuple[Ended, timedelta]]) -> set[Held]:
    """RUNNING → RETRYING for the given delay; one failure of the budget is used."""
    batch = [(*attempt, delay) for attempt, delay in ended]
    return freed(tx, await tx.rows(RETRY, *columns(batch, 11), tx.now))


def insert_letter(source: str, *, reason: str, fingerprint: str, error: str, **found: str) -> str:
    """The part of a statement that writes dead letters for what has ended, as ``source`` has it.

    The rest are SQL expressions over it, by the name ``e``. A letter is kept when its run is
    reopened; should that die again, it tells of the last time.
    """
    return f"""
    INSERT INTO dead_letters AS d (job_id, occurrence_at, kind, tenant_id, reason, fingerprint,
                                   http_status, error, request, response, attempts, lease_version,
                                   payload_version, target_host, dead_at, first_dead_at)
    SELECT e.job_id, e.occurrence_at, e.kind, e.tenant_id, {reason}, {fingerprint},
           {found.get("http_status", "NULL")}, {error}, json_build_object(
               'method', j.spec #>> '{{target,method}}',
               'url', split_part(j.spec #>> '{{target,url}}', '?', 1),
               'content_type', j.content_type, 'payload_bytes', j.payload_bytes),
           {found.get("response", "NULL")}, e.attempt, e.lease_version, e.payload_version,
           j.target_host, e.clock, e.clock
    FROM {source} AS e JOIN jobs AS j ON j.id = e.job_id
    ON CONFLICT (job_id, occurrence_at, kind) DO UPDATE
    SET state = 'DEAD', reason = excluded.reason, fingerprint = excluded.fingerprint,
        http_status = excluded.http_status, error = excluded.error, request = excluded.request,
        response = excluded.response, attempts = excluded.attempts,
        lease_version = excluded.lease_version, dead_at = excluded.dead_at,
        first_dead_at = coalesce(d.first_dead_at, d.dead_at), deaths = d.deaths + 1"""


DEAD_LETTER: Final = f"""
WITH held AS MATERIALIZED (
    SELECT r.row, {_LEASE}, r.payload_version, i.reason, i.fingerprint,
           coalesce($13, now()) AS clock
{
    FIND.format(
        input=f"{_ENDED}, $11::text[], $12::text[]) AS i({_ENDED_COLUMNS}, reason, fingerprint)",
        guard=GUARD,
    )
}
), ended AS (
    DELETE FROM runs AS r USING held AS h WHERE {STILL} RETURNING h.*
), ledger AS (
    UPDATE occurrences AS o
    SET outcome = 'FAILED', reason = e.reason, ended_at = e.clock, attempts = e.attempt
    FROM ended AS e
    WHERE {SAME_RUN.format("o", "e")} AND o.outcome IS NULL
      AND o.occurrence_at >= $14 AND o.occurrence_at <= $15
), execution AS ({_EXECUTION.format(source="ended", retry_at="NULL::timestamptz")}
), letter AS ({
    insert_letter(
        "ended",
        reason="e.reason",
        fingerprint="e.fingerprint",
        error="e.error",
        http_status="e.http_status",
        response="e.response",
    )
})
SELECT job_id, occurrence_at, kind, lease_version, awaited, {CAPS} FROM ended
"""


async def dead_letter(tx: Tx, ended: Sequence[tuple[Ended, str, str]]) -> set[Held]:
    """RUNNING → FAILED, with a dead letter that says why: a reason code and a fingerprint."""
    batch = [(*attempt, reason, fingerprint) for attempt, reason, fingerprint in ended]
    attempts = [attempt for attempt, *_ in ended]
    rows = await tx.rows(DEAD_LETTER, *columns(batch, 12), tx.now, *bounds(attempts))
    await dependencies.note_runs(tx, rows, "FAILED")
    return freed(tx, rows)


# Back to READY, with a rank not below the lane's clock: an interruption by us, or a lease that
# ran out (a failure of the budget).
RELEASE: Final = f"""
WITH held AS MATERIALIZED (
    SELECT r.row, {_LEASE}, coalesce($11, now()) AS clock
{FIND.format(input=_ENDED_INPUT, guard=GUARD)}
), ready AS (
    UPDATE runs AS r
    SET state = 'READY', rank = h.clock, ready_at = h.clock,
        failures = r.failures + (h.status = 'LEASE_EXPIRED')::int,
        interruptions = r.interruptions + (h.status = 'INTERRUPTED')::int,
        worker_id = NULL, leased_at = NULL, locked_until = NULL
    FROM held AS h
    WHERE {STILL} AND (h.status <> 'LEASE_EXPIRED' OR r.locked_until < h.clock)
    RETURNING h.*
), execution AS ({_EXECUTION.format(source="ready", retry_at="NULL::timestamptz")})
SELECT job_id, occurrence_at, kind, lease_version FROM ready
"""


async def release(tx: Tx, ended: Sequence[Ended]) -> set[Held]:
    """RUNNING → READY: INTERRUPTED (not counted) or LEASE_EXPIRED (counted, and only if it has)."""
    return {held_key(row) for row in await tx.rows(RELEASE, *columns(ended, 10), tx.now)}


HAND_BACK: Final = f"""
WITH held AS MATERIALIZED (
    SELECT r.row, i.lease_version
{FIND.format(input=KEY_INPUT, guard=GUARD)}
)
UPDATE runs AS r
SET state = 'READY', rank = coalesce($5, now()), attempt = r.attempt - 1,
    worker_id = NULL, leased_at = NULL, locked_until = NULL
FROM held AS h WHERE {STILL}
RETURNING {RETURNED}
"""


async def hand_back(tx: Tx, leases: Sequence[Held]) -> set[Held]:
    """RUNNING → READY before anything was sent: no execution, no number, but a risen version."""
    return {held_key(row) for row in await tx.rows(HAND_BACK, *columns(leases, 4), tx.now)}


STOP: Final = f"""
WITH held AS MATERIALIZED (
    SELECT r.row, {_LEASE}, r.cancel_reason, coalesce($11, now()) AS clock
{FIND.format(input=_ENDED_INPUT, guard=GUARD)}
), ended AS (
    DELETE FROM runs AS r USING held AS h WHERE {STILL} RETURNING h.*
), ledger AS (
    UPDATE occurrences AS o
    SET outcome = 'CANCELLED', reason = coalesce(e.cancel_reason, 'cancelled'),
        ended_at = e.clock, attempts = e.attempt
    FROM ended AS e
    WHERE {SAME_RUN.format("o", "e")} AND o.outcome IS NULL
      AND o.occurrence_at >= $12 AND o.occurrence_at <= $13
), execution AS ({_EXECUTION.format(source="ended", retry_at="NULL::timestamptz")})
SELECT job_id, occurrence_at, kind, lease_version, awaited, {CAPS} FROM ended
"""


async def stop(tx: Tx, ended: Sequence[Ended]) -> set[Held]:
    """RUNNING → CANCELLED: its worker has cut the attempt off, as it was asked to."""
    rows = await tx.rows(STOP, *columns(ended, 10), tx.now, *bounds(ended))
    await dependencies.note_runs(tx, rows, "CANCELLED")
    return freed(tx, rows)


# --- what waits for a time --------------------------------------------------------------------

WORK: Final = """r.place, r.tenant_id, r.lane, r.priority,
       coalesce((SELECT j.target_host FROM jobs AS j WHERE j.id = r.job_id), '') AS target_host,
       coalesce(r.key_cap, r.host_cap, r.tenant_cap) AS waits_for"""
"""What a locked run ``r`` is ranked by, and its place, where it stays while it is locked."""


def work_of(row: Row) -> Work:
    """What a run is ranked by. The row of one that has its slots may lack its concurrency key."""
    return Work(
        row["tenant_id"], row["lane"], row["priority"], row["target_host"],
        row.get("concurrency_key"),
    )  # fmt: skip


def ranked(rows: Sequence[Row], ranks: Ranks, now: datetime) -> list[list[Any]]:
    """The columns of place and rank for locked runs that become claimable at ``now``. Those that
    wait for a cap first queue later."""
    free = [work_of(row) for row in rows if row["waits_for"] is None]
    given = iter(ranks(free, now))
    places = [row["place"] for row in rows]
    return [places, [now if row["waits_for"] is not None else next(given) for row in rows]]


def waited_for(rows: Sequence[Row]) -> set[str]:
    """The caps that some of the rows wait for."""
    return {row["waits_for"] for row in rows if row["waits_for"] is not None}


RANKED: Final = """FROM unnest($1::tid[], $2::timestamptz[]) AS i(place, rank)
WHERE r.ctid = ANY ($1::tid[]) AND r.ctid = i.place"""

# A run that is held by nothing else any more: claimable, or, with a cap, in the line for a slot.
_FIRST_CAP: Final = "coalesce(r.key_cap, r.host_cap, r.tenant_cap)"
AGAIN: Final = f"""hold = CASE WHEN {_FIRST_CAP} IS NOT NULL THEN 'cap' END,
    hold_key = {_FIRST_CAP}, claimable = {_FIRST_CAP} IS NULL"""

RETRIES_DUE: Final = f"""
SELECT {WORK} FROM (
    SELECT *, ctid AS place FROM runs
    WHERE retry_at >= $3 AND retry_at <= coalesce($2, now()) AND state = 'RETRYING'
    ORDER BY retry_at LIMIT $1 FOR UPDATE SKIP LOCKED
) AS r ORDER BY r.retry_at
"""
RETRY_DUE: Final = f"""
UPDATE runs AS r
SET state = 'READY', {AGAIN}, retry_at = NULL, rank = i.rank, ready_at = $3
{RANKED} AND r.state = 'RETRYING'
"""


async def retry_due(tx: Tx, limit: int, floor: datetime = EPOCH, *, ranks: Ranks = by_time) -> int:
    """RETRYING → READY for those whose time, from ``floor`` on, has come; how many. Those with a
    cap are held until they have a slot."""
    rows = await tx.rows(RETRIES_DUE, limit, tx.now, floor)
    if not rows:
        return 0
    tx.caps.update(waited_for(rows))
    now = await tx.clock()
    return await tx.execute(RETRY_DUE, *ranked(rows, ranks, now), now)


NEXT_RETRY: Final = """
SELECT coalesce($2, now()) AS now, min(retry_at) AS retry_at FROM runs WHERE retry_at >= $1
"""


async def next_retry(tx: Tx, floor: datetime = EPOCH) -> tuple[datetime, datetime | None]:
    """What time it is, and when the next waiting run is due, from ``floor`` on."""
    row = await tx.one(NEXT_RETRY, floor, tx.now)
    return row["now"], row["retry_at"]


# --- the reaper -------------------------------------------------------------------------------

EXPIRED: Final = """
SELECT r.job_id, r.occurrence_at, r.kind, r.tenant_id, r.attempt, r.lease_version, r.failures,
       r.interruptions, r.due_at, r.leased_at, j.spec
FROM (
    SELECT * FROM runs
    WHERE lane = $1 AND priority = $2 AND claimable AND rank >= $6 AND rank <= $3 AND rank < $7
      AND state = 'RUNNING' AND locked_until < coalesce($5, now())
    ORDER BY rank LIMIT $4 FOR UPDATE SKIP LOCKED
) AS r JOIN jobs AS j ON j.id = r.job_id
"""


async def expired(tx: Tx, lane: str, span: Span, ceiling: datetime, limit: int) -> list[Row]:
    """Runs whose lease has run out, locked; of ranks up to the highest that was granted."""
    return await tx.rows(
        EXPIRED, lane, span.priority, ceiling, limit, tx.now, span.floor, span.until
    )


LOWEST_CLAIMABLE: Final = _LOWEST.format("")


async def lowest_claimable(tx: Tx, spans: Mapping[str, Sequence[Span]]) -> Lowest:
    """What is READY or RUNNING in these spans of lanes: below it there is nothing to reap."""
    return await _lowest(tx, LOWEST_CLAIMABLE, spans)


# --- reads ------------------------------------------------------------------------------------

OF_JOB: Final = "SELECT * FROM runs WHERE job_id = $1 ORDER BY occurrence_at DESC LIMIT $2"


async def of_job(tx: Tx, job_id: UUID, limit: int = 10) -> list[Row]:
    """A job's unfinished runs, newest first."""
    return await tx.rows(OF_JOB, job_id, limit)


ONE: Final = "SELECT * FROM runs WHERE job_id = $1 AND occurrence_at = $2 AND kind = $3"


async def one(tx: Tx, run: RunKey) -> Row | None:
    """An unfinished run."""
    return await tx.row(ONE, run.job_id, run.occurrence_at, run.kind)


HELD_SINCE: Final = """
SELECT r.job_id, r.occurrence_at, r.kind, r.lease_version
FROM unnest($2::int[], $3::timestamptz[], $4::timestamptz[]) AS p(priority, floor, until)
CROSS JOIN LATERAL (
    SELECT * FROM runs AS r
    WHERE r.lane = $1 AND r.priority = p.priority AND r.claimable AND r.rank >= p.floor
      AND r.rank < p.until AND r.state = 'RUNNING' AND r.worker_id = $5 AND r.leased_at > $6
    ORDER BY r.rank
) AS r
"""


async def held_since(
    tx: Tx, lane: str, spans: Sequence[Span], worker_id: UUID, since: datetime
) -> set[Held]:
    """Leases that a worker took after ``since`` within ``spans``: what it looks for when the
    answer to a claim was lost."""
    rows = await tx.rows(HELD_SINCE, lane, *columns(spans, 3), worker_id, since)
    return {held_key(row) for row in rows}
