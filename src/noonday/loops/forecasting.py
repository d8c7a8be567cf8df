"""Forecasting: counts what is due in the next 72 hours, every few minutes, for those who ask.

One process does it at a time, the one that owns shard 0. It goes along the recurring jobs slice by
slice, then along the timers of one-off jobs, and puts what it found in place of the forecast
before, in one transaction. Should it die, whoever leads next begins anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import structlog

from noonday.domain import cron, forecast, schedule
from noonday.domain.errors import ScheduleError
from noonday.domain.forecast import MINUTE, MINUTES, Ends, Recurring, Stream, Survey
from noonday.domain.model import EPOCH, Cron, Interval
from noonday.store import Row, Store, forecasts, watch
from noonday.store.forecasts import Made, Minute, Span

SLICE: Final = 10_000
"""Jobs that one statement looks at."""
REST: Final = 20
"""A forecast that took long is followed by so many times its time without one."""
WORK_SEC: Final = 0.01
"""After computing for so long without a break, others of the process have as long."""

_START: Final = UUID(int=0)
_read: Final = msgspec.json.Decoder(Cron | Interval).decode

log = structlog.get_logger()


@dataclass
class _Walk:
    began_at: datetime
    starts_at: datetime
    survey: Survey
    after: UUID | None = _START
    """Where among the recurring jobs it goes on; None once they are counted."""
    spans: list[Span] = field(default_factory=list)
    """Where one-off jobs are still to be counted."""
    jobs: int = 0
    exact: bool = True
    faulty: int = 0
    worked_since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.ends = Ends(self.ends_at)

    @property
    def ends_at(self) -> datetime:
        return self.starts_at + MINUTES * MINUTE

    async def breathe(self) -> None:
        """Let others have a turn, if it is time."""
        if time.monotonic() - self.worked_since >= WORK_SEC:
            await asyncio.sleep(WORK_SEC)
            self.worked_since = time.monotonic()


class Forecasting:
    """Keeps the forecast. ``leads`` says whether this process is the one to do it."""

    def __init__(self, store: Store, *, every_sec: float, leads: Callable[[], bool]) -> None:
        self._store = store
        self._every = timedelta(seconds=every_sec)
        self._leads = leads
        self._walk: _Walk | None = None
        self._rests_until = EPOCH
        """After one that failed: what takes too long would else be tried without end."""

    async def tick(self) -> int:
        """A step of the forecast under way, or of the next one if it is time; 0 when it is not."""
        if not self._leads():
            self._walk = None
            return 0
        walk = self._walk = self._walk or await self._begin()
        if walk is None:
            return 0
        try:
            if walk.after is not None:
                await self._count_recurring(walk, walk.after)
            elif walk.spans:
                await self._count_one_off(walk, walk.spans[-1])
            else:
                await self._finish(walk)
        except BaseException:
            self._walk = None  # what was counted may be half of a slice
            self._rests_until = walk.began_at + self._every
            raise
        return 1

    async def _begin(self) -> _Walk | None:
        async with self._store.in_turn() as tx:
            last, now = await forecasts.made(tx), await tx.clock()
            if now < self._rests_until:
                return None
            if last is not None:
                pause = max(self._every, timedelta(seconds=REST * last.took_sec))
                if last.computed_at <= now < last.computed_at + pause:
                    return None
            start = now - (now - EPOCH) % MINUTE
            walk = _Walk(now, start, Survey(start))
            walk.spans = await forecasts.spans(tx, start, walk.ends_at)
        return walk

    async def _count_recurring(self, walk: _Walk, after: UUID) -> None:
        async with self._store.singly() as tx:
            found = await forecasts.groups(tx, after, SLICE)
            now = await tx.clock()
        walk.worked_since = time.monotonic()
        left = await self._left(walk, found.rows, now)
        for row in found.rows:
            stream = Stream(row["tenant_id"], row["lane"], row["target_host"])
            try:
                for each, jobs in _each(_read(row["schedule"]), row, left):
                    walk.survey.add_recurring(each, stream, jobs)
                    await walk.breathe()
            except (ScheduleError, msgspec.MsgspecError):
                walk.faulty += row["jobs"]  # the scheduler suspends them, each with its reason
        walk.jobs += found.jobs
        walk.after = found.ends_at

    async def _left(self, walk: _Walk, rows: Sequence[Row], now: datetime) -> _Left:
        """What is known of those of these jobs that have only so many occurrences."""
        due = {}
        for row in rows:
            with suppress(ScheduleError, msgspec.MsgspecError):
                wanted = _read(row["schedule"])
                if wanted.max_occurrences is None:
                    continue
                for job_id in row["ids"] or ():
                    at = _next(wanted, job_id, now)
                    if at is not None:
                        due[job_id] = at + schedule.jitter(job_id, wanted.jitter_sec)
                    await walk.breathe()
        if not due:
            return _Left({}, now, walk.ends)
        async with self._store.singly() as tx:
            numbers = await watch.armed(tx, list(due.items()))
        walk.worked_since = time.monotonic()
        return _Left(numbers, now, walk.ends)

    async def _count_one_off(self, walk: _Walk, span: Span) -> None:
        async with self._store.singly() as tx:
            found = await forecasts.one_off(tx, span)
        walk.worked_since = time.monotonic()
        for row in found.rows:
            stream = Stream(row["tenant_id"], row["lane"], row["target_host"])
            walk.survey.add_once(row["at"], stream, row["occurrences"])
            await walk.breathe()
        walk.exact &= found.exact
        walk.spans.pop()

    async def _finish(self, walk: _Walk) -> None:
        walk.worked_since = time.monotonic()
        parts = []
        for each in walk.survey.each():
            parts.append(each)
            await walk.breathe()
        counts = [sum(part.occurrences for part in each) for each in parts]
        hot_from = forecast.hot_from(counts)
        minutes = [
            Minute(walk.starts_at + n * MINUTE, each, count, count >= hot_from)
            for n, (each, count) in enumerate(zip(parts, counts, strict=True))
            if each
        ]
        async with self._store.transaction() as tx:
            took_sec = max((await tx.moment() - walk.began_at).total_seconds(), 0.0)
            made = Made(
                walk.began_at, took_sec, walk.starts_at, walk.ends_at, walk.jobs, not walk.exact,
                hot_from,
            )  # fmt: skip
            await forecasts.put(tx, made, minutes)
        self._walk = None
        log.info("forecast.made", count=len(minutes), duration_sec=took_sec)
        if walk.faulty:
            log.warning("forecast.left_out", count=walk.faulty, reason="no sound schedule")


def _next(wanted: Recurring, job_id: UUID, now: datetime) -> datetime | None:
    """The nominal time of the occurrence that is due next."""
    return schedule.next_after(wanted, now - schedule.jitter(job_id, wanted.jitter_sec), job_id)


class _Left(NamedTuple):
    """What is known of jobs that have only so many occurrences."""

    numbers: Mapping[UUID, int]
    """That of the next one, of those whose timer stands there."""
    now: datetime
    ends: Ends

    def of(self, wanted: Recurring, job_id: UUID) -> Recurring:
        """A job's schedule by itself, with its end if that is known."""
        seq, at = self.numbers.get(job_id), _next(wanted, job_id, self.now)
        if isinstance(wanted, Cron) and cron.is_drawn(wanted.cron):
            wanted = msgspec.structs.replace(wanted, cron=cron.drawn(wanted.cron, job_id))
        left = None if seq is None else schedule.left_from(wanted, seq)
        return wanted if left is None or at is None else self.ends.of(wanted, at, left)


def _each(wanted: Recurring, row: Row, left: _Left) -> Iterator[tuple[Recurring, int]]:
    """The schedules that a group comes to, each with how many jobs: one, unless each job draws
    numbers, or has an end, of its own."""
    drawn = isinstance(wanted, Cron) and cron.is_drawn(wanted.cron)
    if row["ids"] is None or not (drawn or wanted.max_occurrences is not None):
        yield wanted, row["jobs"]
        return
    for job_id in row["ids"]:
        yield left.of(wanted, job_id), 1
