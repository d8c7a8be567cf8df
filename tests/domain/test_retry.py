"""How long a run waits: grows, stays below its bounds, and no number breaks the arithmetic."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noonday.domain.model import RetryPolicy
from noonday.domain.retry import (
    JITTER,
    LONGEST_SEC,
    RETRY_AFTER_SLACK,
    SHORTEST_SEC,
    backoff,
    delay,
)

SECOND = timedelta(seconds=1)
TICK = timedelta(microseconds=1)
EVERY_RUN = settings(derandomize=True, deadline=None)

# What the API accepts, and wider: what an older release or a hand may have left in the table.
policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 5_000),
    base_sec=st.floats(-1, 100_000) | st.just(1e300),
    factor=st.floats(-1, 1_000) | st.just(1e300),
    cap_sec=st.floats(-1, 3_000_000) | st.just(1e300),
)
failures = st.integers(0, 1_000_000)
chances = st.floats(0, 1, exclude_max=True)


def test_each_wait_is_a_factor_longer_up_to_the_cap() -> None:
    policy = RetryPolicy(base_sec=5, factor=3, cap_sec=3_600)
    waits = [round(backoff(policy, n).total_seconds(), 3) for n in range(1, 10)]
    assert waits == [5, 15, 45, 135, 405, 1_215, 3_600, 3_600, 3_600]


def test_a_factor_of_one_waits_the_same_each_time() -> None:
    assert {backoff(RetryPolicy(base_sec=7, factor=1), n) for n in range(1, 50)} == {7 * SECOND}


@pytest.mark.parametrize("number", [46, 47, 1_023, 1_024, 1_999, 10**9])
@pytest.mark.parametrize(
    "policy",
    [
        RetryPolicy(max_attempts=2_000, base_sec=1, factor=2, cap_sec=3_600),
        RetryPolicy(max_attempts=2_000, base_sec=0.001, factor=10, cap_sec=3_600),
    ],
)
def test_high_failure_numbers_wait_the_cap(policy: RetryPolicy, number: int) -> None:
    """RTY-02: no number overflows, and no wait is zero, negative or above the cap and jitter."""
    assert backoff(policy, number) == 3_600 * SECOND
    assert delay(policy, number, None, 0.999) <= 3_600 * SECOND * (1 + JITTER)


def test_chance_stretches_a_wait_by_a_fifth_at_most_and_never_shortens_it() -> None:
    policy = RetryPolicy(base_sec=10)
    assert delay(policy, 1, None, 0.0) == 10 * SECOND
    assert delay(policy, 1, None, 0.5) == 11 * SECOND
    assert delay(policy, 1, None, 0.999_999) < 12 * SECOND


@pytest.mark.parametrize(
    ("asked_sec", "waits_sec"),
    [(-3_600, 10), (0, 10), (9, 10), (11, 11), (7_210, 7_210), (7_211, 7_210), (10**9, 7_210)],
)
def test_retry_after_only_lengthens_and_by_two_hours_at_most(
    asked_sec: int, waits_sec: int
) -> None:
    waited = delay(RetryPolicy(base_sec=10), 1, asked_sec * SECOND, 0.0)
    assert waited == waits_sec * SECOND


def test_the_longest_retry_after_does_not_break_the_arithmetic() -> None:
    assert delay(RetryPolicy(base_sec=10), 1, timedelta.max, 0.0) == 7_210 * SECOND
    assert delay(RetryPolicy(base_sec=10), 1, timedelta.min, 0.0) == 10 * SECOND


@EVERY_RUN
@given(policies, failures)
def test_a_backoff_lies_between_base_and_cap(policy: RetryPolicy, number: int) -> None:
    cap = min(max(policy.cap_sec, SHORTEST_SEC), LONGEST_SEC)
    base = min(max(policy.base_sec, SHORTEST_SEC), cap)
    waited = backoff(policy, number).total_seconds()
    assert base - 0.001 <= waited <= cap + 0.001


@EVERY_RUN
@given(policies, st.integers(1, 3_000))
def test_a_backoff_never_becomes_shorter(policy: RetryPolicy, number: int) -> None:
    assert backoff(policy, number + 1) >= backoff(policy, number)


@EVERY_RUN
@given(policies, failures, st.none() | st.timedeltas(), chances)
def test_a_delay_is_positive_and_bounded(
    policy: RetryPolicy, number: int, retry_after: timedelta | None, chance: float
) -> None:
    waited = delay(policy, number, retry_after, chance)
    cap = min(max(policy.cap_sec, SHORTEST_SEC), LONGEST_SEC)
    longest = timedelta(seconds=cap) * (1 + JITTER) + RETRY_AFTER_SLACK + TICK
    assert timedelta(0) < waited <= longest
    assert waited >= backoff(policy, number)
