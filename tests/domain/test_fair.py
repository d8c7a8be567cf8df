"""Who queues: nobody starves, weights are shares, and what was idle is owed by nobody."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noonday.domain.fair import MOST_COSTS, Ranker
from noonday.domain.lane_clock import LaneReport
from noonday.domain.model import PRIORITIES
from noonday.domain.ranking import Caps, Work, is_queued, seconds, tag_of
from tests.support.lanes import HOST, LANE, Run, SimulatedLane, T

AGEING_SEC = 6.0
BOUND_SEC = AGEING_SEC * max(PRIORITIES)
TOOK = 0.2
A, B = 1, 2


def lane_of(slots: int = 8, **how: object) -> SimulatedLane:
    lane = SimulatedLane((slots,), **how)  # type: ignore[arg-type]
    lane.learn(*((tenant, TOOK) for tenant in range(1, 60)))
    return lane


def waits(runs: list[Run]) -> list[float]:
    assert all(run.started >= 0 for run in runs), "some have not started"
    return sorted(run.started - run.arrived for run in runs)


def every(seconds: float, lane: SimulatedLane, post: Callable[[], object]) -> Callable[[], None]:
    due = [lane.now]

    def each_step() -> None:
        if lane.now >= due[0]:
            due[0] += seconds
            post()

    return each_step


# --- a flood ----------------------------------------------------------------------------------


@pytest.mark.parametrize("news_sec", [0.2, 0.5, 1.2])
@pytest.mark.parametrize("known", [0.002, 0.02, 0.2])
def test_a_flood_whose_cost_and_pace_are_not_known_yet_does_not_go_before_others(
    news_sec: float, known: float
) -> None:
    lane, others = SimulatedLane((16,), news_sec=news_sec), list[Run]()
    lane.learn((A, known), (B, known))

    def post() -> None:
        others.extend(lane.post(B))
        lane.post(A, 400)

    lane.run(5, every(0.1, lane, lambda: lane.post(B, took=known)))
    lane.run(4, every(0.1, lane, post))
    lane.run(60)
    assert waits(others)[-1] <= 4 * TOOK


@pytest.mark.parametrize("flood", [2_000, 4_000, 20_000])
def test_the_single_runs_of_others_do_not_wait_behind_a_flood_however_large(flood: int) -> None:
    lane, others = lane_of(), list[Run]()
    lane.post(A, flood)

    def post() -> None:
        for tenant in (2, 3, 4):
            others.extend(lane.post(tenant))

    lane.run(40, every(1.0, lane, post))
    lane.run(1)
    assert waits(others)[-1] <= 2 * TOOK
    idle = [run for run in lane.started if run.tenant == A and run.started > 1]
    assert len(idle) >= 0.7 * 40 * 8 / TOOK / 1.25, "all the rest is the flood's"


@pytest.mark.parametrize("flood", [3_000, 6_000])
def test_the_least_urgent_run_starts_within_its_ageing_whatever_floods_at_the_top(
    flood: int,
) -> None:
    lane = lane_of()
    lane.post(A, flood, priority=0)
    lane.run(10)
    (run,) = lane.post(B, priority=9)
    lane.run(BOUND_SEC + 2)
    assert 0 <= waits([run])[0] <= BOUND_SEC + 1


@settings(derandomize=True, deadline=None, max_examples=12)
@given(
    st.integers(2, 12),  # tenants that flood
    st.integers(1, 3),  # runs that each posts every 300 ms
    st.sampled_from([1.0, 6.0]),
    st.integers(4, 16),
)
def test_nobody_within_its_share_starves_under_a_permanent_flood(
    tenants: int, count: int, ageing_sec: float, slots: int
) -> None:
    lane = lane_of(slots, ageing_sec=ageing_sec, step_sec=0.1)

    def post() -> None:
        for tenant in range(1, tenants + 1):
            lane.post(tenant, count, priority=0)

    flood = every(0.3, lane, post)
    lane.run(5, flood)
    (run,) = lane.post(50, priority=9)
    lane.run(9 * ageing_sec + 3, flood)
    assert waits([run])[0] <= 9 * ageing_sec + 2


def test_the_ageing_of_a_lane_is_its_own() -> None:
    for ageing_sec in (1.0, 3.0):
        lane = lane_of(ageing_sec=ageing_sec)
        lane.post(A, 5_000, priority=0)
        lane.run(5)
        (run,) = lane.post(B, priority=9)
        lane.run(9 * ageing_sec + 2)
        assert waits([run])[0] == pytest.approx(9 * ageing_sec, abs=1.0)


def test_urgent_work_is_not_behind_its_own_tenants_flood() -> None:
    lane = lane_of()
    lane.post(A, 5_000, priority=5)
    lane.run(5)
    (run,) = lane.post(A, priority=1)
    lane.run(2)
    assert waits([run])[0] <= 2 * TOOK


def test_work_as_urgent_as_its_own_tenants_flood_is_behind_it() -> None:
    lane = lane_of()
    flood = lane.post(A, 500, priority=5)
    lane.run(3)
    (run,) = lane.post(A, priority=5)
    lane.run(30)
    assert run.started >= max(each.started for each in flood) - TOOK


@settings(derandomize=True, deadline=None, max_examples=15)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(1, 8)), max_size=40))
def test_runs_of_one_tenant_and_priority_start_in_their_order(
    posts: list[tuple[int, int, int]],
) -> None:
    lane = lane_of(2)
    for tenant, priority, count in posts:
        lane.post(tenant, count, priority=priority)
        lane.step()
    lane.run(120)
    assert not any(lane.ready.values())
    place = {run.number: n for n, run in enumerate(lane.started)}
    for tenant in (1, 2, 3):
        for priority in range(3):
            mine = [run for run in lane.started
                    if (run.tenant, run.priority) == (tenant, priority)]  # fmt: skip
            queued = [run.number for run in mine if is_queued(run.rank)]
            assert queued == sorted(queued, key=place.__getitem__)
            assert queued == sorted(queued)


# --- shares -----------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [(32,), (16, 16), (1, 7, 24)])
def test_fifty_tenants_of_weight_one_and_ten_get_their_shares(slots: tuple[int, ...]) -> None:
    weights = {tenant: 10.0 if tenant <= 25 else 1.0 for tenant in range(1, 51)}
    lane = SimulatedLane(slots, weights=weights)
    lane.learn(*((tenant, 0.1) for tenant in weights))
    for tenant, weight in weights.items():
        lane.post(tenant, int(weight * 100), took=0.1)
    lane.run(60)
    served = lane.shares(10)
    total, weight = sum(served.values()), sum(weights.values())
    for tenant, each in weights.items():
        assert served[tenant] / total == pytest.approx(each / weight, rel=0.1)


def test_shares_are_of_time_not_of_runs() -> None:
    lane = SimulatedLane((8,))
    lane.learn((A, 0.1), (B, 0.4))
    lane.post(A, 2_000, took=0.1)
    lane.post(B, 500, took=0.4)
    lane.run(40)
    served = lane.shares(5)
    assert served[A] == pytest.approx(served[B], rel=0.1)


@pytest.mark.parametrize("rankers", [2, 3, 5])
def test_several_processes_share_as_one_does_within_a_fifth(rankers: int) -> None:
    weights = dict.fromkeys(range(1, 6), 3.0)
    lane = SimulatedLane((16,), rankers=rankers, weights=weights)
    lane.learn(*((tenant, 0.1) for tenant in range(1, 11)))
    turn = [0]

    def post() -> None:
        turn[0] += 1
        for tenant in range(1, 11):
            lane.post(tenant, 2, took=0.1, by=(turn[0] + tenant) % rankers)

    lane.run(60, every(0.05, lane, post))
    served = lane.shares(10)
    for tenant in range(1, 11):
        share = (3 if tenant <= 5 else 1) / 20
        assert served[tenant] / sum(served.values()) == pytest.approx(share, rel=0.2)


# --- after an outage --------------------------------------------------------------------------


def test_what_a_tenant_has_now_does_not_wait_behind_what_it_is_late_with() -> None:
    lane, fresh = lane_of(), list[Run]()
    lane.post(A, 4_000, overdue=True)

    def post() -> None:
        fresh.extend(lane.post(A))

    lane.run(30, every(0.5, lane, post))
    lane.run(1)
    assert waits(fresh)[-1] <= 2 * TOOK
    caught_up = len(lane.started) - len(fresh)
    assert caught_up >= 0.7 * 30 * 8 / TOOK / 1.25, "all the rest is what is late"


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_what_is_late_has_its_share_of_a_tenant_that_has_more_than_enough_to_do(
    share: float,
) -> None:
    lane = lane_of()
    for ranker in lane.rankers:
        ranker.share_with_late(share)
    late = set(map(id, lane.post(A, 4_000, overdue=True)))
    lane.post(A, 4_000)
    lane.run(30)
    started = [id(run) in late for run in lane.started]
    assert sum(started) / len(started) == pytest.approx(share, abs=0.05)


def test_a_process_that_starts_takes_over_where_the_others_stand() -> None:
    lane = lane_of(rankers=2)
    lane.post(A, 1_000)
    lane.run(3)
    told = lane.rankers[0].tell()[LANE]
    late = Ranker()
    late.learn([(A, HOST, TOOK)])
    reports = [{LANE: worker.order.report(8, has_room=False)} for worker in lane.workers]
    late.refresh(lane.clock, {LANE: AGEING_SEC}, reports)
    late.hear([("other", LANE, told)])
    (rank,) = late.ranks([Work(A, LANE, 5, HOST)], lane.clock)
    (known,) = lane.post(A)
    assert tag_of(rank) == pytest.approx(tag_of(known.rank), abs=0.1)


def test_what_another_process_charged_counts_once() -> None:
    ranker = Ranker()
    report = LaneReport(8, waiting=True, v=(seconds(T),) * 10, rate=1.0, clock=seconds(T))
    ranker.refresh(T, {LANE: AGEING_SEC}, [{LANE: report}])
    ranker.hear([])
    for charged in (1.0, 1.0, 3.0):
        ranker.hear([("other", LANE, {A: [(5, charged, 0.0)]})])
    (rank,) = ranker.ranks([Work(A, LANE, 5, HOST)], T)
    assert tag_of(rank) == pytest.approx(seconds(T) + 3.0)
    (rank,) = ranker.ranks([Work(A, LANE, 4, HOST)], T)
    assert rank == T, "more urgent work was not charged"


# --- idle capacity ----------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0.1, 1.0, 5.0])
def test_who_used_a_lane_alone_owes_nothing_when_another_comes(weight: float) -> None:
    lane = lane_of(weights={A: weight})
    lane.run(60, every(0.05, lane, lambda: lane.post(A)))
    assert all(run.started - run.arrived < 0.2 for run in lane.started)
    lane.post(B, 2_000)
    lane.run(40, every(0.05, lane, lambda: lane.post(A)))
    served = lane.shares(65)
    share = weight / (weight + 1)
    wanted = min(share, 0.5)  # as much as it asks for, or its share
    assert served[A] / sum(served.values()) >= 0.7 * wanted


def test_a_flood_that_was_drained_is_forgotten() -> None:
    lane = lane_of()
    lane.post(A, 400)
    lane.run(15)
    assert not any(lane.ready.values())
    lane.run(3)
    (run,) = lane.post(A)
    assert not is_queued(run.rank)


def test_while_nobody_works_a_flood_queues_and_others_go_in_front() -> None:
    lane = lane_of()
    lane.workers[0].busy = [1_000.0] * 8
    lane.run(5)
    lane.post(A, 2_000)
    lane.run(300)
    (run,) = lane.post(B)
    lane.workers[0].busy = []
    lane.run(2)
    assert run.started - run.arrived <= 0.1


def test_without_any_news_ranks_go_by_time() -> None:
    (rank,) = Ranker().ranks([Work(A, LANE, 5, HOST)], T)
    assert rank == T


def test_costs_are_remembered_within_bounds() -> None:
    ranker = Ranker()
    ranker.learn((tenant, HOST, 1.0) for tenant in range(MOST_COSTS + 10))
    assert ranker.cost(0, HOST) is None
    assert ranker.cost(MOST_COSTS + 9, HOST) == 1.0


HELD = Work(A, LANE, 5, HOST, "billing")


@pytest.mark.parametrize(
    ("caps", "work"),
    [
        (Caps(), HELD),
        (Caps(tenants={A}), Work(A, LANE, 5, HOST)),
        (Caps(hosts={(A, HOST)}), Work(A, LANE, 5, HOST)),
        (Caps(tenants={A}, free_keys={(A, "billing")}), HELD),
    ],
)
def test_what_waits_for_a_slot_is_charged_when_it_has_one_and_not_before(
    caps: Caps, work: Work
) -> None:
    ranker, plain = Ranker(), Ranker()
    ranker.heed(caps)
    assert ranker.ranks([work] * 50, T) == [T] * 50
    free = Work(A, LANE, 5, HOST)
    assert ranker.let_in([work] * 3, T) == plain.ranks([free] * 3, T)


@pytest.mark.parametrize(
    "caps", [Caps(free_keys={(A, "billing")}), Caps(tenants={B}, hosts={(B, HOST), (A, "other")})]
)
def test_what_has_no_cap_is_charged_at_once(caps: Caps) -> None:
    ranker, plain = Ranker(), Ranker()
    ranker.heed(caps)
    work = HELD if caps.free_keys else Work(A, LANE, 5, HOST)
    assert ranker.ranks([work] * 3, T) == plain.ranks([Work(A, LANE, 5, HOST)] * 3, T)
