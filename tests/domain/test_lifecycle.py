"""The state machine on paper: what follows from each outcome, and within which bounds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noonday.domain.lifecycle import (
    MAX_INTERRUPTIONS,
    TRANSITIONS,
    Event,
    Lease,
    Source,
    Transition,
    expire,
    is_too_late,
    settle,
)
from noonday.domain.model import (
    ExecutionStatus,
    Kind,
    LedgerOutcome,
    Outcome,
    OutcomeKind,
    Reason,
    RetryPolicy,
    RunKey,
    RunState,
)

DUE = datetime(2027, 3, 1, 12, 0, tzinfo=UTC)
SECOND, HOUR, DAY = (timedelta(seconds=n) for n in (1, 3_600, 86_400))
TICK = timedelta(microseconds=1)
RUN = RunKey(UUID(int=1), Kind.SCHEDULE, DUE)
FRESH = Lease(RUN, 1, attempt=1, lease_version=1, failures=0, interruptions=0, due_at=DUE,
              leased_at=DUE)  # fmt: skip
POLICY = RetryPolicy(max_attempts=3, base_sec=10, factor=2, cap_sec=60, max_age_sec=3_600)
EVERY_RUN = settings(derandomize=True, deadline=None)


def lease(**changes: object) -> Lease:
    return msgspec.structs.replace(FRESH, **changes)


def after(
    kind: OutcomeKind,
    held: Lease = FRESH,
    policy: RetryPolicy = POLICY,
    now: datetime = DUE,
    retry_after: timedelta | None = None,
) -> Transition:
    return settle(held, Outcome(kind, retry_after=retry_after), policy, now, chance=0.0)


# --- what follows from each outcome -----------------------------------------------------------

FAILED = ExecutionStatus.FAILED
FIRST_ATTEMPT = {
    OutcomeKind.SUCCESS: Transition(Event.COMPLETE, ExecutionStatus.SUCCESS),
    OutcomeKind.TRANSIENT: Transition(Event.RETRY, FAILED, delay=10 * SECOND),
    OutcomeKind.TIMEOUT: Transition(Event.RETRY, FAILED, delay=10 * SECOND),
    OutcomeKind.PERMANENT: Transition(Event.DEAD_LETTER, FAILED, reason=Reason.PERMANENT_ANSWER),
    OutcomeKind.GONE: Transition(Event.DEAD_LETTER, FAILED, reason=Reason.TARGET_GONE),
    OutcomeKind.BLOCKED: Transition(Event.DEAD_LETTER, FAILED, reason=Reason.BLOCKED_TARGET),
    OutcomeKind.BAD_PAYLOAD: Transition(Event.DEAD_LETTER, FAILED, reason=Reason.BAD_PAYLOAD),
    OutcomeKind.INTERRUPTED: Transition(Event.INTERRUPT, ExecutionStatus.INTERRUPTED),
    OutcomeKind.NOT_SENT: Transition(Event.HAND_BACK),
    OutcomeKind.CANCELLED: Transition(Event.STOP, ExecutionStatus.CANCELLED),
    OutcomeKind.KILLED: Transition(
        Event.DEAD_LETTER, ExecutionStatus.CANCELLED, reason=Reason.KILLED
    ),
    OutcomeKind.EXPIRED: Transition(Event.DEAD_LETTER, FAILED, reason=Reason.EXPIRED),
}
BUDGET_USED_UP = FIRST_ATTEMPT | {
    OutcomeKind.TRANSIENT: Transition(Event.DEAD_LETTER, FAILED, reason=Reason.TRANSIENT),
    OutcomeKind.TIMEOUT: Transition(Event.DEAD_LETTER, FAILED, reason=Reason.TIMEOUT),
}
RUN_TOO_OLD = FIRST_ATTEMPT | {
    OutcomeKind.TRANSIENT: Transition(Event.DEAD_LETTER, FAILED, reason=Reason.EXPIRED),
    OutcomeKind.TIMEOUT: Transition(Event.DEAD_LETTER, FAILED, reason=Reason.EXPIRED),
}


@pytest.mark.parametrize("kind", OutcomeKind)
def test_each_outcome_of_a_first_attempt_has_its_consequence(kind: OutcomeKind) -> None:
    assert after(kind) == FIRST_ATTEMPT[kind]


@pytest.mark.parametrize("kind", OutcomeKind)
def test_only_what_may_pass_is_bounded_by_the_budget(kind: OutcomeKind) -> None:
    assert after(kind, lease(attempt=9, failures=2)) == BUDGET_USED_UP[kind]


@pytest.mark.parametrize("kind", OutcomeKind)
def test_only_what_would_be_tried_again_is_bounded_by_age(kind: OutcomeKind) -> None:
    assert after(kind, now=DUE + HOUR) == RUN_TOO_OLD[kind]


# --- bounds -----------------------------------------------------------------------------------


def test_the_budget_counts_failures_and_not_attempt_numbers() -> None:
    held = lease(attempt=50, failures=1, interruptions=9)
    assert after(OutcomeKind.TRANSIENT, held) == Transition(Event.RETRY, FAILED, 20 * SECOND)


def test_one_attempt_allowed_is_one_attempt() -> None:
    policy = RetryPolicy(max_attempts=1)
    assert after(OutcomeKind.TRANSIENT, policy=policy).reason is Reason.TRANSIENT
    assert expire(FRESH, policy, DUE).reason is Reason.LEASE_EXPIRED


@pytest.mark.parametrize("failures", [46, 47, 1_023, 1_024, 1_998])
def test_two_thousand_attempts_are_two_thousand(failures: int) -> None:
    policy = RetryPolicy(max_attempts=2_000, base_sec=1, factor=2, cap_sec=3_600, max_age_sec=None)
    held = lease(failures=failures)
    assert after(OutcomeKind.TRANSIENT, held, policy).delay == HOUR
    assert after(OutcomeKind.TRANSIENT, lease(failures=1_999), policy).reason is Reason.TRANSIENT


def test_the_age_that_counts_is_that_of_the_next_attempt() -> None:
    edge = DUE + HOUR - 10 * SECOND
    assert after(OutcomeKind.TRANSIENT, now=edge).event is Event.RETRY
    assert after(OutcomeKind.TRANSIENT, now=edge + TICK).reason is Reason.EXPIRED


def test_a_wish_for_a_later_retry_than_the_age_allows_ends_the_run() -> None:
    assert after(OutcomeKind.TRANSIENT, retry_after=HOUR).event is Event.RETRY
    assert after(OutcomeKind.TRANSIENT, retry_after=HOUR + TICK).reason is Reason.EXPIRED


def test_a_run_without_a_greatest_age_is_never_too_old() -> None:
    policy = RetryPolicy(max_attempts=3, base_sec=10, max_age_sec=None)
    assert after(OutcomeKind.TRANSIENT, policy=policy, now=DUE + 4_000 * DAY).event is Event.RETRY
    assert expire(FRESH, policy, DUE + 4_000 * DAY).event is Event.EXPIRE


def test_interruptions_use_no_budget_and_end_in_a_dead_letter_at_the_tenth() -> None:
    assert MAX_INTERRUPTIONS == 10
    used_up = lease(failures=2, interruptions=8)
    assert after(OutcomeKind.INTERRUPTED, used_up).event is Event.INTERRUPT
    ninth_before = lease(interruptions=9)
    assert after(OutcomeKind.INTERRUPTED, ninth_before) == Transition(
        Event.DEAD_LETTER, ExecutionStatus.INTERRUPTED, reason=Reason.INTERRUPTED
    )


def test_what_was_never_sent_can_be_handed_back_however_often_and_late() -> None:
    held = lease(failures=99, interruptions=99)
    assert after(OutcomeKind.NOT_SENT, held, now=DUE + 99 * DAY) == Transition(Event.HAND_BACK)


def test_an_expired_lease_is_a_failure_of_the_budget_and_is_offered_at_once() -> None:
    expired = ExecutionStatus.LEASE_EXPIRED
    assert expire(FRESH, POLICY, DUE) == Transition(Event.EXPIRE, expired)
    assert expire(lease(failures=1), POLICY, DUE) == Transition(Event.EXPIRE, expired)
    assert expire(lease(failures=2), POLICY, DUE) == Transition(
        Event.DEAD_LETTER, expired, reason=Reason.LEASE_EXPIRED
    )
    assert expire(FRESH, POLICY, DUE + HOUR).event is Event.EXPIRE
    assert expire(FRESH, POLICY, DUE + HOUR + TICK) == Transition(
        Event.DEAD_LETTER, expired, reason=Reason.EXPIRED
    )


# --- nobody knows -----------------------------------------------------------------------------

PASSES = [OutcomeKind.TRANSIENT, OutcomeKind.TIMEOUT, OutcomeKind.INTERRUPTED]


@pytest.mark.parametrize("kind", PASSES)
def test_where_nothing_automatic_is_wanted_an_unknown_outcome_is_a_dead_letter_at_once(
    kind: OutcomeKind,
) -> None:
    interrupted = kind is OutcomeKind.INTERRUPTED
    status = ExecutionStatus.INTERRUPTED if interrupted else FAILED
    unknown = Outcome(kind, unknown=True)
    assert settle(FRESH, unknown, POLICY, DUE, 0.0, "dead_letter") == Transition(
        Event.DEAD_LETTER, status, reason=Reason.UNKNOWN_OUTCOME
    )
    assert settle(FRESH, unknown, POLICY, DUE, 0.0, "retry") == FIRST_ATTEMPT[kind]


@pytest.mark.parametrize("kind", OutcomeKind)
def test_what_is_known_does_not_depend_on_what_is_wanted_otherwise(kind: OutcomeKind) -> None:
    assert settle(FRESH, Outcome(kind), POLICY, DUE, 0.0, "dead_letter") == FIRST_ATTEMPT[kind]


def test_a_lease_that_ran_out_is_an_unknown_outcome() -> None:
    assert expire(FRESH, POLICY, DUE, "dead_letter") == Transition(
        Event.DEAD_LETTER, ExecutionStatus.LEASE_EXPIRED, reason=Reason.UNKNOWN_OUTCOME
    )


def test_only_a_run_that_has_failed_before_can_be_held_back_for_too_long() -> None:
    late = DUE + HOUR + TICK
    assert not is_too_late(FRESH, POLICY, late)
    assert is_too_late(lease(failures=1), POLICY, late)
    assert not is_too_late(lease(failures=1), POLICY, late - TICK)
    assert not is_too_late(lease(failures=1), RetryPolicy(max_age_sec=None), late)


# --- the table --------------------------------------------------------------------------------


def test_every_event_has_a_rule_and_every_source_a_way_out_but_the_end() -> None:
    assert set(TRANSITIONS) == set(Event)
    left = {source for rule in TRANSITIONS.values() for source in rule.sources}
    assert left == set(Source) - {Source.ENDED}


def test_every_state_can_be_reached_and_every_run_can_end() -> None:
    targets = {rule.target for rule in TRANSITIONS.values()}
    assert targets >= set(RunState)
    assert targets - set(RunState) == {
        LedgerOutcome.COMPLETE, LedgerOutcome.FAILED, LedgerOutcome.CANCELLED,
    }  # fmt: skip


# --- whatever happens -------------------------------------------------------------------------

policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 12),
    base_sec=st.floats(-1, 86_400),
    factor=st.floats(-1, 100),
    cap_sec=st.floats(-1, 30 * 86_400),
    max_age_sec=st.none() | st.integers(1, 10**18),
)
outcomes = st.builds(Outcome, st.sampled_from(OutcomeKind), retry_after=st.none() | st.timedeltas())
leases = st.builds(
    lease,
    failures=st.integers(0, 5_000),
    interruptions=st.integers(0, 50),
    attempt=st.integers(1, 10_000),
)
chances = st.floats(0, 1, exclude_max=True)


@EVERY_RUN
@given(leases, outcomes, policies, st.timedeltas(-DAY, 9_999 * DAY), chances)
def test_every_consequence_is_one_that_the_table_allows(
    held: Lease, outcome: Outcome, policy: RetryPolicy, late: timedelta, chance: float
) -> None:
    for follows in (
        settle(held, outcome, policy, DUE + late, chance),
        expire(held, policy, DUE + late),
    ):
        assert Source.LAPSED in TRANSITIONS[follows.event].sources
        assert (follows.execution is None) == (follows.event is Event.HAND_BACK)
        assert (follows.delay is not None) == (follows.event is Event.RETRY)
        assert (follows.reason is not None) == (follows.event is Event.DEAD_LETTER)
        if follows.delay is not None and policy.max_age_sec is not None:
            age = DUE + late + follows.delay - held.due_at
            assert age.total_seconds() <= policy.max_age_sec


@EVERY_RUN
@given(policies, st.data())
def test_no_run_is_carried_out_more_often_than_its_bounds_say(
    policy: RetryPolicy, data: st.DataObject
) -> None:
    held, attempts = FRESH, 0
    counted = st.sampled_from([OutcomeKind.TRANSIENT, OutcomeKind.TIMEOUT, OutcomeKind.INTERRUPTED])
    while True:
        attempts += 1
        lapsed = data.draw(st.booleans())
        follows = (
            expire(held, policy, DUE)
            if lapsed
            else settle(held, Outcome(data.draw(counted)), policy, DUE, 0.0)
        )
        if follows.event is Event.DEAD_LETTER:
            break
        interrupted = follows.event is Event.INTERRUPT
        held = lease(
            failures=held.failures + (not interrupted),
            interruptions=held.interruptions + interrupted,
        )
    assert attempts <= policy.max_attempts + MAX_INTERRUPTIONS - 1
