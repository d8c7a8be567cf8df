"""What a job leaves out while it is out of service, and where it goes on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from noonday.domain import pausing
from noonday.domain.model import MICROSECOND, Cron, Interval, Once, Schedule
from noonday.domain.pausing import MOST_COUNTED, Resumption, Stretch, resumption, same_times
from noonday.domain.schedule import jitter, left_from, next_after

JOB = UUID("01a22874-7251-7a19-8efa-d8fba3c1540e")
T = datetime(2027, 3, 27, 12, tzinfo=UTC)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)


def one_by_one(wanted: Schedule, first: datetime, at: datetime) -> Resumption:
    """The same as ``resumption``, found by walking."""
    delay, left_out, armed = jitter(JOB, wanted.jitter_sec), [], first
    left = left_from(wanted, 1)
    while armed is not None and armed + delay < at and not isinstance(wanted, Once):
        left_out.append(armed)
        armed = None if len(left_out) == left else next_after(wanted, armed, JOB)  # type: ignore[assignment]
    if not left_out:
        return Resumption(None, armed, 1)
    whole = Stretch(left_out[0], left_out[-1], len(left_out))
    return Resumption(whole, armed, 1 + len(left_out))


SCHEDULES = [
    Interval(60, T),
    Interval(7, T + timedelta(microseconds=3)),
    Interval(3_600, T, jitter_sec=1_800),
    Cron("*/20 * * * *", "Europe/Paris"),
    Cron("30 2 * * *", "Europe/Paris", dst_gap="skip"),
    Cron("30 2 * * *", "Europe/Paris", jitter_sec=86_400),
    Cron("0 0 29 2 *"),
    Interval(60, T, max_occurrences=7),
    Interval(60, T, ends_at=T + 90 * SECOND),
    Cron("*/20 * * * *", max_occurrences=4),
    Cron("*/20 * * * *", ends_at=T + HOUR, max_occurrences=90),
]


@pytest.mark.parametrize("wanted", SCHEDULES)
@pytest.mark.parametrize(
    "later", [timedelta(0), MICROSECOND, SECOND, HOUR, 5 * HOUR + SECOND, timedelta(days=3)]
)
def test_what_was_due_before_is_left_out_and_the_next_is_armed(
    wanted: Schedule, later: timedelta
) -> None:
    first = next_after(wanted, T - MICROSECOND, JOB)
    assert first is not None
    for at in (first + later, first + later + jitter(JOB, wanted.jitter_sec)):
        assert resumption(wanted, first, 1, at, JOB) == one_by_one(wanted, first, at)
        if left_from(wanted, 1) is None:
            assert pausing.goes_on(wanted, first, at, JOB) == one_by_one(wanted, first, at).armed


def test_what_is_due_at_that_very_moment_is_not_left_out() -> None:
    wanted = Interval(60, T)
    assert resumption(wanted, T, 5, T, JOB) == (None, T, 5)
    assert resumption(wanted, T, 5, T + MICROSECOND, JOB) == ((T, T, 1), T + 60 * SECOND, 6)


def test_a_job_that_fires_once_leaves_nothing_out() -> None:
    assert resumption(Once(T), T, 1, T + timedelta(days=400), JOB) == (None, T, 1)


def test_an_interval_is_counted_however_many_there_were() -> None:
    years = timedelta(days=36_500)
    left_out, armed, seq = resumption(Interval(1, T), T, 1, T + years, JOB)
    assert left_out == (T, T + years - SECOND, 36_500 * 86_400)
    assert (armed, seq) == (T + years, 36_500 * 86_400 + 1)


@pytest.mark.parametrize(
    ("expression", "until", "last"),
    [
        ("* * * * * *", T + timedelta(days=9, microseconds=7), T + timedelta(days=9)),
        ("* * * * *", T + timedelta(days=9), T + timedelta(days=9)),
        ("* 0-5 1 * *", datetime(2030, 5, 17, tzinfo=UTC), datetime(2030, 5, 1, 5, 59, tzinfo=UTC)),
        ("* * 1 1 *", datetime(2051, 1, 1, tzinfo=UTC), datetime(2051, 1, 1, tzinfo=UTC)),
    ],
)
def test_of_very_many_the_last_is_known_and_how_many_is_not(
    expression: str, until: datetime, last: datetime
) -> None:
    wanted = Cron(expression)
    first = next_after(wanted, T - MICROSECOND, JOB)
    assert first is not None
    assert pausing.stretch(wanted, first, until, JOB) == (first, last, None)


def test_many_are_counted_up_to_a_bound() -> None:
    until = T + (MOST_COUNTED - 1) * SECOND
    wanted = Cron("* * * * * *")
    assert pausing.stretch(wanted, T, until, JOB).number == MOST_COUNTED
    assert pausing.stretch(wanted, T, until + SECOND, JOB) == (T, until + SECOND, None)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Once(T), Once(T, jitter_sec=5, grace_sec=7), True),
        (Once(T), Once(T + SECOND), False),
        (Interval(60, T), Interval(60, T, 5, overlap="allow", grace_sec=7), True),
        (Interval(60, T), Interval(60, T + SECOND), False),
        (Interval(60, T), Interval(61, T), False),
        (Cron("@daily"), Cron("@daily", jitter_sec=5, dst_gap="skip", grace_sec=7), True),
        (Cron("@daily"), Cron("@daily", "Europe/Paris"), False),
        (Cron("@daily"), Cron("@daily", dst_fold="both"), False),
        (Cron("@daily"), Cron("@daily", starts_at=T), False),
        (Cron("@daily"), Interval(86_400, T), False),
        (Cron("@daily"), Once(T), False),
    ],
)
def test_schedules_that_name_the_same_times_are_told_from_others(
    one: Schedule, other: Schedule, same: bool
) -> None:
    assert same_times(one, other) is same
    assert same_times(other, one) is same
