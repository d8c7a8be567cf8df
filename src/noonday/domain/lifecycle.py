"""The state machine of a run: the one authority on what may happen to it, and when.

``TRANSITIONS`` says for each event from which states it may come and where it leads; the
statements in ``store/runs.py`` spell the same out in SQL, one per event, and a test runs every
pair of state and event on a real Postgres against this table. :func:`settle` is pure: from what
came of an attempt it tells which event follows.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from noonday.domain import retry
from noonday.domain.model import (
    ExecutionStatus,
    LedgerOutcome,
    OnUnknown,
    Outcome,
    OutcomeKind,
    Reason,
    RetryPolicy,
    RunKey,
    RunState,
)

MAX_INTERRUPTIONS: Final = 10
"""How often we may interrupt a run ourselves before it becomes a dead letter."""


class Source(StrEnum):
    """What an event may find: a run in one of its states, or none."""

    NONE = "NONE"
    READY = "READY"
    HELD = "HELD"
    """READY, but held: not claimable."""
    WAITING = "WAITING"
    """READY, but held until each of its caps has a slot for it."""
    RUNNING = "RUNNING"
    LAPSED = "LAPSED"
    """RUNNING, its lease run out."""
    RETRYING = "RETRYING"
    ENDED = "ENDED"
    DEAD = "DEAD"
    """Ended with a dead letter that lies there."""


class Event(StrEnum):
    """What can happen to a run."""

    MATERIALIZE = "materialize"
    CLAIM = "claim"
    HEARTBEAT = "heartbeat"
    COMPLETE = "complete"
    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    INTERRUPT = "interrupt"
    HAND_BACK = "hand_back"
    EXPIRE = "expire"
    RETRY_DUE = "retry_due"
    REQUEST_CANCEL = "request_cancel"
    """The job was cancelled: what runs goes on, but is not tried again."""
    CANCEL = "cancel"
    KILL = "kill"
    """A person makes a dead letter of what waits."""
    STOP = "stop"
    """Its worker has cut the attempt off, as it was asked to."""
    HOLD = "hold"
    """Claimed, and put back before anything was sent: something holds it back."""
    ADMIT = "admit"
    GIVE_SLOT = "give_slot"
    REKEY = "rekey"
    """Another of its caps is what it waits for."""
    PUT_BACK = "put_back"
    """A cap was set or lowered: what nobody has claimed yet waits for a slot again."""
    REPLAY = "replay"


class Rule(NamedTuple):
    """From where an event may come, and where it leads."""

    sources: frozenset[Source]
    target: RunState | LedgerOutcome


_HELD_LEASE: Final = frozenset({Source.RUNNING, Source.LAPSED})
_WAITS: Final = frozenset({Source.READY, Source.HELD, Source.WAITING, Source.RETRYING})

TRANSITIONS: Final[dict[Event, Rule]] = {
    Event.MATERIALIZE: Rule(frozenset({Source.NONE}), RunState.READY),
    Event.CLAIM: Rule(frozenset({Source.READY}), RunState.RUNNING),
    Event.HEARTBEAT: Rule(frozenset({Source.RUNNING}), RunState.RUNNING),
    # A result of the current lease is accepted until the reaper has acted.
    Event.COMPLETE: Rule(_HELD_LEASE, LedgerOutcome.COMPLETE),
    Event.RETRY: Rule(_HELD_LEASE, RunState.RETRYING),
    Event.DEAD_LETTER: Rule(_HELD_LEASE, LedgerOutcome.FAILED),
    Event.INTERRUPT: Rule(_HELD_LEASE, RunState.READY),
    Event.HAND_BACK: Rule(_HELD_LEASE, RunState.READY),
    Event.EXPIRE: Rule(frozenset({Source.LAPSED}), RunState.READY),
    Event.RETRY_DUE: Rule(frozenset({Source.RETRYING}), RunState.READY),
    Event.REQUEST_CANCEL: Rule(_HELD_LEASE, RunState.RUNNING),
    Event.CANCEL: Rule(_WAITS, LedgerOutcome.CANCELLED),
    Event.KILL: Rule(_WAITS, LedgerOutcome.FAILED),
    Event.STOP: Rule(_HELD_LEASE, LedgerOutcome.CANCELLED),
    Event.HOLD: Rule(_HELD_LEASE, RunState.READY),
    Event.ADMIT: Rule(frozenset({Source.HELD}), RunState.READY),
    Event.GIVE_SLOT: Rule(frozenset({Source.WAITING}), RunState.READY),
    Event.REKEY: Rule(frozenset({Source.WAITING}), RunState.READY),
    Event.PUT_BACK: Rule(frozenset({Source.READY}), RunState.READY),
    # The same run: its id, attempt numbers and lease version go on, its budget is fresh.
    Event.REPLAY: Rule(frozenset({Source.DEAD}), RunState.READY),
}


class Lease(msgspec.Struct, frozen=True, gc=False):
    """What a worker holds of a run: the attempt's number, its token, and the budget used."""

    run: RunKey
    tenant_id: int
    attempt: int
    lease_version: int
    failures: int
    interruptions: int
    due_at: datetime
    leased_at: datetime


