"""When a job fires: once, by interval, from a start; limits of what can be computed; jitter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from uuid import UUID, uuid5

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noonday.domain import schedule
from noonday.domain.errors import ScheduleError
from noonday.domain.model import EPOCH, Cron, Interval, Once, Schedule

JOB = UUID(int=0x0192_0000_0000_7000_8000_0000_0000_0001)
T = datetime(2027, 5, 3, 10, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
TICK = timedelta(microseconds=1)
JOBS = [uuid5(JOB, str(n)) for n in range(2000)]


def refused(job: Schedule) -> str:
    with pytest.raises(ScheduleError) as caught:
        schedule.check(job)
    return caught.value.field


# --- Once -------------------------------------------------------------------------------------


def test_once_fires_at_run_at_and_never_again() -> None:
    job = Once(run_at=T)
    schedule.check(job)
    assert schedule.next_after(job, T - TICK, JOB) == T
    assert schedule.next_after(job, T, JOB) is None
    assert schedule.upcoming(job, JOB, T - HOUR, 5) == [T]


def test_a_run_at_in_the_past_is_still_the_first_occurrence() -> None:
    assert schedule.first(Once(run_at=T), JOB, created_at=T + HOUR) == T


def test_occurrences_are_in_utc_whatever_offset_was_given() -> None:
    east = datetime(2027, 5, 4, 0, 0, tzinfo=timezone(timedelta(hours=14)))
    at = schedule.first(Once(run_at=east), JOB, T)
    assert at == T
    assert at.tzinfo is UTC


# --- Interval ---------------------------------------------------------------------------------


def test_an_interval_is_a_grid_from_its_anchor() -> None:
    job = Interval(interval_sec=6 * 3600, starts_at=T)
    schedule.check(job)
    assert schedule.upcoming(job, JOB, T - HOUR, 3) == [T, T + 6 * HOUR, T + 12 * HOUR]
    assert schedule.next_after(job, T, JOB) == T + 6 * HOUR
    assert schedule.next_after(job, T + 6 * HOUR - TICK, JOB) == T + 6 * HOUR
    assert schedule.next_after(job, T + 7 * HOUR, JOB) == T + 12 * HOUR


def test_an_interval_begins_with_its_anchor_unless_the_anchor_was_before_creation() -> None:
    job = Interval(interval_sec=3600, starts_at=T)
    assert schedule.first(job, JOB, created_at=T) == T
    assert schedule.first(job, JOB, created_at=T - 5 * HOUR) == T
    assert schedule.first(job, JOB, created_at=T + TICK) == T + HOUR
    assert schedule.first(job, JOB, created_at=T + HOUR) == T + HOUR


def test_an_interval_follows_real_time_through_a_change_of_the_clock() -> None:
    start = datetime(2027, 11, 7, 6, 30, tzinfo=UTC)
    job = Interval(interval_sec=900, starts_at=start)
    assert schedule.upcoming(job, JOB, start, 20) == [
        start + timedelta(minutes=15 * n) for n in range(1, 21)
    ]


def test_a_century_of_seconds_is_computed_at_once() -> None:
    job = Interval(interval_sec=1, starts_at=EPOCH)
    late = datetime(2199, 12, 31, 23, 59, 58, 500_000, tzinfo=UTC)
    assert schedule.next_after(job, late, JOB) == late + timedelta(milliseconds=500)
    assert schedule.upcoming(job, JOB, late, 5) == [late + timedelta(milliseconds=500)]


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(
    st.integers(1, 10**8),
    st.datetimes(datetime(1970, 1, 1), datetime(2199, 12, 31)),
    st.datetimes(datetime(1960, 1, 1), datetime(2199, 12, 31)),
)
def test_the_next_interval_is_the_nearest_grid_point_later_than_the_moment(
    interval_sec: int, anchor: datetime, moment: datetime
) -> None:
    anchor, moment = anchor.replace(tzinfo=UTC), moment.replace(tzinfo=UTC)
    at = schedule.next_after(Interval(interval_sec=interval_sec, starts_at=anchor), moment, JOB)
    if at is None:
        assert moment + timedelta(seconds=interval_sec) >= schedule.HORIZON
        return
    step = timedelta(seconds=interval_sec)
    assert at > moment
    assert (at - anchor) % step == timedelta(0)
    assert at == anchor or at - step <= moment


# --- Cron from a start ------------------------------------------------------------------------


def test_a_cron_job_begins_at_the_later_of_creation_and_start() -> None:
    job = Cron(cron="0 * * * *", starts_at=T)
    schedule.check(job)
    assert schedule.first(job, JOB, created_at=T - 5 * HOUR) == T
    assert schedule.first(job, JOB, created_at=T + HOUR) == T + HOUR
    assert schedule.first(job, JOB, created_at=T + TICK) == T + HOUR
    assert schedule.next_after(job, T - 5 * HOUR, JOB) == T


@pytest.mark.parametrize(
    "bad", [Cron(cron=""), Cron(cron="61 * * * *"), Cron(cron="* * * * *", timezone="Mars/Phobos")]
)
def test_a_stored_schedule_that_cannot_be_read_names_its_fault(bad: Cron) -> None:
    for ask in (
        lambda: schedule.next_after(bad, T, JOB),
        lambda: schedule.first(bad, JOB, T),
        lambda: schedule.plan(bad, T, JOB, T + HOUR),
    ):
        with pytest.raises(ScheduleError):
            ask()


# --- Limits -----------------------------------------------------------------------------------

NAIVE = T.replace(tzinfo=None)
FOREVER = datetime.max.replace(tzinfo=timezone(timedelta(hours=-14)))
AGES_AGO = datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))


@pytest.mark.parametrize("at", [FOREVER, AGES_AGO, NAIVE, schedule.HORIZON, EPOCH - TICK])
def test_instants_without_offset_or_outside_1970_to_2200_are_refused(at: datetime) -> None:
    assert refused(Once(run_at=at)) == "run_at"
    assert refused(Cron(cron="* * * * *", starts_at=at)) == "starts_at"
    assert refused(Interval(interval_sec=60, starts_at=at)) == "starts_at"


@pytest.mark.parametrize("seconds", [-1, 2**63, 10**30])
def test_durations_that_cannot_be_are_refused_by_name(seconds: int) -> None:
    for job in (
        Once(run_at=T),
        Cron(cron="* * * * *"),
        Interval(interval_sec=60, starts_at=T),
    ):
        assert refused(msgspec.structs.replace(job, jitter_sec=seconds)) == "jitter_sec"
        assert refused(msgspec.structs.replace(job, grace_sec=seconds)) == "grace_sec"
    assert refused(Interval(interval_sec=seconds, starts_at=T)) == "interval_sec"
    assert refused(Interval(interval_sec=0, starts_at=T)) == "interval_sec"


def test_far_dates_within_the_horizon_are_computed() -> None:
    for years in (0.16, 10, 172):
        at = T + timedelta(days=365 * years)
        schedule.check(Once(run_at=at))
        assert schedule.first(Once(run_at=at), JOB, T) == at


def test_nothing_is_due_at_the_horizon_or_later() -> None:
    last = schedule.HORIZON - timedelta(minutes=1)
    schedule.check(Once(run_at=last, jitter_sec=59))
    assert refused(Once(run_at=last, jitter_sec=3600)) == "run_at"
    every_minute = Cron(cron="* * * * *")
    assert schedule.next_after(every_minute, last - TICK, JOB) == last
    assert schedule.next_after(every_minute, last, JOB) is None
    assert schedule.next_after(Cron(cron="* * * * *", jitter_sec=60), last - TICK, JOB) is None
    assert schedule.next_after(every_minute, FOREVER, JOB) is None
    assert schedule.next_after(Interval(interval_sec=60, starts_at=T), FOREVER, JOB) is None
    assert refused(Cron(cron="@yearly", starts_at=last)) == "starts_at"


def test_asking_from_before_all_time_gives_the_first_occurrence() -> None:
    assert schedule.next_after(Cron(cron="* * * * *"), AGES_AGO, JOB) == EPOCH
    assert schedule.next_after(Interval(interval_sec=60, starts_at=T), AGES_AGO, JOB) == T


# --- Jitter -----------------------------------------------------------------------------------


def test_jitter_belongs_to_the_job_and_never_changes_between_releases() -> None:
    assert schedule.jitter(JOB, 0) == timedelta(0)
    assert schedule.jitter(JOB, 300) == timedelta(seconds=68, microseconds=184_704)


def test_jitter_spreads_jobs_evenly_over_the_whole_span() -> None:
    delays = [schedule.jitter(job_id, 60) for job_id in JOBS]
    assert min(delays) >= timedelta(0)
    assert max(delays) <= timedelta(seconds=60)
    tenths = [0] * 10
    for delay in delays:
        tenths[int(delay / timedelta(seconds=6.1))] += 1
    assert all(140 < n < 260 for n in tenths)


def test_jitter_moves_no_nominal_time_and_keeps_the_order() -> None:
    plain, spread = Cron(cron="* * * * *"), Cron(cron="* * * * *", jitter_sec=300)
    at = schedule.upcoming(spread, JOB, T, 10)
    assert at == schedule.upcoming(plain, JOB, T, 10)
    due = [o + schedule.jitter(JOB, 300) for o in at]
    assert {b - a for a, b in pairwise(due)} == {timedelta(minutes=1)}


# --- The end ----------------------------------------------------------------------------------

ENDING = [Cron("0 10 * * *", ends_at=T + 48 * HOUR), Interval(86_400, T, ends_at=T + 48 * HOUR)]


@pytest.mark.parametrize("job", ENDING)
def test_the_last_occurrence_may_fall_on_the_very_end(job: Cron | Interval) -> None:
    assert schedule.upcoming(job, JOB, T - TICK, 9) == [T, T + 24 * HOUR, T + 48 * HOUR]
    sooner = msgspec.structs.replace(job, ends_at=T + 48 * HOUR - TICK)
    assert schedule.upcoming(sooner, JOB, T - TICK, 9) == [T, T + 24 * HOUR]


@pytest.mark.parametrize(
    ("job", "field"),
    [
        (Cron("0 10 * * *", starts_at=T, ends_at=T - TICK), "ends_at"),
        (Interval(60, T, ends_at=T - TICK), "ends_at"),
        (Cron("0 10 * * *", starts_at=T + TICK, ends_at=T + HOUR), "ends_at"),
        (Cron("0 10 * * *", ends_at=T.replace(year=2200)), "ends_at"),
        (Cron("0 10 * * *", ends_at=T.replace(tzinfo=None)), "ends_at"),
        (Cron("0 10 * * *", max_occurrences=0), "max_occurrences"),
        (Interval(60, T, max_occurrences=2_000_000_001), "max_occurrences"),
    ],
)
def test_an_end_that_cannot_be_is_refused_by_its_name(job: Cron | Interval, field: str) -> None:
    assert refused(job) == field
