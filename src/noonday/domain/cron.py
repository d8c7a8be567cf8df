"""Cron expressions: which local times they name, and at which instants those occur.

The dialect is that of Vixie cron: five fields, or six with the seconds *first*; names, ranges,
lists, steps; 0 and 7 are Sunday; ``L`` and ``LW`` (last day, last weekday of the month), ``5L``
(last Friday), ``5#2`` (second Friday); ``?`` for ``*`` in the two day fields; macros such as
``@daily``; and ``H``, ``H/n``, ``H(a-b)``, ``H(a-b)/n``: numbers drawn from the job's id, which
spread many jobs over an hour or a day. ``W`` and ``R`` are refused.

Day of month and day of week are joined by "or" when both are restricted. A field that begins with
``*`` is unrestricted: it is joined by "and", so that ``0 0 */2 * 1`` means odd Mondays.

Summer time: hours that begin with ``*``, or that name all 24, follow real time through a gap and
through both passes of a repeated hour. Any other hour is a fixed local time: in a gap it fires
once, at the first instant after it; in a repeated hour once, in the first pass, or, where the
schedule says so, in the second or in both.

cronsim reads the fields and finds the next local time. It is never given a zone, because its own
handling skips a pass where clocks go back by 30 minutes and leaves six fields without one.
"""

from __future__ import annotations

import copy
import re
import zoneinfo
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Final, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from cronsim.cronsim import Field

from noonday.domain.errors import ScheduleError

# Two machines with different zone files would disagree about when a job is due, so the only zone
# data read is the pinned ``tzdata`` package, never the operating system's.
zoneinfo.reset_tzpath(to=())

LONGEST: Final = 200
SECOND: Final = timedelta(seconds=1)
_START: Final = datetime(2000, 1, 1)

Fold = Literal["first", "second", "both"]
"""In which passes of a repeated hour a fixed local time fires."""

_MACROS: Final = {
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
    "@MONTHLY": "0 0 1 * *",
    "@WEEKLY": "0 0 * * 0",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@HOURLY": "0 * * * *",
}
_NAMES: Final = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")
_LIMITS: Final = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
# What a bare H draws from: every month has a 28th, and Sunday is not to be drawn twice.
_DRAWN: Final = ((0, 59), (0, 59), (0, 23), (1, 28), (1, 12), (0, 6))
_DRAW: Final = re.compile(r"H(?:\((\d{1,2})-(\d{1,2})\))?(?:/(\d{1,3}))?")
_HAS_DRAW: Final = re.compile(r"(?<![A-Z])H(?![A-Z])")
# Names in the zone database that are abbreviations, offsets or rules rather than places.
_NOT_PLACES: Final = re.compile(r"[CEMW]ET|[EMH]ST|[CEMP]ST\d[CEMP]DT|GMT[+-]?0|Factory")


class Expression:
    """A parsed expression. Immutable, so it is shared by all jobs that use it."""

    def __init__(self, fields: Sequence[str], *, follows_real_time: bool) -> None:
        self._fields = fields
        self._sim = CronSim(" ".join(fields), _START)
        self.follows_real_time = follows_real_time

    @property
    def sentence(self) -> str:
        """The local times in English."""
        return str(CronSim(" ".join(_plainly(self._fields)), _START).explain())

    def after(self, wall: datetime) -> datetime | None:
        """The first matching local time later than ``wall``, both naive; None when there is none.

        The search ends after 50 years, which is beyond the longest wait there is: 29 February
        falls on a given weekday at least every 40 years.
        """
        sim = copy.copy(self._sim)  # a search leaves its place in the object, and threads share it
        sim.dt = wall.replace(microsecond=0)
        return next(sim, None)

    def walls(self, wall: datetime) -> Iterator[datetime]:
        """All that :meth:`after` finds one by one; in a row they cost a third of that, or less."""
        at = self.after(wall)
        while at is not None:
            yield from self._rest_of_day(at)
            at = self.after(at.replace(hour=23, minute=59, second=59))

    def _rest_of_day(self, at: datetime) -> Iterator[datetime]:
        """The matching times of the day of ``at``, which is one, from it on."""
        for hour in sorted(self._sim.hours):
            if hour < at.hour:
                continue
            for minute in sorted(self._sim.minutes):
                if hour == at.hour and minute < at.minute:
                    continue
                for second in sorted(self._sim.seconds):
                    found = at.replace(hour=hour, minute=minute, second=second)
                    if found >= at:
                        yield found


def parse(text: str, job_id: UUID) -> Expression:
    """Read an expression for a job. Raises ``ScheduleError`` naming the field that is at fault."""
    fields, drawn = _split(text)
    if drawn:
        fields = tuple(_draw_field(i, field, job_id) for i, field in enumerate(fields))
    return _compile(fields)


@lru_cache(maxsize=1024)
def zone_named(name: str) -> ZoneInfo:
    """The zone with this exact IANA name or alias; ``ScheduleError`` for anything else."""
    if name not in _zone_names() or _NOT_PLACES.fullmatch(name):
        raise ScheduleError("timezone", "not an IANA time zone name such as Europe/Paris or UTC")
    return ZoneInfo.no_cache(name)  # a cached one may have been read from elsewhere


