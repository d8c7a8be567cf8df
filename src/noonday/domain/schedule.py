"""Schedules: when a job fires, which occurrences it missed, and how jitter spreads jobs.

Everything here is a pure function of the schedule, the job's id and instants that are handed in.
An *occurrence* is a nominal time in UTC; it is *due* at that time plus the job's jitter. The next
occurrence is computed from the one before, never from a clock, so a late run shifts nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Final, Literal
from uuid import UUID

import msgspec

from noonday.domain import cron
from noonday.domain.errors import ScheduleError
from noonday.domain.model import EPOCH, MICROSECOND, Cron, Interval, Once, Schedule

HORIZON: Final = datetime(2200, 1, 1, tzinfo=UTC)
"""Nothing is due at or after this instant, and nothing fires before 1970."""

LONGEST_SEC: Final = 36_525 * 86_400
"""The longest interval, jitter or grace: a hundred years."""

Miss = Literal["superseded", "grace", "dst_gap"]

OUTCOMES: Final[dict[Miss, str]] = {
    "superseded": "MISSED",
    "grace": "MISSED",
    "dst_gap": "SKIPPED",
}
"""What the ledger says of an occurrence that does not run for this reason."""

_NOBODY: Final = UUID(int=0)


class Plan(msgspec.Struct, frozen=True):
    """What becomes of a timer that is due: what was missed, what fires, and where it stands next.

    A missed occurrence is ``superseded`` when a later one is due as well; it fell out of ``grace``
    when it is the latest, but later than ``grace_sec``. One of a local time that the clock skipped
    (``dst_gap``) is left out where the schedule says so, and supersedes nothing.
    """

    missed: tuple[tuple[datetime, Miss], ...] = ()
    fire: datetime | None = None
    rearm: datetime | None = None
    """The occurrence to arm next; None when there is none any more."""
    more: bool = False
    """The limit was reached: the timer stands at ``rearm``, which is due already. Plan again."""


def check(schedule: Schedule, job_id: UUID | None = None) -> None:
    """Raise ``ScheduleError``, naming the field, if the schedule cannot be computed or never fires.

    With ``H`` in an expression the answer may depend on the job; without its id, the nil UUID is
    taken. The time this takes is bounded, whatever the expression.
    """
    spread = _duration("jitter_sec", schedule.jitter_sec)
    if schedule.grace_sec is not None:
        _duration("grace_sec", schedule.grace_sec)
    if isinstance(schedule, Once):
        if _instant("run_at", schedule.run_at) + spread >= HORIZON:
            raise ScheduleError("run_at", "with its jitter, must lie before 2200-01-01")
    elif first(schedule, job_id or _NOBODY, EPOCH) is None:
        raise ScheduleError("starts_at", "leaves no occurrence before 2200-01-01")


def next_after(schedule: Schedule, after: datetime, job_id: UUID) -> datetime | None:
    """The first occurrence later than ``after``, in UTC; None when there is none before 2200.

    Raises ``ScheduleError`` for a schedule that ``check`` refuses.
    """
    match schedule:
        case Once():
            run_at = _instant("run_at", schedule.run_at)
            return run_at if run_at > after else None
        case Interval():
            at = _next_interval(schedule, after)
        case Cron():
            at = _next_cron(schedule, after, job_id)
    latest = HORIZON - _duration("jitter_sec", schedule.jitter_sec)
    return at if at is not None and at < latest else None


def first(schedule: Schedule, job_id: UUID, created_at: datetime) -> datetime | None:
    """The occurrence to arm when a job is created: a past ``run_at`` still counts.

    A recurring job begins with its first occurrence at or after both ``starts_at`` and creation.
    """
    if isinstance(schedule, Once):
        return _instant("run_at", schedule.run_at)
    return next_after(schedule, created_at - MICROSECOND, job_id)


def upcoming(schedule: Schedule, job_id: UUID, after: datetime, n: int) -> list[datetime]:
    """The next ``n`` occurrences later than ``after``, or as many as there are."""
    found: list[datetime] = []
    while len(found) < n and (at := next_after(schedule, after, job_id)) is not None:
        found.append(at)
        after = at
    return found


def jitter(job_id: UUID, jitter_sec: int) -> timedelta:
    """The delay of every occurrence of this job: fixed, and uniform over jobs in 0..jitter_sec.

    One delay per job keeps its occurrences in order and an interval's distances exact.
    """
    if jitter_sec == 0:
        return timedelta(0)
    steps = _duration("jitter_sec", jitter_sec) // MICROSECOND + 1
    drawn = int.from_bytes(blake2b(job_id.bytes, digest_size=8, person=b"jitter").digest())
    return MICROSECOND * (drawn * steps >> 64)


def plan(
    schedule: Schedule, occurrence_at: datetime, job_id: UUID, now: datetime, limit: int = 1000
) -> Plan:
    """Decide about a timer that stands at ``occurrence_at`` when the database's time is ``now``.

    The latest occurrence that is due fires, unless it is later than ``grace_sec``; earlier ones
    are missed. At most ``limit`` occurrences are decided, beside those that fell into a gap. A
    timer that is not due stays as it is.
    Raises ``ScheduleError`` for a schedule that ``check`` refuses.
    """
    seen = now - jitter(job_id, schedule.jitter_sec)  # occurrences up to here are due
    missed: list[tuple[datetime, Miss]] = []
    latest: datetime | None = None
    at: datetime | None = occurrence_at
    while at is not None and at <= seen:
        if is_left_out(schedule, at, job_id):
            missed.append((at, "dst_gap"))
        else:
            if latest is not None:
                missed.append((latest, "superseded"))
                if len(missed) >= limit:
                    return Plan(missed=tuple(missed), rearm=at, more=True)
            latest = at
        at = next_after(schedule, at, job_id)
    if latest is None:
        return Plan(missed=tuple(missed), rearm=at)
    grace = schedule.grace_sec
    if grace is not None and seen - latest > _duration("grace_sec", grace):
        return Plan(missed=(*missed, (latest, "grace")), rearm=at)
    return Plan(missed=tuple(missed), fire=latest, rearm=at)


def is_left_out(schedule: Schedule, at: datetime, job_id: UUID) -> bool:
    """Whether an occurrence stands for a local time that does not exist, and so is not to run."""
    if not isinstance(schedule, Cron) or schedule.dst_gap == "run":
        return False
    expression = cron.parse(schedule.cron, job_id)
    return cron.is_after_gap(expression, cron.zone_named(schedule.timezone), at)


def _next_interval(schedule: Interval, after: datetime) -> datetime | None:
    step = _duration("interval_sec", schedule.interval_sec, least=1)
    anchor = _instant("starts_at", schedule.starts_at)
    if after < anchor:
        return anchor
    if after >= HORIZON:
        return None
    return anchor + ((after - anchor) // step + 1) * step


def _next_cron(schedule: Cron, after: datetime, job_id: UUID) -> datetime | None:
    expression = cron.parse(schedule.cron, job_id)
    zone = cron.zone_named(schedule.timezone)
    starts_at = EPOCH if schedule.starts_at is None else _instant("starts_at", schedule.starts_at)
    after = max(after, starts_at - MICROSECOND)
    if after >= HORIZON:
        return None
    return cron.next_instant(expression, zone, after.astimezone(UTC), schedule.dst_fold)


@lru_cache(maxsize=1024)
def _duration(field: str, seconds: int, least: int = 0) -> timedelta:
    if not least <= seconds <= LONGEST_SEC:
        raise ScheduleError(field, f"must lie between {least} and {LONGEST_SEC} seconds")
    return timedelta(seconds=seconds)


def _instant(field: str, at: datetime) -> datetime:
    if at.tzinfo is None:
        raise ScheduleError(field, "needs an offset from UTC")
    if not EPOCH <= at < HORIZON:
        raise ScheduleError(field, "must lie from 1970-01-01 up to 2200-01-01, in UTC")
    return at if at.tzinfo is UTC else at.astimezone(UTC)
