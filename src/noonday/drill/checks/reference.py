"""The reference calendar: which occurrences a job should have had, by another way than the
scheduler's. Grids by multiplication, cron by looking at every minute (see ``oracle``)."""

from __future__ import annotations

from datetime import datetime, timedelta

from noonday.domain.model import Cron, Interval, Once, Schedule
from noonday.drill.checks.oracle import MINUTE, clock, fires, numbers


def calendar(schedule: Schedule, since: datetime, until: datetime) -> list[datetime]:
    """All occurrences in ``[since, until]``, in order. Plain numeric expressions only."""
    match schedule:
        case Once():
            return [schedule.run_at] if since <= schedule.run_at <= until else []
        case Interval():
            return _grid(schedule, since, until)
        case Cron():
            since = max(since, schedule.starts_at or since)
            found = _cron(schedule, since, until)
            return [at for at in found if since <= at <= until]


def _grid(schedule: Interval, since: datetime, until: datetime) -> list[datetime]:
    found, k = [], 0
    while (at := schedule.starts_at + timedelta(seconds=k * schedule.interval_sec)) <= until:
        if at >= since:
            found.append(at)
        k += 1
    return found


def _cron(schedule: Cron, since: datetime, until: datetime) -> list[datetime]:
    *seconds, minute, hour, day, month, weekday = schedule.cron.split()
    start = since.replace(second=0, microsecond=0) - 2 * MINUTE  # the oracle skips its first
    minutes = list(clock(schedule.timezone, start, until + MINUTE))
    within = sorted(numbers(seconds[0], range(60))) if seconds else [0]
    found = fires(" ".join((minute, hour, day, month, weekday)), minutes)
    return [at + timedelta(seconds=second) for at in found for second in within]
