"""Jobs out of service: paused by somebody, or suspended since they could not be computed.

Such a job has no timer. What that stood at is kept here, so that nothing is left out of the ledger
when the job goes on. All of this needs the shard's exclusive lock, but for :func:`begin` by a tick.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from noonday.domain import schedule
from noonday.domain.errors import ScheduleError
from noonday.domain.model import JobSpec, Once, Schedule, shard_of
from noonday.domain.pausing import resumption
from noonday.domain.ranking import Ranks
from noonday.store import Row, Tx, firing, jobs, occurrence_ranges, occurrences, timers
from noonday.store.occurrence_ranges import OccurrenceRange
from noonday.store.timers import Timer
from noonday.store.wakeups import TIMERS

SOON: Final = timedelta(seconds=1)
REASONS: Final = {"PAUSED": "paused", "SUSPENDED": "suspended"}
"""What the ledger says of what was left out, by the state of the job."""

_read_spec: Final = msgspec.json.Decoder(JobSpec).decode


class Pause(NamedTuple):
    """Where a job stood, when it goes on by itself, and who has stopped it."""

    job_id: UUID
    occurrence_at: datetime
    seq: int
    awaited: bool
    until_at: datetime | None
    paused_by: str


async def pause(
    tx: Tx, job: Row, reason: str, until: datetime | None, by: str, ranks: Ranks, now: datetime
) -> bool:
    """ACTIVE → PAUSED, once what is due was fired; False: nothing of the job is left to fire."""
    armed = await firing.take(tx, job, ranks, now)
    if armed is None:
        return False
    at = Pause(job["id"], armed.occurrence_at, armed.seq, armed.awaited, until, by)
    await begin(tx, at)
    return await jobs.pause(tx, job["id"], reason)


BEGIN: Final = """
INSERT INTO pauses (job_id, occurrence_at, seq, awaited, until_at, paused_by)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (job_id) DO UPDATE
SET (occurrence_at, seq, awaited, until_at, paused_by) =
    (excluded.occurrence_at, excluded.seq, excluded.awaited, excluded.until_at, excluded.paused_by)
"""


async def begin(tx: Tx, pause: Pause) -> None:
    """Note where a job stood whose timer is gone."""
    await tx.execute(BEGIN, *pause)


_SHOWN: Final = "job_id, occurrence_at, seq, awaited, until_at, paused_by"
ONE: Final = f"SELECT {_SHOWN} FROM pauses WHERE job_id = $1 FOR UPDATE"


async def one(tx: Tx, job_id: UUID) -> Pause | None:
    """Where a job stood; that stays so until the transaction ends. None if it is not out of
    service, or was taken out of it before there were such notes."""
    row = await tx.row(ONE, job_id)
    return None if row is None else Pause(*row.values())


MOVE: Final = "UPDATE pauses SET occurrence_at = $2, seq = $3 WHERE job_id = $1"


async def move(tx: Tx, job_id: UUID, occurrence_at: datetime, seq: int) -> None:
    """A job that is out of service has another schedule, and so stands elsewhere."""
    await tx.execute(MOVE, job_id, occurrence_at, seq)


PROLONG: Final = "UPDATE pauses SET until_at = $2, paused_by = $3 WHERE job_id = $1"


async def prolong(tx: Tx, job_id: UUID, until_at: datetime | None, by: str) -> None:
    """A paused job goes on by itself at another time, or (None) not by itself."""
    await tx.execute(PROLONG, job_id, until_at, by)


END: Final = f"DELETE FROM pauses WHERE job_id = $1 RETURNING {_SHOWN}"


async def end(tx: Tx, job_id: UUID) -> Pause | None:
    """Forget where a job stood, and say it, as :func:`one` does."""
    row = await tx.row(END, job_id)
    return None if row is None else Pause(*row.values())


DUE: Final = """
SELECT p.job_id, j.tenant_id FROM pauses AS p
JOIN jobs AS j ON j.id = p.job_id
WHERE p.until_at <= coalesce($1, now()) ORDER BY p.until_at LIMIT $2
"""


async def due(tx: Tx, limit: int) -> list[Row]:
    """Jobs that are to go on by themselves by now, those first that were to do so first."""
    return await tx.rows(DUE, tx.now, limit)


# --- going on ---------------------------------------------------------------------------------


async def resume(tx: Tx, job: Row, at: datetime, now: datetime, *, catch_up: bool = False) -> None:
    """PAUSED or SUSPENDED → ACTIVE, with the first occurrence armed that is due at ``at`` or later.

    What was due before is a line in the ledger. With ``catch_up`` nothing is left out: the timer
    stands where it stood, and what is due is decided as after an outage. A recurring job of which
    nothing is left has ended. Raises ``ScheduleError``,
    with nothing written, for a job that cannot be computed.
    """
    wanted = schedule_of(job)
    pause = await end(tx, job["id"])
    if pause is None:
        armed, seq, awaited = await _unknown(tx, job, wanted, now), 1, False
    else:
        armed, seq, awaited = pause.occurrence_at, pause.seq, pause.awaited
        if not catch_up:
            armed, seq = await leave_out(tx, job, wanted, pause, at, now)
    if armed is not None:
        due_at = armed + schedule.jitter(job["id"], wanted.jitter_sec)
        version, shard = job["schedule_version"] + 1, shard_of(job["id"])
        timer = Timer(job["id"], armed, due_at, version, seq, shard)
        await timers.arm_again(tx, timer, now, awaited=awaited)
        if due_at <= now + SOON:
            tx.wakes.add(TIMERS)
    await jobs.resume(tx, job["id"])
    if armed is None and not isinstance(wanted, Once):
        await jobs.end(tx, [(job["id"], job["schedule_version"] + 1)], now)


def schedule_of(job: Row) -> Schedule:
    """A job's schedule, if it can be computed; raises ``ScheduleError``."""
    try:
        wanted = _read_spec(job["spec"]).schedule
    except msgspec.MsgspecError as error:
        raise ScheduleError("schedule", str(error)) from None
    schedule.check(wanted, job["id"])
    return wanted


async def leave_out(
    tx: Tx, job: Row, wanted: Schedule, pause: Pause, at: datetime, now: datetime
) -> tuple[datetime | None, int]:
    """Put what was due before ``at`` on record; the occurrence that comes after it, and its
    number."""
    if not schedule.is_within(wanted, pause.occurrence_at, pause.seq):
        return None, pause.seq
    left_out, armed, seq = resumption(wanted, pause.occurrence_at, pause.seq, at, job["id"])
    if left_out is None:
        return armed, seq
    reason = REASONS[job["state"]]
    skipped = OccurrenceRange(job["id"], *left_out, "SKIPPED", reason)
    await occurrence_ranges.write(tx, [skipped], pause.paused_by, now)
    return armed, seq


async def _unknown(tx: Tx, job: Row, wanted: Schedule, now: datetime) -> datetime | None:
    """The occurrence to arm of a job of which nobody noted where it stood."""
    if isinstance(wanted, Once):
        fired = await occurrences.is_there(tx, job["id"], wanted.run_at)
        return None if fired else wanted.run_at
    delay = schedule.jitter(job["id"], wanted.jitter_sec)
    accounted = await occurrences.accounted(tx, job["id"])
    return schedule.next_after(wanted, max(now - delay, accounted.until_at), job["id"])
