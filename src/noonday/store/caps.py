"""Caps: what a run counts against, and who of those that wait gets a slot that is free.

All caps of a run belong to one tenant, so one lock for each tenant orders whatever takes slots.
What is counted is counted in a statement after the one that locks: it sees what the holder before
has given. Whatever frees a slot takes no lock: it makes a count too high at most, never too low.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from noonday.domain.caps import Candidate, Room
from noonday.domain.model import RunKey
from noonday.domain.ranking import Ranks, by_time
from noonday.store import Row, Tx, columns
from noonday.store.runs import SAME_RUN, caps_of, key_of, work_of

# --- what a run counts against ----------------------------------------------------------------

COLUMNS: Final = "hold, hold_key, claimable, tenant_cap, host_cap, key_cap"
"""Of a run that is made, or made READY again; :data:`VALUES` has theirs."""
NAMED: Final = "c.tenant_cap, c.host_cap, c.key_cap"
VALUES: Final = f"""CASE WHEN c.waits_for IS NOT NULL THEN 'cap' END, c.waits_for,
           c.waits_for IS NULL, {NAMED}"""

# Two looks by key, three with a concurrency key. (With OFFSET they are made once for each run.)
_LIMIT: Final = "SELECT {0} FROM limits AS l WHERE l.key = '{1}:' || w.tenant_id || ':' || w.{2}"


def of(run: str) -> str:
    """The part of a FROM that adds, as ``c``, what caps the run ``run`` of a job: by its columns
    ``tenant_id``, ``target_host`` and ``concurrency_key``. A key that nobody has set a limit for
    has one of 1."""
    return f"""CROSS JOIN LATERAL (
        SELECT each.*, coalesce(key_cap, host_cap, tenant_cap) AS waits_for FROM (
            SELECT (SELECT 'tenant:' || t.id FROM tenants AS t
                    WHERE t.id = w.tenant_id AND t.max_running IS NOT NULL) AS tenant_cap,
                   ({_LIMIT.format("l.key", "host", "target_host")}
                    AND l.max_running IS NOT NULL) AS host_cap,
                   CASE WHEN w.concurrency_key IS NULL THEN NULL
                        WHEN EXISTS ({_LIMIT.format("", "key", "concurrency_key")}
                                     AND l.max_running IS NULL) THEN NULL
                        ELSE 'key:' || w.tenant_id || ':' || w.concurrency_key END AS key_cap
            FROM (SELECT {run}.tenant_id, {run}.target_host, {run}.concurrency_key) AS w
            OFFSET 0
        ) AS each
    ) AS c"""


# --- who gets a slot --------------------------------------------------------------------------

USES: Final = {
    "tenant": "tenant_cap = {cap} AND claimable",
    "host": "host_cap = {cap} AND claimable",
    "key": "key_cap = {cap} AND key_slot",
}
"""By kind of cap, which runs use a slot of ``{cap}``; each is found in one index."""

BOUNDLESS: Final = 1_000_000_000
"""The room of a cap that has been lifted."""

# What uses a slot of a cap is found in one index; which one is told by the kind that its key begins
# with.
_ROOM: Final = f"""
    SELECT k.cap, (most.running - used.slots)::int AS free,
           (most.running - used.running)::int AS idle
    FROM unnest($1::text[]) AS k(cap)
    CROSS JOIN LATERAL (
        SELECT coalesce(CASE
            WHEN k.cap = 'tenant:' || $2::int
                THEN (SELECT t.max_running FROM tenants AS t WHERE t.id = $2)
            WHEN starts_with(k.cap, 'key:')
                AND NOT EXISTS (SELECT FROM limits AS l WHERE l.key = k.cap) THEN 1
            ELSE (SELECT l.max_running FROM limits AS l WHERE l.key = k.cap) END,
            {BOUNDLESS}) AS running
        OFFSET 0
    ) AS most
    CROSS JOIN LATERAL (
        SELECT count(*) AS slots, count(*) FILTER (WHERE claimable) AS running FROM (
            SELECT true AS claimable FROM runs WHERE {USES["tenant"].format(cap="k.cap")}
            UNION ALL
            SELECT true FROM runs WHERE {USES["host"].format(cap="k.cap")}
            UNION ALL
            SELECT claimable FROM runs WHERE {USES["key"].format(cap="k.cap")}
        ) AS each WHERE most.running < {BOUNDLESS}
    ) AS used"""
_RUN: Final = """r.ctid AS place, r.job_id, r.occurrence_at, r.kind, r.tenant_id, r.lane,
               r.priority, r.ready_at, r.hold_key, r.tenant_cap, r.host_cap, r.key_cap,
               r.key_slot"""
_ORDER: Final = "r.priority, r.ready_at, r.job_id, r.occurrence_at"

ROOMS: Final = f"{_ROOM.lstrip()}"

# Whoever has a slot of the very key that it waits under comes first, and needs no other. (The line
# is read without a condition, or where statistics are behind all of it would be read and sorted;
# those in it who have a slot are no more than those that are idle beside the free.)
WAITING: Final = f"""
WITH cap AS MATERIALIZED ({_ROOM}
)
SELECT waiting.*, cap.free, cap.idle, now() AS clock,
       coalesce((SELECT j.target_host FROM jobs AS j WHERE j.id = waiting.job_id), '')
           AS target_host
