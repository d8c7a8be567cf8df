"""Runs that are cancelled, or killed: at once where they wait, in stages where they run.

Requested: noted on the row. Told: its worker has seen that and cuts the attempt off. Fenced: the
run has ended, and whoever still holds its lease finds nothing to write to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from noonday.domain import schedule
from noonday.domain.errors import ScheduleError
from noonday.domain.model import JobSpec, Kind, RunKey, Schedule
from noonday.domain.pausing import stretch
from noonday.store import (
    Row,
    Tx,
    columns,
    dependencies,
    jobs,
    occurrence_ranges,
    occurrences,
    pauses,
    timers,
)
from noonday.store.occurrence_ranges import BY_ITSELF, OccurrenceRange
from noonday.store.pauses import Pause
from noonday.store.runs import (
    FIND,
    KEY_INPUT,
    SAME_RUN,
    Held,
    bounds,
    held_key,
    insert_letter,
)

MOST_CLOSED: Final = 10_000
_OF_JOB: Final = (
    "r.job_id = $1 AND ($2::timestamptz IS NULL OR (r.occurrence_at = $2 AND r.kind = $3))"
)
# What has ended was to be killed, or else cancelled, for a reason.
_LAST_WORD: Final = f"""
    UPDATE occurrences AS o
    SET outcome = CASE WHEN e.kills THEN 'FAILED' ELSE 'CANCELLED' END,
        reason = CASE WHEN e.kills THEN 'killed' ELSE e.why END,
        ended_at = e.clock, attempts = e.attempt
    FROM ended AS e WHERE {SAME_RUN.format("o", "e")} AND o.outcome IS NULL"""
_KILLED: Final = insert_letter(
    "(SELECT * FROM ended WHERE kills)", reason="'killed'", fingerprint="'killed'", error="e.why"
)
_GONE: Final = (
    "r.job_id, r.occurrence_at, r.kind, r.tenant_id, r.attempt, r.lease_version,"
    " r.payload_version, r.awaited, r.key_cap, r.host_cap, r.tenant_cap,"
    " r.overlap_key"
)
# How many ended, those whose children are to be told, and what they had slots of.
_COUNTED: Final = """
SELECT count(*) AS count,
       array_agg((job_id, occurrence_at, kills)) FILTER (WHERE awaited) AS awaited,
       array_agg(DISTINCT (key_cap, host_cap, tenant_cap, overlap_key))
           FILTER (WHERE coalesce(key_cap, host_cap, tenant_cap, overlap_key) IS NOT NULL) AS caps
FROM ended"""

CANCEL: Final = f"""
WITH ended AS (
    DELETE FROM runs AS r WHERE {_OF_JOB} AND r.state IN ('READY', 'RETRYING')
    RETURNING {_GONE}, $4::text AS why, $5::bool AS kills, coalesce($6, now()) AS clock
), ledger AS ({_LAST_WORD} AND ($2 IS NULL OR o.occurrence_at = $2)
), letter AS ({_KILLED})
{_COUNTED}
"""


class Which(NamedTuple):
    """All unfinished runs of a job, or one of them."""

    job_id: UUID
    occurrence_at: datetime | None = None
    kind: int = Kind.SCHEDULE

    @classmethod
    def run(cls, key: RunKey) -> Which:
        """Only this one."""
        return cls(key.job_id, key.occurrence_at, key.kind)


async def cancel(tx: Tx, which: Which, reason: str, *, kill: bool = False) -> int:
    """READY (held or not) and RETRYING → CANCELLED, or FAILED with a dead letter; how many."""
    return await _note(tx, await tx.one(CANCEL, *which, reason, kill, tx.now))


async def _note(tx: Tx, ended: Row) -> int:
    awaited = [
        (job_id, occurrence_at, "FAILED" if kills else "CANCELLED")
        for job_id, occurrence_at, kills in ended["awaited"] or ()
    ]
    await dependencies.note(tx, awaited)
    tx.caps.update(cap for caps in ended["caps"] or () for cap in caps if cap is not None)
    count: int = ended["count"]
    return count


LOCK: Final = f"""
SELECT count(*) FROM (
    SELECT FROM runs AS r WHERE {_OF_JOB} ORDER BY occurrence_at, kind FOR UPDATE
) AS locked
"""


async def lock(tx: Tx, which: Which) -> int:
    """Keep the runs as they are until the transaction ends; how many.

    Claims and settles that are under way come first; later statements see what they wrote. The
    shard must be owned, so that no run is added.
    """
    count: int = await tx.value(LOCK, *which)
    return count


REQUEST: Final = f"""
UPDATE runs AS r
SET cancel_reason = coalesce(cancel_reason, $4),
    cancel_requested_at = CASE WHEN $5 THEN coalesce(cancel_requested_at, $7, now())
                               ELSE cancel_requested_at END,
    cancel_kills = cancel_kills OR $6
