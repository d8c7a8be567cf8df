"""Schedules: when a job fires, which occurrences it missed, and how jitter spreads jobs.

Everything here is a pure function of the schedule, the job's id and instants that are handed in.
An *occurrence* is a nominal time in UTC; it is *due* at that time plus the job's jitter. The next
occurrence is computed from the one before, never from a clock, so a late run shifts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from itertools import groupby
from typing import Final, Literal, NamedTuple, TypeGuard
from uuid import UUID

import msgspec

from noonday.domain import cron
from noonday.domain.errors import ScheduleError
from noonday.domain.model import EPOCH, MICROSECOND, Cron, Interval, Once, Overlap, Schedule

HORIZON: Final = datetime(2200, 1, 1, tzinfo=UTC)
"""Nothing is due at or after this instant, and nothing fires before 1970."""

LONGEST_SEC: Final = 36_525 * 86_400
"""The longest interval, jitter or grace: a hundred years."""

MOST_CAUGHT_UP: Final = 1_000
"""So many occurrences of one job run after an outage, at most, where its schedule wants all."""

Miss = Literal["superseded", "misfire", "grace", "dst_gap"]

OUTCOMES: Final[dict[Miss, str]] = {
    "superseded": "MISSED",
    "misfire": "MISSED",
    "grace": "MISSED",
    "dst_gap": "SKIPPED",
}
"""What becomes of an occurrence that does not run for this reason."""

MOST_OCCURRENCES: Final = 2_000_000_000
"""The highest number of occurrences that a schedule can be limited to."""

_NOBODY: Final = UUID(int=0)


class Missed(NamedTuple):
    """Nominal times one after the other that do not run: the first, the last, how many, and why."""

    from_at: datetime
    to_at: datetime
    number: int
    reason: Miss

    @property
    def outcome(self) -> str:
        """What the ledger says of them."""
        return OUTCOMES[self.reason]


class Plan(msgspec.Struct, frozen=True):
    """What becomes of a timer that is due: what was missed, what fires, and where it stands next.

    A missed occurrence is ``superseded`` when later ones are due as well and take its place; it is
    a ``misfire`` when several are due and the schedule wants none of them; it fell out of ``grace``
    when it is to run, but later than ``grace_sec``. One of a local time that the clock skipped
    (``dst_gap``) is left out where the schedule says so, and supersedes nothing.
    """

    missed: tuple[Missed, ...] = ()
    """In order of time."""
    fire: datetime | None = None
    rearm: datetime | None = None
    """The occurrence to arm next; None when there is none any more."""
    more: bool = False
    """The timer stands at ``rearm``, which is due already. Plan again."""
    catch_up_to: datetime | None = None
    """The last occurrence of an outage of which all are to run; hand it in when planning again."""

    @property
    def decided(self) -> int:
        """How many occurrences are decided by it."""
        return sum(each.number for each in self.missed) + (self.fire is not None)


def check(schedule: Schedule, job_id: UUID | None = None) -> None:
    """Raise ``ScheduleError``, naming the field, if the schedule cannot be computed or never fires.

    With ``H`` in an expression the answer may depend on the job; without its id, the nil UUID is
    taken. The time this takes is bounded, whatever the expression.
    """
    spread = _duration("jitter_sec", schedule.jitter_sec)
    if schedule.grace_sec is not None:
        _duration("grace_sec", schedule.grace_sec)
    if isinstance(schedule, Once):
        if _instant("run_at", schedule.run_at) + spread >= HORIZON:
            raise ScheduleError("run_at", "with its jitter, must lie before 2200-01-01")
        return
    _check_end(schedule)
    if first(schedule, job_id or _NOBODY, EPOCH) is None:
        if schedule.ends_at is not None:
            raise ScheduleError("ends_at", "leaves no occurrence")
        raise ScheduleError("starts_at", "leaves no occurrence before 2200-01-01")


def _check_end(schedule: Cron | Interval) -> None:
    most = schedule.max_occurrences
    if most is not None and not 1 <= most <= MOST_OCCURRENCES:
        raise ScheduleError("max_occurrences", f"must lie between 1 and {MOST_OCCURRENCES}")
    if schedule.ends_at is None:
        return
    ends_at = _instant("ends_at", schedule.ends_at)
    if schedule.starts_at is not None and ends_at < _instant("starts_at", schedule.starts_at):
        raise ScheduleError("ends_at", "must not lie before starts_at")


def next_after(schedule: Schedule, after: datetime, job_id: UUID) -> datetime | None:
    """The first occurrence later than ``after``, in UTC; None when there is none before 2200, or
    up to ``ends_at``. (Whoever goes from one to the next counts them: see :func:`left_from`.)

    Raises ``ScheduleError`` for a schedule that ``check`` refuses.
    """
    match schedule:
        case Once():
            run_at = _instant("run_at", schedule.run_at)
            return run_at if run_at > after else None
        case Interval():
            at = _next_interval(schedule, after)
        case Cron():
            at = _next_cron(schedule, after, job_id)
    if at is None or at >= HORIZON - _duration("jitter_sec", schedule.jitter_sec):
        return None
    return at if schedule.ends_at is None or at <= schedule.ends_at else None


def left_from(schedule: Schedule, seq: int) -> int | None:
    """How many occurrences there are from the one with this number on, the first being 1; None
    when they are not limited in number."""
    most = 1 if isinstance(schedule, Once) else schedule.max_occurrences
    return None if most is None else most - seq + 1


def overlap_of(schedule: Schedule) -> Overlap:
    """What becomes of an occurrence while a run of its job is unfinished; a job that fires once
    has only one, and what is triggered runs beside it."""
    return "allow" if isinstance(schedule, Once) else schedule.overlap


def first(schedule: Schedule, job_id: UUID, created_at: datetime) -> datetime | None:
    """The occurrence to arm when a job is created: a past ``run_at`` still counts.

    A recurring job begins with its first occurrence at or after both ``starts_at`` and creation.
    """
    if isinstance(schedule, Once):
        return _instant("run_at", schedule.run_at)
    return next_after(schedule, created_at - MICROSECOND, job_id)


def is_within(schedule: Schedule, at: datetime, seq: int) -> bool:
    """Whether an occurrence with this number is not beyond the schedule's end."""
    left = left_from(schedule, seq)
    if left is not None and left < 1:
        return False
    return isinstance(schedule, Once) or schedule.ends_at is None or at <= schedule.ends_at