FROM cap CROSS JOIN LATERAL (
    (SELECT {_RUN}, r.hold FROM runs AS r
     WHERE r.key_cap = cap.cap AND r.key_slot AND r.hold_key = cap.cap AND r.hold = 'cap'
     ORDER BY {_ORDER} LIMIT least(greatest(cap.idle, 0), $3))
    UNION ALL
    (SELECT * FROM (
        SELECT {_RUN}, r.hold FROM runs AS r WHERE r.hold_key = cap.cap
        ORDER BY {_ORDER} LIMIT CASE WHEN cap.free > 0 THEN least(cap.idle, $3) ELSE 0 END
     ) AS line WHERE hold = 'cap' AND NOT (key_slot AND key_cap IS NOT DISTINCT FROM cap.cap)
     LIMIT greatest(cap.free, 0))
) AS waiting
ORDER BY priority, ready_at, job_id, occurrence_at
"""


class Waiting(NamedTuple):
    """Those who may go next, in their order, and what there is room for."""

    rows: list[Row]
    candidates: list[Candidate]
    rooms: dict[str, Room]


async def waiting(tx: Tx, tenant_id: int, caps: Sequence[str], limit: int) -> Waiting:
    """Of each of a tenant's caps up to ``limit`` of those that wait for it: no more than it has
    room for."""
    rows = await tx.rows(WAITING, caps, tenant_id, limit)
    candidates = [Candidate(*_caps_of(row)) for row in rows]
    rooms = {row["hold_key"]: Room(row["free"], row["idle"]) for row in rows}
    others = {cap for each in candidates for cap in each.caps} - rooms.keys()
    if others:
        found = await tx.rows(ROOMS, sorted(others), tenant_id)
        rooms |= {row["cap"]: Room(row["free"], row["idle"]) for row in found}
    return Waiting(rows, candidates, rooms)


def _caps_of(row: Row) -> tuple[tuple[str, ...], str | None]:
    return caps_of(row), row["key_cap"] if row["key_slot"] else None


# A held run stays in its place but for those who have the lock; one that was cancelled meanwhile
# is gone.
_PLACES: Final = f"""FROM unnest($1::tid[], $2::uuid[], $3::timestamptz[], $4::int[], $5::{{0}}[])
     AS i(place, job_id, occurrence_at, kind, {{1}})