WHERE {_OF_JOB} AND r.state = 'RUNNING'
"""


async def request(
    tx: Tx, which: Which, reason: str, *, stop: bool = False, kill: bool = False
) -> int:
    """Note on what runs that it is not to be tried again; how many.

    ``stop`` has the attempt cut off, else it is the last one. ``kill`` makes a dead letter of it.
    """
    return await tx.execute(REQUEST, *which, reason, stop, kill, tx.now)


async def cancel_job(tx: Tx, job: Row, reason: str, *, stop: bool = False) -> bool:
    """End a job: its timer, what waits of it, and with ``stop`` also what runs; whether there was
    anything to end. Needs the shard's exclusive lock.

    One that has been cancelled, or that has nothing left, stays as it ended; what still runs of a
    cancelled one can be stopped.
    """
    every = Which(job["id"])
    if job["state"] == "CANCELLED":
        return stop and await request(tx, every, reason, stop=True) > 0
    # In this order: what waited no more when we came has its timer by now.
    armed: Mapping[Any, Any] | None = await dependencies.stop_waiting(tx, job["id"])
    armed = armed or await timers.disarm(tx, job["id"])
    pause = await pauses.end(tx, job["id"])
    if pause is not None:
        armed = pause._asdict() | {"catch_up_to": None}
    if pause is not None and job["schedule_type"] != "once":
        await _close_pause(tx, job, pause)
    elif armed is not None:
        outcome = await _close_overdue(tx, job, armed, reason)
        if armed["awaited"]:
            await dependencies.note(tx, [(job["id"], armed["occurrence_at"], outcome)])
    await lock(tx, every)
    running = await request(tx, every, reason, stop=stop)
    stopped = await cancel(tx, every, reason)
    has_ended = job["schedule_type"] == "once" or job["state"] == "ENDED"
    if has_ended and armed is None and not running and not stopped:
        return False
    return await jobs.cancel(tx, job["id"], reason)


async def _close_pause(tx: Tx, job: Row, pause: Pause) -> None:
    """What a job has left out while it was out of service is on record, up to its end."""
    now, at = await tx.moment(), pause.occurrence_at
    try:
        await pauses.leave_out(tx, job, pauses.schedule_of(job), pause, now, now)
    except ScheduleError:  # nobody can say what comes after the first
        if at <= now:
            first = OccurrenceRange(
                job["id"], at, at, None, "SKIPPED", pauses.REASONS[job["state"]]
            )
            await occurrence_ranges.write(tx, [first], pause.paused_by, now)


async def _close_overdue(tx: Tx, job: Row, armed: Mapping[Any, Any], reason: str) -> str:
    """What fell due before the end of its job and was not fired yet is on record as well: as missed
    or skipped where it would have been, the one that would have run as cancelled, and what comes
    after ``MOST_CLOSED`` as skipped. What a one-off job has come to by that."""
    now = await tx.moment()
    try:
        wanted = msgspec.json.decode(job["spec"], type=JobSpec).schedule
        delay = schedule.jitter(job["id"], wanted.jitter_sec)
        plans = _overdue(wanted, armed, job["id"], now)
    except (msgspec.MsgspecError, ScheduleError):
        return "CANCELLED"  # nobody can say what was due
    missed = [each for plan in plans for each in plan.missed]
    closed = [(plan.fire, "CANCELLED", reason) for plan in plans if plan.fire is not None]
    closed += [(each.from_at, each.outcome, each.reason) for each in missed if each.number == 1]
    if closed:
        await occurrences.close(tx, job, delay, closed, now)
    ranges = [OccurrenceRange.of(job["id"], each) for each in missed if each.number > 1]
    last = plans[-1]
    if last.more and last.rearm is not None:
        seq = armed["seq"] + sum(plan.decided for plan in plans)
        rest = stretch(wanted, last.rearm, now - delay, job["id"], schedule.left_from(wanted, seq))
        ranges.append(OccurrenceRange(job["id"], *rest, "SKIPPED", "cancelled"))
    await occurrence_ranges.write(tx, ranges, BY_ITSELF, now)
    return last.missed[-1].outcome if last.missed and last.fire is None else "CANCELLED"


def _overdue(
    wanted: Schedule, armed: Mapping[Any, Any], job_id: UUID, now: datetime
) -> list[schedule.Plan]:
    plans: list[schedule.Plan] = []
    at, upto, decided = armed["occurrence_at"], armed["catch_up_to"], 0
    while at is not None and decided < MOST_CLOSED:
        seq = armed["seq"] + decided
        plan = schedule.plan(wanted, at, job_id, now, MOST_CLOSED, seq=seq, catch_up_to=upto)
        plans.append(plan)
        if not plan.more:
            break
        at, upto, decided = plan.rearm, plan.catch_up_to, decided + plan.decided
    return plans


ASKED: Final = """
SELECT job_id, occurrence_at, kind, lease_version, cancel_reason, cancel_kills
FROM runs WHERE cancel_requested_at IS NOT NULL AND state = 'RUNNING' AND worker_id = $1
ORDER BY cancel_requested_at LIMIT $2
"""
TELL: Final = """
UPDATE runs SET cancel_told_at = coalesce($2, now()) WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM runs WHERE cancel_requested_at IS NOT NULL AND cancel_told_at IS NULL
       AND state = 'RUNNING' AND worker_id = $1
    LIMIT $3 FOR UPDATE SKIP LOCKED))
