"""Instants are given out so that no rate is ever exceeded, and none of them twice."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from noonday.domain.rates import (
    AHEAD_SEC,
    SKIPPED_SEC,
    Granted,
    Pace,
    Refused,
    Wish,
    burst,
    grant,
    release,
)

TENANT, A, B = "tenant:1", "host:1:a", "host:1:b"
PLENTY = 10_000
LITTLE = 1e-6


@dataclass
class Rates:
    """Some rates as the database has them, and a clock that is set."""

    per_sec: dict[str, float]
    now: float = 0.0
    next_at: dict[str, float] = field(default_factory=dict)
    let_go_at: dict[str, float] = field(default_factory=dict)
    sent: dict[str, list[float]] = field(default_factory=dict)

    def claim(self, *hosts: str, room: int = PLENTY, waited: bool = True) -> list[float | str]:
        """A claim of runs to these hosts: when each of them goes, or for what it waits."""
        paces = {key: self._pace(key) for key in self.per_sec}
        wishes = [Wish(paces.get(TENANT), paces.get(host), waited) for host in hosts]
        answers = grant(wishes, room)
        for key, pace in paces.items():
            if pace.taken:
                self.next_at[key] = self.now + pace.next_sec
        return [
            self._go(host, answer.at_sec) if isinstance(answer, Granted) else answer.key
            for host, answer in zip(hosts, answers, strict=True)
        ]

    def _pace(self, key: str) -> Pace:
        let_go = self.let_go_at.get(key)
        return Pace(
            key,
            self.per_sec[key],
            1.0,
            self.next_at.get(key, -86_400.0) - self.now,
            None if let_go is None else let_go - self.now,
        )

    def _go(self, host: str, at_sec: float) -> float:
        at = self.now + max(at_sec, 0.0)
        for key in (TENANT, host):
            self.sent.setdefault(key, []).append(at)
        return round(at, 6)

    def exceeded(self) -> list[str]:
        """The rates of which more was sent within some window than they allow."""
        return [
            key
            for key, per_sec in self.per_sec.items()
            if not _keeps(sorted(self.sent.get(key, [])), per_sec)
        ]


def _keeps(sent: list[float], per_sec: float) -> bool:
    """The k-th to the n-th are at least (n - k + 1 - burst) / rate apart."""
    return all(
        last - first >= (n + 1 - burst(per_sec)) / per_sec - LITTLE
        for k, first in enumerate(sent)
        for n, last in enumerate(sent[k:])
    )


# --- one rate ---------------------------------------------------------------------------------


def test_instants_of_a_rate_are_evenly_spaced_and_those_too_far_ahead_are_refused() -> None:
    rates = Rates({A: 4})
    assert rates.claim(A, A, A, A, A, A, A) == [0.0, 0.25, 0.5, 0.75, 1.0, A, A]
    assert rates.claim(A) == [A], "nothing of it is given out twice"
    rates.now = 0.3
    assert rates.claim(A, A) == [1.25, A]


def test_what_was_refused_has_taken_nothing() -> None:
    rates = Rates({TENANT: 100, A: 0.5})
    assert rates.claim(A, *[A] * 50) == [0.0, *[A] * 50]
    assert rates.claim(B, B) == [0.01, 0.02]


def test_a_pause_is_worth_a_tenth_of_a_second_and_no_more() -> None:
    rates = Rates({A: 100})
    assert rates.claim(*[A] * 10, room=0) == [0.0] * 10
    rates.now = 3600.0
    assert rates.claim(*[A] * 12, room=0) == [3600.0] * 10 + [A] * 2
    slow = Rates({A: 5}, now=3600.0)
    assert slow.claim(A, A, room=0) == [3600.0, A]


def test_no_more_wait_in_a_worker_than_it_has_room_for() -> None:
    rates = Rates({A: 10})
    assert rates.claim(A, A, A, A, room=2) == [0.0, 0.1, 0.2, A]
    assert rates.claim(A, room=0) == [A]


# --- tenant and host --------------------------------------------------------------------------


def test_a_run_of_two_rates_takes_one_instant_of_both() -> None:
    rates = Rates({TENANT: 10, A: 20})
    assert rates.claim(A, B, A) == [0.0, 0.1, 0.2]
    assert rates.exceeded() == []


def test_a_host_that_comes_later_lets_others_of_its_tenant_go_before() -> None:
    rates = Rates({TENANT: 10, A: 5})
    assert rates.claim(A, A, A, B, B, B) == [0.0, 0.2, 0.4, 0.1, 0.3, 0.5]
    assert rates.exceeded() == []


def test_a_slow_host_costs_its_tenant_at_most_a_tenth_of_a_second_of_its_rate() -> None:
    rates = Rates({TENANT: 100, A: 2})
    assert rates.claim(A, A, A) == [0.0, A, A]
    (at,) = rates.claim(B)
    assert isinstance(at, float)
    assert at <= SKIPPED_SEC + 0.01


def test_it_waits_for_what_it_cannot_have_and_first_for_its_host() -> None:
    rates = Rates({TENANT: 1, A: 1})
    assert rates.claim(A, A, A, B) == [0.0, 1.0, A, TENANT]


# --- what waits -------------------------------------------------------------------------------


def test_what_comes_newly_goes_behind_what_waits() -> None:
    rates = Rates({A: 10}, let_go_at={A: 0.2})
    assert rates.claim(A, waited=False) == [A]
    assert rates.claim(A, waited=True) == [0.0]
    rates.now = 0.3
    assert rates.claim(A, waited=False) == [0.3]


def test_what_waits_is_let_go_evenly_and_as_fast_as_the_rate() -> None:
    let_go, total, most = None, 0, 0
    for step in range(100):
        found = release(25, 1.0, -1.0, None if let_go is None else let_go - step / 10, 0.2, 1_000)
        let_go = found.let_go_sec + step / 10
        total += found.runs
        most = max(most, found.runs) if step else 0
    assert abs(total - 25 * 10) <= 8
    assert most <= 3


def test_nothing_is_let_go_while_all_instants_that_are_near_are_taken() -> None:
    assert release(10, 1.0, 0.9, None, 0.2, 1_000).runs == 0
    assert release(10, 0.5, 0.0, None, 0.2, 1_000).runs == 2, "slowed down to a half"


def test_a_rate_that_was_raised_holds_nothing_up_for_as_long_as_the_old_one_would() -> None:
    """A thousand seconds ahead when it was one in a thousand."""
    found = release(10, 1.0, 1_000.0, 1_000.0, 0.2, 1_000)
    assert found.runs == 0
    assert found.next_sec == 60
    assert Refused(A) == grant([Wish(None, Pace(A, 10, 1.0, 60.0, None), True)], 1)[0]


# --- whatever comes ---------------------------------------------------------------------------

CLAIMS = st.lists(
    st.tuples(
        st.floats(0, 2),
        st.lists(st.sampled_from([A, B, "host:1:c"]), max_size=40),
        st.integers(0, 30),
        st.booleans(),
    ),
    max_size=12,
)
SPEEDS = st.floats(0.2, 500)


@settings(max_examples=150, deadline=None)
@given(claims=CLAIMS, tenant=st.none() | SPEEDS, a=SPEEDS, b=st.none() | SPEEDS)
def test_no_rate_is_ever_exceeded_by_any_series_of_claims(
    claims: list[tuple[float, list[str], int, bool]],
    tenant: float | None,
    a: float,
    b: float | None,
) -> None:
    rates = Rates({A: a})
    rates.per_sec |= {} if tenant is None else {TENANT: tenant}
    rates.per_sec |= {} if b is None else {B: b}
    for passed, hosts, room, waited in claims:
        rates.now += passed
        answers = rates.claim(*hosts, room=room, waited=waited)
        ahead = [at for at in answers if isinstance(at, float) and at > rates.now + LITTLE]
        assert len(ahead) <= room
        assert all(at <= rates.now + AHEAD_SEC + LITTLE for at in ahead)
    assert rates.exceeded() == []
