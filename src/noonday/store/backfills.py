"""Backfills: operations that open occurrences of a past range, at their own pace.

A step takes the operation's row under a lock and moves its position in the transaction that opens
the occurrences passed over: a process may die anywhere, and any number of them may take steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from noonday.domain.backfill import Place, Span, Version
from noonday.domain.model import JobSpec, Kind, Schedule
from noonday.domain.ranking import Ranks, Work
from noonday.domain.schedule import jitter, overlap_of
from noonday.store import Row, Tx, occurrences, overlaps, pauses, timers
from noonday.store.occurrences import Opening
from noonday.store.operations import SHOWN

_CHUNK: Final = 1_000

_schedule: Final = msgspec.json.Decoder(Schedule)


class Backfill(msgspec.Struct, frozen=True):
    """What an operation of the kind ``backfill`` is to do."""

    job_id: UUID
    spans: tuple[Span, ...]
    lane: str
    priority: int | None
    """None: that of the job."""
    rate_per_sec: float
    reason: str


# --- what there is to open --------------------------------------------------------------------

VERSIONS: Final = """
SELECT schedule, from_at, until_at FROM schedule_versions WHERE job_id = $1 ORDER BY version
"""


async def versions(tx: Tx, job: Row, now_in_force: Schedule) -> list[Version]:
    """All schedules that a job has had, the present one last."""
    found = [
        Version(_schedule.decode(row["schedule"]), row["from_at"], row["until_at"])
        for row in await tx.rows(VERSIONS, job["id"])
    ]
    since = found[-1].until_at if found else None
    return [*found, Version(now_in_force, since or job["created_at"])]


async def armed(tx: Tx, job_id: UUID) -> Place | None:
    """Where a job's timer stands, or stood when it was taken out of service."""
    row = await timers.of_job(tx, job_id)
    if row is not None:
        return Place(row["occurrence_at"], row["seq"])
    pause = await pauses.one(tx, job_id)
    return None if pause is None else Place(pause.occurrence_at, pause.seq)


async def undecided_from(tx: Tx, job_id: UUID, schedule: Schedule, place: Place | None) -> datetime:
    """From when on nominal times are the scheduler's: what its timer stands at has not been
    decided, nor what is not due yet."""
    if place is not None:
        return place.at
    return await tx.clock() - jitter(job_id, schedule.jitter_sec)


# Below the start of the ledger it may have run, and been pruned.
RAN: Final = """
SELECT occurrence_at FROM occurrences
WHERE job_id = $1 AND occurrence_at = ANY ($2::timestamptz[])
  AND occurrence_at >= $3 AND occurrence_at <= $4
  AND (kind = 2 OR (kind = 0 AND (outcome IS NULL OR outcome NOT IN ('SKIPPED', 'MISSED'))))
UNION
SELECT i.at FROM unnest($2::timestamptz[]) AS i(at)
WHERE i.at < (SELECT starts_at FROM ledger_start)
"""


async def ran(tx: Tx, job_id: UUID, moments: Sequence[datetime]) -> set[datetime]:
    """Which of these nominal times, in their order, have run, or are to: by the schedule or by a
    backfill."""
    found: set[datetime] = set()
    for start in range(0, len(moments), _CHUNK):
        some = moments[start : start + _CHUNK]
        rows = await tx.rows(RAN, job_id, some, some[0], some[-1])
        found.update(row["occurrence_at"] for row in rows)
    return found


# --- steps ------------------------------------------------------------------------------------

RUNNING: Final = """
SELECT id, next_at FROM operations
WHERE state = 'RUNNING' AND kind = 'backfill' AND id > $1 ORDER BY id LIMIT $2
"""


async def running(tx: Tx, after: UUID, limit: int) -> list[Row]:
    """The next backfills that are under way, by their ids, and when each is to go on."""
    return await tx.rows(RUNNING, after, limit)


TAKE: Final = f"""
SELECT {SHOWN} FROM operations
WHERE id = $1 AND state = 'RUNNING' AND (next_at IS NULL OR next_at <= coalesce($2, now()))
FOR UPDATE SKIP LOCKED
"""


async def take(tx: Tx, operation_id: UUID) -> Row | None:
    """A backfill that is to go on now, until the transaction ends; None: it is not, or somebody
    else has it."""
    return await tx.row(TAKE, operation_id, tx.now)


async def open_them(
    tx: Tx,
    job: Row,
    spec: JobSpec,
    wanted: Backfill,
    moments: Sequence[datetime],
    ranks: Ranks,
) -> int:
    """Ledger row and READY run for each of these nominal times, with all else as the job has it
    now; how many were new. Needs the shard's exclusive lock."""
    if not moments:
        return 0
    now = await tx.clock()
    priority = job["priority"] if wanted.priority is None else wanted.priority
    host, key = job["target_host"], job["concurrency_key"]
    work = Work(job["tenant_id"], wanted.lane, priority, host, key)
    opened = await occurrences.open_now(
        tx,
        [
            Opening(
                job["id"], at, Kind.BACKFILL, job["tenant_id"], now, job["payload_version"],
                wanted.lane, priority, rank, host, key,
            )
            for at, rank in zip(moments, ranks([work] * len(moments), now), strict=True)
        ],
        now,
    )  # fmt: skip
    if overlap_of(spec.schedule) in ("queue", "replace"):
        await overlaps.tell(tx, job["id"], Kind.BACKFILL, moments)
    return opened


MOVE: Final = """
UPDATE operations
SET position_at = $2, looked_at = looked_at + $3, done = done + $4, next_at = $5,
    changed_at = coalesce($6, now())
WHERE id = $1 AND state = 'RUNNING'
"""


async def move(
    tx: Tx, operation_id: UUID, position_at: datetime, looked_at: int, done: int, next_at: datetime
) -> None:
    """Note what a step that was taken has done, and when the next may be."""
    await tx.execute(MOVE, operation_id, position_at, looked_at, done, next_at, tx.now)
