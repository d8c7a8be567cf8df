"""Work that a receiver was asked to do again after it had done it, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from noonday.domain.model import parse_run_id
from noonday.drill.checks.evidence import Evidence
from noonday.drill.moods import WELL

UNEXPLAINED: Final = "unexplained"


class Duplicate(NamedTuple):
    """A request for a run whose work had been done by an earlier attempt."""

    run_id: str
    attempt: int
    earlier: int
    """The attempt that had done it."""
    cause: str


def find(evidence: Evidence, answers: Iterable[dict[str, Any]]) -> Iterator[Duplicate]:
    """All duplicates that the receivers' own notes show, each with its cause."""
    by_run: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for answer in answers:
        by_run[answer["run_id"]].append(answer)
    for run_id, notes in by_run.items():
        worked: dict[str, Any] | None = None
        for note in sorted(notes, key=lambda note: float(note["at"])):
            if worked is not None:
                cause = _cause(evidence, run_id, worked)
                yield Duplicate(run_id, note["attempt"], worked["attempt"], cause)
            if note["worked"]:
                worked = note


def _cause(evidence: Evidence, run_id: str, worked: dict[str, Any]) -> str:
    """How the attempt that did the work ended, as Noonday has it on record."""
    run = parse_run_id(run_id)
    executions = evidence.executions.get(run, []) if run is not None else []
    row = next((row for row in executions if row["attempt"] == worked["attempt"]), None)
    if row is None or row["status"] == "SUCCESS":
        return UNEXPLAINED
    if row["status"] == "LEASE_EXPIRED":
        return "its lease ran out before the answer was on record"
    if row["status"] == "INTERRUPTED":
        return "its worker was stopped before the answer came"
    if worked["mood"] != WELL:
        return f"the receiver was {worked['mood']}"
    return "the answer was lost on the way" if row["unknown"] else UNEXPLAINED
