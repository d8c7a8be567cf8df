"""Breakers on paper: what an outcome says, when one opens, how runs flow back."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noonday.domain.breaker import (
    BUCKETS,
    CATCH_UP_SEC,
    FAILURE_RATIO,
    FASTEST_RATE,
    FIRST_RATE,
    MIN_REQUESTS,
    WINDOW_SEC,
    Windows,
    admissible,
    is_healthy,
    pauses,
    rate,
    reason_of,
    released,
    target_of,
)
from noonday.domain.model import Outcome, OutcomeKind

EVERY = settings(derandomize=True, deadline=None)
K = OutcomeKind
BUCKET_SEC = WINDOW_SEC / BUCKETS


# --- what an outcome says ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [
        (K.SUCCESS, 204, True), (K.PERMANENT, 404, True), (K.TRANSIENT, 302, True),
        (K.GONE, 410, True),
        (K.TRANSIENT, 500, False), (K.TRANSIENT, 599, False), (K.TIMEOUT, None, False),
        (K.TIMEOUT, 200, False),  # it began to answer, and never ended
        (K.TRANSIENT, None, False),  # no connection, no answer
        (K.TRANSIENT, 200, False),  # the answer broke off
        (K.PERMANENT, None, False),  # a certificate that does not verify
        (K.TRANSIENT, 408, None), (K.TRANSIENT, 425, None), (K.TRANSIENT, 429, None),
        (K.BLOCKED, None, None), (K.BAD_PAYLOAD, None, None), (K.INTERRUPTED, None, None),
        (K.NOT_SENT, None, None), (K.CANCELLED, None, None), (K.KILLED, None, None),
        (K.EXPIRED, None, None),
    ],
)  # fmt: skip
def test_an_outcome_says_that_a_target_is_well_or_out_of_order_or_nothing(
    kind: OutcomeKind, status: int | None, expected: bool | None
) -> None:
    assert is_healthy(Outcome(kind, http_status=status)) is expected


def test_every_kind_of_outcome_is_judged() -> None:
    for kind in OutcomeKind:
        assert is_healthy(Outcome(kind)) in (True, False, None)


@given(st.text(max_size=2_000))
@EVERY
def test_a_reason_is_one_short_printable_line(text: str) -> None:
    reason = reason_of(Outcome(K.TRANSIENT, error=text))
    assert reason.isprintable()
    assert len(reason) <= 200


# --- which target -----------------------------------------------------------------------------


def test_a_target_is_a_tenants_host_and_port_however_it_is_written() -> None:
    same = [
        target_of(1, url)
        for url in (
            "https://Shop.example/a?k=s",
            "https://shop.example:443/b",
            "http://shop.example/",
        )
    ]
    keys = {target.key for target in same if target is not None}
    assert keys == {"target:1:shop.example"}
    others = [
        target_of(2, "https://shop.example/a"),
        target_of(1, "https://shop.example:8443/a"),
        target_of(1, "https://shop.example.:443/a"),
        target_of(1, "http://[::1]/a"),
    ]
    assert len(keys | {target.key for target in others if target is not None}) == 5
    assert target_of(1, "ftp://shop.example") is None


def test_a_url_has_a_key_of_its_own_query_included_and_shows_no_query() -> None:
    urls = ["https://a.example/x", "https://a.example/x?s=1", "https://a.example/x?s=2"]
    found = [target for url in urls if (target := target_of(1, url)) is not None]
    assert len({target.url_key for target in found}) == 3
    assert {target.url for target in found} == {"https://a.example/x"}
    assert all(target.url_key.startswith(target.key + "#") for target in found)


# --- when it opens ----------------------------------------------------------------------------


def failing(
    windows: Windows, key: str, count: int, now: float, *, began: float | None = None
) -> bool:
    trips = [windows.note(key, False, now if began is None else began, now) for _ in range(count)]
    return any(trips)


def test_few_requests_say_nothing_and_enough_failures_of_enough_do() -> None:
    windows = Windows()
    assert not failing(windows, "a", MIN_REQUESTS - 1, 0.0)
    assert not failing(windows, "b", 1, 0.0), "each target by itself"
    trip = windows.note("a", False, 1.0, 2.0)
    assert trip is not None
    assert (trip.requests, trip.failures, trip.first) == (MIN_REQUESTS, MIN_REQUESTS, 0.0)
    assert trip.reason(Outcome(K.TRANSIENT, error="answered 503")).startswith("10 of 10 requests")


@given(st.lists(st.tuples(st.floats(0, 20), st.booleans()), max_size=200))
@EVERY
def test_it_opens_exactly_when_a_plain_count_over_the_window_says_so(
    calls: list[tuple[float, bool]],
) -> None:
    windows, seen, now = Windows(), [], 0.0
    for wait, healthy in calls:
        now += wait
        number = math.floor(now / BUCKET_SEC)
        seen.append((number, healthy))
        recent = [well for at, well in seen if at > number - BUCKETS]
        failures = recent.count(False)
        expected = (
            not healthy and len(recent) >= MIN_REQUESTS and failures >= FAILURE_RATIO * len(recent)
        )
        assert (windows.note("a", healthy, now, now) is not None) is expected


def test_calls_that_began_before_the_window_was_emptied_do_not_count() -> None:
    windows = Windows()
    failing(windows, "a", MIN_REQUESTS - 1, 10.0)
    windows.reset("a", 20.0)
    assert not failing(windows, "a", 100, 50.0, began=19.9)
    assert failing(windows, "a", MIN_REQUESTS, 50.0, began=20.0)


@given(st.lists(st.integers(0, 50), max_size=300))
@EVERY
def test_memory_is_bounded_and_the_targets_called_last_are_watched(keys: list[int]) -> None:
    windows = Windows(most=10)
    for at, key in enumerate(keys):
        windows.note(str(key), False, float(at), float(at))
        assert len(windows) <= 10
    assert failing(windows, "new", MIN_REQUESTS, 1e6)


# --- pauses and ramp --------------------------------------------------------------------------


def test_pauses_double_up_to_ten_times_the_first() -> None:
    assert [pause.total_seconds() for pause in pauses(30)] == [30, 60, 120, 240, 300]
    assert pauses(1)[0] == timedelta(seconds=1)


def test_runs_flow_back_slowly_at_first_and_never_faster_than_at_full_speed() -> None:
    assert [rate(at) for at in (0, 9.9, 10, 20, 60, 70, 1e9)] == [
        FIRST_RATE, FIRST_RATE, 20, 40, 640, FASTEST_RATE, FASTEST_RATE,
    ]  # fmt: skip
    assert [released(at) for at in (-1, 0, 1, 10, 20, 70)] == [0, 0, 10, 100, 300, 12_700]


@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=100))
@EVERY
def test_however_often_one_looks_no_more_flow_back_than_the_ramp_allows(
    waits: list[float],
) -> None:
    at, last, total = 0.0, 0.0, 0
    for wait in waits:
        at += wait
        room = admissible(at, at - last)
        assert 0 <= room <= rate(at) * CATCH_UP_SEC
        if room:
            total, last = total + room, at
        assert total <= released(at) + 1
    if max(waits) < CATCH_UP_SEC / 2:
        assert total >= released(last) - len(waits)


def test_nothing_flows_back_twice_when_clocks_of_transactions_overlap() -> None:
    assert admissible(10.0, 0.0) == 0
    assert admissible(10.0, -0.5) <= 0
