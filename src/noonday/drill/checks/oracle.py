"""A second, slow opinion on cron: look at every minute of a stretch of time and ask if it fires.

Shares no code and no method with the scheduler: it walks forward in UTC, reads the local clock at
each minute, and applies the rules to what the clock shows. Plain numeric five-field expressions.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
RANGES = (range(60), range(24), range(1, 32), range(1, 13), range(8))


def numbers(field: str, span: range) -> set[int]:
    chosen: set[int] = set()
    for term in field.split(","):
        part, _, step = term.partition("/")
        if part == "*":
            low, high = span[0], span[-1]
        elif "-" in part:
            low, high = map(int, part.split("-"))
        else:
            low = int(part)
            high = span[-1] if step else low
        chosen.update(range(low, high + 1, int(step or 1)))
    return chosen


class Pattern:
    def __init__(self, expression: str) -> None:
        self.fields = expression.split()
        self.minutes, self.hours, self.days, self.months, weekdays = (
            numbers(field, span) for field, span in zip(self.fields, RANGES, strict=True)
        )
        self.weekdays = {day % 7 for day in weekdays}
        self.real_time = self.fields[1].startswith("*") or len(self.hours) == 24

    def shown(self, wall: datetime) -> bool:
        """Does a clock that shows this local time match?"""
        if wall.minute not in self.minutes or wall.hour not in self.hours:
            return False
        in_month, in_week = wall.day in self.days, wall.isoweekday() % 7 in self.weekdays
        both_restricted = not any(self.fields[i].startswith("*") for i in (2, 4))
        day = (in_month or in_week) if both_restricted else (in_month and in_week)
        return day and wall.month in self.months


def clock(zone: str, start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Each minute from start to end: the instant, and what the clock on the wall shows."""
    place, at = ZoneInfo(zone), start
    while at < end:
        yield at, at.astimezone(place)
        at += MINUTE


def fires(
    expression: str,
    minutes: list[tuple[datetime, datetime]],
    gap: str = "run",
    fold: str = "first",
) -> list[datetime]:
    """The instants among these minutes, except the first, at which the expression fires. ``gap``
    and ``fold`` are what the schedule says of local times that are skipped, or come twice."""
    pattern, found = Pattern(expression), []
    previous = minutes[0][1].replace(tzinfo=None)
    for at, local in minutes[1:]:
        wall = local.replace(tzinfo=None, fold=0)
        if pattern.real_time:
            hit = pattern.shown(wall)
        else:
            wanted = fold == "both" or bool(local.fold) == (fold == "second")
            hit = pattern.shown(wall) and (wanted or not comes_twice(local))
            while not hit and previous + MINUTE < wall:  # minutes that the clock jumped over
                previous += MINUTE
                hit = gap == "run" and pattern.shown(previous)
        if hit:
            found.append(at.astimezone(UTC))
        previous = wall
    return found


def comes_twice(local: datetime) -> bool:
    """Does the clock show this local time in two passes?"""
    return local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()


def changes(zone: str, start: datetime, end: datetime) -> list[datetime]:
    """Hours within which the clock of a zone is changed."""
    place, at, found = ZoneInfo(zone), start, []
    while at < end:
        later = at + timedelta(hours=1)
        if at.astimezone(place).utcoffset() != later.astimezone(place).utcoffset():
            found.append(at)
        at = later
    return found
