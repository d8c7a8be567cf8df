"""The forecast: what is due in the coming minutes, whose it is, and which minutes are hot.

Recurring jobs are counted in groups. Those that fire in the same minutes share a *shape*, the
occurrences of one such job by the minute, which is computed once; what differs is whose they are.
What is to be jittered is expected to be spread evenly, as it is over many jobs.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from math import ceil, floor
from typing import Final, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from noonday.domain import cron, schedule
from noonday.domain.model import EPOCH, MICROSECOND, Cron, Interval

MINUTE: Final = timedelta(minutes=1)
HOURS: Final = 72
MINUTES: Final = HOURS * 60
"""How far a forecast looks."""

HOT_TIMES: Final = 5.0
HOT_LEAST: Final = 60.0
MOST_PARTS: Final = 50
"""So many parts of a minute are told apart; what is smaller goes together."""
ROOM: Final = 1_000_000
"""Minutes of shapes and groups that are remembered while jobs are counted; see :class:`Survey`."""
_REMEMBERED: Final = 1_500
"""What consists of the same shapes is put together once; so many minutes are remembered."""

_NOBODY: Final = UUID(int=0)
_NOTHING: Final = 1e-9

Recurring = Cron | Interval


class Stream(NamedTuple):
    """Whose occurrences they are, where they queue, and whom they call. An empty lane and host are
    all that are too small to be told apart."""

    tenant_id: int
    lane: str
    target_host: str


Load = tuple[float, float]
"""Occurrences, and how many of them are unspread; see :class:`Part`."""
OTHERS: Final = Stream(0, "", "")
"""What is too small to be told apart by tenant."""


class Part(NamedTuple):
    """What a stream brings to a minute: occurrences to expect, so they may be a fraction."""

    stream: Stream
    occurrences: float
    unspread: float
    """Of these, what recurring jobs bring that have no jitter."""


# --- hot --------------------------------------------------------------------------------------


def hot_from(totals: Sequence[float]) -> float:
    """From how many occurrences on a minute is hot, of the minutes that there are: five times as
    many as in the mean minute, those in which nothing is due included, and at least 60."""
    return max(HOT_LEAST, HOT_TIMES * sum(totals) / max(len(totals), 1))


# --- jitter -----------------------------------------------------------------------------------


def spread(
    fires: Iterable[tuple[float, float]], jitter_sec: int, minutes: int = MINUTES
) -> list[float]:
    """What is due in each minute, of occurrences at so many seconds from the start, each with its
    number, that are spread evenly over ``jitter_sec``."""
    counts, steps = [0.0] * minutes, [0.0] * (minutes + 1)
    for offset_sec, number in fires:
        begin, end = offset_sec / 60, (offset_sec + jitter_sec) / 60
        first, last = floor(begin), floor(end)
        rate = number / (end - begin) if last > first else 0.0
        if 0 <= first < minutes:
            counts[first] += rate * (first + 1 - begin) if last > first else number
        if first < last < minutes and last >= 0:
            counts[last] += rate * (end - last)
        whole, until = max(first + 1, 0), min(last, minutes)
        if whole < until:
            steps[whole] += rate
            steps[until] -= rate
    rate = 0.0
    for minute, step in enumerate(steps[:minutes]):
        rate += step
        counts[minute] += rate
    return [count if count > _NOTHING else 0.0 for count in counts]


def with_jitter(
    occurrences: Sequence[float], unspread: Sequence[float], jitter_sec: int
) -> list[float]:
    """What would be due in each minute if the jobs that bring ``unspread`` had a jitter."""
    moved = spread(
        ((minute * 60.0, number) for minute, number in enumerate(unspread) if number),
        jitter_sec, len(occurrences),
    )  # fmt: skip
    return [
        max(there - gone, 0.0) + come
        for there, gone, come in zip(occurrences, unspread, moved, strict=True)
    ]


# --- the shape of a schedule ------------------------------------------------------------------


def shape_of(wanted: Recurring, start: datetime, minutes: int = MINUTES) -> dict[int, float]:
    """In which minutes from ``start`` on a job is due, and how often there. Numbers that a cron
    expression draws must be drawn already. At most one search for each minute.

    Raises ``ScheduleError`` for a schedule that ``domain.schedule.check`` refuses.
    """
    thinned, times = _thinned(wanted)
    jitter_sec, end = wanted.jitter_sec, start + minutes * MINUTE
    after = max(start - timedelta(seconds=jitter_sec), EPOCH) - MICROSECOND
    fires = []
    while (at := schedule.next_after(thinned, after, _NOBODY)) is not None and at < end:
        if not schedule.is_left_out(thinned, at, _NOBODY):
            fires.append(((at - start).total_seconds(), times))
        after = at
    if jitter_sec:
        due = enumerate(spread(fires, jitter_sec, minutes))
        return {minute: number for minute, number in due if number}
    return {int(offset_sec // 60): number for offset_sec, number in fires}


class Ends:
    """When schedules end of which only so many occurrences are left."""

    def __init__(self, until: datetime) -> None:
        self._until = until
        self._known: dict[tuple[Recurring, datetime], list[datetime]] = {}

    def of(self, wanted: Recurring, at: datetime, left: int) -> Recurring:
        """A schedule of which ``left`` occurrences are left, ``at`` being the next: one that ends
        with the last of them, or, should that be after ``until``, not at all. Numbers that a cron
        expression draws must be drawn already."""
        wanted = replace(wanted, max_occurrences=None)
        thinned, times = _thinned(wanted)
        more = ceil(left / times) - 1
        if at + more * MINUTE >= self._until:  # it has no two in a minute
            return wanted
        if isinstance(thinned, Interval):
            last = at + more * timedelta(seconds=thinned.interval_sec)
            return wanted if last >= self._until else replace(wanted, ends_at=last)
        walked = self._known.get((thinned, at))
        if walked is None:
            later = schedule.each_after(thinned, at, _NOBODY)
            walked = [at, *takewhile(lambda each: each < self._until, later)]
            if len(self._known) == _REMEMBERED:  # each job with numbers of its own has one
                self._known.clear()
            self._known[thinned, at] = walked
        return replace(wanted, ends_at=walked[more]) if more < len(walked) else wanted


def _thinned(wanted: Recurring) -> tuple[Recurring, float]:
    """A schedule that fires at most once in a minute, and how often this one does meanwhile."""
    if isinstance(wanted, Cron):
        text, times = cron.by_minutes(wanted.cron)
        return (wanted, 1.0) if times == 1 else (replace(wanted, cron=text), float(times))
    if wanted.interval_sec < 60:
        return replace(wanted, interval_sec=60), 60 / wanted.interval_sec
    return wanted, 1.0


def _alike(wanted: Recurring, start: datetime) -> Recurring:
    """The same for schedules that differ in nothing that shows by the minute (of an interval that
    is not made of whole minutes: by the second)."""
    if isinstance(wanted, Cron) or wanted.starts_at > start - timedelta(seconds=wanted.jitter_sec):
        return wanted
    step = 60 if wanted.interval_sec % 60 == 0 or wanted.interval_sec < 60 else 1
    since = int((wanted.starts_at - EPOCH).total_seconds()) // step * step
    anchor = EPOCH + timedelta(seconds=since % max(wanted.interval_sec, 60))
    return replace(wanted, starts_at=anchor)


class _Shape(NamedTuple):
    minutes: array[int]
    numbers: array[float]
    spread: bool
    """Whether the jobs have a jitter of their own."""


# --- the survey -------------------------------------------------------------------------------


class Survey:
    """Gathers what is due from groups of jobs, however many there are.

    Its memory is bounded by ``room``, of which each minute of a shape takes one, and each group:
    the jobs of one stream with one shape. What comes once there is none left is still in the
    totals, but not told apart.
    """

    def __init__(self, start: datetime, minutes: int = MINUTES, room: int = ROOM) -> None:
        """``start`` is at the beginning of a minute."""
        self._start = start
        self._minutes = minutes
        self._room = room
        self._known: dict[Recurring, int] = {}
        self._numbers: dict[tuple[bytes, bytes, bool], int] = {}
        self._shapes: list[_Shape] = []
        self._groups: list[dict[Stream, float]] = []
        """The jobs of each shape."""
        self._streams: dict[Stream, Stream] = {}
        self._once: dict[int, dict[Stream, float]] = {}
        self._others = [0.0] * minutes
        self._others_unspread = [0.0] * minutes
        self._folded: dict[bytes, list[Part]] = {}

    def add_recurring(self, wanted: Recurring, stream: Stream, jobs: float = 1) -> None:
        """Count jobs. Raises ``ScheduleError`` for a schedule that cannot be computed."""
        wanted = _alike(wanted, self._start)
        number = self._known.get(wanted)
        if number is None:
            due = shape_of(wanted, self._start, self._minutes)
            shape = _Shape(array("H", due), array("d", due.values()), wanted.jitter_sec > 0)
            number = self._remember(wanted, shape)
        else:
            shape = self._shapes[number]
        if number is None or not self._join(self._groups[number], stream, jobs):
            self._lump(shape, jobs)

    def add_once(self, at: datetime, stream: Stream, occurrences: float) -> None:
        """Count one-off jobs that are due in a minute."""
        minute = int((at - self._start) / MINUTE)
        if not 0 <= minute < self._minutes:
            return
        if not self._join(self._once.setdefault(minute, {}), stream, occurrences):
            self._others[minute] += occurrences

    def each(self) -> Iterator[list[Part]]:
        """What each minute consists of, the biggest part first."""
        firing = self._firing()
        for minute in range(self._minutes):
            parts = self._recurring(*firing.pop(minute, (array("I"), array("d"))))
            once = self._once.pop(minute, {})
            if once or self._others[minute]:
                loads = {part.stream: (part.occurrences, part.unspread) for part in parts}
                _add(loads, OTHERS, self._others[minute], self._others_unspread[minute])
                for stream, number in once.items():
                    _add(loads, stream, number, 0.0)
                parts = fold(loads)
            yield parts

    def _remember(self, wanted: Recurring, shape: _Shape) -> int | None:
        """The number of a shape; None when there is no room for it."""
        content = (shape.minutes.tobytes(), shape.numbers.tobytes(), shape.spread)
        number = self._numbers.get(content)
        cost = 1 if number is not None else 1 + len(shape.minutes)
        if cost > self._room:
            return None
        self._room -= cost
        if number is None:
            number = self._numbers[content] = len(self._shapes)
            self._shapes.append(shape)
            self._groups.append({})
        self._known[wanted] = number
        return number

    def _join(self, group: dict[Stream, float], stream: Stream, number: float) -> bool:
        if stream not in group:
            if not self._room:
                return False
            self._room -= 1
            stream = self._streams.setdefault(stream, stream)  # one for all groups
        group[stream] = group.get(stream, 0.0) + number
        return True

    def _lump(self, shape: _Shape, jobs: float) -> None:
        for minute, number in zip(shape.minutes, shape.numbers, strict=True):
            self._others[minute] += number * jobs
            if not shape.spread:
                self._others_unspread[minute] += number * jobs

    def _firing(self) -> dict[int, tuple[array[int], array[float]]]:
        """Which shapes fire in each minute, and how often."""
        firing: dict[int, tuple[array[int], array[float]]] = {}
        for number, shape in enumerate(self._shapes):
            if not self._groups[number]:
                continue
            for minute, times in zip(shape.minutes, shape.numbers, strict=True):
                numbers, each = firing.setdefault(minute, (array("I"), array("d")))
                numbers.append(number)
                each.append(times)
        return firing

    def _recurring(self, numbers: array[int], times: array[float]) -> list[Part]:
        """What a minute consists of in which these shapes fire; most minutes have their like."""
        key = numbers.tobytes() + times.tobytes()
        found = self._folded.get(key)
        if found is None:
            loads: dict[Stream, Load] = {}
            for number, each in zip(numbers, times, strict=True):
                plain = 0.0 if self._shapes[number].spread else each
                for stream, jobs in self._groups[number].items():
                    _add(loads, stream, jobs * each, jobs * plain)
            if len(self._folded) >= _REMEMBERED:
                self._folded.clear()
            found = self._folded[key] = fold(loads)
        return found


def _add(loads: dict[Stream, Load], stream: Stream, number: float, unspread: float) -> None:
    had = loads.get(stream, (0.0, 0.0))
    loads[stream] = (had[0] + number, had[1] + unspread)


def fold(loads: Mapping[Stream, Load], most: int = MOST_PARTS) -> list[Part]:
    """The parts of a minute, the biggest first, ``most`` at the most: half of these the biggest
    streams; then, of what is left, the biggest tenants as a whole; then all others together."""
    items = [item for item in loads.items() if item[1][0] > _NOTHING]
    if len(items) > most:
        streams = _biggest((item for item in items if item[0].lane), most // 2)
        kept, tenants = {stream for stream, _ in streams}, dict[Stream, Load]()
        for stream, load in items:
            if stream not in kept:
                _add(tenants, Stream(stream.tenant_id, "", ""), *load)
        items = [*streams, *_fewer(tenants, most - len(streams))]
    return [Part(stream, *load) for stream, load in _biggest(items, most)]


def _fewer(tenants: dict[Stream, Load], most: int) -> list[tuple[Stream, Load]]:
    others = tenants.pop(OTHERS, (0.0, 0.0))
    items = _biggest(tenants.items(), len(tenants))
    kept, rest = items[: most - 1], items[most - 1 :]
    number = others[0] + sum(load[0] for _, load in rest)
    unspread = others[1] + sum(load[1] for _, load in rest)
    return [*kept, (OTHERS, (number, unspread))] if number > _NOTHING else kept


def _biggest(items: Iterable[tuple[Stream, Load]], most: int) -> list[tuple[Stream, Load]]:
    return heapq.nlargest(most, items, key=lambda item: item[1][0])
