"""The watchdog: compares where the timer of each recurring job stands with where it should.

An occurrence that nobody arms is a job that has stopped without a word. So every job in service is
looked at again and again, a slice at a time: its timer stands at its next nominal time, or at an
earlier one that is still to be fired. One that has no timer, or one that stands elsewhere, gets
it where its ledger ends: what was passed over is decided as after an outage, and is on record.

A timer that stands at no nominal time was armed by older data of its time zone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple
from uuid import UUID

import msgspec
import structlog

from noonday.domain import schedule
from noonday.domain.errors import ScheduleError
from noonday.domain.model import MICROSECOND, Cron, Interval, JobSpec, Once, shard_of
from noonday.domain.pausing import MOST_COUNTED, stretch
from noonday.store import (
    Row,
    Store,
    Tx,
    jobs,
    locks,
    occurrence_ranges,
    occurrences,
    timers,
    watch,
)
from noonday.store.occurrence_ranges import OccurrenceRange
from noonday.store.timers import Timer
from noonday.store.wakeups import TIMERS
from noonday.telemetry import Metrics

SLICE: Final = 500
"""Jobs that a tick looks at: it takes some 4 ms, in which nothing else of the process goes on."""
REST_SEC: Final = 1.0
"""Between two slices. A million jobs are looked at within half an hour or so, for a hundredth of a
core."""
LOOKED_FOR: Final = 100
"""Of those whose timer is not where it should be so many are looked for everywhere in a tick, which
takes milliseconds each."""
PASS: Final = timedelta(minutes=10)
"""From the beginning of one pass over all jobs to that of the next, at least."""

_LEVELS: Final = {"unarmed": logging.ERROR, "ahead": logging.ERROR, "beside": logging.WARNING}

_START: Final = UUID(int=0)
_read: Final = msgspec.json.Decoder(JobSpec).decode

log = structlog.get_logger()


class Watchdog:
    """``leads`` says whether this process is the one to do it."""

    def __init__(self, store: Store, metrics: Metrics, *, leads: Callable[[], bool]) -> None:
        self._store = store
        self._metrics = metrics
        self._leads = leads
        self._after = _START
        self._again_at: datetime | None = None

    def sleep_for(self) -> float | None:
        """Seconds until the next slice, within a pass."""
        return None if self._after == _START else REST_SEC

    async def tick(self) -> int:
        """Look at the next slice, and repair what is wrong; how many jobs were repaired."""
        if not self._leads():
            self._after = _START
            return 0
        async with self._store.in_turn() as tx:
            now = await tx.clock()
            if self._after == _START:
                if self._again_at is not None and now < self._again_at:
                    return 0
                self._again_at = now + PASS
            found = await watch.active(tx, self._after, SLICE)
            astray = await self._astray(tx, found, now)
        repaired = 0
        for job_id, tenant_id in astray[:LOOKED_FOR]:
            repaired += await self._look(job_id, tenant_id)
        if len(astray) > LOOKED_FOR:
            self._after = astray[LOOKED_FOR - 1][0]
        else:
            self._after = found[-1]["id"] if len(found) == SLICE else _START
        return repaired

    async def _astray(self, tx: Tx, found: Sequence[Row], now: datetime) -> list[tuple[UUID, int]]:
        """Those whose timer is neither due when it should be, nor still to be fired."""
        expected = {}
        for row in found:
            wanted = _schedule(row, now)
            if wanted is not None:
                delay = schedule.jitter(row["id"], wanted.jitter_sec)
                at = schedule.next_after(wanted, now - delay, row["id"])
                expected[row["id"]] = now if at is None else at + delay
        rest = expected.keys() - (await watch.armed(tx, list(expected.items()))).keys()
        if rest:
            rest -= await watch.overdue(tx, list(rest), now)
        return [(row["id"], row["tenant_id"]) for row in found if row["id"] in rest]

    async def _look(self, job_id: UUID, tenant_id: int) -> bool:
        """Look at one closely, and repair it; whether it had to be."""
        async with self._store.transaction() as tx:
            if await _wrong(tx, job_id, tenant_id) is None:
                return False
        async with self._store.transaction() as tx:
            await locks.own_shard(tx, shard_of(job_id))
            # Read again: what ticks and changes have done up to the lock is seen only now.
            wrong = await _wrong(tx, job_id, tenant_id)
            if wrong is not None:
                await self._repair(tx, wrong)
        return wrong is not None

    async def _repair(self, tx: Tx, wrong: _Wrong) -> None:
        job, wanted, at = wrong.job, wrong.wanted, wrong.belongs_at
        job_id: UUID = job["id"]
        await timers.disarm(tx, job_id)
        if at is not None and wrong.has_run:
            passed_over = OccurrenceRange(job_id, at, at, 1, "SKIPPED", "changed")
            await occurrence_ranges.write(tx, [passed_over], occurrence_ranges.BY_ITSELF, wrong.now)
            at = schedule.next_after(wanted, at, job_id)
        seq = 1 if at is None else await _number(tx, job, wanted, at)
        if at is None or not schedule.is_within(wanted, at, seq):
            await jobs.end(tx, [(job_id, job["schedule_version"])], wrong.now)
        else:
            due_at = at + schedule.jitter(job_id, wanted.jitter_sec)
            timer = Timer(job_id, at, due_at, job["schedule_version"], seq, shard_of(job_id))
            await timers.arm(tx, [timer], wrong.now)
            tx.wakes.add(TIMERS)
        self._metrics.repaired(wrong.how)
        log.log(_LEVELS[wrong.how], "job.repaired", job_id=str(job_id), reason=wrong.how)


class _Wrong(NamedTuple):
    """A job whose timer does not stand where it should."""

    job: Row
    wanted: Cron | Interval
    now: datetime
    stands_at: datetime | None
    """None: it has none."""
    belongs_at: datetime | None
    """The first that is not on record; None: nothing of the job is left."""
    decided_at: datetime | None
    """The last that is on record."""

    @property
    def how(self) -> Literal["unarmed", "ahead", "beside"]:
        """What is wrong: beside is an instant that the schedule does not name."""
        at = self.stands_at
        if at is None:
            return "unarmed"
        is_named = schedule.next_after(self.wanted, at - MICROSECOND, self.job["id"]) == at
        return "ahead" if is_named else "beside"

    @property
    def has_run(self) -> bool:
        """Whether that first one is, by the new data of a zone, what was decided last by the old:
        it is nearer to that than to what comes next by the old."""
        if self.how != "beside" or not (self.stands_at and self.belongs_at and self.decided_at):
            return False
        return self.belongs_at - self.decided_at < abs(self.stands_at - self.belongs_at)


async def _wrong(tx: Tx, job_id: UUID, tenant_id: int) -> _Wrong | None:
    """None: its timer stands at its next nominal time, at one that has come, or where its ledger
    ends; or it needs none."""
    job, now = await jobs.one(tx, job_id, tenant_id), await tx.moment()
    if job is None or job["state"] != "ACTIVE" or (wanted := _schedule(job, now)) is None:
        return None
    timer = await timers.of_job(tx, job_id)
    stands_at = None if timer is None else timer["occurrence_at"]
    if stands_at is not None and stands_at <= now:
        return None
    decided_at, until_at = await occurrences.accounted(tx, job_id)
    since = max(until_at, job["created_at"] - MICROSECOND)
    belongs_at = schedule.next_after(wanted, since, job_id)
    # (Its ledger may end ahead of the present: the clock was set back.)
    right = (schedule.next_after(wanted, now, job_id), belongs_at)
    if stands_at is not None and stands_at in right:
        return None
    return _Wrong(job, wanted, now, stands_at, belongs_at, decided_at)


def _schedule(job: Row, now: datetime) -> Cron | Interval | None:
    """The schedule of a job that recurs; None also for one that cannot be computed, which the
    scheduler suspends."""
    try:
        wanted = _read(job["spec"]).schedule
        schedule.next_after(wanted, now, job["id"])
    except (msgspec.MsgspecError, ScheduleError):
        return None
    return None if isinstance(wanted, Once) else wanted


async def _number(tx: Tx, job: Row, wanted: Cron | Interval, at: datetime) -> int:
    """The number of an occurrence of a job, where that matters. It is that of the calendar, since
    the ledger may begin later; where that is too long, it is that of the ledger."""
    first_at, most = job["first_at"], wanted.max_occurrences
    if most is None or at <= first_at:
        return 1
    before = stretch(wanted, first_at, at - MICROSECOND, job["id"], most).number
    if before is None:
        before = await watch.count(tx, job["id"], first_at, most, MOST_COUNTED)
    return 1 + before
