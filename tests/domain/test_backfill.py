"""Which nominal times a past range has: by the schedule that was in force, up to its end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from noonday.domain import backfill, schedule
from noonday.domain.backfill import MOST, Place, Span, Version
from noonday.domain.errors import ScheduleError
from noonday.domain.model import MICROSECOND, Cron, Interval, Once, Schedule

JOB = UUID(int=7)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
T = datetime(2027, 3, 1, tzinfo=UTC)
DAILY = Cron("0 0 * * *")


def only(wanted: Schedule, made_at: datetime = T) -> list[Version]:
    return [Version(wanted, made_at)]


def moments(spans: tuple[Span, ...]) -> list[datetime]:
    found = [each.at for each in backfill.times(spans, JOB)]
    assert backfill.count(spans, JOB) == len(found)
    return found


# --- which schedule ---------------------------------------------------------------------------


def test_both_ends_of_a_range_are_in_it() -> None:
    spans = backfill.spans(only(DAILY), JOB, T, T + 2 * DAY)
    assert moments(spans) == [T, T + DAY, T + 2 * DAY]
    assert moments(backfill.spans(only(DAILY), JOB, T + DAY, T + DAY)) == [T + DAY]
    assert backfill.spans(only(DAILY), JOB, T + MICROSECOND, T + DAY - MICROSECOND) == ()


def test_before_a_job_was_made_its_first_schedule_is_in_force() -> None:
    made = [Version(DAILY, T, T + DAY), Version(Cron("0 12 * * *"), T + DAY)]
    assert moments(backfill.spans(made, JOB, T - 2 * DAY, T)) == [T - 2 * DAY, T - DAY, T]


def test_an_interval_begins_with_its_anchor() -> None:
    spans = backfill.spans(only(Interval(86_400, T)), JOB, T - 9 * DAY, T + DAY)
    assert moments(spans) == [T, T + DAY]


def test_each_version_counts_for_its_own_time_to_the_instant() -> None:
    hourly = Interval(3_600, T)
    made = [
        Version(DAILY, T, T + DAY),
        Version(hourly, T + DAY, T + DAY + 2 * HOUR),
        Version(Cron("30 * * * *"), T + DAY + 2 * HOUR),
    ]
    found = moments(backfill.spans(made, JOB, T, T + DAY + 4 * HOUR))
    half = timedelta(minutes=30)
    at = [DAY, DAY + HOUR, DAY + 2 * HOUR + half, DAY + 3 * HOUR + half]
    assert found == [T, *(T + each for each in at)]


def test_what_fired_once_has_no_part_in_it() -> None:
    made = [Version(Once(T), T - DAY, T + HOUR), Version(DAILY, T + HOUR)]
    assert moments(backfill.spans(made, JOB, T - DAY, T + DAY)) == [T + DAY]


def test_a_local_time_that_does_not_exist_is_marked_where_it_is_left_out() -> None:
    spring = datetime(2027, 3, 27, 12, tzinfo=UTC)
    for gap in ("run", "skip"):
        wanted = Cron("30 2 * * *", "Europe/Paris", dst_gap=gap)
        spans = backfill.spans(only(wanted), JOB, spring, spring + 2 * DAY)
        assert [each.left_out for each in backfill.times(spans, JOB)] == [gap == "skip", False]


def test_it_goes_on_after_any_of_them() -> None:
    made = [Version(Interval(3_600, T), T, T + DAY), Version(Cron("*/20 * * * *"), T + DAY)]
    spans = backfill.spans(made, JOB, T, T + DAY + 3 * HOUR)
    found = moments(spans)
    for n, at in enumerate(found):
        assert [each.at for each in backfill.times(spans, JOB, at)] == found[n + 1 :]


# --- where it ends ----------------------------------------------------------------------------


def test_nothing_is_outside_of_beginning_and_end() -> None:
    for wanted in (
        Cron("0 0 * * *", starts_at=T + DAY, ends_at=T + 3 * DAY),
        Interval(86_400, T + DAY, ends_at=T + 3 * DAY),
    ):
        spans = backfill.spans(only(wanted), JOB, T - DAY, T + 9 * DAY)
        assert moments(spans) == [T + DAY, T + 2 * DAY, T + 3 * DAY]


def numbered(most: int) -> list[Any]:
    return [
        Cron("0 0 * * *", max_occurrences=most),
        Interval(86_400, T, max_occurrences=most),
    ]


@pytest.mark.parametrize("wanted", numbered(3))
def test_they_are_numbered_from_the_making_of_the_job_on(wanted: Any) -> None:
    spans = backfill.spans(only(wanted), JOB, T, T + 9 * DAY)
    assert moments(spans) == [T, T + DAY, T + 2 * DAY]
    late = backfill.spans(only(wanted), JOB, T + 2 * DAY, T + 9 * DAY)
    assert moments(late) == [T + 2 * DAY]
    assert backfill.spans(only(wanted), JOB, T + 3 * DAY, T + 9 * DAY) == ()


def test_those_from_before_have_no_numbers() -> None:
    wanted = Cron("0 0 * * *", max_occurrences=1)
    spans = backfill.spans(only(wanted), JOB, T - 2 * DAY, T + 9 * DAY)
    assert moments(spans) == [T - 2 * DAY, T - DAY, T]


@pytest.mark.parametrize("wanted", numbered(10))
def test_the_timer_says_how_many_are_left(wanted: Any) -> None:
    spans = backfill.spans(only(wanted), JOB, T, T + 99 * DAY, Place(T + 5 * DAY, 9))
    assert moments(spans)[-1] == T + 6 * DAY


def test_numbers_go_on_while_the_nominal_times_are_the_same_and_begin_anew_when_not() -> None:
    same = [
        Version(Cron("0 0 * * *", max_occurrences=9), T, T + 2 * DAY),
        Version(Cron("0 0 * * *", overlap="queue", max_occurrences=4), T + 2 * DAY),
    ]
    assert moments(backfill.spans(same, JOB, T, T + 9 * DAY))[-1] == T + 3 * DAY
    other = [
        Version(Cron("0 12 * * *"), T, T + 2 * DAY),
        Version(Cron("0 0 * * *", max_occurrences=4), T + 2 * DAY),
    ]
    assert moments(backfill.spans(other, JOB, T, T + 9 * DAY))[-1] == T + 5 * DAY


# --- how many ---------------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """Every occurrence that is looked at."""
    found: list[datetime] = []
    each_after = schedule.each_after

    def noting(*args: Any) -> Iterator[datetime]:
        for at in each_after(*args):
            found.append(at)
            yield at

    monkeypatch.setattr(backfill, "each_after", noting)
    return found


@pytest.mark.parametrize("wanted", [Interval(1, T), Cron("* * * * * *")], ids=["interval", "cron"])
def test_as_many_as_are_allowed_are_counted_and_one_more_is_too_many(wanted: Any) -> None:
    last = T + timedelta(seconds=MOST - 1)
    assert backfill.count(backfill.spans(only(wanted), JOB, T, last), JOB) == MOST
    more = backfill.spans(only(wanted), JOB, T, last + timedelta(seconds=1))
    assert backfill.count(more, JOB) is None


def test_a_billion_of_an_interval_is_found_out_without_looking_at_them(
    seen: list[datetime],
) -> None:
    spans = backfill.spans(only(Interval(1, T)), JOB, T, T + timedelta(seconds=1_000_000_000))
    assert backfill.count(spans, JOB) is None
    assert len(seen) <= 2


def test_of_an_expression_few_more_are_looked_at_than_are_allowed(seen: list[datetime]) -> None:
    spans = backfill.spans(only(Cron("* * * * * *")), JOB, T, T + 10_000 * DAY)
    assert backfill.count(spans, JOB) is None
    assert len(seen) <= MOST + 2


def test_many_versions_are_no_more_work_than_one(seen: list[datetime]) -> None:
    made = [
        Version(Cron("* * * * * *"), T + n * DAY, T + (n + 1) * DAY if n < 9 else None)
        for n in range(10)
    ]
    assert backfill.count(backfill.spans(made, JOB, T, T + 99 * DAY), JOB) is None
    assert len(seen) <= MOST + 20


def test_a_number_that_is_too_far_off_to_be_counted_is_refused(seen: list[datetime]) -> None:
    wanted = Cron("* * * * * *", max_occurrences=1_000_000)
    with pytest.raises(ScheduleError, match="counts up to it"):
        backfill.spans(only(wanted), JOB, T + DAY, T + DAY + HOUR)
    assert len(seen) <= MOST
    interval = Interval(1, T, max_occurrences=1_000_000_000)
    spans = backfill.spans(only(interval), JOB, T + DAY, T + DAY + HOUR)
    assert backfill.count(spans, JOB) == 3_601
