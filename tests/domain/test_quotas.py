"""What a process holds of a rate is little, short-lived, and spent once."""

from __future__ import annotations

import pytest

from noonday.domain.quotas import BYTES, CREATES, LEASE_SEC, Lease, Quotas, Rate


@pytest.mark.parametrize(
    ("per_sec", "burst", "quota", "window_sec"),
    [(10.0, 10, 10, 1), (10.0, 100, 100, 10), (10.0, 1, 10, 1), (0.5, 1, 1, 2), (0.3, 1, 1, 4)],
)
def test_a_policy_promises_no_more_than_the_rate(
    per_sec: float, burst: int, quota: int, window_sec: int
) -> None:
    rate = Rate(CREATES, per_sec, burst)
    assert (rate.quota, rate.window_sec) == (quota, window_sec)
    assert rate.quota <= per_sec * rate.window_sec + burst


@pytest.mark.parametrize(("per_sec", "block"), [(0.001, 1), (10.0, 1), (100.0, 10), (1000.0, 100)])
def test_a_block_is_a_tenth_of_a_second_or_one_token(per_sec: float, block: int) -> None:
    assert Rate(CREATES, per_sec, 1_000_000).block == block


def test_any_payload_that_is_allowed_fits_into_a_burst_of_bytes() -> None:
    (rate,) = Quotas(create_bytes_per_sec=10).rates(1_000)
    assert (rate.name, rate.per_sec, rate.burst) == (BYTES, 10.0, 1_000)


def test_who_posts_little_takes_no_more_than_he_needs_and_who_posts_much_a_block() -> None:
    lease = Lease(Rate(CREATES, 1_000.0, 1_000))
    assert lease.wanted(1, 0.0) == 1, "nobody knows yet how much there will be"
    now, asked = 0.0, []
    for _ in range(9):
        asked.append(lease.wanted(1, now))
        lease.taken(asked[-1], now, now)
        lease.spend(asked[-1])
        now += 0.01
    assert asked == [1, 2, 5, 17, 65, 101, 101, 101, 101]
    assert lease.wanted(1, now + 2 * LEASE_SEC) == 51, "the last one was not spent in time"


def test_what_was_not_spent_in_time_is_lost() -> None:
    lease = Lease(Rate(CREATES, 100.0, 100))
    lease.taken(10, 0.0, asked_at=5.0)
    assert lease.held(5.0 + LEASE_SEC - 0.01) == 10
    assert lease.held(5.0 + LEASE_SEC) == 0


def test_what_is_given_back_is_good_no_longer_and_no_more_than_a_block() -> None:
    lease = Lease(Rate(CREATES, 100.0, 100))
    lease.taken(50, 0.0, asked_at=0.0)
    lease.spend(50)
    assert lease.give_back(50, 0.5) == 40, "these are for others"
    assert lease.held(0.5) == 10
    assert lease.give_back(1, 1.5) == 1
    assert lease.held(1.5) == 0


def test_the_wait_for_tokens_is_what_they_take_to_come() -> None:
    lease = Lease(Rate(CREATES, 10.0, 5))
    lease.taken(0, next_at=100.3, asked_at=100.0)
    assert lease.remaining(100.0) == 0
    assert lease.wait_sec(1, 100.0) == pytest.approx(0.3)
    assert lease.wait_sec(4, 100.0) == pytest.approx(0.6)
    assert lease.remaining(100.5) == 3
    assert lease.full_sec(100.5) == pytest.approx(0.2)
    assert lease.remaining(200.0) == 5, "never more than a burst"
