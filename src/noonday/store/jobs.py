"""Jobs: their definition. Insert-mostly; a run never updates one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from secrets import token_bytes
from typing import Final, NamedTuple
from uuid import UUID

from asyncpg.pgproto import pgproto

from noonday.domain.model import EPOCH
from noonday.store import Copy, Row, Tx, columns

MILLISECOND: Final = timedelta(milliseconds=1)
_FREE: Final = (1 << 76) - 1 & ~(3 << 62)
"""The random bits of an id."""


class NewJob(NamedTuple):
    """A row of ``jobs`` to insert, column by column."""

    id: UUID
    tenant_id: int
    created_at: datetime
    created_by: str
    schedule_type: str
    first_at: datetime
    name: str
    lane: str
    priority: int
    lease_sec: int
    target_host: str
    labels: str
    spec: str
    secret_headers: bytes | None
    payload: bytes | None
    payload_ref: str | None
    payload_bytes: int
    content_type: str
    traceparent: str | None
    after: str | None = None
    concurrency_key: str | None = None


def new_ids(at: datetime, count: int) -> list[UUID]:
    """Ids in ascending order that carry ``at``, as ``created_at`` does (UUIDv7, RFC 9562 §5.7).

    They are the driver's, which cost a tenth of others to make and to write down.
    """
    fixed = (at - EPOCH) // MILLISECOND << 80 | 7 << 76 | 2 << 62
    drawn = token_bytes(10 * count)
    free = [int.from_bytes(drawn[n : n + 10]) & _FREE for n in range(0, 10 * count, 10)]
    return [pgproto.UUID((fixed | bits).to_bytes(16)) for bits in sorted(free)]


INSERT: Final = Copy("jobs", NewJob._fields)


async def insert(tx: Tx, jobs: Sequence[NewJob]) -> None:
    """Insert definitions; their timers or runs are written beside, in the same transaction."""
    await tx.copy(INSERT, jobs)


EXISTING: Final = "SELECT id FROM jobs WHERE id = ANY($1::uuid[])"


async def existing(tx: Tx, ids: Sequence[UUID]) -> set[UUID]:
    """Which of ``ids`` are there: the look-up after the answer to a COMMIT was lost."""
    return {row["id"] for row in await tx.rows(EXISTING, ids)}


_SHOWN: Final = """id, tenant_id, created_at, created_by, version, schedule_version, state,
       state_reason, state_changed_at, schedule_type, first_at, name, lane, priority, lease_sec,
       target_host, labels, spec, secret_headers IS NOT NULL AS has_secret_headers,
       secret_headers, payload_bytes, payload_version, content_type, concurrency_key, after"""

ONE: Final = f"SELECT {_SHOWN} FROM jobs WHERE id = $1 AND tenant_id = $2"


async def one(tx: Tx, job_id: UUID, tenant_id: int) -> Row | None:
    """A tenant's job; None also for somebody else's."""
    return await tx.row(ONE, job_id, tenant_id)


TURN: Final = """
UPDATE jobs SET state = $2, state_reason = $3, state_changed_at = coalesce($4, now()),
       version = version + 1, schedule_version = schedule_version + 1
WHERE id = $1 AND state = ANY($5::text[])
"""


async def cancel(tx: Tx, job_id: UUID, reason: str) -> bool:
    """A person ends a job. Needs the shard's exclusive lock; the timer is disarmed beside."""
    states = ["ACTIVE", "PAUSED", "SUSPENDED", "ENDED"]
    return await tx.execute(TURN, job_id, "CANCELLED", reason, tx.now, states) == 1


async def suspend(tx: Tx, job_id: UUID, reason: str, state: str = "ACTIVE") -> bool:
    """A job that cannot be computed stops, so that it stops nobody else; if it is in ``state``."""
    return await tx.execute(TURN, job_id, "SUSPENDED", reason, tx.now, [state]) == 1


async def pause(tx: Tx, job_id: UUID, reason: str) -> bool:
    """A job is to fire no more for now, or for another reason than before. Needs the shard's
    exclusive lock; see :mod:`noonday.store.pauses`."""
    return await tx.execute(TURN, job_id, "PAUSED", reason, tx.now, ["ACTIVE", "PAUSED"]) == 1


async def resume(tx: Tx, job_id: UUID) -> bool:
    """A job that was out of service fires again, as :func:`pause`."""
    return await tx.execute(TURN, job_id, "ACTIVE", None, tx.now, ["PAUSED", "SUSPENDED"]) == 1


END: Final = """
UPDATE jobs AS j SET state = 'ENDED', state_changed_at = $3::timestamptz, version = version + 1
FROM unnest($1::uuid[], $2::int[]) AS e(id, schedule_version)
WHERE j.id = ANY ($1::uuid[]) AND j.id = e.id AND j.schedule_version = e.schedule_version
  AND j.state = 'ACTIVE'
"""


async def end(tx: Tx, ended: Sequence[tuple[UUID, int]], now: datetime) -> None:
    """Recurring jobs, each with its schedule version, of which the last occurrence has been; their
    shards are not owned by anybody else."""
    if ended:
        await tx.execute(END, *columns(ended, 2), now)


class Filter(NamedTuple):
    """What a list of jobs is narrowed by; None does not narrow."""

    status: str | None = None
    schedule_type: str | None = None
    lane: str | None = None
    name_prefix: str | None = None
    label: tuple[str, str] | None = None
    target_host: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None
