"""Count what became of attempts: the same for a worker's settles and the reaper's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from noonday.domain.lifecycle import Event, Transition
from noonday.domain.model import ExecutionStatus, Outcome, OutcomeKind, Reason
from noonday.telemetry import Metrics

_TRIED_AGAIN: Final = frozenset({Event.RETRY, Event.INTERRUPT, Event.EXPIRE})
_ENDS: Final = frozenset({Event.COMPLETE, Event.DEAD_LETTER})


class Ended(NamedTuple):
    """What is counted of an attempt that ended and was written down."""

    tenant_id: int
    event: Event
    execution: ExecutionStatus | None
    reason: Reason | None
    kind: OutcomeKind
    unknown: bool

    @classmethod
    def of(cls, tenant_id: int, transition: Transition, outcome: Outcome) -> Ended:
        """Of what was written of a tenant's run."""
        event, execution, reason = transition.event, transition.execution, transition.reason
        return cls(tenant_id, event, execution, reason, outcome.kind, outcome.unknown)


def ended(metrics: Metrics, attempts: Iterable[Ended]) -> None:
    """Attempts ended and that was written down."""
    for one, count in Counter(attempts).items():
        if one.execution is None:
            continue
        metrics.attempted(one.tenant_id, one.kind.value, count)
        if one.event in _ENDS:
            metrics.ended(one.tenant_id, count)
        if one.event is Event.RETRY:
            metrics.retried(count)
        if one.reason is not None:
            metrics.dead_lettered(one.reason.value, count)
        if one.event in _TRIED_AGAIN and one.unknown:
            metrics.suspected_duplicate(count)
