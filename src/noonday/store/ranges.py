"""Ranges of time, as partitions hold them: aligned to the calendar in UTC and named after it.

``timers_d20270314`` is a day, ``timers_m202703`` a month, ``timers_y2027`` a year and
``timers_c2030`` a decade; ``executions_f20270314`` is a day of which only the attempts that did
not succeed are left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

END_OF_TIME: Final = datetime(2200, 1, 1, tzinfo=UTC)
"""Dates from here on are not accepted."""

DAYS_AHEAD: Final = timedelta(days=35)
MONTHS_AHEAD: Final = timedelta(days=730)


class Step(StrEnum):
    """How long a partition's range is; the value is the letter in its name."""

    DAY = "d"
    FAILURES = "f"
    """A day as well, without the attempts that succeeded."""
    MONTH = "m"
    YEAR = "y"
    DECADE = "c"


_DIGITS: Final = {
    Step.DAY: "%Y%m%d",
    Step.FAILURES: "%Y%m%d",
    Step.MONTH: "%Y%m",
    Step.YEAR: "%Y",
    Step.DECADE: "%Y",
}
_NAME: Final = re.compile(r"([a-z_]+)_([dfmyc])(\d{4}|\d{6}|\d{8})")

# A coarse timer range is cut into finer ones this long before it starts: before what is armed a
# month or a year ahead begins to fill it, and some weeks earlier than it must be.
_FINER: Final = {
    Step.DECADE: (Step.YEAR, timedelta(days=900)),
    Step.YEAR: (Step.MONTH, timedelta(days=400)),
    Step.MONTH: (Step.DAY, timedelta(days=40)),
}


@dataclass(frozen=True)
class Range:
    """One partition: ``[starts_at, ends_at)`` of ``table``."""

    table: str
    step: Step
    starts_at: datetime

    @property
    def ends_at(self) -> datetime:
        """Where the next range begins."""
        return _after(self.step, self.starts_at)

    @property
    def name(self) -> str:
        """The partition's table name."""
        return f"{self.table}_{self.step}{self.starts_at.strftime(_DIGITS[self.step])}"


def parse(name: str) -> Range | None:
    """Read a partition's name back; None for any other name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    table, step, digits = found[1], Step(found[2]), found[3]
    try:
        start = datetime.strptime(digits, _DIGITS[step]).replace(tzinfo=UTC)
    except ValueError:
        return None
    part = Range(table, step, start)
    return part if part.name == name else None


def cover(table: str, step: Step, start: datetime, end: datetime) -> Iterator[Range]:
    """The ranges of one step from the one that holds ``start`` up to ``end``."""
    at = _floor(step, start)
    while at < end:
        yield Range(table, step, at)
        at = _after(step, at)


def cover_future(start: datetime) -> list[Range]:
    """Timers from ``start`` to the last accepted date: days for five weeks at least, months for
    two years, then years to the decade's end, then decades."""
    months = _after(Step.MONTH, _floor(Step.MONTH, start + DAYS_AHEAD))
    years = _after(Step.YEAR, _floor(Step.YEAR, start + MONTHS_AHEAD))
    decades = _after(Step.DECADE, _floor(Step.DECADE, years))
    return [
        *cover("timers", Step.DAY, start, months),
        *cover("timers", Step.MONTH, months, years),
        *cover("timers", Step.YEAR, years, decades),
        *cover("timers", Step.DECADE, decades, END_OF_TIME),
    ]


def finer(part: Range, now: datetime, ahead: timedelta) -> list[Range]:
    """The ranges that a coarse one should be cut into by now; none when it is fine as it is.

    One that starts within ``ahead`` is left alone: it is in use, or about to be.
    """
    if part.step not in _FINER:
        return []
    step, near = _FINER[part.step]
    if not now + ahead < part.starts_at <= now + near:
        return []
    return list(cover(part.table, step, part.starts_at, part.ends_at))


def _floor(step: Step, at: datetime) -> datetime:
    day = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if step in (Step.DAY, Step.FAILURES):
        return day
    if step is Step.MONTH:
        return day.replace(day=1)
    year = day.year if step is Step.YEAR else day.year // 10 * 10
    return day.replace(year=year, month=1, day=1)


def _after(step: Step, start: datetime) -> datetime:
    if step in (Step.DAY, Step.FAILURES):
        return start + timedelta(days=1)
    if step is Step.MONTH:
        return _floor(Step.MONTH, start + timedelta(days=32))
    return start.replace(year=start.year + (1 if step is Step.YEAR else 10))