def upcoming(schedule: Schedule, job_id: UUID, after: datetime, n: int) -> list[datetime]:
    """The next ``n`` occurrences later than ``after``, or as many as there are."""
    found: list[datetime] = []
    while len(found) < n and (at := next_after(schedule, after, job_id)) is not None:
        found.append(at)
        after = at
    return found


def each_after(schedule: Cron | Interval, after: datetime, job_id: UUID) -> Iterator[datetime]:
    """All occurrences later than ``after``, one by one: as by ``next_after``, but for many."""
    if isinstance(schedule, Interval):
        at = next_after(schedule, after, job_id)
        while at is not None:
            yield at
            at = next_after(schedule, at, job_id)
        return
    start = _start(schedule, after)
    if start is None:
        return
    last = HORIZON - _duration("jitter_sec", schedule.jitter_sec) - MICROSECOND
    if schedule.ends_at is not None:
        last = min(last, schedule.ends_at)
    expression, zone = cron.parse(schedule.cron, job_id), cron.zone_named(schedule.timezone)
    for at in cron.instants(expression, zone, start, schedule.dst_fold):
        if at > last:
            return
        yield at


def jitter(job_id: UUID, jitter_sec: int) -> timedelta:
    """The delay of every occurrence of this job: fixed, and uniform over jobs in 0..jitter_sec.

    One delay per job keeps its occurrences in order and an interval's distances exact.
    """
    if jitter_sec == 0:
        return timedelta(0)
    steps = _duration("jitter_sec", jitter_sec) // MICROSECOND + 1
    drawn = int.from_bytes(blake2b(job_id.bytes, digest_size=8, person=b"jitter").digest())
    return MICROSECOND * (drawn * steps >> 64)


