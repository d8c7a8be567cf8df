"""Catching up: shares of time, turns that are spread, and lanes that have enough to do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noonday.domain.catch_up import (
    BURST_SEC,
    LEAST_RATE_SEC,
    RATE_SEC,
    UNKNOWN_PER_SEC,
    Budget,
    Delay,
    LaneWaits,
    Pace,
    Rate,
    Report,
    delays,
    least_urgent,
    lets_go,
    summed,
)

T = datetime(2027, 3, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


# --- the share of time ------------------------------------------------------------------------


@given(
    share=st.floats(0.05, 0.95),
    ticks=st.lists(st.tuples(st.floats(0.001, 2.0), st.floats(0.0, 1.0)), min_size=20, max_size=60),
)
def test_what_is_late_never_has_more_than_its_share_of_the_time(
    share: float, ticks: list[tuple[float, float]]
) -> None:
    budget, now, spent = Budget(share), T, 0.0
    for took, part in ticks:
        now += budget.rest(now)
        now += timedelta(seconds=took)
        spent += took * part
        budget.spend(now, took, part)
    now += budget.rest(now)
    passed = (now - T).total_seconds()
    assert spent <= share * passed + 1e-3


def test_after_a_tick_in_which_nothing_was_late_there_is_no_rest() -> None:
    budget = Budget(0.5)
    budget.spend(T, 10.0, 0.0)
    assert budget.rest(T) == timedelta(0)


# --- turns ------------------------------------------------------------------------------------


def test_turns_come_no_faster_than_the_share_of_what_can_be_fired_but_for_a_second() -> None:
    pace, per_sec = Pace(0.5), int(0.5 * UNKNOWN_PER_SEC)
    slots = [pace.slot(T, T) for _ in range(4 * per_sec)]
    assert slots == sorted(slots)
    assert slots[0] == T
    for n in range(4):
        within = [slot for slot in slots if T <= slot < T + n * SECOND]
        assert len(within) <= (n + BURST_SEC) * per_sec + 1
    assert pace.left(T) == pytest.approx(3 * SECOND, abs=SECOND / 100)
    assert pace.left(T + 10 * SECOND) == timedelta(0)
    assert pace.slot(T + 10 * SECOND, T + 10 * SECOND) == T + 10 * SECOND, "none is owed"


def test_a_turn_is_never_before_its_own_time() -> None:
    assert Pace(0.5).slot(T + 7 * SECOND, T) == T + 7 * SECOND


def test_turns_follow_how_much_is_fired() -> None:
    slow, fast = Pace(0.5), Pace(0.5)
    for _ in range(50):
        slow.fired(100, 1.0)
        fast.fired(100, 0.01)
        fast.fired(3, 5.0)  # so few tell nothing
    for pace in (slow, fast):
        for _ in range(1_000):
            pace.slot(T, T)
    assert slow.left(T) == pytest.approx(19 * SECOND, abs=SECOND)
    assert fast.left(T) == timedelta(0)


def test_the_rate_is_that_of_the_last_minute_or_since_it_began() -> None:
    rate = Rate()
    assert rate.per_sec(T) == 0
    for n in range(120):
        now = T + n * SECOND
        rate.note(now, 30)
        if n >= LEAST_RATE_SEC:
            assert rate.per_sec(now) == pytest.approx(30, rel=0.21)
    assert rate.per_sec(now + timedelta(seconds=RATE_SEC / 2)) == pytest.approx(15, rel=0.05)
    assert rate.per_sec(now + timedelta(seconds=RATE_SEC)) == 0


# --- lanes ------------------------------------------------------------------------------------


def test_the_least_urgent_wait_first_and_the_most_urgent_at_twice_the_limit() -> None:
    found = {waited: least_urgent(waited, 30.0) for waited in (0, 30, 30.1, 40, 45, 59, 60, 600)}
    assert found == {0: None, 30: None, 30.1: 9, 40: 6, 45: 5, 59: 1, 60: 0, 600: 0}


@given(st.lists(st.floats(0, 200), min_size=2, max_size=20), st.floats(1, 100))
def test_the_longer_runs_wait_the_more_has_to(waits: list[float], limit: float) -> None:
    found = [least_urgent(waited, limit) for waited in sorted(waits)]
    numbers = [10 if priority is None else priority for priority in found]
    assert numbers == sorted(numbers, reverse=True)


def test_a_lane_that_goes_on_waiting_does_since_it_began_to() -> None:
    first = delays({}, [LaneWaits("a", 40), LaneWaits("b", 5)], 30, T)
    assert first == {"a": Delay(T, 40, 6)}
    later = delays(first, [LaneWaits("a", 70), LaneWaits("b", 31)], 30, T + SECOND)
    assert later == {"a": Delay(T, 70, 0), "b": Delay(T + SECOND, 31, 9)}
    assert not lets_go(first, later)
    assert lets_go(later, first)
    assert lets_go(first, {"a": Delay(T, 35, 8)})
    assert lets_go(first, {})
    assert not lets_go({}, first)


# --- several schedulers -----------------------------------------------------------------------


def test_what_several_schedulers_say_is_summed() -> None:
    one = Report(0.5, 30, 10.0, 5, 0.0, {"b": Delay(T, 40, 6)})
    other = Report(0.5, 30, 20.0, 7, 90.0, {"b": Delay(T - SECOND, 45, 5), "a": Delay(T, 31, 9)})
    found = summed([one, other])
    assert found is not None
    assert (found.per_sec, found.passed_over, found.spread_sec) == (30.0, 12, 90.0)
    assert list(found.delays.items()) == [("a", Delay(T, 31, 9)), ("b", Delay(T - SECOND, 45, 5))]
    assert found.eta_sec(9_000) == 300
    assert found.eta_sec(300) == 90, "until all have had their turn"
    assert found.eta_sec(12) is None, "all of them are delayed"
    assert found.eta_sec(0) == 90
    assert summed([]) is None


def test_while_nothing_is_fired_nobody_knows_how_long_it_takes() -> None:
    found = summed([Report(0.5, 30)])
    assert found is not None
    assert (found.eta_sec(1), found.eta_sec(0)) == (None, 0)