@lru_cache(maxsize=8192)  # a million jobs due at the full hour ask the same few questions
def next_instant(
    expression: Expression, zone: ZoneInfo, after: datetime, fold: Fold = "first"
) -> datetime | None:
    """The first instant later than ``after`` at which the expression fires, both in UTC.

    Local times are searched in their own order, which is also the order of instants, except while
    the clock repeats an hour: there the search is first set to the right place.
    """
    passes = "both" if expression.follows_real_time else fold
    local = after.astimezone(zone)
    wall = local.replace(tzinfo=None, microsecond=0)
    first, second = _readings(wall, zone)
    if first < second:  # the clock shows this hour twice
        turn = _turn(zone, first, second)
        if local.fold:
            if passes == "first":
                wall += turn - first - SECOND  # the rest of the second pass has been
        elif passes != "first":
            found = expression.after(wall) if passes == "both" else None
            if found and first + (found - wall) < turn:
                return first + (found - wall)
            wall += turn - second - SECOND  # back to where the second pass begins
    while found := expression.after(wall):
        first, second = _readings(found, zone)
        if first <= second:
            return first if first > after and passes != "second" else second
        turn = _turn(zone, second, first)
        if not expression.follows_real_time:
            return turn
        wall = found + (turn - second) - SECOND
    return None


def instants(
    expression: Expression, zone: ZoneInfo, after: datetime, fold: Fold = "first"
) -> Iterator[datetime]:
    """All that :func:`next_instant` finds one after the other, at a third of the cost or less."""
    at = next_instant(expression, zone, after, fold)
    while at is not None:
        yield at
        wall = at.astimezone(zone).replace(tzinfo=None)
        first, second = _readings(wall, zone)
        if first == second:
            # Local times in their own order, as long as the clock runs as it should.
            for later in expression.walls(wall):
                first, second = _readings(later, zone)
                if first != second:
                    break
                at = first
                yield at
        at = next_instant(expression, zone, at, fold)


def is_after_gap(expression: Expression, zone: ZoneInfo, at: datetime) -> bool:
    """Whether the expression fires at the instant ``at`` only because the clock skipped a local
    time that it names. (An instant that it does not name may also be one of older zone data.)"""
    wall = at.astimezone(zone).replace(tzinfo=None)
    return unchanged(zone, at) < wall and expression.after(wall - SECOND) != wall


def unchanged(zone: ZoneInfo, at: datetime) -> datetime:
    """The local time that the clock would show at an instant, had it not been changed just then."""
    return (at - SECOND).astimezone(zone).replace(tzinfo=None) + SECOND


def pass_of(zone: ZoneInfo, at: datetime) -> Literal["first", "second"] | None:
    """In which pass of a local time that comes twice an instant lies; None where it comes once."""
    first, second = _readings(at.astimezone(zone).replace(tzinfo=None), zone)
    if first >= second:
        return None
    return "first" if at == first else "second"


def is_drawn(text: str) -> bool:
    """Whether an expression has numbers that are drawn for each job (``H``)."""
    return _split(text)[1]


def drawn(text: str, job_id: UUID) -> str:
    """An expression with six fields, and the numbers in it that are drawn for a job."""
    return " ".join(_draw_field(i, field, job_id) for i, field in enumerate(_split(text)[0]))


def by_minutes(text: str) -> tuple[str, int]:
    """An expression that fires once in each minute in which this one does, and how often this one
    fires there. Nothing is drawn any more."""
    seconds, *others = _split(text)[0]
    named = sorted(
        n for n in Field.SECOND.parse(_read(Field.SECOND, seconds)) if isinstance(n, int)
    )
    return " ".join((str(named[0]), *others)), len(named)


