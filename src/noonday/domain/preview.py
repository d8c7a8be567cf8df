"""What a schedule will do, said in advance: in words, and occurrence by occurrence."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple
from uuid import UUID

from noonday.domain import cron, schedule
from noonday.domain.model import Cron, Interval, Once, Schedule

_UNITS: Final = ((604_800, "week"), (86_400, "day"), (3_600, "hour"), (60, "minute"))


class Fire(NamedTuple):
    """An occurrence to come."""

    at: datetime
    """In UTC."""
    local: datetime
    """The same instant in the schedule's time zone."""
    runs: bool
    """False where the schedule leaves it out, as a local time that does not exist."""
    note: str | None
    """What a change of the clock has to do with it."""


def fires(
    wanted: Schedule, job_id: UUID, after: datetime | None, now: datetime, n: int
) -> list[Fire]:
    """The next ``n`` occurrences later than ``after``, or of a job that is created ``now``.

    Raises ``ScheduleError`` for a schedule that ``schedule.check`` refuses.
    """
    left = schedule.left_from(wanted, 1)
    n = n if left is None else min(n, left)
    found = []
    if after is None and (first := schedule.first(wanted, job_id, now)) is not None:
        found.append(first)
        after = first
    if after is not None:
        found += schedule.upcoming(wanted, job_id, after, n - len(found))
    return [_fire(wanted, job_id, at) for at in found]


def _fire(wanted: Schedule, job_id: UUID, at: datetime) -> Fire:
    if not isinstance(wanted, Cron):
        return Fire(at, at.astimezone(UTC), True, None)
    zone = cron.zone_named(wanted.timezone)
    local = at.astimezone(zone)
    if cron.is_after_gap(cron.parse(wanted.cron, job_id), zone, at):
        before = cron.unchanged(zone, at)
        skipped = f"The clock goes from {before:%Y-%m-%d %H:%M} to {local:%Y-%m-%d %H:%M}."
        note = f"{skipped} A local time between them is meant."
        return Fire(at, local, wanted.dst_gap == "run", note)
    times = cron.pass_of(zone, at)
    twice = None if times is None else f"{local:%H:%M} comes twice; this is the {times} time."
    return Fire(at, local, True, twice)


def sentence(wanted: Schedule, job_id: UUID) -> str:
    """The schedule in English."""
    match wanted:
        case Once():
            said = f"Once, at {wanted.run_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        case Interval():
            since = wanted.starts_at.astimezone(UTC)
            said = f"Every {_length(wanted.interval_sec)} from {since:%Y-%m-%d %H:%M:%S} UTC on"
        case Cron():
            said = f"{cron.parse(wanted.cron, job_id).sentence} in {wanted.timezone}"
            if cron.is_drawn(wanted.cron):
                said += ", by numbers drawn for this job"
    if not isinstance(wanted, Once) and wanted.ends_at is not None:
        said += f", until {wanted.ends_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if not isinstance(wanted, Once) and wanted.max_occurrences is not None:
        times = "once" if wanted.max_occurrences == 1 else f"{wanted.max_occurrences} times"
        said += f", {times} at most"
    if wanted.jitter_sec:
        said += f", always later by the same part of {_length(wanted.jitter_sec)}"
    return said + "."


def _length(seconds: int) -> str:
    for size, unit in _UNITS:
        count, rest = divmod(seconds, size)
        if not rest:
            return unit if count == 1 else f"{count} {unit}s"
    return "second" if seconds == 1 else f"{seconds} seconds"
