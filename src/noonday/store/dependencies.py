"""Jobs that wait for others: who waits for whom, and which ends are still to be told.

A parent knows by a flag on its row (in ``dependents``, then ``timers``, then ``runs``) that
children wait for it. Whatever ends it notes an ending in the same transaction, whose children are
told by the loop ``dependents`` later, some at a time. What adds children shares the lock of the
parent's family with its like; what tells them has it alone. So a child is there when the end of its
parent is told, or it has found that end in the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from noonday.store import Row, Tx, columns

FAMILIES: Final = 64
"""Locks for all parents together: one per parent would fill the table of locks."""
FAMILY: Final = 2
WAKE: Final = "endings"
"""The kind of wake-up for whoever tells children of ends."""

# --- parents ----------------------------------------------------------------------------------

# A parent goes from waiting to armed, to its run, to its end, and never back (but by a replay; and
# between armed and paused).
# What is none of the others is looked for among the timers; where it is not there, it has moved.
STANDING: Final = """
SELECT w.id, w.tenant_id, j.schedule_type, j.state, j.first_at, j.created_at, o.outcome,
       coalesce(r.awaited, d.awaited, p.awaited) AS awaited,
       CASE WHEN r.awaited IS NOT NULL THEN 'runs'
            WHEN d.awaited IS NOT NULL THEN 'dependents'
            WHEN p.awaited IS NOT NULL THEN 'pauses' END AS place,
       j.first_at < l.starts_at AS forgotten,
       (SELECT true FROM dead_letters AS x WHERE x.job_id = j.id LIMIT 1) IS NOT NULL AS dead,
       (SELECT true FROM endings AS e WHERE e.parent_id = j.id LIMIT 1) IS NOT NULL AS telling
FROM unnest($1::uuid[], $2::int[]) AS w(id, tenant_id)
CROSS JOIN ledger_start AS l
CROSS JOIN LATERAL (
    SELECT * FROM jobs AS j WHERE j.id = w.id AND j.tenant_id = w.tenant_id LIMIT 1
) AS j
LEFT JOIN LATERAL (
    SELECT o.outcome FROM occurrences AS o
    WHERE o.job_id = j.id AND o.occurrence_at = j.first_at AND o.kind = 0 LIMIT 1
) AS o ON true
LEFT JOIN LATERAL (
    SELECT r.awaited FROM runs AS r
    WHERE r.job_id = j.id AND r.occurrence_at = j.first_at AND r.kind = 0 LIMIT 1
) AS r ON true
LEFT JOIN LATERAL (
    SELECT d.awaited FROM dependents AS d WHERE d.job_id = j.id LIMIT 1
) AS d ON true
LEFT JOIN LATERAL (
    SELECT p.awaited FROM pauses AS p WHERE p.job_id = j.id AND j.state = 'PAUSED' LIMIT 1
) AS p ON true
"""
ARMED: Final = """
SELECT t.job_id, t.due_at, t.awaited FROM unnest($1::uuid[]) AS p(id)
CROSS JOIN LATERAL (
    SELECT t.job_id, t.due_at, t.awaited FROM timers AS t
    WHERE t.job_id = p.id AND t.due_at >= $2 AND t.due_at <= $3 LIMIT 1
) AS t
"""
JITTER: Final = timedelta(days=1)
"""No timer stands later than so long after its nominal time, unless that had passed already."""


_Seen = dict[str | int, Any]


class Parent(NamedTuple):
    """A job to wait for, of a tenant."""

    id: UUID
    tenant_id: int


class Standing(NamedTuple):
    """How a parent stands. Neither ended nor open: it was just moving, look again."""

    schedule_type: str
    first_at: datetime
    outcome: str | None
    """What it came to, if it has ended."""
    open: bool
    """It has not ended, and whatever ends it will note that."""


async def standing(tx: Tx, parents: Sequence[Parent]) -> dict[Parent, Standing]:
    """How parents stand; what is not there, or another tenant's, is left out."""
    found = await _rows(tx, parents)
    return {Parent(row["id"], row["tenant_id"]): _standing(row) for row in found}


