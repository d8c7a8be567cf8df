"""What a change of a job writes: a new version of it, beside what is kept of the one before.

All of this needs the shard's exclusive lock.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from noonday.domain.errors import ScheduleError
from noonday.domain.model import Once, Schedule, shard_of
from noonday.domain.pausing import Stretch, stretch
from noonday.domain.ranking import Ranks
from noonday.domain.schedule import check, jitter, left_from
from noonday.store import Row, Tx, dependencies, firing, occurrence_ranges, pauses, timers
from noonday.store.firing import Armed
from noonday.store.occurrence_ranges import OccurrenceRange
from noonday.store.pauses import SOON, Pause
from noonday.store.timers import Timer
from noonday.store.wakeups import TIMERS

# --- where it stands --------------------------------------------------------------------------


class Place(NamedTuple):
    """An occurrence of a job, its number, and up to which one it catches up on an outage."""

    occurrence_at: datetime
    seq: int
    catch_up_to: datetime | None = None


class Stands(NamedTuple):
    """Where a job stands in its schedule, while nothing of it can fire."""

    waits: bool
    """For other jobs."""
    armed: Armed | None
    """What its timer stood at."""
    pause: Pause | None
    """What that stood at, of a job that is out of service."""

    @property
    def at(self) -> Armed | Pause | None:
        """The occurrence that comes next, if there is one."""
        return self.armed or self.pause

    @property
    def place(self) -> Place | None:
        """Where that is."""
        if self.armed is not None:
            return Place(self.armed.occurrence_at, self.armed.seq, self.armed.catch_up_to)
        pause = self.pause
        return None if pause is None else Place(pause.occurrence_at, pause.seq)


async def stop(tx: Tx, job: Row, ranks: Ranks, now: datetime) -> Stands:
    """Fire what is due of a job as it was, and see where that leaves it."""
    waits = bool(await dependencies.lock(tx, [job["id"]]))
    armed = None
    if job["state"] == "ACTIVE" and not waits:
        armed = await firing.take(tx, job, ranks, now)
    return Stands(waits, armed, await pauses.one(tx, job["id"]))


async def leave_out(
    tx: Tx, job: Row, was: Schedule, stands: Stands, by: str, now: datetime
) -> None:
    """Nominal times of the schedule that was, which have come and are not on record, are left out:
    those that waited for their jitter, or for the end of a pause."""
    at = stands.at
    if at is None or isinstance(was, Once) or at.occurrence_at > now:
        return
    try:
        check(was, job["id"])
        most = left_from(was, at.seq)
        left_out = stretch(was, at.occurrence_at, now, job["id"], most)
    except ScheduleError:  # nobody can say what comes after it
        left_out = Stretch(at.occurrence_at, at.occurrence_at, None)
    reason = "changed"
    if stands.pause is not None:
        reason, by = pauses.REASONS[job["state"]], stands.pause.paused_by
    skipped = OccurrenceRange(job["id"], *left_out, "SKIPPED", reason)
    await occurrence_ranges.write(tx, [skipped], by, now)


async def go_on(
    tx: Tx,
    job: Row,
    wanted: Schedule,
    stands: Stands,
    place: Place,
    now: datetime,
) -> None:
    """The version after ``job`` stands at ``place``, an occurrence of the schedule that is
    wanted."""
    job_id, (at, seq, upto) = job["id"], place
    if stands.pause is not None:
        await pauses.move(tx, job_id, at, seq)
    if job["state"] != "ACTIVE":
        return
    due_at = at + jitter(job_id, wanted.jitter_sec)
    timer = Timer(job_id, at, due_at, job["schedule_version"] + 1, seq, shard_of(job_id), upto)
    awaited = stands.armed is not None and stands.armed.awaited
    await timers.arm_again(tx, timer, now, awaited=awaited)
    if due_at <= now + SOON:
        tx.wakes.add(TIMERS)


# --- the new version --------------------------------------------------------------------------


class Definition(NamedTuple):
    """What may change of a row of ``jobs``, but for its payload."""

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
    concurrency_key: str | None


REDEFINE: Final = """
UPDATE jobs SET version = version + 1, schedule_version = schedule_version + 1,
       schedule_type = $3, first_at = $4, name = $5, lane = $6, priority = $7, lease_sec = $8,
       target_host = $9, labels = $10, spec = $11, secret_headers = $12, concurrency_key = $13