def _readings(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """A local time read with the offset before and the one after a change of the clock (PEP 495).

    Equal on ordinary times, ascending when the time occurs twice, descending when it is skipped.
    """
    return (
        wall.replace(tzinfo=zone, fold=0).astimezone(UTC),
        wall.replace(tzinfo=zone, fold=1).astimezone(UTC),
    )


def _turn(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """The instant in ``(low, high]`` at which the clock is changed."""
    shift = high.astimezone(zone).utcoffset()

    def changed(seconds: int) -> bool:
        return (low + seconds * SECOND).astimezone(zone).utcoffset() == shift

    return low + SECOND * bisect_left(range((high - low) // SECOND), True, key=changed)


@lru_cache(maxsize=1)
def _zone_names() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


@lru_cache(maxsize=4096)
def _split(text: str) -> tuple[tuple[str, ...], bool]:
    """Six fields in capitals, macros and ``?`` replaced, and whether any of them draws by H."""
    if len(text) > LONGEST:
        raise ScheduleError("cron", f"longer than {LONGEST} characters")
    text = text.replace("\t", " ")
    if not (text.isascii() and text.isprintable()):
        raise ScheduleError("cron", "contains characters that no cron expression has")
    fields = _MACROS.get(text.strip().upper(), text).upper().split()
    if fields and fields[0].startswith("@"):
        raise ScheduleError("cron", _macro_fault(fields[0]))
    if len(fields) == 5:
        fields.insert(0, "0")
    if len(fields) != 6:
        raise ScheduleError("cron", "has neither 5 fields nor 6 (with the seconds first)")
    for i in (Field.DAY, Field.DOW):
        fields[i] = "*" if fields[i] == "?" else fields[i]
    return tuple(fields), any(_HAS_DRAW.search(field) for field in fields)


def _macro_fault(macro: str) -> str:
    known = ", ".join(name.lower() for name in _MACROS)
    if macro == "@REBOOT":
        return f"@reboot is not a time, and a job belongs to no machine; there are {known}"
    return f"unknown macro; there are {known}"


def _draw_field(i: int, field: str, job_id: UUID) -> str:
    return ",".join(
        _draw(i, term, job_id) if _HAS_DRAW.search(term) else term for term in field.split(",")
    )


def _draw(i: int, term: str, job_id: UUID) -> str:
    """Replace an H by numbers that depend on nothing but the job and the field."""
    match = _DRAW.fullmatch(term)
    if not match:
        raise ScheduleError("cron", f"{_NAMES[i]}: H stands alone or as H/n, H(a-b), H(a-b)/n")
    low, high = (int(match[1]), int(match[2])) if match[1] else _DRAWN[i]
    step = int(match[3]) if match[3] else high - low + 1
    if not _LIMITS[i][0] <= low <= high <= _LIMITS[i][1] or step == 0:
        raise ScheduleError("cron", f"{_NAMES[i]}: {term} does not fit {_numbers(i)}")
    digest = blake2b(job_id.bytes, digest_size=8, person=b"H" + _NAMES[i].encode()).digest()
    start = low + int.from_bytes(digest) % min(step, high - low + 1)
    return ",".join(str(n) for n in range(start, high + 1, step))


@lru_cache(maxsize=4096)
def _compile(fields: tuple[str, ...]) -> Expression:
    """Have cronsim read the fields; refuse what it cannot read and what never occurs."""
    fields = tuple(_read(Field(i), field) for i, field in enumerate(fields))
    hour = fields[Field.HOUR]
    every_hour = hour.startswith("*") or len(Field.HOUR.parse(hour)) == 24
    try:
        expression = Expression(fields, follows_real_time=every_hour)
        # 28 years in a row show every calendar there is, so what does not occur now never will.
        never = expression.after(_START) is None
    except CronSimError:  # each field is sound by itself: the days are in none of the months
        never = True
    if never:
        raise ScheduleError(
            "cron", "never fires: no date fits day-of-month, month and day-of-week together"
        )
    return expression


def _plainly(fields: Sequence[str]) -> list[str]:
    """The fields as they are to be explained: two day fields are joined by "or", so one that names
    every day leaves nothing to the other. (cronsim reads such a one as a star.)"""
    plain, days = list(fields), (Field.DAY, Field.DOW)
    if not any(fields[i].startswith("*") for i in days) and any(
        _names_all(i, fields[i]) for i in days
    ):
        for i in days:
            plain[i] = "*"
    return plain


def _names_all(field: Field, text: str) -> bool:
    numbers = {n for n in field.parse(text) if isinstance(n, int)}
    if field == Field.DOW:
        return {n % 7 for n in numbers} == set(range(7))
    return numbers >= set(range(1, 32))


def _read(field: Field, text: str) -> str:
    """Check one field, and settle what cronsim reads differently from Vixie cron."""
    try:
        text = ",".join(_term(field, term) for term in text.split(","))
        field.parse(text)
    except CronSimError:
        raise ScheduleError("cron", _field_fault(field, text)) from None
    return text


def _term(field: Field, term: str) -> str:
    span, slash, step = term.partition("/")
    start, dash, end = span.partition("-")
    if field == Field.DOW and end in ("SUN", "0") and start not in ("SUN", "0"):
        span = f"{start}-7"  # a range that ends on Sunday ends the week
    if slash and span in ("L", "LW"):
        raise CronSimError  # cronsim would ignore the step
    if dash and step.isdigit() and int(step) and len(one := field.parse(span)) == 1:
        return str(*one)  # 5-5/10 is 5 alone; cronsim would go on as for 5/10
    return span + slash + step


def _field_fault(field: Field, text: str) -> str:
    if field == Field.DAY and "W" in text:
        return "day-of-month: W (nearest weekday) is not supported; LW is"
    if re.search(r"(?<![A-Z])R(?![A-Z])", text):
        return f"{_NAMES[field]}: R (random) is not supported; H is"
    return f"{_NAMES[field]}: {text} does not fit {_numbers(field)}"


def _numbers(i: int) -> str:
    return f"{_LIMITS[i][0]}-{_LIMITS[i][1]}"
