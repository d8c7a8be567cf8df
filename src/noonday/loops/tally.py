"""Count what became of attempts: the same for a worker's settles and the reaper's."""

from __future__ import annotations

from typing import Final

from noonday.domain.lifecycle import Event, Lease, Transition
from noonday.domain.model import Outcome
from noonday.telemetry import Metrics

_TRIED_AGAIN: Final = frozenset({Event.RETRY, Event.INTERRUPT, Event.EXPIRE})
_ENDS: Final = frozenset({Event.COMPLETE, Event.DEAD_LETTER})


def ended(metrics: Metrics, lease: Lease, transition: Transition, outcome: Outcome) -> None:
    """An attempt ended and that was written down."""
    if transition.execution is None:
        return
    metrics.attempted(lease.tenant_id, outcome.kind.value)
    if transition.event in _ENDS:
        metrics.ended(lease.tenant_id)
    if transition.event is Event.RETRY:
        metrics.retried()
    if transition.reason is not None:
        metrics.dead_lettered(transition.reason.value)
    if transition.event in _TRIED_AGAIN and outcome.unknown:
        metrics.suspected_duplicate()