WHERE r.ctid = ANY ($1::tid[]) AND r.ctid = i.place AND {SAME_RUN.format("r", "i")}
  AND r.hold = 'cap'"""
ADMIT: Final = f"""
UPDATE runs AS r
SET hold = NULL, hold_key = NULL, claimable = true, key_slot = r.key_cap IS NOT NULL,
    rank = i.rank, ready_at = $6
{_PLACES.format("timestamptz", "rank")}
"""


async def admit(tx: Tx, rows: Sequence[Row], ranks: Ranks = by_time) -> int:
    """READY, held → READY, with a slot of each cap; how many. Needs the tenant's lock."""
    if not rows:
        return 0
    now: datetime = tx.now or rows[0]["clock"]
    given = ranks([work_of(row) for row in rows], now)
    batch = [(*_place(row), rank) for row, rank in zip(rows, given, strict=True)]
    return await tx.execute(ADMIT, *columns(batch, 5), now)


REKEY: Final = f"""
UPDATE runs AS r
SET hold_key = i.hold_key, key_slot = r.key_slot OR coalesce(r.key_cap <> i.hold_key, false)
{_PLACES.format("text", "hold_key")} AND r.hold_key <> i.hold_key
"""


async def rekey(tx: Tx, waits: Sequence[tuple[Row, str]]) -> int:
    """READY, held: another cap is what it waits for now, and it has a slot of its key if that is
    not it; how many. Needs the tenant's lock."""
    batch = [(*_place(row), cap) for row, cap in waits]
    return await tx.execute(REKEY, *columns(batch, 5)) if batch else 0


def _place(row: Row) -> tuple[Any, ...]:
    return row["place"], row["job_id"], row["occurrence_at"], row["kind"]


# --- what a change of a cap does --------------------------------------------------------------

# Those that would have come last go back in line, in front of all that have waited all the time.
_EXCESS: Final = """
    SELECT ctid FROM runs AS r WHERE {0} AND r.claimable AND r.state = 'READY'
    ORDER BY r.priority DESC, r.ready_at DESC, r.job_id DESC
    LIMIT (SELECT greatest(-idle, 0) FROM room) FOR UPDATE SKIP LOCKED"""
_PUT_BACK: Final = f"""
WITH room AS MATERIALIZED ({_ROOM}
)
UPDATE runs AS r SET hold = 'cap', hold_key = $1[1], claimable = false, ready_at = r.due_at
WHERE r.ctid = ANY (ARRAY({{0}}))
"""
PUT_BACK_OF_HOST: Final = _PUT_BACK.format(_EXCESS.format("r.host_cap = $1[1]"))
PUT_BACK_OF_KEY: Final = _PUT_BACK.format(_EXCESS.format("r.key_cap = $1[1] AND r.key_slot"))
PUT_BACK_OF_TENANT: Final = _PUT_BACK.format(_EXCESS.format("r.tenant_cap = $1[1]"))
_OF_KIND: Final = {
    "host": PUT_BACK_OF_HOST, "key": PUT_BACK_OF_KEY, "tenant": PUT_BACK_OF_TENANT,
}  # fmt: skip


async def put_back(tx: Tx, tenant_id: int, cap: str) -> int:
    """READY → READY, held: what nobody has claimed yet, as much of it as is above the cap; how
    many. Needs the tenant's lock. A key's slots are kept."""
    tx.caps.add(cap)
    return await tx.execute(_OF_KIND[cap.partition(":")[0]], [cap], tenant_id)


CHANGED: Final = """
SELECT id FROM tenants WHERE caps_changed_at >= $1 AND caps_changed_at IS NOT NULL ORDER BY id
"""


async def changed(tx: Tx, since: datetime) -> list[int]:
    """Tenants of whose caps one was changed since a time."""
    return [row["id"] for row in await tx.rows(CHANGED, since)]


_MISSES_ONE: Final = """(c.tenant_cap IS NOT NULL AND r.tenant_cap IS NULL
       OR c.host_cap IS NOT NULL AND r.host_cap IS NULL
       OR c.key_cap IS NOT NULL AND r.key_cap IS NULL)"""
