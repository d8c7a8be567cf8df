"""How many slots are wanted: enough, in time, and without going to and fro."""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from noonday.domain.flow import SLICE_SEC, Due, Flow, Outlook, Tally, Work
from noonday.domain.scaling import GROWTH, HORIZON_SEC, MOST, Load, Need, Wanted, need
from tests.domain.scaled import AHEAD_SEC, KEEP_SEC, START_SEC, Lane, evenly, herd

MINUTE, HOUR = 60, 3_600
OLD, NEW = UUID(int=1), UUID(int=2)
OBJECTIVE = 60.0

rates = st.floats(0.05, 40)
services = st.floats(0.2, 40)


# --- in virtual time --------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(rates, services, st.integers(0, 7))
@example(per_sec=11.03125, service_sec=0.2, lag_sec=0)  # at the edge between 3 and 4
def test_a_constant_load_gets_what_it_needs_and_then_the_same_for_good(
    per_sec: float, service_sec: float, lag_sec: int
) -> None:
    lane = Lane(posts=evenly(per_sec), service_sec=service_sec, lag_sec=lag_sec)
    lane.pass_by(HOUR)
    before = len(lane.changes)
    settled = lane.wanted.slots
    lane.pass_by(HOUR)
    assert lane.wanted.slots >= per_sec * service_sec, "Little's law"
    assert max(lane.ages[HOUR:]) <= OBJECTIVE
    assert len(lane.changes) - before <= 1, "a last step down at most"
    assert lane.wanted.slots <= settled
    assert lane.wanted.slots <= 2 * per_sec * service_sec + 2, "nor is it many times too much"


@pytest.mark.parametrize("every_sec", [MINUTE, HOUR])
def test_at_a_comb_the_age_stays_within_the_objective_that_a_fixed_worker_breaks(
    every_sec: int,
) -> None:
    runs = 100 * MINUTE if every_sec == MINUTE else 20_000
    comb = herd(runs, every_sec)
    scaled = Lane(timers=comb, service_sec=2.0)
    fixed = Lane(timers=comb, service_sec=2.0, fixed=64)
    for lane in (scaled, fixed):
        lane.pass_by(3 * HOUR + 10 * MINUTE)
    after_the_first = 2 * HOUR - MINUTE  # at which nobody knew how long a run takes
    assert max(scaled.ages[after_the_first:]) <= OBJECTIVE
    assert max(fixed.ages[after_the_first:]) > OBJECTIVE


def test_slots_are_there_before_a_known_peak_and_go_after_it() -> None:
    lane = Lane(timers=herd(20_000, HOUR), service_sec=2.0)
    lane.pass_by(2 * HOUR - int(AHEAD_SEC) - SLICE_SEC)
    assert lane.slots == 0, "nothing was left of the last one"
    lane.pass_by(int(AHEAD_SEC) + SLICE_SEC - 1)
    assert lane.oldest_age == 0
    assert lane.slots >= 20_000 * 2.0 / OBJECTIVE, "all will have begun in time"
    assert lane.changes[-1][0] <= lane.now - START_SEC
    lane.pass_by(30 * MINUTE)
    assert lane.slots == 0


def test_slots_stay_while_the_next_peak_is_in_sight() -> None:
    lane = Lane(timers=herd(5_000, 8 * MINUTE), service_sec=2.0)
    lane.pass_by(HOUR)
    peak = lane.wanted.slots
    lane.pass_by(HOUR)
    assert lane.wanted.slots >= 0.8 * peak
    assert all(slots >= 0.8 * peak for at, slots in lane.changes if at > HOUR)


