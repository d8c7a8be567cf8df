"""What the calculator is compared about: expressions, and the turns of each zone's clock."""

from __future__ import annotations

import random
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Literal, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from noonday.domain import cron, schedule
from noonday.domain.errors import ScheduleError
from noonday.domain.model import Cron
from noonday.drill.checks import oracle

NIL = UUID(int=0)
FROM, UNTIL = datetime(2000, 1, 1, tzinfo=UTC), datetime(2041, 1, 1, tzinfo=UTC)
BEFORE, AFTER = timedelta(hours=28), timedelta(hours=44)
DAY = timedelta(days=1)
HAND_MADE = (
    *("* * * * *", "*/15 * * * *", "0 * * * *", "45 * * * *", "15 0-23 * * *", "0 */2 * * *"),
    *("30 1 * * *", "30 2 * * *", "0 3 * * *", "0 0 * * *", "59 23 * * *", "1 0 * * *"),
    *("*/20 1,2 * * *", "15 1-3 * * *", "0,30 2,3 * * *", "30 0,23 * * 0,5", "*/7 0-4 * * *"),
    *("0 6 */2 * 1", "10 1-3 1-7 * 6", "0 0 31 12 *", "30 2 * 3,10 0", "5 2 29 2 *"),
)
GAPS: tuple[Literal["run", "skip"], ...] = ("run", "skip")
FOLDS: tuple[cron.Fold, ...] = ("first", "second", "both")


class Turn(NamedTuple):
    """An instant at which a zone's clock is changed."""

    zone: str
    at: datetime


class Difference(NamedTuple):
    """What two opinions about the fires of a job were."""

    job: Cron
    found: list[datetime]
    wanted: list[datetime]

    def __str__(self) -> str:
        said = sorted(set(self.found) ^ set(self.wanted))
        other = ", ".join(f"{at:%Y-%m-%dT%H:%MZ} ({self._whose(at)})" for at in said[:4])
        job = self.job
        return f"{job.cron!r} in {job.timezone}, {job.dst_gap}/{job.dst_fold}: {other}"

    def _whose(self, at: datetime) -> str:
        return "not wanted" if at in self.found else "not found"


@cache
def zones() -> list[str]:
    """All zones that a schedule may name."""
    return sorted(filter(_is_accepted, zoneinfo.available_timezones()))


def _is_accepted(name: str) -> bool:
    try:
        return bool(cron.zone_named(name))
    except ScheduleError:
        return False


@cache
def turns_of(zone: str) -> tuple[Turn, ...]:
    """The turns of a zone's clock from 2000 to 2040."""
    place, found = ZoneInfo(zone), []
    at, offset = FROM, FROM.astimezone(place).utcoffset()
    while at < UNTIL:
        later = (at + DAY).astimezone(place).utcoffset()
        if later != offset:
            low, high = at, at + DAY
            while high - low > timedelta(seconds=1):
                middle = low + (high - low) // 2
                if middle.astimezone(place).utcoffset() == offset:
                    low = middle
                else:
                    high = middle
            found.append(Turn(zone, high.replace(microsecond=0)))
        at, offset = at + DAY, later
    return tuple(found)


def expressions(chance: random.Random) -> Iterator[str]:
    """Five numeric fields drawn by lot, without end; some never fire."""
    while True:
        fields = [_field(chance, low, high) for low, high in ((0, 59), (0, 23), (1, 31))]
        yield " ".join((*fields, chance.choice(("*", "*", "1-6", "3,11")), _weekday(chance)))


def _field(chance: random.Random, low: int, high: int) -> str:
    def term() -> str:
        first, last = sorted((chance.randint(low, high), chance.randint(low, high)))
        step = chance.randint(1, high)
        return chance.choice(
            ("*", f"*/{step}", f"{first}", f"{first}-{last}", f"{first}-{last}/{step}")
        )

    return ",".join(term() for _ in range(chance.choice((1, 1, 1, 2, 3))))


def _weekday(chance: random.Random) -> str:
    return chance.choice(("*", "*", "*", _field(chance, 0, 7)))


def compare(turn: Turn, texts: list[str], chance: random.Random) -> tuple[int, list[Difference]]:
    """How many fires of these expressions around a turn were compared with what a walk of every
    minute finds, and where the two differ. What a schedule says of gaps and folds is drawn."""
    start, end = turn.at.replace(second=0) - BEFORE, turn.at.replace(second=0) + AFTER
    minutes, count, differ = list(oracle.clock(turn.zone, start, end)), 0, []
    for text in texts:
        gap, fold = chance.choice(GAPS), chance.choice(FOLDS)
        job = Cron(cron=text, timezone=turn.zone, dst_gap=gap, dst_fold=fold)
        wanted = oracle.fires(text, minutes, gap, fold)
        found = list(fires(job, start, end))
        count += max(len(wanted), 1)
        if found != wanted:
            differ.append(Difference(job, found, wanted))
    return count, differ


def fires(job: Cron, start: datetime, end: datetime) -> Iterator[datetime]:
    """What the calculator says of ``(start, end)``; of an expression that it refuses, nothing."""
    after = start
    try:
        while (at := schedule.next_after(job, after, NIL)) is not None and at < end:
            if not schedule.is_left_out(job, at, NIL):
                yield at
            after = at
    except ScheduleError as error:
        if error.field != "cron":
            raise