async def _rows(tx: Tx, parents: Sequence[Parent]) -> list[_Seen]:
    rows = [dict(row) for row in await tx.rows(STANDING, *columns(parents, 2))]
    rest = {
        row["id"]: row
        for row in rows
        if row["outcome"] is None and row["place"] is None and row["state"] == "ACTIVE"
    }
    if rest:
        now = await tx.moment()
        since = min(max(row["first_at"], row["created_at"]) for row in rest.values())
        until = max(max(row["first_at"] + JITTER, now) for row in rest.values())
        for timer in await tx.rows(ARMED, list(rest), since, until):
            rest[timer["job_id"]].update(
                place="timers", due_at=timer["due_at"], awaited=timer["awaited"]
            )
    return rows


def _standing(row: _Seen) -> Standing:
    outcome = row["outcome"]
    if outcome is None and row["place"] is None:
        if row["state"] == "CANCELLED":
            outcome = "CANCELLED"
        elif row["state"] == "SUSPENDED":
            outcome = "FAILED"  # it cannot be computed, and so will not run
        elif row["forgotten"]:
            outcome = "FAILED" if row["dead"] else "COMPLETE"
    # One that was reopened has to wait until all are told of its former end.
    is_open = outcome is None and bool(row["awaited"]) and not row["telling"]
    return Standing(row["schedule_type"], row["first_at"], outcome, is_open)


FLAG_RUNS: Final = """
UPDATE runs SET awaited = true WHERE ctid = ANY (ARRAY(
    SELECT r.row FROM unnest($1::uuid[], $2::timestamptz[]) AS p(id, first_at)
    CROSS JOIN LATERAL (
        SELECT r.ctid AS row FROM runs AS r
        WHERE r.job_id = p.id AND r.occurrence_at = p.first_at AND r.kind = 0 AND NOT r.awaited
        FOR UPDATE SKIP LOCKED
    ) AS r))
"""
FLAG_DEPENDENTS: Final = """
UPDATE dependents SET awaited = true WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM dependents WHERE job_id = ANY($1::uuid[]) AND NOT awaited
    FOR UPDATE SKIP LOCKED))
"""
FLAG_PAUSES: Final = """
UPDATE pauses SET awaited = true WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM pauses WHERE job_id = ANY($1::uuid[]) AND NOT awaited
    FOR UPDATE SKIP LOCKED))
"""
FLAG_TIMERS: Final = """
WITH armed AS MATERIALIZED (
    SELECT t.job_id, t.due_at FROM unnest($1::uuid[], $2::timestamptz[]) AS p(id, due_at)
    CROSS JOIN LATERAL (
        SELECT t.job_id, t.due_at FROM timers AS t
        WHERE t.job_id = p.id AND t.due_at = p.due_at AND t.due_at >= $3 AND t.due_at <= $4
          AND NOT t.awaited
        FOR UPDATE SKIP LOCKED
    ) AS t
)
UPDATE timers AS t SET awaited = true FROM armed AS a
WHERE t.job_id = a.job_id AND t.due_at = a.due_at AND t.due_at >= $3 AND t.due_at <= $4
"""


async def announce(tx: Tx, parents: Sequence[Parent]) -> None:
    """Flag what children are about to wait for, in a transaction of its own, without waiting for
    anybody: a parent that is being written to just now is left as it is."""
    rows = [
        row
        for row in await _rows(tx, parents)
        if row["awaited"] is False and row["schedule_type"] == "once"
    ]
    by_place: dict[str, list[_Seen]] = {"runs": [], "dependents": [], "pauses": [], "timers": []}
    for row in rows:
        by_place[row["place"]].append(row)
    if runs := by_place["runs"]:
        await tx.execute(FLAG_RUNS, *columns([(row["id"], row["first_at"]) for row in runs], 2))
    if waiting := by_place["dependents"]:
        await tx.execute(FLAG_DEPENDENTS, [row["id"] for row in waiting])
    if paused := by_place["pauses"]:
        await tx.execute(FLAG_PAUSES, [row["id"] for row in paused])
    if armed := by_place["timers"]:
        dues = [row["due_at"] for row in armed]
        await tx.execute(FLAG_TIMERS, [row["id"] for row in armed], dues, min(dues), max(dues))


SHARE_FAMILIES: Final = (
    "SELECT pg_advisory_xact_lock_shared($1::int, family) FROM unnest($2::int[]) AS family"
)
OWN_FAMILIES: Final = (
    "SELECT pg_advisory_xact_lock($1::int, family) FROM unnest($2::int[]) AS family"
)


def _families(parents: Sequence[UUID]) -> list[int]:
    return sorted({parent.int % FAMILIES for parent in parents})


