"""The order of claims, and floors: a claim never looks past a run that it should have seen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noonday.domain.lane_clock import LaneClock
from noonday.domain.model import EPOCH, PRIORITIES
from noonday.domain.ranking import END, LATE_COMMIT, QUEUE, Band, Floors

NOW = datetime(2027, 3, 1, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
TICK = timedelta(microseconds=1)


# --- order ------------------------------------------------------------------------------------


def key(rank: datetime, priority: int) -> float:
    return LaneClock().key(rank, priority, NOW)


def test_of_two_equally_old_runs_the_more_urgent_goes_first() -> None:
    assert sorted(PRIORITIES, key=lambda each: key(NOW, each)) == list(PRIORITIES)


@pytest.mark.parametrize("priority", list(PRIORITIES)[1:])
def test_a_less_urgent_run_waits_six_seconds_for_each_step_and_no_longer(priority: int) -> None:
    arrived_later = NOW + priority * 6 * SECOND
    assert key(NOW, priority) > key(arrived_later - TICK, 0)
    assert key(NOW, priority) < key(arrived_later + TICK, 0)


# --- floors -----------------------------------------------------------------------------------


def front(priority: int) -> Band:
    return Band(priority, queued=False)


def floor_of(floors: Floors, priority: int) -> datetime:
    return floors_in(floors)[front(priority)]


def floors_in(floors: Floors) -> dict[Band, datetime]:
    return {span.band: span.floor for span in floors.each()}


def in_front(floors: Floors) -> set[datetime]:
    return {floor for band, floor in floors_in(floors).items() if not band.queued}


def claimed(
    floors: Floors, lowest: dict[int, datetime], clock: datetime, *, everything: bool
) -> None:
    seen = {front(priority): rank for priority, rank in lowest.items()}
    floors.claimed(floors.each(), seen, clock, everything=everything)


def test_at_first_everything_is_looked_at() -> None:
    assert Floors().each() == [
        *((priority, EPOCH, QUEUE) for priority in PRIORITIES),
        *((priority, QUEUE, END) for priority in PRIORITIES),
    ]


def test_a_floor_rises_to_the_lowest_rank_that_was_taken() -> None:
    floors = Floors()
    claimed(floors, {3: NOW - 60 * SECOND}, NOW, everything=False)
    assert floor_of(floors, 3) == NOW - 60 * SECOND
    assert floor_of(floors, 4) == EPOCH, "nothing is known of it: the claim was cut off"


def test_a_claim_that_found_all_there_was_raises_the_other_floors_too() -> None:
    floors = Floors()
    claimed(floors, {3: NOW - 60 * SECOND}, NOW, everything=True)
    assert floor_of(floors, 3) == NOW - 60 * SECOND
    assert floor_of(floors, 4) == NOW - LATE_COMMIT


def test_a_floor_stays_below_the_clock_for_what_is_committed_late() -> None:
    floors = Floors()
    claimed(floors, {3: NOW}, NOW, everything=True)
    assert in_front(floors) == {NOW - LATE_COMMIT}


def test_a_clock_that_stands_back_lowers_no_floor() -> None:
    floors = Floors()
    claimed(floors, {}, NOW, everything=True)
    claimed(floors, {3: NOW - 90 * SECOND}, NOW - 60 * SECOND, everything=True)
    assert in_front(floors) == {NOW - LATE_COMMIT}


def test_a_straggler_lowers_its_floor_and_is_told_once() -> None:
    floors = Floors()
    claimed(floors, {}, NOW, everything=True)
    straggler = NOW - 60 * SECOND
    assert floors.lower(front(3), straggler)
    assert not floors.lower(front(3), straggler)
    assert floor_of(floors, 3) == straggler
    assert floor_of(floors, 4) == NOW - LATE_COMMIT
    assert not floors.lower(front(4), NOW - LATE_COMMIT), "what stands on the floor is seen"


def test_a_claim_under_way_does_not_hide_the_straggler_that_was_found_meanwhile() -> None:
    floors = Floors()
    claimed(floors, {}, NOW, everything=True)
    used = floors.each()
    assert floors.lower(front(3), NOW - 60 * SECOND)
    floors.claimed(used, {}, NOW + SECOND, everything=True)
    assert floor_of(floors, 3) == NOW - 60 * SECOND
    assert floor_of(floors, 4) == NOW + SECOND - LATE_COMMIT


# --- whatever the order of commits ------------------------------------------------------------

arrivals = st.tuples(
    st.integers(0, 100),  # when it is committed, in tenths of a second
    st.integers(0, 50),  # how much earlier its rank was taken: up to LATE_COMMIT
    st.sampled_from([0, 3, 9]),
)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.lists(arrivals, max_size=25), st.lists(st.integers(1, 5), min_size=30, max_size=30))
def test_no_run_that_is_committed_in_time_is_ever_below_a_floor(
    arriving: list[tuple[int, int, int]], limits: list[int]
) -> None:
    floors = Floors()
    runs = [
        (NOW + at * SECOND / 10, NOW + (at - early) * SECOND / 10, priority)
        for at, early, priority in arriving
    ]
    for step, limit in enumerate(limits):
        clock = NOW + step * SECOND / 3
        visible = [run for run in runs if run[0] <= clock]
        used, found = floors.each(), floors_in(floors)
        assert all(rank >= found[front(priority)] for _, rank, priority in visible)
        visible.sort(key=lambda run: key(run[1], run[2]))
        lowest: dict[Band, datetime] = {}
        for run in visible[:limit]:
            runs.remove(run)
            lowest[front(run[2])] = min(run[1], lowest.get(front(run[2]), run[1]))
        floors.claimed(used, lowest, clock, everything=len(visible) < limit)