_AFTER: Final = "(r.job_id, r.occurrence_at, r.kind) > ($1, $2, $3)"
_JOIN: Final = f"""CROSS JOIN LATERAL (
    SELECT j.tenant_id, j.target_host, j.concurrency_key FROM jobs AS j WHERE j.id = r.job_id
    LIMIT 1
) AS j {of("j")}"""

SLICE_ENDS: Final = f"""
SELECT r.job_id, r.occurrence_at, r.kind FROM runs AS r WHERE {_AFTER}
ORDER BY r.job_id, r.occurrence_at, r.kind OFFSET $4 - 1 LIMIT 1
"""
_SLICE: Final = f"""{_AFTER}
  AND ($4::uuid IS NULL OR (r.job_id, r.occurrence_at, r.kind) <= ($4, $5, $6))"""
UNMARKED: Final = f"""
SELECT DISTINCT r.tenant_id FROM runs AS r {_JOIN}
WHERE {_SLICE} AND r.tenant_id = ANY ($7::int[]) AND {_MISSES_ONE}
"""


class Slice(NamedTuple):
    """Unfinished runs in the order of their keys: after the first, up to the second; None: all
    the rest."""

    after: RunKey
    upto: RunKey | None

    def bounds(self) -> tuple[Any, ...]:
        """As the statements want it."""
        upto = self.upto
        end = (None,) * 3 if upto is None else (upto.job_id, upto.occurrence_at, int(upto.kind))
        return (self.after.job_id, self.after.occurrence_at, int(self.after.kind), *end)


async def slice_after(tx: Tx, after: RunKey, size: int) -> Slice:
    """The next ``size`` runs."""
    end = await tx.row(SLICE_ENDS, after.job_id, after.occurrence_at, int(after.kind), size)
    return Slice(after, None if end is None else key_of(end))


async def unmarked(tx: Tx, where: Slice, tenants: Sequence[int]) -> list[int]:
    """Those of ``tenants`` that have runs there from before one of their caps was set."""
    return [row["tenant_id"] for row in await tx.rows(UNMARKED, *where.bounds(), tenants)]


# What runs goes on, and counts; what nobody has claimed yet goes back in line.
MARK: Final = f"""
WITH found AS MATERIALIZED (
    SELECT r.ctid AS place, r.claimable AND r.state = 'READY' AS goes_back,
           c.tenant_cap, c.host_cap, c.key_cap, c.waits_for
    FROM runs AS r {_JOIN}
    WHERE {_SLICE} AND r.tenant_id = $7 AND {_MISSES_ONE}
    FOR UPDATE OF r SKIP LOCKED
)
UPDATE runs AS r
SET tenant_cap = coalesce(r.tenant_cap, f.tenant_cap), host_cap = coalesce(r.host_cap, f.host_cap),
    key_cap = coalesce(r.key_cap, f.key_cap),
    key_slot = r.key_slot
        OR (f.key_cap IS NOT NULL AND NOT f.goes_back AND (r.claimable OR r.state = 'RETRYING')),
    hold = CASE WHEN f.goes_back THEN 'cap' ELSE r.hold END,
    hold_key = CASE WHEN f.goes_back THEN f.waits_for ELSE r.hold_key END,
    claimable = r.claimable AND NOT f.goes_back,
    ready_at = CASE WHEN f.goes_back THEN r.due_at ELSE r.ready_at END
FROM found AS f WHERE r.ctid = ANY (ARRAY(SELECT place FROM found)) AND r.ctid = f.place
RETURNING CASE WHEN f.goes_back THEN f.waits_for END AS waits_for
"""


async def mark(tx: Tx, where: Slice, tenant_id: int) -> int:
    """Have a tenant's runs of a slice count against caps that were set after they were made; how
    many. Needs the tenant's lock."""
    rows = await tx.rows(MARK, *where.bounds(), tenant_id)
    tx.caps.update(row["waits_for"] for row in rows if row["waits_for"] is not None)
    return len(rows)
