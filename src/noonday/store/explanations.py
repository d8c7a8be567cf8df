"""What is read to say why a job is not running: each a look into an index, none counts far."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from noonday.domain.model import RunKey
from noonday.store import Row, Tx, columns
from noonday.store.caps import USES
from noonday.store.runs import key_of

MOST_NAMED: Final = 5
"""Runs and jobs that are named as what holds one."""

JOB: Final = """
SELECT id, tenant_id, state, state_reason, state_changed_at, schedule_type, lane, priority,
       target_host, (SELECT p.until_at FROM pauses AS p WHERE p.job_id = id) AS paused_until
FROM jobs WHERE id = $1 AND tenant_id = $2
"""


async def job(tx: Tx, job_id: UUID, tenant_id: int) -> Row | None:
    """A tenant's job; None also for somebody else's."""
    return await tx.row(JOB, job_id, tenant_id)


TIMER: Final = """
SELECT t.occurrence_at, t.due_at, s.owner_id IS NOT NULL
       AND s.leased_until >= coalesce($2, now()) AS owned
FROM timers AS t JOIN shards AS s ON s.shard = t.shard
WHERE t.job_id = $1 ORDER BY t.due_at LIMIT 1
"""


async def timer(tx: Tx, job_id: UUID) -> Row | None:
    """A job's armed timer, and whether a scheduler owns its shard."""
    return await tx.row(TIMER, job_id, tx.now)


# The one that is furthest: under way, else the one that has waited longest.
RUN: Final = """
SELECT * FROM runs WHERE job_id = $1
ORDER BY state = 'RUNNING' DESC, occurrence_at, kind LIMIT 1
"""


async def run(tx: Tx, job_id: UUID) -> Row | None:
    """Of a job's unfinished runs the one that is furthest."""
    return await tx.row(RUN, job_id)


WAITING: Final = "SELECT occurrence_at, due_at FROM dependents WHERE job_id = $1"


async def waiting(tx: Tx, job_id: UUID) -> Row | None:
    """What a job that waits for others is to be armed with."""
    return await tx.row(WAITING, job_id)


LAST: Final = """
(SELECT occurrence_at, kind, outcome, reason, ended_at FROM occurrences WHERE job_id = $1
 ORDER BY occurrence_at DESC, kind DESC LIMIT 1)
UNION ALL
(SELECT to_at, 0, outcome, reason, written_at FROM occurrence_ranges WHERE job_id = $1
 ORDER BY to_at DESC LIMIT 1)
ORDER BY occurrence_at DESC, kind DESC LIMIT 1
"""


async def last(tx: Tx, job_id: UUID) -> Row | None:
    """A job's last line of the ledger."""
    return await tx.row(LAST, job_id)


LANE: Final = """
SELECT name, max_running, ageing_sec, paused_at, pause_reason, shed_at, shed_reason
FROM lanes WHERE name = $1
"""


async def lane(tx: Tx, name: str) -> Row | None:
    """The settings of a lane, and whether it stands still."""
    return await tx.row(LANE, name)


SERVICE: Final = """
SELECT coalesce((SELECT seconds FROM costs WHERE tenant_id = $1 AND target_host = $2),
                (SELECT service_sec FROM wanted_slots WHERE lane = $3))
"""


async def service_sec(tx: Tx, job: Row) -> float | None:
    """How long runs like a job's keep a slot, as far as that was measured."""
    found: float | None = await tx.value(SERVICE, job["tenant_id"], job["target_host"], job["lane"])
    return found


TARGET: Final = "SELECT state, reason, since, probe_at, host, url FROM targets WHERE hold_key = $1"


async def target(tx: Tx, hold_key: str) -> Row | None:
    """The breaker that a run is held by."""
    return await tx.row(TARGET, hold_key)


_USERS: Final = """
SELECT job_id, occurrence_at, kind, count(*) OVER () AS used FROM runs WHERE {0}
ORDER BY state = 'RUNNING' DESC, ready_at LIMIT $2
"""
TENANT_USERS: Final = _USERS.format(USES["tenant"].format(cap="$1"))
HOST_USERS: Final = _USERS.format(USES["host"].format(cap="$1"))
KEY_USERS: Final = _USERS.format(USES["key"].format(cap="$1"))


async def users(tx: Tx, held: Row) -> tuple[int, list[RunKey]]:
    """How many runs use slots of the cap that a run is held by, and some of them."""
    statement = TENANT_USERS
    if held["hold_key"] == held["key_cap"]:
        statement = KEY_USERS
    elif held["hold_key"] == held["host_cap"]:
        statement = HOST_USERS
    rows = await tx.rows(statement, held["hold_key"], MOST_NAMED)
    return (rows[0]["used"] if rows else 0), [key_of(row) for row in rows]


LIMIT: Final = """
SELECT coalesce((SELECT max_running FROM limits WHERE key = $1),
                (SELECT max_running FROM tenants WHERE 'tenant:' || id = $1 AND id = $2))
"""


async def limit(tx: Tx, hold_key: str, tenant_id: int) -> int | None:
    """How many runs a cap allows at the same time; None where nothing says so any more."""
    found: int | None = await tx.value(LIMIT, hold_key, tenant_id)
    return found


LANE_USERS: Final = """
SELECT count(*) FROM (
    SELECT FROM runs WHERE lane = $1 AND claimable AND state = 'RUNNING' LIMIT $2) AS running
"""


async def lane_users(tx: Tx, lane: str, most: int) -> int:
    """How many runs of a lane are under way, counted up to ``most``."""
    count: int = await tx.value(LANE_USERS, lane, most)
    return count


AHEAD_HELD: Final = """
SELECT count(*) FROM (
    SELECT FROM runs
    WHERE hold_key = $1 AND (priority, ready_at, job_id) < ($2, $3, $4::uuid) LIMIT $5) AS before
"""


async def ahead_held(tx: Tx, held: Row, most: int) -> int:
    """How many runs that wait under the same key come before one, counted up to ``most``."""
    count: int = await tx.value(
        AHEAD_HELD, held["hold_key"], held["priority"], held["ready_at"], held["job_id"], most
    )
    return count


AHEAD: Final = """
SELECT count(*) FROM (
    SELECT FROM unnest($2::int[], $3::timestamptz[], $4::timestamptz[])
                AS p(priority, since, until)
    CROSS JOIN LATERAL (
        SELECT FROM runs AS r
        WHERE r.lane = $1 AND r.priority = p.priority AND r.claimable AND r.rank >= p.since
          AND r.rank < p.until AND r.state = 'READY' LIMIT $5
    ) AS r LIMIT $5) AS before
"""


async def ahead(
    tx: Tx, lane: str, ranges: Sequence[tuple[int, datetime, datetime]], most: int
) -> int:
    """How many READY runs of a lane lie in ranges of rank, each of a priority, counted up to
    ``most``."""
    count: int = await tx.value(AHEAD, lane, *columns(ranges, 3), most)
    return count
