"""The calendar of partitions: no hole, no overlap, whatever the day and however long it runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noonday.store.ranges import END_OF_TIME, Range, Step, cover, cover_future, finer, parse

AHEAD = timedelta(days=2)
DAY = timedelta(days=1)
EVERY_RUN = settings(derandomize=True, deadline=None, database=None)
moments = st.datetimes(datetime(2024, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))


def assert_no_hole(parts: list[Range], start: datetime) -> None:
    assert parts[0].starts_at <= start < parts[0].ends_at
    assert parts[-1].ends_at == END_OF_TIME
    for before, after in pairwise(parts):
        assert before.ends_at == after.starts_at


@EVERY_RUN
@given(moments)
def test_timers_are_covered_from_any_day_to_the_last_date_accepted(now: datetime) -> None:
    parts = cover_future(now)
    assert_no_hole(parts, now)
    assert len(parts) < 130
    assert {part.step for part in parts if part.starts_at < now + 35 * DAY} == {Step.DAY}


@pytest.mark.parametrize("every", [DAY, 7 * DAY, 61 * DAY, 500 * DAY])
@settings(max_examples=15, derandomize=True, deadline=None, database=None)
@given(moments)
def test_timers_stay_covered_while_time_passes_and_ranges_are_cut(
    every: timedelta, start: datetime
) -> None:
    parts = cover_future(start)
    now = start
    for _ in range(40):
        now += every
        parts = [piece for part in parts for piece in finer(part, now, AHEAD) or [part]]
        parts = [part for part in parts if part.ends_at > now]
        assert_no_hole(parts, now)


@settings(max_examples=5, derandomize=True, deadline=None, database=None)
@given(moments)
def test_looked_after_daily_every_day_has_a_range_of_its_own_when_it_comes(start: datetime) -> None:
    parts = cover_future(start)
    now = start
    for _ in range(500):
        now += DAY
        parts = [piece for part in parts for piece in finer(part, now, AHEAD) or [part]]
        parts = [part for part in parts if part.ends_at > now]
        assert parts[0].step is Step.DAY


@EVERY_RUN
@given(moments, st.sampled_from(Step), st.sampled_from(["timers", "audit_log"]))
def test_a_range_is_read_back_from_its_name(at: datetime, step: Step, table: str) -> None:
    part = next(cover(table, step, at, at + DAY))
    assert part.starts_at <= at < part.ends_at
    assert parse(part.name) == part


OTHER_NAMES = """timers timers_ timers_d2027 timers_m20270314 timers_d20270231 timers_x2027
timers_m202713 timers_d20270314_due idempotency_keys_3"""


@pytest.mark.parametrize("name", OTHER_NAMES.split())
def test_other_names_are_no_ranges(name: str) -> None:
    assert parse(name) is None


def test_a_range_that_is_in_use_or_about_to_be_is_not_cut() -> None:
    april = Range("timers", Step.MONTH, datetime(2027, 4, 1, tzinfo=UTC))
    assert finer(april, april.starts_at - 41 * DAY, AHEAD) == []
    assert len(finer(april, april.starts_at - 40 * DAY, AHEAD)) == 30
    assert len(finer(april, april.starts_at - 2.01 * DAY, AHEAD)) == 30
    assert finer(april, april.starts_at - 2 * DAY, AHEAD) == []
    assert finer(april, april.starts_at + DAY, AHEAD) == []