WHERE id = $1 AND version = $2
"""


async def redefine(tx: Tx, job: Row, definition: Definition) -> bool:
    """A job becomes what is wanted, with a new version; False: it is not at that of ``job``."""
    return await tx.execute(REDEFINE, job["id"], job["version"], *definition) == 1


class Payload(NamedTuple):
    """What runs of a job send: inline, or in the blob store."""

    payload: bytes | None
    payload_ref: str | None
    payload_bytes: int
    content_type: str


PAYLOAD: Final = """
SELECT payload, payload_ref, payload_bytes, content_type FROM jobs WHERE id = $1
"""


async def payload(tx: Tx, job_id: UUID) -> Payload:
    """What the next run of a job sends."""
    return Payload(*(await tx.one(PAYLOAD, job_id)).values())


KEEP_PAYLOAD: Final = """
INSERT INTO payload_versions (job_id, version, payload, payload_ref, payload_bytes, content_type)
SELECT id, payload_version, payload, payload_ref, payload_bytes, content_type
FROM jobs WHERE id = $1
"""
REPLACE_PAYLOAD: Final = """
UPDATE jobs SET payload_version = payload_version + 1, payload = $2, payload_ref = $3,
       payload_bytes = $4, content_type = $5
WHERE id = $1
"""


async def replace_payload(tx: Tx, job_id: UUID, wanted: Payload) -> None:
    """Runs that begin from now on send this. The payload before is kept for those that are there;
    see :func:`forget_payloads`."""
    await tx.execute(KEEP_PAYLOAD, job_id)
    await tx.execute(REPLACE_PAYLOAD, job_id, *wanted)


KEEP_SCHEDULE: Final = """
INSERT INTO schedule_versions (job_id, version, schedule, from_at, until_at)
SELECT id, schedule_version, spec -> 'schedule',
       coalesce((SELECT max(v.until_at) FROM schedule_versions AS v WHERE v.job_id = j.id),
                created_at), $2
FROM jobs AS j WHERE id = $1
"""


async def keep_schedule(tx: Tx, job_id: UUID, now: datetime) -> None:
    """Keep the schedule that a job has up to now, before it is changed."""
    await tx.execute(KEEP_SCHEDULE, job_id, now)


# --- what nobody needs any more ---------------------------------------------------------------

# Nothing comes to refer to an old payload: runs begin with that of their job, and a dead letter
# has that of its run. (Scalar subqueries: each an index look-up, never a join with all of a table.)
_UNUSED: Final = """
    (SELECT true FROM runs AS r
     WHERE r.job_id = v.job_id AND r.payload_version = v.version LIMIT 1) IS NULL
    AND (SELECT true FROM dead_letters AS d
         WHERE d.job_id = v.job_id AND d.payload_version = v.version LIMIT 1) IS NULL"""
PAYLOADS: Final = f"""
SELECT v.job_id, v.version, {_UNUSED} AS unused FROM (
    SELECT job_id, version FROM payload_versions WHERE (job_id, version) > ($1, $2::int)
    ORDER BY job_id, version LIMIT $3) AS v
ORDER BY v.job_id, v.version
"""
FORGET_PAYLOADS: Final = f"""
DELETE FROM payload_versions AS v WHERE v.ctid = ANY (ARRAY(
    SELECT w.place FROM unnest($1::uuid[], $2::int[]) AS u(job_id, version)
    CROSS JOIN LATERAL (
        SELECT w.ctid AS place FROM payload_versions AS w
        WHERE w.job_id = u.job_id AND w.version = u.version LIMIT 1
    ) AS w)) AND {_UNUSED}
RETURNING payload_ref
"""


class Forgotten(NamedTuple):
    """What a step forgot, and where the next one begins."""

    rows: int
    blobs: list[str]
    """References to delete once the transaction has committed."""
    cursor: tuple[UUID, int] | None
    """None: that was the last of them; begin again from the start."""


async def forget_payloads(tx: Tx, after: tuple[UUID, int], limit: int) -> Forgotten:
    """Look at the next ``limit`` old payloads, and delete those that no run and no dead letter
    refers to."""
    rows = await tx.rows(PAYLOADS, *after, limit)
    unused = [row for row in rows if row["unused"]]
    gone = (
        await tx.rows(
            FORGET_PAYLOADS, [row["job_id"] for row in unused], [row["version"] for row in unused]
        )
        if unused
        else []
    )
    blobs = [row["payload_ref"] for row in gone if row["payload_ref"] is not None]
    last = (rows[-1]["job_id"], rows[-1]["version"]) if len(rows) == limit else None
    return Forgotten(len(gone), blobs, last)


FORGET_SCHEDULES: Final = """
DELETE FROM schedule_versions WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM schedule_versions WHERE until_at < (SELECT starts_at FROM ledger_start)
    ORDER BY until_at LIMIT $1))
"""


async def forget_schedules(tx: Tx, limit: int) -> int:
    """Delete schedules that were in force only below the start of the ledger; how many."""
    return await tx.execute(FORGET_SCHEDULES, limit)
