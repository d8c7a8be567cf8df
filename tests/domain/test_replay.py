"""How fast a replay goes, and when it stops: for any rate, and whatever comes of its runs."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noonday.domain import replay
from noonday.domain.replay import StopWhen, Terms

T = datetime(2027, 1, 1, tzinfo=UTC)
RATES = st.one_of(
    st.sampled_from([0.001, 0.5, 1, 3, 10, 20, 41, 42, 999.5, 1_000]),
    st.floats(0.001, 1_000),
)


def in_window(instants: list[tuple[float, int]], start: float, width: float) -> int:
    return sum(count for at, count in instants if start <= at < start + width)


@given(RATES, st.data())
def test_no_window_of_a_second_or_more_holds_more_than_the_rate(
    rate: float, data: st.DataObject
) -> None:
    shares = data.draw(st.lists(st.floats(0.1, 1), min_size=60, max_size=60).map(sorted))
    delays = data.draw(st.lists(st.floats(0, 2), min_size=60, max_size=60))
    steady = data.draw(st.booleans())
    at, instants = 0.0, []
    for share, delay in zip(shares, delays, strict=True):
        batch, spacing = replay.pace(rate, 1.0 if steady else share)
        instants.append((at, batch))
        at = round(at + spacing.total_seconds() + (0 if steady else delay), 6)
    for start, _ in instants:
        for width in (1.0, 1.5, 2.0, 10.0):
            assert in_window(instants, start, width) <= math.ceil(rate * width - 1e-6)


@given(RATES)
def test_a_whole_rate_is_nearly_reached_in_few_pulses(rate: float) -> None:
    batch, spacing = replay.pace(rate)
    reached = batch / spacing.total_seconds()
    assert 0.95 * rate - 0.5 <= reached <= rate or math.isclose(reached, rate, rel_tol=1e-3)
    assert 1 / spacing.total_seconds() <= 43


@given(RATES, st.floats(0.1, 1))
def test_a_part_of_a_rate_only_comes_less_often(rate: float, share: float) -> None:
    whole, part = replay.pace(rate), replay.pace(rate, share)
    assert part.batch == whole.batch
    assert part.spacing >= whole.spacing


def test_the_rate_rises_from_a_tenth_to_the_whole_once_the_canary_is_through() -> None:
    terms = Terms(ramp_sec=60)
    assert replay.share(terms, None, T) == 0.1
    shares = [replay.share(terms, T, T + timedelta(seconds=n)) for n in (0, 30, 60, 600)]
    assert shares == [0.1, pytest.approx(0.55), 1.0, 1.0]
    assert replay.share(Terms(ramp_sec=0), None, T) == 1.0
    assert replay.share(terms, T, T - timedelta(seconds=5)) == 0.1, "clocks that disagree"


def test_one_failure_in_the_canary_stops() -> None:
    terms = Terms(canary=3)
    assert replay.must_stop(terms, [True, True], in_canary=True) is None
    assert replay.must_stop(terms, [True, False], in_canary=True) == "the canary failed: 1 of 2"
    assert not replay.has_passed(terms, [True, True])
    assert replay.has_passed(terms, [True, True, True])
    assert not replay.has_passed(terms, [True, True, False])
    assert replay.has_passed(Terms(canary=0), [])


def test_a_receiver_that_dies_is_noticed_at_its_third_failure_whatever_the_window() -> None:
    for window in (10, 50, 1_000):
        terms = Terms(stop_when=StopWhen(0.2, window))
        assert replay.must_stop(terms, [False] * 2, in_canary=False) is None
        assert replay.must_stop(terms, [False] * 3, in_canary=False)


def test_only_the_last_window_counts_and_a_ratio_at_its_limit_goes_on() -> None:
    terms = Terms(stop_when=StopWhen(0.2, 50))
    limit = [True] * 40 + [False] * 10
    assert replay.must_stop(terms, limit, in_canary=False) is None
    assert replay.must_stop(terms, [False] * 50 + limit, in_canary=False) is None
    why = replay.must_stop(terms, [*limit[1:], False], in_canary=False)
    assert why == "too many failed: 11 of the last 50"


def test_a_ratio_of_nothing_stops_at_the_first_failure_and_one_of_all_never() -> None:
    assert replay.must_stop(Terms(stop_when=StopWhen(0, 5)), [False], in_canary=False)
    assert replay.must_stop(Terms(stop_when=StopWhen(1, 5)), [False] * 9, in_canary=False) is None


@given(
    st.integers(0, 20),
    st.integers(1, 20),
    st.lists(st.booleans(), max_size=20),
    st.integers(0, 40),
)
def test_never_more_are_unfinished_than_the_window_nor_released_than_the_canary(
    canary: int, window: int, recent: list[bool], unfinished: int
) -> None:
    terms = Terms(canary=canary, stop_when=StopWhen(0.2, window))
    free = replay.room(terms, recent, unfinished, in_canary=False)
    assert free >= 0
    assert unfinished + free <= max(window, unfinished)
    first = replay.room(terms, recent, unfinished, in_canary=True)
    assert len(recent) + unfinished + first <= max(canary, len(recent) + unfinished)


@given(st.lists(st.booleans(), max_size=30), st.lists(st.booleans(), max_size=30))
def test_as_many_outcomes_are_kept_as_the_gate_looks_at(old: list[bool], new: list[bool]) -> None:
    terms = Terms(canary=12, stop_when=StopWhen(0.2, 7))
    assert replay.keep(terms, old, new) == (old + new)[-12:]
