"""What a drill came to, in figures."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from noonday.domain.model import parse_run_id
from noonday.drill.checks.evidence import Evidence
from noonday.drill.checks.journal import moment
from noonday.drill.faults import HOSTILE
from noonday.drill.marks import Mark

ON_TIME_SEC: Final = 1.0
PERCENTS: Final = (50, 95, 99, 100)


@dataclass(frozen=True)
class Phases:
    """When each began, in seconds since 1970."""

    quiet: float
    faults: float
    healed: float
    well: float
    """When all was ready and on time again after the last fault."""
    end: float

    def of(self, at: float) -> str | None:
        """The phase of a moment."""
        if not self.quiet <= at < self.end:
            return None
        return "quiet" if at < self.faults else "faults" if at < self.healed else "healed"


class Delivery(NamedTuple):
    """The first request of a run."""

    job_id: UUID
    due_at: float
    late_sec: float


def deliveries(evidence: Evidence) -> Iterator[Delivery]:
    """How late each run was first delivered, as a receiver saw it."""
    for run_id, requests in evidence.requests.items():
        run = parse_run_id(run_id)
        row = evidence.ledger.get(run) if run is not None else None
        if run is not None and row is not None:
            due_at: datetime = row["due_at"]
            first = min(request.at for request in requests)
            yield Delivery(run.job_id, due_at.timestamp(), first - due_at.timestamp())


def lateness(found: Sequence[Delivery], phases: Phases) -> dict[str, dict[str, float]]:
    """Percentiles of the lateness in seconds, by the phase in which a run was due."""
    by_phase: defaultdict[str, list[float]] = defaultdict(list)
    for delivery in found:
        phase = phases.of(delivery.due_at)
        if phase is not None:
            by_phase[phase].append(max(delivery.late_sec, 0.0))
    return {
        phase: {"count": len(late)} | {f"p{p}": percentile(late, p) for p in PERCENTS}
        for phase, late in by_phase.items()
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def recovery(
    found: Sequence[Delivery], pulses: Set[UUID], marks: Sequence[Mark], phases: Phases
) -> dict[str, list[float]]:
    """By fault: the seconds from the end of each until all that fell due within a second was
    delivered on time. The pulses tell: jobs that fire each second, to receivers that are well.
    Only of those that no other fault met meanwhile."""
    on_time = Counter(
        int(delivery.due_at)
        for delivery in found
        if delivery.job_id in pulses and delivery.late_sec <= ON_TIME_SEC
    )
    times: defaultdict[str, list[float]] = defaultdict(list)
    for mark in marks:
        second = int(mark.ended_at)
        while second < phases.end and on_time[second] < len(pulses):
            second += 1
        alone = not any(
            other is not mark
            and other.number != HOSTILE
            and other.started_at < second
            and mark.ended_at < other.ended_at
            for other in marks
        )
        if alone and mark.effect is not None and second < phases.end:
            times[f"{mark.number} {mark.name}"].append(max(second - mark.ended_at, 0.0))
    return dict(times)


def takeovers(evidence: Evidence) -> int:
    """How often shards went from one owner to another who had not been given them, counted once
    for all that one transaction took."""
    taken = {
        entry.txid
        for entry in evidence.journal
        if entry.source == "shards"
        and entry.before is not None
        and entry.before["owner_id"] not in (None, entry.row["owner_id"])
        and entry.row["owner_id"] is not None
        and moment(entry.before["leased_until"]) <= entry.at
    }
    return len(taken)


def statuses(evidence: Evidence) -> Mapping[str, int]:
    """Attempts by how they ended."""
    return Counter(row["status"] for rows in evidence.executions.values() for row in rows)