def plan(
    schedule: Schedule,
    occurrence_at: datetime,
    job_id: UUID,
    now: datetime,
    limit: int = 1000,
    *,
    seq: int = 1,
    catch_up_to: datetime | None = None,
) -> Plan:
    """Decide about a timer that stands at ``occurrence_at``, its job's occurrence number ``seq``,
    when the database's time is ``now``.

    Of several that are due the latest fires, or none, or each of the last :data:`MOST_CAUGHT_UP`
    in turn, as the schedule has it (``misfire``); nothing does that is later than ``grace_sec``;
    the others are missed. About ``limit`` of them are decided at most. A timer that is not due
    stays as it is.
    Raises ``ScheduleError`` for a schedule that ``check`` refuses.
    """
    walk = _Walk(schedule, job_id, now - jitter(job_id, schedule.jitter_sec), seq)
    if catch_up_to is not None and occurrence_at <= catch_up_to:
        return walk.catch_up(occurrence_at, catch_up_to)
    return walk.plan(occurrence_at, limit)


class _Walk:
    """Goes through the occurrences of a job that are due: those up to ``seen``."""

    __slots__ = ("_job_id", "_later", "_leaves_out", "_left", "_misfire", "_schedule", "_seen")

    def __init__(self, schedule: Schedule, job_id: UUID, seen: datetime, seq: int) -> None:
        self._schedule = schedule
        self._job_id = job_id
        self._seen = seen
        self._left = left_from(schedule, seq)
        self._misfire = "one" if isinstance(schedule, Once) else schedule.misfire
        self._leaves_out = isinstance(schedule, Cron) and schedule.dst_gap == "skip"
        self._later: Iterator[datetime] | None = None

    def plan(self, occurrence_at: datetime, limit: int) -> Plan:
        if occurrence_at > self._seen:
            return Plan(rearm=occurrence_at)
        at = self._next(occurrence_at)
        if not self._is_due(at):
            return self._decided([occurrence_at], 0, at)
        return self._of_several([occurrence_at], at, limit)

    def catch_up(self, occurrence_at: datetime, upto: datetime) -> Plan:
        if occurrence_at > self._seen:
            return Plan(rearm=occurrence_at, catch_up_to=upto)
        return self._decided([occurrence_at], 0, self._next(occurrence_at), upto)

    def _of_several(self, due: list[datetime], at: datetime | None, limit: int) -> Plan:
        skips, runs_all = self._misfire == "skip", self._misfire == "all"
        # What is decided last, as a whole. (Of two of which none is to run, one alone would look as
        # if it were merely late.)
        last = MOST_CAUGHT_UP if runs_all else 2 if skips else 1
        limit = max(limit, last // 4)  # those are walked through each time
        real = [0] if runs_all or not self._is_left_out(due[0]) else []
        while self._is_due(at):
            if len(real) > last and real[-last] >= limit:
                kept = real[-last]
                return Plan(self._missed(due[:kept]), rearm=due[kept], more=True)
            if runs_all or not self._is_left_out(at):
                real.append(len(due))
            due.append(at)
            at = self._next(at)
        if not real or (skips and len(real) > 1):
            return Plan(self._missed(due), rearm=at)
        if runs_all:
            oldest = max(len(due) - last, 0)
            return self._decided(due[: oldest + 1], oldest, due[oldest + 1], due[-1])
        return self._decided(due, real[-1], at)

    def _decided(
        self,
        due: Sequence[datetime],
        chosen: int,
        rearm: datetime | None,
        upto: datetime | None = None,
    ) -> Plan:
        """One is to run, if it can; those before and after it do not."""
        if upto is not None and (rearm is None or rearm > upto):
            upto = None
        at, grace = due[chosen], self._schedule.grace_sec
        why: Miss | None = None
        if self._is_left_out(at):
            why = "dst_gap"
        elif grace is not None and self._seen - at > _duration("grace_sec", grace):
            why = "grace"
        missed = () if why is None and len(due) == 1 else self._missed(due, chosen, why)
        return Plan(missed, at if why is None else None, rearm, upto is not None, upto)

    def _missed(
        self, due: Sequence[datetime], chosen: int | None = None, why: Miss | None = None
    ) -> tuple[Missed, ...]:
        """All but the one chosen, which is among them for its own reason, if there is one."""
        usual: Miss = "misfire" if self._misfire == "skip" else "superseded"
        reasons: list[Miss | None] = [
            "dst_gap" if self._leaves_out and self._is_left_out(at) else usual for at in due
        ]
        if chosen is not None:
            reasons[chosen] = why
        found, start = [], 0
        for reason, group in groupby(reasons):
            end = start + len(list(group))
            if reason is not None:
                found.append(Missed(due[start], due[end - 1], end - start, reason))
            start = end
        return tuple(found)

    def _is_due(self, at: datetime | None) -> TypeGuard[datetime]:
        return at is not None and at <= self._seen

    def _is_left_out(self, at: datetime) -> bool:
        return self._leaves_out and is_left_out(self._schedule, at, self._job_id)

    def _next(self, at: datetime) -> datetime | None:
        """The one after ``at``, to be asked for one after the other."""
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                return None
        if self._later is not None:
            return next(self._later, None)
        found = next_after(self._schedule, at, self._job_id)
        if found is not None and not isinstance(self._schedule, Once):
            self._later = each_after(self._schedule, found, self._job_id)
        return found


def is_left_out(schedule: Schedule, at: datetime, job_id: UUID) -> bool:
    """Whether an occurrence stands for a local time that does not exist, and so is not to run."""
    if not isinstance(schedule, Cron) or schedule.dst_gap == "run":
        return False
    expression = cron.parse(schedule.cron, job_id)
    return cron.is_after_gap(expression, cron.zone_named(schedule.timezone), at)


def _next_interval(schedule: Interval, after: datetime) -> datetime | None:
    step = _duration("interval_sec", schedule.interval_sec, least=1)
    anchor = _instant("starts_at", schedule.starts_at)
    if after < anchor:
        return anchor
    if after >= HORIZON:
        return None
    return anchor + ((after - anchor) // step + 1) * step


def _next_cron(schedule: Cron, after: datetime, job_id: UUID) -> datetime | None:
    expression = cron.parse(schedule.cron, job_id)
    zone = cron.zone_named(schedule.timezone)
    start = _start(schedule, after)
    return None if start is None else cron.next_instant(expression, zone, start, schedule.dst_fold)


def _start(schedule: Cron, after: datetime) -> datetime | None:
    """Just before the first instant, of those later than ``after``, at which it may fire."""
    starts_at = EPOCH if schedule.starts_at is None else _instant("starts_at", schedule.starts_at)
    after = max(after, starts_at - MICROSECOND)
    return None if after >= HORIZON else after.astimezone(UTC)


@lru_cache(maxsize=1024)
def _duration(field: str, seconds: int, least: int = 0) -> timedelta:
    if not least <= seconds <= LONGEST_SEC:
        raise ScheduleError(field, f"must lie between {least} and {LONGEST_SEC} seconds")
    return timedelta(seconds=seconds)


def _instant(field: str, at: datetime) -> datetime:
    if at.tzinfo is None:
        raise ScheduleError(field, "needs an offset from UTC")
    if not EPOCH <= at < HORIZON:
        raise ScheduleError(field, "must lie from 1970-01-01 up to 2200-01-01, in UTC")
    return at if at.tzinfo is UTC else at.astimezone(UTC)