"""


class Asked(NamedTuple):
    """A run that its worker is to stop."""

    held: Held
    reason: str
    kills: bool


async def asked(tx: Tx, worker_id: UUID, limit: int) -> list[Asked]:
    """What a worker is asked to stop; until it has ended, each time. It is told by this."""
    rows = await tx.rows(ASKED, worker_id, limit)
    if rows:
        await tx.execute(TELL, worker_id, tx.now, limit)
    return [_asked(row) for row in rows]


def _asked(row: Row) -> Asked:
    return Asked(held_key(row), row["cancel_reason"] or "cancelled", row["cancel_kills"])


END: Final = f"""
WITH ended AS (
    DELETE FROM runs AS r WHERE r.ctid = ANY (ARRAY(
        SELECT r.row {FIND.format(input=KEY_INPUT, guard=SAME_RUN.format("r", "i"))}
    )) AND r.cancel_reason IS NOT NULL AND r.state IN ('READY', 'RETRYING')
    RETURNING {_GONE}, r.cancel_reason AS why, r.cancel_kills AS kills,
              coalesce($5, now()) AS clock
), ledger AS ({_LAST_WORD} AND o.occurrence_at >= $6 AND o.occurrence_at <= $7
), letter AS ({_KILLED})
{_COUNTED}
"""


async def end(tx: Tx, leases: Sequence[Held]) -> int:
    """READY and RETRYING → CANCELLED (or FAILED) for those for which that was noted while they
    ran; how many."""
    if not leases:
        return 0
    return await _note(tx, await tx.one(END, *columns(leases, 4), tx.now, *bounds(leases)))