def test_a_flood_is_worked_off_in_time_and_its_slots_go_in_steps() -> None:
    lane = Lane(posts=lambda second: 50_000 if second == 10 * MINUTE else 0, service_sec=0.5)
    lane.pass_by(HOUR)
    assert max(lane.ages) <= OBJECTIVE
    falls = [(a, b) for a, b in pairwise(lane.changes) if b[1] < a[1]]
    assert len(falls) > 5
    assert all(after >= before // 2 for (_, before), (_, after) in falls)
    assert falls[0][1][0] - falls[0][0][0] >= KEEP_SEC
    assert lane.wanted.slots == 0


def test_runs_that_take_hours_have_a_slot_each() -> None:
    lane = Lane(posts=evenly(1 / MINUTE), service_sec=4 * HOUR)
    lane.pass_by(3 * HOUR)
    assert max(lane.ages) <= OBJECTIVE
    assert 180 <= lane.wanted.slots <= 200


# --- at one moment ----------------------------------------------------------------------------

loads = st.builds(
    Load,
    ready=st.integers(0, 2_000_000),
    oldest_age_sec=st.floats(0, 1e6),
    running=st.integers(0, 10_000),
    slots=st.integers(0, 10_000),
    free=st.integers(0, 100),
    arrivals_per_sec=st.floats(0, 1e5),
    of_timers_per_sec=st.floats(0, 1e5),
    service_sec=st.floats(0.001, 86_400),
    due=st.lists(st.builds(Due, st.floats(0, 600), st.floats(0, 1e6)), max_size=6).map(sorted),
    objective_sec=st.floats(1, 604_800),
)


@given(loads)
def test_whatever_is_seen_what_is_needed_has_bounds(load: Load) -> None:
    soon, coming = need(load, AHEAD_SEC), need(load, HORIZON_SEC)
    assert 0 <= soon.slots <= coming.slots <= MOST
    assert soon.slots >= min(MOST, load.arrivals_per_sec * load.service_sec)
    assert bool(soon.slots) >= bool(load.ready or load.running)


@given(loads, st.integers(1, 1_000), st.floats(0, 1_000))
def test_more_that_waits_and_for_longer_never_needs_less(
    load: Load, more: int, older: float
) -> None:
    worse = load._replace(ready=load.ready + more, oldest_age_sec=load.oldest_age_sec + older)
    assert need(worse, AHEAD_SEC).slots >= need(load, AHEAD_SEC).slots


def test_an_idle_lane_needs_nothing() -> None:
    assert need(Load(slots=64), AHEAD_SEC).slots == 0


def test_what_is_due_later_than_a_slot_takes_to_come_is_not_needed_yet() -> None:
    load = Load(due=[Due(AHEAD_SEC + 1, 1_000)])
    assert (need(load, AHEAD_SEC).slots, need(load, HORIZON_SEC).slots) == (0, 34)


def test_runs_that_wait_for_too_long_though_all_slots_are_busy_need_more_whatever_the_figures() -> (
    None
):
    late = Load(ready=1, oldest_age_sec=OBJECTIVE + 1, running=60, slots=64, service_sec=0.01)
    assert need(late, AHEAD_SEC).slots == 60 * GROWTH
    assert need(late._replace(free=32), AHEAD_SEC).slots == 1, "something else holds them up"


def test_the_reason_is_of_what_needs_most() -> None:
    due = need(Load(service_sec=0.5, due=[Due(30, 600)]), AHEAD_SEC)
    assert due == Need(10, "600 are due soon, 0.5 s each")
    steady = need(Load(arrivals_per_sec=30, service_sec=2), AHEAD_SEC)
    assert steady == Need(80, "30 arrive a second, 2 s each")


# --- following --------------------------------------------------------------------------------


def followed(wanted: Wanted, start: int, seconds: int, slots: int) -> list[int]:
    """What is wanted while a lane needs ``slots`` for a time, looked at each 5 s."""
    seen = []
    for now in range(start, start + seconds, 5):
        wanted.follow(now, Need(slots, ""), Need(slots, ""))
        seen.append(wanted.slots)
    return seen


def test_more_is_wanted_at_once_and_less_only_after_a_while_without_need() -> None:
    wanted = Wanted(0, "", 0, KEEP_SEC)
    assert followed(wanted, 0, 5, 10) == [10]
    assert set(followed(wanted, 5, int(KEEP_SEC) - 10, 1)) == {10}
    assert followed(wanted, int(KEEP_SEC), 600, 1)[-1] == 1


@given(st.lists(st.integers(81, 100), min_size=2, max_size=200))
def test_what_wavers_a_little_changes_nothing(needs: list[int]) -> None:
    wanted = Wanted(100, "", 0, KEEP_SEC)
    for n, slots in enumerate(needs):
        assert not wanted.follow(n * 60, Need(slots, ""), Need(0, ""))


def test_who_takes_over_holds_for_a_while_what_was_wanted() -> None:
    wanted = Wanted(64, "of the one before", 1_000, KEEP_SEC)
    assert set(followed(wanted, 1_000, int(KEEP_SEC), 0)) == {64}
    assert followed(wanted, 1_000 + int(KEEP_SEC), 600, 0)[-1] == 0


# --- what is measured -------------------------------------------------------------------------


def test_arrivals_are_what_was_started_and_what_came_to_those_that_wait() -> None:
    flow = Flow()
    flow.note(0, 100, 0, Work())
    flow.note(60, 130, 5, Work(64, 59, 90, 85, 85.0))
    assert flow.arrivals_per_sec == (90 + 30) / 60
    assert flow.service_sec == 1.0


def test_how_long_a_run_takes_is_remembered_while_none_runs() -> None:
    flow = Flow()
    flow.note(0, 0, 0, Work())
    flow.note(5, 0, 0, Work(64, 64, 20, 20, 60.0))
    for at in range(10, 2_000, 5):
        flow.note(at, 0, 0, Work(64, 64, 20, 20, 60.0))
    assert flow.service_sec == 3.0


def test_runs_of_which_none_has_ended_are_taken_to_last_as_long_as_they_have() -> None:
    flow = Flow()
    for at in range(0, 300, 5):
        flow.note(at, 0, 10, Work(64, 54, 10, 0, 10.0 * at))
    assert flow.service_sec == 295.0


def test_a_process_that_comes_counts_whole_and_one_that_was_there_only_from_now_on() -> None:
    tally = Tally()
    tally.note({OLD: {"default": Work(64, 54, 1_000, 990, 500.0)}})
    assert tally.total["default"] == Work(64, 54)
    tally.note(
        {OLD: {"default": Work(64, 53, 1_010, 999, 505.0)}, NEW: {"default": Work(8, 6, 3, 1, 1.0)}}
    )
    assert tally.total["default"] == Work(72, 59, 13, 10, 6.0)
    tally.note({NEW: {"default": Work(8, 8, 4, 4, 2.0)}})
    assert tally.total["default"] == Work(8, 8, 14, 13, 7.0), "what is gone takes nothing back"


def test_samples_of_what_is_due_are_averaged_and_an_exact_read_is_believed() -> None:
    outlook = Outlook()
    for runs in (900.0, 1_100.0, 1_000.0):
        outlook.note(0, 600, {3: {"default": runs}}, exact=False)
    assert outlook.due("default") == [Due(30, 1_000.0)]
    outlook.note(5, 600, {}, exact=False)
    assert outlook.due("default") == [Due(25, 750.0)]
    outlook.note(6, 600, {3: {"default": 4.0}}, exact=True)
    assert outlook.due("default") == [Due(24, 4.0)]
    outlook.note(7, 600, {}, exact=True)
    assert outlook.due("default") == []


def test_what_timers_were_to_bring_is_known_while_it_is_counted_as_arrivals() -> None:
    outlook = Outlook()
    outlook.note(29, 629, {3: {"default": 60.0}}, exact=True)
    assert (outlook.lately_per_sec("default"), outlook.lanes()) == (0.0, {"default"})
    for now, lately in ((31, 1.0), (85, 1.0), (101, 0.0)):
        outlook.note(now, now + 600, {}, exact=True)
        assert outlook.lately_per_sec("default") == lately, now


def test_the_needs_of_a_lane_are_whole_slots() -> None:
    assert need(Load(ready=1, service_sec=0.01), AHEAD_SEC).slots == ceil(0.01 / 30)
