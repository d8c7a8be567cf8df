"""The virtual time of a lane as a worker knows it, and floors of the queue."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from noonday.domain.lane_clock import LEAST_RATE, MOST_RATE, LaneClock, LaneReport
from noonday.domain.model import EPOCH, PRIORITIES
from noonday.domain.ranking import (
    LATE_TAG_SEC,
    QUEUE,
    Band,
    Floors,
    is_queued,
    queued,
    seconds,
    tag_of,
)
from tests.support.lanes import SimulatedLane, T

SECOND = timedelta(seconds=1)
V = seconds(T)


QUICK = (Phase.explicit, Phase.reuse, Phase.generate)  # no shrinking: an example takes long


def waiting(*tags: tuple[int, float]) -> dict[Band, datetime]:
    return {Band(priority, True): queued(V + tag) for priority, tag in tags}


# --- bands ------------------------------------------------------------------------------------


@given(st.floats(0, 7e9))
def test_a_tag_is_a_rank_beyond_every_real_instant(tag: float) -> None:
    rank = queued(tag)
    assert is_queued(rank)
    assert tag_of(rank) == pytest.approx(tag, abs=1e-6)


def test_real_instants_are_in_front() -> None:
    assert not is_queued(EPOCH)
    assert not is_queued(T.replace(year=2200))
    assert timedelta(days=365_250) == QUEUE - EPOCH


# --- virtual time -----------------------------------------------------------------------------


def test_without_a_queue_virtual_time_stands_at_the_last_tag_that_was_taken() -> None:
    clock = LaneClock()
    clock.claimed({}, T, everything=True, highest=T)
    assert clock.v == 0.0, "what was in front has no tag"
    clock.claimed({}, T + SECOND, everything=True, highest=queued(7.0))
    clock.claimed({}, T + 2 * SECOND, everything=True, highest=queued(5.0))
    assert clock.v == 7.0
    assert clock.report(8, has_room=True) == LaneReport(8, open=True, v=(7.0,))
    at = V + 2
    assert clock.report(8, has_room=False) == LaneReport(8, v=(7.0,), clock=at, emptied=at)


def test_with_a_queue_it_is_that_of_what_is_next() -> None:
    clock = LaneClock()
    clock.claimed(waiting((5, 3.0)), T, everything=True)
    assert clock.v == pytest.approx(V + 3)
    assert clock.report(8, has_room=True).waiting


def test_a_claim_that_was_cut_off_before_the_queue_changes_nothing() -> None:
    clock = LaneClock()
    clock.claimed(waiting((5, 3.0)), T, everything=True)
    clock.claimed({Band(5, False): T}, T + SECOND, everything=False)
    assert clock.v == pytest.approx(V + 3)


def test_new_work_begins_beside_its_own_priority_and_never_behind_less_urgent_work() -> None:
    clock = LaneClock(ageing_sec=6.0)
    clock.claimed(waiting((2, 20.0), (5, 2.0)), T, everything=True)  # both have the key 32
    keys = [clock.start(priority) + priority * clock.step for priority in PRIORITIES]
    assert keys == sorted(keys)
    assert keys[2] == keys[3] == keys[5] == pytest.approx(V + 32)
    assert keys[0] == pytest.approx(V + 20), "two steps more urgent"
    assert keys[9] == pytest.approx(V + 56), "four steps less urgent"


@pytest.mark.parametrize("priority", list(PRIORITIES))
def test_in_front_a_run_reaches_what_is_next_in_the_queue_when_it_has_waited_its_steps(
    priority: int,
) -> None:
    clock = LaneClock(ageing_sec=6.0)
    clock.claimed(waiting((0, 3.0)), T, everything=True)
    for rate in (LEAST_RATE, 0.3, MOST_RATE):
        clock.rate = rate
        key = clock.key(T - priority * 6 * SECOND, priority, T)
        assert key == pytest.approx(clock.key(queued(V + 3), 0, T), abs=1e-6)


@pytest.mark.parametrize("pace", [0.05, 1.0, 4.0])
def test_the_pace_of_virtual_time_is_measured(pace: float) -> None:
    clock = LaneClock()
    for step in range(100):
        at = step / 4
        clock.claimed(waiting((5, at * pace)), T + at * SECOND, everything=False)
    assert clock.rate == pytest.approx(pace, rel=0.01)


def test_the_pace_has_bounds() -> None:
    clock = LaneClock()
    for step in range(40):
        clock.claimed(waiting((5, 0.0)), T + step * SECOND, everything=False)
    assert clock.rate == pytest.approx(LEAST_RATE, rel=0.01)
    for step in range(40, 80):
        clock.claimed(waiting((5, step * 1e4)), T + step * SECOND, everything=False)
    assert clock.rate == pytest.approx(MOST_RATE, rel=0.01)


# --- floors of the queue ----------------------------------------------------------------------


def floor_of(floors: Floors, priority: int) -> datetime:
    return {span.band: span.floor for span in floors.each()}[Band(priority, True)]


def claimed(floors: Floors, tag: float, at: float, tags: float | None = None) -> None:
    given = tag if tags is None else tags
    floors.claimed(
        floors.each(), waiting((5, tag)), T + at * SECOND, everything=False,
        tags=lambda priority: V + given,
    )  # fmt: skip


def test_a_floor_of_the_queue_rises_to_the_lowest_tag_of_two_seconds_ago() -> None:
    floors = Floors()
    claimed(floors, 10.0, 0.0)
    claimed(floors, 11.0, LATE_TAG_SEC / 2)
    assert floor_of(floors, 5) == QUEUE
    claimed(floors, 12.0, LATE_TAG_SEC)
    assert floor_of(floors, 5) == queued(V + 10)
    claimed(floors, 13.0, LATE_TAG_SEC * 1.5)
    assert floor_of(floors, 5) == queued(V + 11)


def test_it_does_not_rise_above_where_tags_are_given() -> None:
    floors = Floors()
    claimed(floors, 1_000.0, 0.0, tags=5.0)
    claimed(floors, 1_000.0, LATE_TAG_SEC, tags=5.0)
    assert floor_of(floors, 5) == queued(V + 5)
    claimed(floors, 1_000.0, LATE_TAG_SEC, tags=2.0)
    assert floor_of(floors, 5) == queued(V + 2), "virtual time has turned out to stand lower"


def test_one_that_was_lowered_stays_until_a_claim_has_looked_there() -> None:
    floors = Floors()
    claimed(floors, 10.0, 0.0)
    claimed(floors, 10.0, LATE_TAG_SEC)
    used = floors.each()
    assert floors.lower(Band(5, True), queued(V + 3))
    floors.claimed(used, waiting((5, 20.0)), T + 60 * SECOND, everything=True,
                   tags=lambda priority: V + 20)  # fmt: skip
    assert floor_of(floors, 5) == queued(V + 3)
    claimed(floors, 20.0, 120.0)
    claimed(floors, 20.0, 120.0 + LATE_TAG_SEC)
    assert floor_of(floors, 5) == queued(V + 20)


@settings(derandomize=True, deadline=None, max_examples=25, phases=QUICK)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 6),  # the tenant
            st.sampled_from([0, 5, 9]),
            st.integers(1, 12),  # how many runs
            st.integers(0, 8),  # in tenths of a second, until they are committed
            st.integers(0, 2),  # by which process
            st.integers(0, 10),  # steps until then
        ),
        max_size=60,
    ),
    st.sampled_from([(2,), (8,), (1, 5)]),
)
def test_no_run_that_is_committed_in_time_is_ever_below_a_floor_of_either_band(
    posts: list[tuple[int, int, int, int, int, int]], slots: tuple[int, ...]
) -> None:
    lane = SimulatedLane(slots, rankers=3, weights={1: 5.0, 2: 0.2}, step_sec=0.1)
    for tenant, priority, count, late, by, steps in posts:
        lane.post(tenant, count, priority=priority, by=by, late=late / 10)
        lane.run(steps / 10)
    lane.run(200)
    assert lane.overlooked == 0
    assert not any(lane.ready.values())
    assert not lane.uncommitted