async def share_families(tx: Tx, parents: Sequence[UUID]) -> None:
    """Before children are added: nobody is told of the end of these until that is committed."""
    await tx.rows(SHARE_FAMILIES, FAMILY, _families(parents))


# --- children ---------------------------------------------------------------------------------


class Dependent(NamedTuple):
    """A child that waits: what is armed for it in the end."""

    job_id: UUID
    tenant_id: int
    occurrence_at: datetime
    due_at: datetime
    shard: int
    runs_on: str
    cascade_cancel: bool
    open: int


INSERT: Final = """
INSERT INTO dependents (job_id, tenant_id, occurrence_at, due_at, shard, runs_on, cascade_cancel,
                        open)
SELECT * FROM unnest($1::uuid[], $2::int[], $3::timestamptz[], $4::timestamptz[], $5::int[],
                     $6::text[], $7::bool[], $8::int[])
"""
INSERT_EDGES: Final = """
INSERT INTO dependencies (parent_id, child_id) SELECT * FROM unnest($1::uuid[], $2::uuid[])
"""


async def insert(tx: Tx, children: Sequence[Dependent], edges: Sequence[tuple[UUID, UUID]]) -> None:
    """Children that wait, and the edges to them, each from a parent to a child."""
    if children:
        await tx.execute(INSERT, *columns(children, 8))
        await tx.execute(INSERT_EDGES, *columns(sorted(edges), 2))


OPEN_PARENTS: Final = """
SELECT c.id AS child_id, e.parent_id FROM unnest($1::uuid[]) AS c(id)
CROSS JOIN LATERAL (
    SELECT e.parent_id FROM dependencies AS e WHERE e.child_id = c.id
    ORDER BY e.parent_id LIMIT $2
) AS e
"""


async def open_parents(tx: Tx, children: Sequence[UUID], limit: int) -> dict[UUID, list[UUID]]:
    """What jobs wait for, up to ``limit`` of it each, in order; nothing of those that do not."""
    found: dict[UUID, list[UUID]] = {}
    if children:
        for row in await tx.rows(OPEN_PARENTS, children, limit):
            found.setdefault(row["child_id"], []).append(row["parent_id"])
    return found


# --- ends -------------------------------------------------------------------------------------

NOTE: Final = """
INSERT INTO endings (parent_id, occurrence_at, outcome)
SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::text[])
"""


async def note(tx: Tx, ended: Sequence[tuple[UUID, datetime, str]]) -> None:
    """Note that parents have ended: job, nominal time, outcome. In the transaction that ends them;
    whoever tells their children is woken once that is committed."""
    if ended:
        await tx.execute(NOTE, *columns(ended, 3))
        tx.wakes.add(WAKE)


async def note_runs(tx: Tx, ended: Sequence[Row], outcome: str) -> None:
    """The same for the rows of ended runs, of which only those with ``awaited`` count."""
    awaited = [(row["job_id"], row["occurrence_at"], outcome) for row in ended if row["awaited"]]
    await note(tx, awaited)


STOP_WAITING: Final = """
WITH gone AS (DELETE FROM dependents WHERE job_id = $1 RETURNING job_id, occurrence_at, awaited),
edge AS (DELETE FROM dependencies AS e USING gone AS g WHERE e.child_id = g.job_id)
SELECT occurrence_at, 1 AS seq, NULL::timestamptz AS catch_up_to, awaited FROM gone
"""


async def stop_waiting(tx: Tx, job_id: UUID) -> Row | None:
    """A job does not wait any more, since it is cancelled: when it would have run, and whether it
    is ``awaited`` itself; None if it did not wait."""
    return await tx.row(STOP_WAITING, job_id)


# --- telling ----------------------------------------------------------------------------------

TAKE: Final = """
SELECT id, parent_id, occurrence_at, outcome FROM endings
ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
"""


async def take(tx: Tx, limit: int) -> list[Row]:
    """The oldest ends that nobody else tells; and nobody adds children to those parents now."""
    rows = await tx.rows(TAKE, limit)
    if rows:
        await tx.rows(OWN_FAMILIES, FAMILY, _families([row["parent_id"] for row in rows]))
    return rows


EDGES: Final = """
SELECT e.parent_id, e.child_id FROM unnest($1::uuid[]) AS p(id)
CROSS JOIN LATERAL (
    SELECT e.parent_id, e.child_id FROM dependencies AS e WHERE e.parent_id = p.id
    ORDER BY e.child_id LIMIT $2
) AS e
"""


