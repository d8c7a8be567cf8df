"""Gated replays: one durable row each, moved on in small steps.

A step takes the row under a lock, and all that it decides is written in the same transaction: a
process may die anywhere, and any number of them may take steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
import uuid_utils.compat

from noonday.domain.breaker import target_of
from noonday.domain.model import EPOCH, parse_run_id
from noonday.domain.replay import Letters, ReplayState, Terms
from noonday.store import Row, Tx, columns
from noonday.store.letters import LetterPosition, position_of
from noonday.store.runs import SAME_RUN

SCANNED: Final = 5_000
"""Letters that one step looks at, at most."""
COUNTED: Final = 100_000
"""Letters that are looked at to say how many there are, at most."""

_terms: Final = msgspec.json.Decoder(Terms)
_position: Final = msgspec.json.Decoder(LetterPosition)
_SAME: Final = (
    *("id", "tenant_id", "created_at", "changed_at", "state_reason", "matched", "matched_all"),
    *("replayed", "succeeded", "failed", "cancelled", "canary_passed_at", "ramp_from", "next_at"),
    *("deferred", "reopened"),
)


@dataclass
class Replay:
    """A replay as it stands; what a step changes is written by :func:`save`."""

    id: UUID
    tenant_id: int
    state: ReplayState
    terms: Terms
    created_at: datetime
    changed_at: datetime
    state_reason: str | None
    matched: int
    matched_all: bool
    replayed: int
    succeeded: int
    failed: int
    cancelled: int
    skipped: dict[str, int]
    canary_passed_at: datetime | None
    ramp_from: datetime | None
    recent: list[bool]
    next_at: datetime
    position: LetterPosition | None
    deferred: int
    reopened: int

    @classmethod
    def of(cls, row: Row) -> Replay:
        """The replay that a row tells of."""
        same = {name: row[name] for name in _SAME}
        position = row["position"]
        return cls(
            state=ReplayState(row["state"]),
            terms=_terms.decode(row["terms"]),
            skipped=msgspec.json.decode(row["skipped"]),
            recent=list(row["recent"]),
            position=None if position is None else _position.decode(position),
            **same,
        )

    @property
    def unfinished(self) -> int:
        """Runs that it reopened, and of which it is not known what came of them."""
        return self.replayed - self.succeeded - self.failed - self.cancelled

    @property
    def in_canary(self) -> bool:
        """Whether the first few have still to succeed."""
        return self.canary_passed_at is None

    def turn(self, state: ReplayState, reason: str | None, now: datetime) -> None:
        """Come to another state."""
        self.state, self.state_reason, self.changed_at = state, reason, now


# --- which letters ----------------------------------------------------------------------------

_NARROWED: Final = """d.tenant_id = $1 AND d.state = 'DEAD' AND d.dead_at < $2
      AND ($3::text IS NULL OR d.fingerprint = $3)
      AND ($4::uuid IS NULL OR d.job_id = $4)
      AND ($5::timestamptz IS NULL OR d.dead_at >= $5)
      AND ($6::timestamptz IS NULL OR d.dead_at < $6)"""
_WANTED: Final = """({0}::text IS NULL OR d.reason = {0})
  AND ({1}::text IS NULL OR d.target_host = {1})"""
_FROM_IDS: Final = f"""unnest($3::uuid[], $4::timestamptz[], $5::int[])
         AS i(job_id, occurrence_at, kind)
    JOIN dead_letters AS d ON {SAME_RUN.format("d", "i")}
    WHERE d.tenant_id = $1 AND d.state = 'DEAD' AND d.dead_at < $2"""

_COUNTS: Final = """
SELECT n.looked_at, c.* FROM (SELECT count(*) AS looked_at FROM looked_at) AS n
LEFT JOIN (
    SELECT d.reason, count(*) AS count,
           count(*) FILTER (WHERE d.replayed_at IS NOT NULL) AS replayed_before,
           count(*) FILTER (WHERE j.state = 'CANCELLED' AND d.replayed_at IS NULL)
               AS job_cancelled,
           count(*) FILTER (WHERE j.state = 'CANCELLED' AND d.replayed_at IS NOT NULL)
               AS replayed_and_cancelled
    FROM looked_at AS d
    CROSS JOIN LATERAL (SELECT j.state FROM jobs AS j WHERE j.id = d.job_id LIMIT 1) AS j
    WHERE {wanted}
    GROUP BY d.reason
) AS c ON true
ORDER BY c.count DESC, c.reason
"""
COUNT: Final = f"""
WITH looked_at AS MATERIALIZED (
    SELECT d.job_id, d.reason, d.target_host, d.replayed_at FROM dead_letters AS d
    WHERE {_NARROWED}
    ORDER BY d.dead_at LIMIT $9
)
{_COUNTS.format(wanted=_WANTED.format("$7", "$8"))}
"""
COUNT_IDS: Final = f"""
WITH looked_at AS MATERIALIZED (SELECT d.* FROM {_FROM_IDS})
{_COUNTS.format(wanted="true")}
"""


class Count(NamedTuple):
    """What a replay would find."""

    matched: int
    """Letters that lie there, those that would be left out included."""
    complete: bool
    """False: there are more than were looked at."""
    by_reason: dict[str, int]
    left_out: dict[str, int]
    """How many would not be reopened, by why."""


async def count(tx: Tx, tenant_id: int, terms: Terms, counted: int = COUNTED) -> Count:
    """Count the letters that are asked for, of the oldest ``counted`` ones."""
    until = await tx.clock()
    if terms.ids is not None:
        rows = await tx.rows(COUNT_IDS, tenant_id, until, *_ids(terms))
    else:
        rows = await tx.rows(COUNT, tenant_id, until, *_filter(terms.filter), counted)
    found = [row for row in rows if row["reason"] is not None]
    matched = sum(row["count"] for row in found)
    left_out = {
        "not_found": 0 if terms.ids is None else len(set(terms.ids)) - matched,
        "replayed_before": 0 if terms.again else sum(row["replayed_before"] for row in found),
        "job_cancelled": sum(
            row["job_cancelled"] + (row["replayed_and_cancelled"] if terms.again else 0)
            for row in found
        ),
    }
    complete = terms.ids is not None or rows[0]["looked_at"] < counted
    return Count(
        matched,
        complete,
        {row["reason"]: row["count"] for row in found},
        {why: number for why, number in left_out.items() if number},
    )


def _filter(by: Letters) -> tuple[Any, ...]:
    return by.fingerprint, by.job_id, by.dead_from, by.dead_to, by.reason, by.target_host


def _ids(terms: Terms) -> list[list[Any]]:
    keys = [key for text in dict.fromkeys(terms.ids or ()) if (key := parse_run_id(text))]
    return columns([(key.job_id, key.occurrence_at, key.kind) for key in keys], 3)


# What a walk passes over, in order; and beside each letter, what it is to be treated by.
_WALKED: Final = """
SELECT d.*, coalesce(j.spec #>> '{{schedule,overlap}}', 'allow') = 'allow' AS overlaps,
       j.spec #>> '{{target,url}}' AS url, j.lane, j.priority, j.concurrency_key
FROM ({letters}) AS d
LEFT JOIN LATERAL (
    SELECT j.spec, j.lane, j.priority, j.concurrency_key
    FROM jobs AS j WHERE j.id = d.job_id LIMIT 1
) AS j ON true
ORDER BY d.dead_at, d.job_id, d.occurrence_at, d.kind
"""
_COLUMNS: Final = """d.job_id, d.occurrence_at, d.kind, d.tenant_id, d.dead_at, d.reason,
       d.replayed_at, d.target_host"""
_AFTER: Final = """d.dead_at >= {0}
      AND (d.dead_at, d.job_id, d.occurrence_at, d.kind) > ({0}, {1}, {2}, {3})
    ORDER BY d.dead_at, d.job_id, d.occurrence_at, d.kind"""
_SCAN: Final = f"""FROM dead_letters AS d
    WHERE {_NARROWED} AND {_AFTER.format("$7", "$8", "$9", "$10")}"""

WALK: Final = _WALKED.format(
    letters=f"""
    SELECT {_COLUMNS} FROM (SELECT * {_SCAN} LIMIT $11) AS d
    WHERE {_WANTED.format("$12", "$13")}
    ORDER BY d.dead_at, d.job_id, d.occurrence_at, d.kind LIMIT $14"""
)
WALK_ENDS: Final = f"""
SELECT d.dead_at, d.job_id, d.occurrence_at, d.kind {_SCAN} OFFSET $11 - 1 LIMIT 1
"""
WALK_IDS: Final = _WALKED.format(
    letters=f"""
    SELECT {_COLUMNS} FROM {_FROM_IDS} AND {_AFTER.format("$6", "$7", "$8", "$9")} LIMIT $10"""
)


class Walk(NamedTuple):
    """The next letters that were asked for, oldest first, and how far was looked for them."""

    rows: list[Row]
    ends_at: LetterPosition | None
    """Where to go on once all of them are dealt with; None: there are no more."""


async def walk(tx: Tx, replay: Replay, limit: int, scanned: int = SCANNED) -> Walk:
    """Up to ``limit`` letters after the replay's position that died before it was asked for."""
    terms, after = replay.terms, replay.position or _BEGINNING
    if terms.ids is not None:
        arguments = (replay.tenant_id, replay.created_at, *_ids(terms), *after, limit)
        rows = await tx.rows(WALK_IDS, *arguments)
        return Walk(rows, position_of(rows[-1]) if len(rows) == limit else None)
    narrowed = (replay.tenant_id, replay.created_at, *_filter(terms.filter)[:4], *after, scanned)
    rows = await tx.rows(WALK, *narrowed, *_filter(terms.filter)[4:], limit)
    if len(rows) == limit:
        return Walk(rows, position_of(rows[-1]))
    end = await tx.row(WALK_ENDS, *narrowed)
    return Walk(rows, position_of(end) if end is not None else None)


_BEGINNING: Final = LetterPosition(EPOCH, UUID(int=0), EPOCH, 0)


# --- what came of the runs --------------------------------------------------------------------

# The first failure counts, whatever its retries come to.
OBSERVE: Final = f"""
WITH seen AS MATERIALIZED (
    SELECT d.job_id, d.occurrence_at, d.kind,
           CASE WHEN d.state <> 'REPLAYED' OR r.failures > 0 THEN 'FAILED'
                WHEN r.job_id IS NOT NULL THEN NULL
                WHEN o.outcome = 'COMPLETE' THEN 'SUCCEEDED'
                ELSE 'CANCELLED' END AS outcome
    FROM dead_letters AS d
    LEFT JOIN LATERAL (
        SELECT job_id, failures FROM runs AS r WHERE {SAME_RUN.format("r", "d")} LIMIT 1
    ) AS r ON true
    LEFT JOIN LATERAL (
        SELECT outcome FROM occurrences AS o
        WHERE r.job_id IS NULL AND {SAME_RUN.format("o", "d")} LIMIT 1
    ) AS o ON true
    WHERE d.replay_id = $1 AND d.replay_outcome IS NULL
)
UPDATE dead_letters AS d SET replay_outcome = s.outcome
FROM seen AS s
WHERE {SAME_RUN.format("d", "s")} AND s.outcome IS NOT NULL
  AND d.replay_id = $1 AND d.replay_outcome IS NULL
RETURNING d.replay_outcome
"""


async def observe(tx: Tx, replay_id: UUID) -> list[str]:
    """What came of reopened runs since it was last looked at: SUCCEEDED, FAILED, CANCELLED."""
    return [row["replay_outcome"] for row in await tx.rows(OBSERVE, replay_id)]


UNFINISHED: Final = """
SELECT DISTINCT j.spec #>> '{target,url}' AS url FROM dead_letters AS d
CROSS JOIN LATERAL (SELECT j.spec FROM jobs AS j WHERE j.id = d.job_id LIMIT 1) AS j
WHERE d.replay_id = $1 AND d.replay_outcome IS NULL
"""


async def unfinished_urls(tx: Tx, replay_id: UUID) -> list[str]:
    """What the runs call that were reopened and have not come out yet."""
    return [row["url"] for row in await tx.rows(UNFINISHED, replay_id)]


BROKEN: Final = """
SELECT hold_key FROM targets WHERE hold_key = ANY ($1::text[]) AND state IN ('OPEN', 'SUSPENDED')
"""


async def broken(tx: Tx, tenant_id: int, urls: Iterable[str | None]) -> dict[str, str]:
    """Those of ``urls`` that are left alone, since the breaker of their target is open or they are
    suspended; each with its host."""
    targets = {url: target_of(tenant_id, url) for url in urls if url is not None}
    found = {url: target for url, target in targets.items() if target is not None}
    if not found:
        return {}
    keys = [key for target in found.values() for key in (target.key, target.url_key)]
    rows = await tx.rows(BROKEN, list(dict.fromkeys(keys)))
    held = {row["hold_key"] for row in rows}
    return {url: each.host for url, each in found.items() if held & {each.key, each.url_key}}


# --- steps ------------------------------------------------------------------------------------

_ROW: Final = """id, tenant_id, state, terms, created_at, changed_at, state_reason, matched,
       matched_all, replayed, succeeded, failed, cancelled, skipped, canary_passed_at, ramp_from,
       recent, next_at, position, deferred, reopened"""

ACTIVE: Final = "SELECT id FROM replays WHERE active AND id > $1 ORDER BY id LIMIT $2"


async def active(tx: Tx, after: UUID, limit: int) -> list[UUID]:
    """Replays that have to be looked after, in order, from just after one."""
    return [row["id"] for row in await tx.rows(ACTIVE, after, limit)]


TAKE: Final = f"SELECT {_ROW} FROM replays WHERE id = $1 AND active FOR UPDATE SKIP LOCKED"


async def take(tx: Tx, replay_id: UUID) -> Replay | None:
    """A replay to take a step with; None when another process does, or nothing is left to do."""
    row = await tx.row(TAKE, replay_id)
    return None if row is None else Replay.of(row)


SAVE: Final = """
UPDATE replays
SET state = $2, active = $3, changed_at = $4, state_reason = $5, replayed = $6, succeeded = $7,
    failed = $8, cancelled = $9, skipped = $10, canary_passed_at = $11, ramp_from = $12,
    recent = $13, next_at = $14, position = $15, deferred = $16, reopened = $17
WHERE id = $1
"""


async def save(tx: Tx, replay: Replay) -> None:
    """Write what a step has changed; the row is locked by :func:`take` or :func:`locked`."""
    active = replay.state is ReplayState.RUNNING or replay.unfinished > 0
    await tx.execute(
        SAVE, replay.id, replay.state.value, active, replay.changed_at, replay.state_reason,
        replay.replayed, replay.succeeded, replay.failed, replay.cancelled,
        msgspec.json.encode(replay.skipped).decode(), replay.canary_passed_at, replay.ramp_from,
        replay.recent, replay.next_at,
        None if replay.position is None else msgspec.json.encode(replay.position).decode(),
        replay.deferred, replay.reopened,
    )  # fmt: skip


# --- what people do ---------------------------------------------------------------------------

CREATE: Final = """
INSERT INTO replays (id, tenant_id, state, terms, reason, created_by, created_at, changed_at,
                     matched, matched_all, skipped, next_at)
VALUES ($1, $2, 'RUNNING', $3, $4, $5, coalesce($9, now()), coalesce($9, now()), $6, $7, $8,
        coalesce($9, now()))
"""


async def create(
    tx: Tx, tenant_id: int, terms: Terms, reason: str, actor: str, found: Count
) -> UUID:
    """A new replay; its first step follows as soon as a scheduler looks."""
    replay_id: UUID = uuid_utils.compat.uuid7()
    never = {why: number for why, number in found.left_out.items() if why == "not_found"}
    await tx.execute(
        CREATE, replay_id, tenant_id, msgspec.json.encode(terms).decode(), reason, actor,
        found.matched, found.complete, msgspec.json.encode(never).decode(), tx.now,
    )  # fmt: skip
    return replay_id


_SHOWN: Final = f"{_ROW}, reason, created_by"

LOCKED: Final = f"SELECT {_ROW} FROM replays WHERE id = $1 AND tenant_id = $2 FOR UPDATE"


async def locked(tx: Tx, replay_id: UUID, tenant_id: int) -> Replay | None:
    """A tenant's replay, kept from every step until the transaction ends."""
    row = await tx.row(LOCKED, replay_id, tenant_id)
    return None if row is None else Replay.of(row)


ONE: Final = f"SELECT {_SHOWN} FROM replays WHERE id = $1 AND tenant_id = $2"


async def one(tx: Tx, replay_id: UUID, tenant_id: int) -> Row | None:
    """A tenant's replay, to be shown."""
    return await tx.row(ONE, replay_id, tenant_id)


PAGE: Final = f"""
SELECT {_SHOWN} FROM replays WHERE tenant_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3
"""


async def page(tx: Tx, tenant_id: int, before: UUID, limit: int) -> list[Row]:
    """A tenant's replays, newest first."""
    return await tx.rows(PAGE, tenant_id, before, limit)


# There are few, and no index is worth its upkeep.
FORGET: Final = """
DELETE FROM replays WHERE id = ANY (ARRAY(
    SELECT id FROM replays WHERE NOT active AND state IN ('DONE', 'ABORTED') AND changed_at < $1
    LIMIT $2))
"""


async def forget(tx: Tx, before: datetime, limit: int) -> int:
    """Delete replays that came to their end before ``before``; how many."""
    return await tx.execute(FORGET, before, limit)
