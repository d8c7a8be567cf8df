"""What must hold between the jobs, the reference calendar, the ledger and the shards."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from uuid import UUID

from noonday.domain.model import Kind, Once, RunKey, parse_run_id, shard_of
from noonday.domain.schedule import jitter
from noonday.drill.checks.evidence import Evidence, Job
from noonday.drill.checks.reference import calendar
from noonday.store import Row
from noonday.store.runs import key_of

EPSILON = timedelta(seconds=5)
"""How late the timer of a job may be at the end, when all has been well again for a while."""


def i1_nothing_acknowledged_is_lost(evidence: Evidence) -> Iterator[str]:
    for job_id in evidence.witness.acknowledged - evidence.jobs.keys():
        yield f"job {job_id} was acknowledged and is not there"
    ledger = {str(run) for run in evidence.ledger}
    for run in sorted(evidence.witness.triggered - ledger):
        yield f"run {run} was acknowledged as triggered and is not in the ledger"


def i2_nothing_is_unexpected(evidence: Evidence) -> Iterator[str]:
    places = {
        "a run": [key_of(row) for row in evidence.runs],
        "the ledger": evidence.ledger_rows,
        "an execution": list(evidence.executions),
        "a request": [run for text in evidence.requests if (run := parse_run_id(text))],
    }
    for place, runs in places.items():
        for job_id in {run.job_id for run in runs} - evidence.jobs.keys():
            yield f"{place} speaks of a job {job_id} that nobody knows"
        for run in runs:
            if run.kind is Kind.SCHEDULE and run.job_id in evidence.jobs:
                job = evidence.jobs[run.job_id]
                if not calendar(job.spec.schedule, run.occurrence_at, run.occurrence_at):
                    yield f"{place} speaks of {run}, which is not in the calendar of its job"
    for job_id in evidence.timers.keys() - evidence.jobs.keys():
        yield f"a timer stands for a job {job_id} that nobody knows"
    for text in evidence.requests:
        if parse_run_id(text) is None:
            yield f"a request came with {text!r} as its run"
    asked = evidence.witness.asked
    for job in evidence.jobs.values() if asked is not None else ():
        if job.name not in (asked or ()):
            yield f"job {job.id} has the name {job.name!r}, under which nobody asked for one"


def i3_an_occurrence_is_materialized_once(evidence: Evidence) -> Iterator[str]:
    yield from _twice("ledger row", evidence.ledger_rows)
    alone = _alone(evidence)
    for job_id, ranges in evidence.ranges.items():
        yield from _within(job_id, ranges, alone.get(job_id, []))
    yield from _twice("run", [key_of(row) for row in evidence.runs])
    born: dict[str, list[tuple[RunKey, int]]] = {"runs": [], "occurrences": []}
    for entry in evidence.journal:
        fresh = entry.source in born and entry.before is None and not evidence.reopens(entry)
        if fresh and entry.row.get("outcome") is None:
            born[entry.source].append((entry.run, entry.txid))
    yield from _twice("run that was begun", [run for run, _ in born["runs"]])
    reborn = {(e.run, e.txid) for e in evidence.journal if e.source == "runs" and not e.before}
    for run, txids in evidence.reopened.items():
        if any((run, txid) not in reborn for txid in txids):
            yield f"{run} was reopened in the ledger without a run by the same transaction"
    for run, _ in set(born["runs"]) - set(born["occurrences"]):
        yield f"{run} was begun without an open row in the ledger by the same transaction"
    for run, _ in set(born["occurrences"]) - set(born["runs"]):
        yield f"{run} was opened in the ledger without a run by the same transaction"


def _twice(what: str, runs: list[RunKey]) -> Iterator[str]:
    for run, count in Counter(runs).items():
        if count > 1:
            yield f"{count} times a {what} for {run}"


def _within(job_id: UUID, ranges: list[Row], alone: list[datetime]) -> Iterator[str]:
    spans = sorted([(row["from_at"], row["to_at"]) for row in ranges] + [(at, at) for at in alone])
    for (_, end), (start, _) in pairwise(spans):
        if start <= end:
            yield f"{start} of {job_id} is in the ledger twice, once within a range"


def i4_no_occurrence_is_missing(evidence: Evidence) -> Iterator[str]:
    alone = _alone(evidence)
    for job in evidence.jobs.values():
        if isinstance(job.spec.schedule, Once):
            yield from _of_one_off(evidence, job)
            continue
        written = alone.get(job.id, [])
        for row in evidence.ranges.get(job.id, []):
            within = calendar(job.spec.schedule, row["from_at"], row["to_at"])
            written += within
            says = [row["from_at"], row["to_at"], row["count"]]
            if says != [*within[:1], *within[-1:], len(within)]:
                yield f"a range of {job.id} up to {row['to_at']} is not what it says"
        yield from _of_recurring(evidence, job, sorted(written))


def _alone(evidence: Evidence) -> dict[UUID, list[datetime]]:
    """The nominal times that have a line of the ledger of their own, by job."""
    found: defaultdict[UUID, list[datetime]] = defaultdict(list)
    for run in evidence.ledger:
        if run.kind is Kind.SCHEDULE:
            found[run.job_id].append(run.occurrence_at)
    return found


def _of_one_off(evidence: Evidence, job: Job) -> Iterator[str]:
    assert isinstance(job.spec.schedule, Once)
    run = RunKey(job.id, Kind.SCHEDULE, job.spec.schedule.run_at)
    places = (run in evidence.ledger) + len(evidence.timers.get(job.id, []))
    if job.state == "ACTIVE" and places != 1:
        yield f"one-off job {job.id} is in {places} places of ledger and timers"
    if job.id in evidence.timers:
        yield from _overdue(evidence, job, evidence.timers[job.id][0]["due_at"])


def _of_recurring(evidence: Evidence, job: Job, written: list[datetime]) -> Iterator[str]:
    timers = evidence.timers.get(job.id, [])
    if len(timers) != (job.state == "ACTIVE"):
        yield f"{job.state} job {job.id} has {len(timers)} timers"
        return
    if timers:
        until = timers[0]["occurrence_at"]
        yield from _overdue(evidence, job, timers[0]["due_at"])
        if not calendar(job.spec.schedule, until, until):
            yield f"the timer of {job.id} stands at {until}, which is not in its calendar"
    else:
        assert job.state_changed_at is not None
        delay = jitter(job.id, job.spec.schedule.jitter_sec)
        until = max([job.state_changed_at - delay - EPSILON, *written])
    expected, known = calendar(job.spec.schedule, job.created_at, until), set(written)
    for at in expected:
        if at not in known and not (timers and at == until):
            yield f"the ledger of {job.id} has no row for {at}"


def _overdue(evidence: Evidence, job: Job, due_at: datetime) -> Iterator[str]:
    if due_at < evidence.now - EPSILON:
        yield f"the timer of {job.id} has been due since {due_at}"


def i10_nothing_is_left(evidence: Evidence) -> Iterator[str]:
    """After all work is done."""
    for row in evidence.runs:
        yield f"{key_of(row)} is still {row['state']}"
    for run, row in evidence.ledger.items():
        if row["outcome"] is None:
            yield f"{run} is still open in the ledger"


def i15_no_scheduler_writes_behind_its_fence(evidence: Evidence) -> Iterator[str]:
    epochs: dict[int, int] = {}
    for entry in evidence.journal:
        if entry.source == "shards":
            shard, epoch = entry.row["shard"], entry.row["epoch"]
            if epoch < epochs.get(shard, 0):
                yield f"the epoch of shard {shard} fell to {epoch}"
            epochs[shard] = epoch
        elif entry.source == "occurrences" and entry.before is None:
            epoch, shard = entry.row["shard_epoch"], shard_of(entry.job_id)
            if epoch is not None and epoch != epochs.get(shard, epoch):
                yield f"{entry.run} was written under epoch {epoch}, not {epochs[shard]}"
