"""What a job leaves out while it is out of service, and where it goes on.

Pure functions of a schedule and of instants that are handed in, as all of ``schedule`` is.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from noonday.domain.model import MICROSECOND, Cron, Interval, Once, Schedule
from noonday.domain.schedule import each_after, jitter, left_from, next_after

MOST_COUNTED: Final = 10_000
"""Occurrences of an expression that are counted one by one; of more, none says how many."""
_SECOND: Final = timedelta(seconds=1)


class Stretch(NamedTuple):
    """Nominal times one after the other: the first, the last, and how many, if that is known."""

    from_at: datetime
    to_at: datetime
    number: int | None


class Resumption(NamedTuple):
    """What is left out, and the occurrence to arm with its number; None: there is none any more."""

    left_out: Stretch | None
    armed: datetime | None
    seq: int


def resumption(
    wanted: Schedule, position: datetime, seq: int, at: datetime, job_id: UUID
) -> Resumption:
    """How a job goes on at ``at`` that stood at the occurrence ``position``, its number ``seq``:
    without what was due before. A job that fires once leaves nothing out. Of what could not be
    counted, as much counts as was.

    Raises ``ScheduleError`` for a schedule that ``check`` refuses.
    """
    armed = goes_on(wanted, position, at, job_id)
    if armed == position:
        return Resumption(None, armed, seq)
    most = left_from(wanted, seq)
    left_out = stretch(wanted, position, _latest_due(wanted, at, job_id), job_id, most)
    number = left_out.number or MOST_COUNTED
    return Resumption(left_out, None if number == most else armed, seq + number)


def goes_on(wanted: Schedule, position: datetime, at: datetime, job_id: UUID) -> datetime | None:
    """The occurrence that such a job goes on with: the first from ``position`` on that is due at
    ``at`` or later; None: there is none."""
    latest = _latest_due(wanted, at, job_id)
    if isinstance(wanted, Once) or position > latest:
        return position
    return next_after(wanted, latest, job_id)


def _latest_due(wanted: Schedule, at: datetime, job_id: UUID) -> datetime:
    """The latest instant at which an occurrence would be due before ``at``."""
    return at - jitter(job_id, wanted.jitter_sec) - MICROSECOND


def stretch(
    wanted: Schedule, first: datetime, until: datetime, job_id: UUID, most: int | None = None
) -> Stretch:
    """The occurrences from ``first``, which is one, up to ``until``, which is no earlier; not more
    than ``most``. For a schedule that ``check`` does not refuse."""
    if not isinstance(wanted, Once) and wanted.ends_at is not None:
        until = min(until, wanted.ends_at)
    match wanted:
        case Once():
            return Stretch(first, first, 1)
        case Interval():
            step = timedelta(seconds=wanted.interval_sec)
            more = (until - first) // step
            more = more if most is None else min(more, most - 1)
            return Stretch(first, first + more * step, more + 1)
        case Cron():
            return _of_cron(wanted, first, until, job_id, most)


def _of_cron(
    wanted: Cron, first: datetime, until: datetime, job_id: UUID, most: int | None
) -> Stretch:
    last, count = first, 1
    for at in each_after(wanted, first, job_id):
        if at > until or count == most:
            break
        if count == MOST_COUNTED:
            return Stretch(first, _latest(wanted, at, until, job_id), None)
        last, count = at, count + 1
    return Stretch(first, last, count)


def _latest(wanted: Cron, known: datetime, until: datetime, job_id: UUID) -> datetime:
    """The latest occurrence up to ``until``, from one that is ``known``, by halves. (They are whole
    seconds, so that there is none between two that are less than one apart.)"""
    latest, end = known, until
    while end - latest >= _SECOND:
        middle = latest + (end - latest) / 2
        at = next_after(wanted, middle, job_id)
        if at is not None and at <= until:
            latest = at
        else:
            end = middle
    return latest


def same_times(one: Schedule, other: Schedule) -> bool:
    """Whether two schedules name the same nominal times up to their ends, whatever else they say:
    then a job that changes from one to the other stays where it is."""
    match one, other:
        case Once(), Once():
            return one.run_at == other.run_at
        case Interval(), Interval():
            return (one.interval_sec, one.starts_at) == (other.interval_sec, other.starts_at)
        case Cron(), Cron():
            return _named(one) == _named(other)
    return False


def _named(wanted: Cron) -> tuple[object, ...]:
    return wanted.cron, wanted.timezone, wanted.dst_fold, wanted.starts_at
