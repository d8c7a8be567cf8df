"""All that a drill found, put together; and as a document and as text."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from noonday import __version__
from noonday.drill import measures, verdict
from noonday.drill.checks.evidence import Evidence
from noonday.drill.checks.history import NOT_APPLICABLE, RULES
from noonday.drill.client_log import ClientLog
from noonday.drill.duplicates import UNEXPLAINED, Duplicate
from noonday.drill.faults import HOSTILE
from noonday.drill.marks import Mark
from noonday.drill.measures import Delivery, Phases
from noonday.drill.options import Options

MOST_SHOWN: Final = 20


@dataclass
class Results:
    """Evidence, figures and judgement of one drill."""

    options: Options
    phases: Phases
    evidence: Evidence
    clients: ClientLog
    marks: list[Mark]
    violations: list[str]
    duplicates: list[Duplicate]
    deliveries: list[Delivery]
    recovery: dict[str, list[float]]
    kills: dict[str, int]
    """By role."""
    unasked: dict[str, int]
    """Processes that ended by themselves, and were started again."""

    @property
    def counts(self) -> dict[str, int]:
        """What there was of everything."""
        statuses = measures.statuses(self.evidence)
        indeterminate = [r for r in self.clients.indeterminate if r.what == "create"]
        names = {job.name for job in self.evidence.jobs.values()}
        outcomes = Counter(row["outcome"] for row in self.evidence.ledger.values())
        return {
            "jobs acknowledged": len(self.clients.acknowledged),
            "creates given up": len(indeterminate),
            "of these created": sum(request.key in names for request in indeterminate),
            "client retries": sum(max(r.tries - 1, 0) for r in self.clients.requests),
            "answers given again": self.clients.replayed,
            "triggers acknowledged": len(self.clients.triggered),
            "cancels acknowledged": len(self.clients.cancelled) + len(self.clients.cancelled_runs),
            "occurrences": len(self.evidence.ledger),
            **{f"occurrences {name}": count for name, count in sorted(outcomes.items())},
            "deliveries": len(self.deliveries),
            "requests": len(self.evidence.witness.requests),
            "attempts": sum(statuses.values()),
            **{f"attempts {name}": count for name, count in sorted(statuses.items())},
            "dead letters": len(self.evidence.dead_letters),
            "kills": sum(self.kills.values()),
            **{f"kills of {role}": count for role, count in sorted(self.kills.items())},
            "shard takeovers": measures.takeovers(self.evidence),
            "lease takeovers": statuses.get("LEASE_EXPIRED", 0),
            "takeovers": measures.takeovers(self.evidence) + statuses.get("LEASE_EXPIRED", 0),
            "pauses": sum(mark.number == "F6" for mark in self.marks),
            "restarts of Postgres": sum(mark.name == "crash Postgres" for mark in self.marks),
            "faults": sum(mark.number != HOSTILE for mark in self.marks),
            "ended by themselves": sum(self.unasked.values()),
        }

    @property
    def empty(self) -> list[str]:
        """Why it proves nothing, if so."""
        options = self.options
        return list(
            verdict.emptiness(
                options.seconds, options.faults, self.counts, self.marks,
                all_named=options.all_faults,
            )
        )  # fmt: skip

    @property
    def judgement(self) -> dict[str, int]:
        """The three figures that have to be 0."""
        return {
            "lost": verdict.count(self.violations, verdict.LOST),
            "doubled occurrences": verdict.count(self.violations, verdict.DOUBLED),
            "stale commits": verdict.count(self.violations, verdict.STALE),
        }

    @property
    def passed(self) -> bool:
        """Whether no invariant was broken, and it was a drill."""
        return not self.violations and not self.empty

    def as_document(self) -> dict[str, Any]:
        """The whole, for programs."""
        return {
            "version": __version__,
            "commit": commit(),
            "seed": self.options.seed,
            "seconds": self.options.seconds,
            "faults": self.options.faults,
            "left_out": dict(self.options.left_out),
            "passed": self.passed,
            "violations": self.violations,
            "empty": self.empty,
            **self.judgement,
            "counts": self.counts,
            "duplicates": [duplicate._asdict() for duplicate in self.duplicates],
            "recovery_sec": self.recovery,
            "lateness_sec": measures.lateness(self.deliveries, self.phases),
            "phases": vars(self.phases),
            "marks": [mark.as_document() for mark in self.marks],
        }

    def as_text(self) -> str:
        """The whole, for people."""
        return "\n".join(self._lines()) + "\n"

    def title(self) -> str:
        """One line that says which drill it was."""
        build = f"Noonday {__version__}" + (f" ({commit()})" if commit() else "")
        lasted = self.phases.end - self.phases.quiet
        return f"{build}, seed {self.options.seed}, {lasted:.0f} s under load"

    def _lines(self) -> Iterator[str]:
        yield self.title()
        yield "faults: " + " ".join(self.options.faults)
        yield from (f"left out: {number}: {why}" for number, why in self.options.left_out.items())
        yield ""
        yield from (f"{count:9,}  {name}" for name, count in self.counts.items())
        yield ""
        yield from (f"{count:9,}  {name}" for name, count in self.judgement.items())
        yield f"invariants: {len(RULES)} checked, {len(self.violations)} violations"
        yield from (f"  {number} does not apply: {why}" for number, why in NOT_APPLICABLE.items())
        yield from (f"  {violation}" for violation in self.violations[:MOST_SHOWN])
        if len(self.violations) > MOST_SHOWN:
            yield f"  … and {len(self.violations) - MOST_SHOWN} more in report.json"
        yield from self._duplicate_lines()
        yield from self._fault_lines()
        yield from self._lateness_lines()
        yield ""
        yield from (f"EMPTY: {why}" for why in self.empty)
        yield "passed" if self.passed else "FAILED"

    def _duplicate_lines(self) -> Iterator[str]:
        causes = Counter(duplicate.cause for duplicate in self.duplicates)
        yield ""
        yield f"work that was asked for again after it was done: {len(self.duplicates)}"
        for cause, count in causes.most_common():
            yield f"{count:9,}  {cause}" + ("  <- must not be" if cause == UNEXPLAINED else "")

    def _fault_lines(self) -> Iterator[str]:
        yield ""
        again = self.phases.well - self.phases.healed
        yield f"after the last fault all was well again within {again:.1f} s"
        yield ""
        yield "fault                                          struck  seen  on time again after (s)"
        for name in sorted({f"{m.number:4}{m.name}" for m in self.marks}):
            struck = [m for m in self.marks if f"{m.number:4}{m.name}" == name]
            times = self.recovery.get(f"{struck[0].number} {struck[0].name}", [])
            back = _summary(times) if times else "-"
            seen = sum(mark.effect is not None for mark in struck)
            yield f"  {name:45}{len(struck):6}{seen:6}  {back}"

    def _lateness_lines(self) -> Iterator[str]:
        yield ""
        yield "lateness of first deliveries (s)     p50      p95      p99      max    count"
        for phase, found in measures.lateness(self.deliveries, self.phases).items():
            shown = "".join(f"{found[f'p{p}']:9.3f}" for p in measures.PERCENTS)
            yield f"  due while {phase:22}{shown}{found['count']:9}"


def _summary(times: Sequence[float]) -> str:
    return f"median {measures.percentile(times, 50):.1f}, at most {max(times):.1f}, of {len(times)}"


def commit() -> str | None:
    """The commit of a working copy; None for an installed package."""
    here = Path(__file__).parent
    # (An environment may lie in a working copy of something else.)
    if not _said_by_git(here, "ls-files", "--", "."):
        return None
    return _said_by_git(here, "rev-parse", "--short", "HEAD")


def _said_by_git(here: Path, *argv: str) -> str | None:
    command = ["git", "-C", str(here), *argv]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
