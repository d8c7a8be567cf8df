"""Firing: what a due timer turns into, for the ticks and for whoever changes a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from noonday.domain import schedule
from noonday.domain.catch_up import LATE
from noonday.domain.model import JobSpec, Once, Schedule, shard_of
from noonday.domain.ranking import Ranks, Work
from noonday.store import Row, Tx, occurrences, timers
from noonday.store.occurrence_ranges import OccurrenceRange
from noonday.store.occurrences import Entry, Fired
from noonday.store.runs import work_of
from noonday.store.timers import Timer
from noonday.store.wakeups import RUNS

MOST_REASON: Final = 500
"""Characters kept of why a job was suspended."""
AT_A_TIME: Final = 10
"""Occurrences of one job that run at a time where all of an outage are to run ..."""
PAUSE: Final = timedelta(seconds=1)
"""... and how long the next of them wait."""
MOST_FIRED: Final = 10_000
"""Occurrences of a job that is changed which are decided on the way, about."""
LINE: Final = 10
"""So many nominal times that are only counted take as long as one that runs."""

_spec = msgspec.json.Decoder(JobSpec)


class Due(NamedTuple):
    """A due timer and what its firing will write: nominal times one by one, and, where some in a
    row come to the same, as a range."""

    fired: Fired
    entries: tuple[Entry, ...]
    ranges: tuple[OccurrenceRange, ...]
    rearm: Timer | None
    work: Work
    recurs: bool
    late: bool
    """Whether its time is long past."""

    @property
    def decided(self) -> int:
        """How many nominal times are decided by it."""
        return len(self.entries) + sum(each.number or 0 for each in self.ranges)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of the job: it was a one-off one, and came too late, or that was
        the last occurrence of a recurring one."""
        if self.rearm is not None:
            return False
        return self.recurs or all(entry.outcome is not None for entry in self.entries)


class Unreadable(NamedTuple):
    """A job that cannot be computed, and why."""

    job_id: UUID
    reason: str

    @classmethod
    def because(cls, job_id: UUID, what: str, error: Exception) -> Unreadable:
        """The error may quote the job: what cannot be stored of that is shown escaped."""
        text = f"{what}: {error}"[:MOST_REASON].encode("unicode_escape").decode("ascii")
        return cls(job_id, text)


def plan(row: Row, epoch: int | None, now: datetime, limit: int) -> Due | Unreadable:
    """What a due timer writes, about ``limit`` nominal times at most, and its next timer.
    Whatever goes wrong with one job is that job's own affair."""
    job_id: UUID = row["job_id"]
    try:
        spec = _spec.decode(row["spec"])
        wanted = spec.schedule
        jitter = schedule.jitter(job_id, wanted.jitter_sec)
        entries, ranges, rearm = _lines(row, wanted, jitter, now, limit)
    except Exception as error:
        return Unreadable.because(job_id, "the schedule cannot be computed", error)
    fired = Fired(job_id, row["due_at"], row["schedule_version"], row["seq"], row["shard"], epoch)
    # (The first of each is about the oldest.)
    late = (bool(entries) and now - entries[0].due_at > LATE) or (
        bool(ranges) and now - ranges[0].from_at - jitter > LATE
    )
    recurs = not isinstance(wanted, Once)
    return Due(fired, tuple(entries), tuple(ranges), rearm, work_of(row), recurs, late)


def _lines(
    row: Row, wanted: Schedule, jitter: timedelta, now: datetime, limit: int
) -> tuple[list[Entry], list[OccurrenceRange], Timer | None]:
    job_id, seq, upto = row["job_id"], row["seq"], row["catch_up_to"]
    policy = schedule.overlap_of(wanted)
    overlap = None if policy == "allow" else policy
    # One that may wait for another, or make way for it, is decided when that is there.
    at_a_time = 1 if overlap else min(AT_A_TIME, max(limit // LINE, 1))
    at: datetime | None = row["occurrence_at"]
    entries: list[Entry] = []
    ranges: list[OccurrenceRange] = []
    while at is not None:
        planned = schedule.plan(wanted, at, job_id, now, limit, seq=seq, catch_up_to=upto)
        seq += planned.decided
        for each in planned.missed:
            if each.number == 1:
                due_at = each.from_at + jitter
                entries.append(Entry(job_id, each.from_at, due_at, each.outcome, each.reason, None))
            else:
                ranges.append(OccurrenceRange.of(job_id, each))
        if planned.fire is not None:
            due_at = planned.fire + jitter
            if isinstance(wanted, Once):  # one that waited for others was not due before
                due_at = max(due_at, row["due_at"])
            entries.append(Entry(job_id, planned.fire, due_at, None, None, overlap))
            at_a_time -= 1
        at, upto = planned.rearm, planned.catch_up_to
        if upto is None or not at_a_time:
            break
    if at is None:
        return entries, ranges, None
    due_at = at + jitter if upto is None else max(at + jitter, now + PAUSE)
    rearm = Timer(job_id, at, due_at, row["schedule_version"], seq, row["shard"], upto)
    return entries, ranges, rearm


def ranked(batch: Sequence[Due], ranks: Ranks, now: datetime) -> list[Entry]:
    """The entries of a batch; those that become runs know where they queue."""
    opened = [
        item.work if now - each.due_at <= LATE else item.work._replace(late=True)
        for item in batch
        for each in item.entries
        if each.outcome is None
    ]
    given = iter(ranks(opened, now))
    return [
        entry._replace(rank=next(given)) if entry.outcome is None else entry
        for item in batch
        for entry in item.entries
    ]


class Armed(NamedTuple):
    """What a job's timer stood at when it was taken away."""

    occurrence_at: datetime
    due_at: datetime
    seq: int
    """The number of that occurrence."""
    awaited: bool
    catch_up_to: datetime | None


async def take(tx: Tx, job: Row, ranks: Ranks, now: datetime) -> Armed | None:
    """Take a job's timer away, before it is changed; None if it has none.

    What was due by ``now`` belongs to the job as it was: it is fired as a tick would fire it. After
    about ``MOST_FIRED`` occurrences the rest is left to whoever changes the job: the timer stood at
    an occurrence that is due. Needs the shard's exclusive lock.
    """
    job_id, fired = job["id"], 0
    timer: Mapping[Any, Any] | None = await timers.of_job(tx, job_id)
    while timer is not None and fired < MOST_FIRED:
        if timer["catch_up_to"] is not None and timer["due_at"] > now:
            break  # of all that are to run, the next have their time
        row = dict(job) | dict(timer) | {"job_id": job_id, "shard": shard_of(job_id)}
        planned = plan(row, None, now, MOST_FIRED)
        if isinstance(planned, Unreadable) or not planned.decided:
            break  # nothing was due, or nobody can say what
        await _fire(tx, planned, ranks, now)
        fired += planned.decided
        timer = None if planned.rearm is None else _as_armed(planned.rearm, now)
    left = await timers.disarm(tx, job_id)
    return None if left is None else Armed(*left.values())


async def _fire(tx: Tx, due: Due, ranks: Ranks, now: datetime) -> None:
    rearm = [] if due.rearm is None else [due.rearm]
    entries = ranked([due], ranks, now)
    written = await occurrences.materialize(tx, [due.fired], entries, rearm, now, due.ranges)
    if written.ready:
        tx.wakes.add(RUNS)


def _as_armed(timer: Timer, now: datetime) -> Mapping[Any, Any]:
    """The row of a timer that was armed at ``now``."""
    return timer._replace(due_at=max(timer.due_at, now))._asdict()