async def edges(tx: Tx, parents: Sequence[UUID], limit: int) -> list[tuple[UUID, UUID]]:
    """Up to ``limit`` edges from each parent: parent and child."""
    rows = await tx.rows(EDGES, parents, limit)
    return [(row["parent_id"], row["child_id"]) for row in rows]


LOCK: Final = """
SELECT job_id, runs_on, cascade_cancel FROM dependents WHERE job_id = ANY($1::uuid[])
ORDER BY job_id FOR UPDATE
"""


async def lock(tx: Tx, children: Sequence[UUID]) -> dict[UUID, Row]:
    """Those that still wait, kept as they are until the transaction ends."""
    return {row["job_id"]: row for row in await tx.rows(LOCK, sorted(children))}


# One by one, since a join may be planned with the whole table. (What is counted down or ended is
# locked by then, and edges are never changed: their places are still the same.)
DROP_EDGES: Final = """
DELETE FROM dependencies WHERE ctid = ANY (ARRAY(
    SELECT e.place FROM unnest($1::uuid[], $2::uuid[]) AS g(parent_id, child_id)
    CROSS JOIN LATERAL (
        SELECT e.ctid AS place FROM dependencies AS e
        WHERE e.parent_id = g.parent_id AND e.child_id = g.child_id LIMIT 1
    ) AS e))
"""
COUNT_DOWN: Final = """
WITH told AS MATERIALIZED (
    SELECT d.place, c.ended FROM unnest($1::uuid[], $2::int[]) AS c(job_id, ended)
    CROSS JOIN LATERAL (
        SELECT d.ctid AS place FROM dependents AS d WHERE d.job_id = c.job_id LIMIT 1
    ) AS d
)
UPDATE dependents AS d SET open = d.open - t.ended
FROM told AS t WHERE d.ctid = ANY (ARRAY(SELECT place FROM told)) AND d.ctid = t.place
RETURNING d.job_id, d.open
"""


async def count_down(tx: Tx, ended: dict[UUID, int]) -> list[UUID]:
    """So many parents of each have ended; those that wait for no other."""
    rows = await tx.rows(COUNT_DOWN, *columns(list(ended.items()), 2)) if ended else []
    return [row["job_id"] for row in rows if row["open"] == 0]


async def drop_edges(tx: Tx, gone: Sequence[tuple[UUID, UUID]]) -> None:
    """Edges whose child has been told."""
    await tx.execute(DROP_EDGES, *columns(gone, 2))


# What has become of time below the start of the ledger is not carried out; see `end`.
RELEASE: Final = """
WITH free AS (
    DELETE FROM dependents AS d USING jobs AS j
    WHERE d.job_id = ANY($1::uuid[]) AND j.id = d.job_id
      AND d.occurrence_at >= (SELECT starts_at FROM ledger_start)
    RETURNING d.job_id, d.occurrence_at, d.due_at, j.schedule_version, d.shard, d.awaited
)
INSERT INTO timers (job_id, occurrence_at, due_at, schedule_version, seq, shard, awaited)
SELECT job_id, occurrence_at, greatest(due_at, $2), schedule_version, 1, shard, awaited FROM free
RETURNING job_id, due_at
"""


async def release(tx: Tx, children: Sequence[UUID], now: datetime) -> dict[UUID, datetime]:
    """Arm the timers of children that wait for nothing any more; when each is due. Left out is
    what lies below the start of the ledger."""
    rows = await tx.rows(RELEASE, children, now)
    return {row["job_id"]: row["due_at"] for row in rows}


LEDGER_AHEAD: Final = timedelta(days=31)
"""There are partitions of the ledger for nominal times up to so long from now, and longer."""


class Ending(NamedTuple):
    """A child that ends without a run, because of a parent's run."""

    job_id: UUID
    outcome: str
    reason: str
    blocking_run: str | None


