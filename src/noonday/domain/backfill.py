"""A backfill: the nominal times of a past range, each by the schedule that was in force then.

Pure functions of schedules and instants that are handed in, as all of ``schedule`` is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from noonday.domain.errors import ScheduleError
from noonday.domain.model import EPOCH, MICROSECOND, Cron, Interval, Once, Schedule
from noonday.domain.pausing import same_times
from noonday.domain.schedule import each_after, is_left_out, next_after

MOST: Final = 10_000
"""Nominal times of one backfill. Nor are more occurrences of an expression counted one by one."""


class Version(NamedTuple):
    """A schedule that a job has, or had."""

    schedule: Schedule
    from_at: datetime
    """When it began to be in force. The first of a job has been so for ever."""
    until_at: datetime | None = None
    """From when on another one is; None: it is in force still."""


class Place(NamedTuple):
    """An occurrence, and its number among those of its job, the first being 1."""

    at: datetime
    seq: int


class Span(msgspec.Struct, frozen=True):
    """A part of a range, both ends included, in which one schedule was in force."""

    schedule: Cron | Interval
    from_at: datetime
    to_at: datetime


class Nominal(NamedTuple):
    """A nominal time."""

    at: datetime
    left_out: bool
    """By the schedule itself, as a local time that does not exist."""


def spans(
    versions: Sequence[Version],
    job_id: UUID,
    from_at: datetime,
    to_at: datetime,
    armed: Place | None = None,
) -> tuple[Span, ...]:
    """The parts of a range, both ends included, that have nominal times at all.

    ``versions`` are all that the job has had, in their order, the last being the present one.
    ``armed`` is where its timer stands, if it has one. Raises ``ScheduleError`` for a schedule that
    cannot be computed.
    """
    found = []
    for n, version in enumerate(versions):
        begin = max(from_at, version.from_at) if n else from_at
        end = to_at if version.until_at is None else min(to_at, version.until_at - MICROSECOND)
        if begin > end or isinstance(version.schedule, Once):
            continue
        place = armed if version.until_at is None else None
        span = Span(version.schedule, begin, _end(versions[: n + 1], job_id, end, place))
        if next(_each(span, job_id), None) is not None:
            found.append(span)
    return tuple(found)


def count(spans: Sequence[Span], job_id: UUID) -> int | None:
    """How many nominal times there are; None: more than ``MOST``. No more than that are looked at,
    but for the first of each part."""
    total = 0
    for span in spans:
        if isinstance(span.schedule, Interval):
            first = next(_each(span, job_id))
            total += (_last_possible(span) - first) // _step(span.schedule) + 1
    for span in spans:
        if isinstance(span.schedule, Cron) and total <= MOST:
            total += sum(1 for _ in islice(_each(span, job_id), MOST - total + 1))
    return total if total <= MOST else None


def times(
    spans: Sequence[Span], job_id: UUID, after: datetime = EPOCH - MICROSECOND
) -> Iterator[Nominal]:
    """The nominal times later than ``after``, in their order."""
    for span in spans:
        if span.to_at > after:
            for at in _each(span, job_id, after):
                yield Nominal(at, is_left_out(span.schedule, at, job_id))


def is_open(nominal: Nominal, ran: Set[datetime], until: datetime) -> bool:
    """Whether a backfill is to run it: one that has run is not, nor is one from ``until`` on, with
    which the scheduler is not through."""
    return not nominal.left_out and nominal.at < until and nominal.at not in ran


def _each(span: Span, job_id: UUID, after: datetime = EPOCH - MICROSECOND) -> Iterator[datetime]:
    for at in each_after(span.schedule, max(after, span.from_at - MICROSECOND), job_id):
        if at > span.to_at:
            return
        yield at


def _last_possible(span: Span) -> datetime:
    ends_at = span.schedule.ends_at
    return span.to_at if ends_at is None else min(span.to_at, ends_at)


def _step(schedule: Interval) -> timedelta:
    return timedelta(seconds=schedule.interval_sec)


# --- schedules that are limited in number -----------------------------------------------------


def _end(versions: Sequence[Version], job_id: UUID, end: datetime, place: Place | None) -> datetime:
    """``end``, or the last occurrence of the last of these versions if that is earlier."""
    wanted = versions[-1].schedule
    if isinstance(wanted, Once) or wanted.max_occurrences is None:
        return end
    place = place or _first(versions, job_id)
    if place is None or place.at > end:  # those from before a job was made have no numbers
        return end
    left = wanted.max_occurrences - place.seq + 1
    last = _last(wanted, place.at, left, end, job_id)
    return end if last is None else last


def _first(versions: Sequence[Version], job_id: UUID) -> Place | None:
    """The first occurrence of the last version. One that names the same times as the version
    before goes on with its numbers."""
    wanted, since = versions[-1].schedule, versions[-1].from_at
    for version in reversed(versions[:-1]):
        if not same_times(version.schedule, wanted):
            break
        since = version.from_at
    at = next_after(wanted, since - MICROSECOND, job_id)
    return None if at is None else Place(at, 1)


def _last(
    schedule: Cron | Interval, at: datetime, left: int, until: datetime, job_id: UUID
) -> datetime | None:
    """The last of ``left`` occurrences from ``at`` on; None when it is not before ``until``."""
    if isinstance(schedule, Interval):
        step = _step(schedule)
        return None if left > (until - at) // step else at + (left - 1) * step
    for n, each in enumerate(each_after(schedule, at - MICROSECOND, job_id), 1):
        if each > until:
            return None
        if n == left:
            return each
        if n == MOST:
            detail = f"is so far off that nobody counts up to it; {MOST:,} are counted"
            raise ScheduleError("max_occurrences", detail)
    return None