class Transition(msgspec.Struct, frozen=True, gc=False):
    """What to write for an attempt that ended."""

    event: Event
    execution: ExecutionStatus | None = None
    delay: timedelta | None = None
    reason: Reason | None = None
    hold: tuple[str, str] | None = None
    """What holds the run back: the kind, and the key under which it waits."""


def _dead(execution: ExecutionStatus, reason: Reason) -> Transition:
    return Transition(Event.DEAD_LETTER, execution, reason=reason)


_PLAIN: Final = {
    OutcomeKind.SUCCESS: Transition(Event.COMPLETE, ExecutionStatus.SUCCESS),
    OutcomeKind.NOT_SENT: Transition(Event.HAND_BACK),
    OutcomeKind.CANCELLED: Transition(Event.STOP, ExecutionStatus.CANCELLED),
    OutcomeKind.KILLED: _dead(ExecutionStatus.CANCELLED, Reason.KILLED),
    OutcomeKind.PERMANENT: _dead(ExecutionStatus.FAILED, Reason.PERMANENT_ANSWER),
    OutcomeKind.GONE: _dead(ExecutionStatus.FAILED, Reason.TARGET_GONE),
    OutcomeKind.BLOCKED: _dead(ExecutionStatus.FAILED, Reason.BLOCKED_TARGET),
    OutcomeKind.BAD_PAYLOAD: _dead(ExecutionStatus.FAILED, Reason.BAD_PAYLOAD),
    OutcomeKind.EXPIRED: _dead(ExecutionStatus.FAILED, Reason.EXPIRED),
}
"""Outcomes after which nothing is left to decide."""


def settle(
    lease: Lease,
    outcome: Outcome,
    policy: RetryPolicy,
    now: datetime,
    chance: float,
    on_unknown: OnUnknown = "retry",
) -> Transition:
    """What follows from ``outcome``; ``chance`` in ``[0, 1)`` spreads retries."""
    plain = _PLAIN.get(outcome.kind)
    if plain is not None:
        return plain
    interrupted = outcome.kind is OutcomeKind.INTERRUPTED
    if outcome.unknown and on_unknown == "dead_letter":
        status = ExecutionStatus.INTERRUPTED if interrupted else ExecutionStatus.FAILED
        return _dead(status, Reason.UNKNOWN_OUTCOME)
    if interrupted:
        return _interrupted(lease)
    return _failed(lease, outcome, policy, now, chance)


def hold(kind: str, key: str) -> Transition:
    """What follows when a run that was just claimed may not be sent yet."""
    return Transition(Event.HOLD, hold=(kind, key))


def expire(
    lease: Lease, policy: RetryPolicy, now: datetime, on_unknown: OnUnknown = "retry"
) -> Transition:
    """What follows when a lease ran out: offered again at once, while the budget lasts."""
    if on_unknown == "dead_letter":
        return _dead(ExecutionStatus.LEASE_EXPIRED, Reason.UNKNOWN_OUTCOME)
    if lease.failures + 1 >= policy.max_attempts:
        return _dead(ExecutionStatus.LEASE_EXPIRED, Reason.LEASE_EXPIRED)
    if _too_old(lease, policy, now):
        return _dead(ExecutionStatus.LEASE_EXPIRED, Reason.EXPIRED)
    return Transition(Event.EXPIRE, ExecutionStatus.LEASE_EXPIRED)


def _interrupted(lease: Lease) -> Transition:
    if lease.interruptions + 1 >= MAX_INTERRUPTIONS:
        return _dead(ExecutionStatus.INTERRUPTED, Reason.INTERRUPTED)
    return Transition(Event.INTERRUPT, ExecutionStatus.INTERRUPTED)


def _failed(
    lease: Lease, outcome: Outcome, policy: RetryPolicy, now: datetime, chance: float
) -> Transition:
    failures = lease.failures + 1
    if failures >= policy.max_attempts:
        timed_out = outcome.kind is OutcomeKind.TIMEOUT
        return _dead(ExecutionStatus.FAILED, Reason.TIMEOUT if timed_out else Reason.TRANSIENT)
    delay = retry.delay(policy, failures, outcome.retry_after, chance)
    if _too_old(lease, policy, now + delay):
        return _dead(ExecutionStatus.FAILED, Reason.EXPIRED)
    return Transition(Event.RETRY, ExecutionStatus.FAILED, delay=delay)


def is_too_late(lease: Lease, policy: RetryPolicy, now: datetime) -> bool:
    """Whether a run that has failed before was held back beyond the age up to which it is tried.

    A first attempt is made however late.
    """
    return lease.failures > 0 and _too_old(lease, policy, now)


def _too_old(lease: Lease, policy: RetryPolicy, at: datetime) -> bool:
    if policy.max_age_sec is None:
        return False
    return (at - lease.due_at).total_seconds() > policy.max_age_sec