# Where the ledger has no place for its nominal time (it has begun later, or is not made yet), only
# the job tells of it, as when a person cancels it before its time.
END: Final = """
WITH told AS MATERIALIZED (
    SELECT d.place, i.outcome, i.reason, i.blocking_run
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[])
         AS i(job_id, outcome, reason, blocking_run)
    CROSS JOIN LATERAL (
        SELECT d.ctid AS place FROM dependents AS d WHERE d.job_id = i.job_id LIMIT 1
    ) AS d
), gone AS (
    DELETE FROM dependents AS d USING told AS t
    WHERE d.ctid = ANY (ARRAY(SELECT place FROM told)) AND d.ctid = t.place
    RETURNING d.job_id, d.tenant_id, d.occurrence_at, d.due_at, d.awaited, t.outcome, t.reason,
              t.blocking_run, d.occurrence_at <= $6
              AND d.occurrence_at >= (SELECT starts_at FROM ledger_start) AS recorded
), edge AS (
    DELETE FROM dependencies WHERE ctid = ANY (ARRAY(
        SELECT e.place FROM unnest($1::uuid[]) AS i(job_id)
        CROSS JOIN LATERAL (
            SELECT e.ctid AS place FROM dependencies AS e WHERE e.child_id = i.job_id
        ) AS e))
), ledger AS (
    INSERT INTO occurrences (job_id, occurrence_at, kind, tenant_id, due_at, materialized_at,
                             outcome, reason, blocking_run, ended_at, attempts)
    SELECT job_id, occurrence_at, 0, tenant_id, due_at, $5::timestamptz, outcome, reason,
           blocking_run, $5::timestamptz, 0
    FROM gone WHERE recorded
    ON CONFLICT DO NOTHING
), job AS (
    UPDATE jobs AS j
    SET state = 'CANCELLED', state_reason = concat_ws(': ', g.reason, g.blocking_run),
        state_changed_at = $5, version = j.version + 1, schedule_version = j.schedule_version + 1
    FROM gone AS g
    WHERE j.id = g.job_id AND j.state <> 'CANCELLED' AND (g.outcome = 'CANCELLED' OR NOT g.recorded)
)
SELECT job_id, tenant_id, occurrence_at, outcome, awaited FROM gone
"""


async def end(tx: Tx, endings: Sequence[Ending], now: datetime) -> Counter[int]:
    """Children end in the ledger without having been run, and theirs are to be told in turn; how
    many of each tenant."""
    if not endings:
        return Counter()
    rows = await tx.rows(END, *columns(endings, 4), now, now + LEDGER_AHEAD)
    awaited = [row for row in rows if row["awaited"]]
    await note(tx, [(row["job_id"], row["occurrence_at"], row["outcome"]) for row in awaited])
    return Counter(row["tenant_id"] for row in rows)


FINISH: Final = """
DELETE FROM endings AS e WHERE e.id = ANY($1::bigint[])
  AND (SELECT true FROM dependencies AS d WHERE d.parent_id = e.parent_id LIMIT 1) IS NULL
"""


async def finish(tx: Tx, ids: Sequence[int]) -> int:
    """Forget the ends of which every child has been told; how many."""
    return await tx.execute(FINISH, ids)


# --- what nobody noted ------------------------------------------------------------------------

# A skip scan: one look into the index for each parent, however many children wait for it.
PARENTS: Final = """
WITH RECURSIVE each AS (
    (SELECT parent_id FROM dependencies WHERE parent_id > $1 ORDER BY parent_id LIMIT 1)
    UNION ALL
    SELECT (SELECT d.parent_id FROM dependencies AS d WHERE d.parent_id > each.parent_id
            ORDER BY d.parent_id LIMIT 1)
    FROM each WHERE each.parent_id IS NOT NULL
)
SELECT e.parent_id AS id, j.tenant_id
FROM (SELECT parent_id FROM each WHERE parent_id IS NOT NULL LIMIT $2) AS e
JOIN jobs AS j ON j.id = e.parent_id ORDER BY 1
"""


async def parents(tx: Tx, after: UUID, limit: int) -> list[Row]:
    """Jobs that are waited for, in order, from just after one."""
    return await tx.rows(PARENTS, after, limit)


async def note_missed(tx: Tx, found: Sequence[Row]) -> int:
    """Note the ends of parents that ended without a word: by a process of an earlier release."""
    known = [Parent(row["id"], row["tenant_id"]) for row in found]
    ended = {
        row["id"]: (row["id"], row["first_at"], stand.outcome)
        for row in await _rows(tx, known)
        if (stand := _standing(row)).outcome is not None and not row["telling"]
    }
    # Looked at again: who was told meanwhile has no edge any more.
    missed = [ended[parent] for parent, _ in await edges(tx, list(ended), 1)]
    await note(tx, missed)
    return len(missed)
