"""Slots are dealt out by weight among the lanes that have work, and none is left idle."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from noonday.domain.pools import Asking, Pool, Shares, named


def asking(**lanes: tuple[float, int]) -> list[Asking]:
    return [Asking(name, weight, busy, 0.0) for name, (weight, busy) in lanes.items()]


def play(slots: int, weights: Mapping[str, float], lasts: Mapping[str, int], ticks: int) -> dict[
    str, float
]:  # fmt: skip
    """All lanes full of work, whose runs last so many ticks of 10 ms: the shares of slots had."""
    shares, used = Shares(slots), dict.fromkeys(weights, 0.0)
    ends: list[tuple[int, str]] = []
    for tick in range(ticks):
        ends = [(at, lane) for at, lane in ends if at > tick]
        busy = {lane: sum(each == lane for _, each in ends) for lane in weights}
        wanted = [Asking(lane, weights[lane], busy[lane], used[lane]) for lane in weights]
        dealt = shares.deal(slots - len(ends), wanted)
        assert sum(dealt.values()) == slots - len(ends)
        ends += [(tick + lasts[lane], lane) for lane, count in dealt.items() for _ in range(count)]
        for _, lane in ends:
            used[lane] += 0.01
    return {lane: had / sum(used.values()) for lane, had in used.items()}


def test_two_lanes_full_of_work_have_slots_by_their_weights() -> None:
    for slots in (1, 3, 48):
        for lasts in ({"a": 1, "b": 1}, {"a": 1, "b": 30}, {"a": 30, "b": 1}, {"a": 7, "b": 50}):
            had = play(slots, {"a": 4, "b": 1}, lasts, 4_000)
            assert 0.9 * 0.8 <= had["a"] <= 1.1 * 0.8, (slots, lasts, had)
            assert 0.9 * 0.2 <= had["b"] <= 1.1 * 0.2, (slots, lasts, had)


def test_a_lane_alone_has_all_and_owes_nothing_when_another_comes() -> None:
    shares = Shares(10)
    for used in range(100):
        assert shares.deal(10, [Asking("a", 1, 0, used * 10.0)]) == {"a": 10}
    both = [Asking("a", 1, 0, 1_000.0), Asking("b", 1, 0, 0.0)]
    assert shares.deal(10, both) == {"a": 5, "b": 5}


def test_a_lane_that_comes_to_a_full_pool_has_what_becomes_free_until_it_has_its_share() -> None:
    assert Shares(10).deal(3, asking(a=(1, 7), b=(1, 0))) == {"b": 3}
    assert Shares(10).deal(2, asking(a=(1, 4), b=(1, 4))) == {"a": 1, "b": 1}


def test_nothing_is_dealt_to_nobody() -> None:
    assert Shares(10).deal(10, []) == {}


@given(
    free=st.integers(0, 200),
    lanes=st.lists(
        st.tuples(st.floats(0.001, 1_000), st.integers(0, 100), st.floats(0, 1e6)),
        min_size=1,
        max_size=8,
    ),
)
def test_every_free_slot_is_dealt(free: int, lanes: list[tuple[float, int, float]]) -> None:
    shares = Shares(300)
    wanted = [Asking(str(n), *each) for n, each in enumerate(lanes)]
    for _ in range(3):
        assert sum(shares.deal(free, wanted).values()) == free


def test_a_star_is_every_lane_that_no_pool_names() -> None:
    plan = [Pool(("critical",), 1), Pool(("default", "*"), 1)]
    known = ["batch", "critical", "default", "own"]
    assert plan[0].serves(known, named(plan)) == ["critical"]
    assert plan[1].serves(known, named(plan)) == ["default", "batch", "own"]
    assert [pool.name for pool in plan] == ["critical", "default,*"]
