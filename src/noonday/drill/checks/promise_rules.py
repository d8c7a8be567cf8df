"""What must hold for what was promised to callers: overlap, cancel, idempotency, coming back."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from uuid import UUID

from noonday.domain.model import Kind, Once, RunKey, parse_run_id
from noonday.domain.schedule import overlap_of
from noonday.drill.checks.evidence import Evidence, Job
from noonday.drill.checks.reference import calendar
from noonday.store.runs import key_of

EPSILON = timedelta(seconds=5)
"""How old what is due may be, once all has been well again for a while."""


def i14_what_must_not_overlap_does_not(evidence: Evidence) -> Iterator[str]:
    lives: defaultdict[UUID, list[tuple[datetime, datetime | None, RunKey]]] = defaultdict(list)
    for run, entries in evidence.by_run.items():
        job = evidence.jobs.get(run.job_id)
        if job is not None and _skips(job):
            births = [entry.at for entry in entries if entry.before is None]
            ends = [entry.at for entry in entries if entry.after is None]
            lives[run.job_id] += [
                (start, end, run) for start, end in itertools.zip_longest(births, ends) if start
            ]
    for found in lives.values():
        for (_, end, earlier), (start, _, later) in itertools.pairwise(sorted(found, key=_start)):
            if end is None or start < end:
                yield f"{later} was begun {start}, while {earlier} was unfinished"
    yield from _attempts_beside_each_other(evidence)


def _start(life: tuple[datetime, datetime | None, RunKey]) -> datetime:
    return life[0]


def _skips(job: Job) -> bool:
    return overlap_of(job.spec.schedule) == "skip"


def _attempts_beside_each_other(evidence: Evidence) -> Iterator[str]:
    attempts: defaultdict[UUID, list[tuple[datetime, datetime, str]]] = defaultdict(list)
    for run, executions in evidence.executions.items():
        job = evidence.jobs.get(run.job_id)
        if job is not None and _skips(job):
            for row in executions:
                held_until = min(row["finished_at"], row["locked_until"])
                label = f"{run}, attempt {row['attempt']}"
                attempts[run.job_id].append((row["leased_at"], held_until, label))
    for found in attempts.values():
        for (_, end, earlier), (start, _, later) in itertools.pairwise(sorted(found)):
            if start < end:
                yield f"{later} held its lease from {start}, while {earlier} did until {end}"


def i16_the_next_fire_is_the_right_one(evidence: Evidence) -> Iterator[str]:
    latest: dict[UUID, datetime] = {}
    for run in evidence.ledger:
        if run.kind is Kind.SCHEDULE:
            latest[run.job_id] = max(run.occurrence_at, latest.get(run.job_id, run.occurrence_at))
    for job_id, timers in evidence.timers.items():
        job = evidence.jobs.get(job_id)
        for timer in timers if job is not None else ():
            assert job is not None
            yield from _wrong_timer(job, timer["occurrence_at"], latest.get(job_id))
            if timer["schedule_version"] != job.schedule_version:
                yield f"the timer of {job_id} is of an older schedule"
            if timer["due_at"] < evidence.now - EPSILON:
                yield f"the timer of {job_id} has been due since {timer['due_at']}"


def _wrong_timer(job: Job, at: datetime, latest: datetime | None) -> Iterator[str]:
    if latest is not None and at <= latest:
        yield f"the timer of {job.id} stands at {at}, and {latest} was fired already"
    schedule = job.spec.schedule
    if not calendar(schedule, at, at):
        yield f"the timer of {job.id} stands at {at}, which is not in its calendar"
    elif latest is not None and not isinstance(schedule, Once) and latest < at:
        between = calendar(schedule, latest, at)[1:-1]
        if between:
            yield f"the timer of {job.id} stands at {at} and leaps over {between[0]}"


def i17_what_was_cancelled_stays_so(evidence: Evidence) -> Iterator[str]:
    cancelled = evidence.witness.cancelled
    for job_id in cancelled:
        if job_id in evidence.jobs and evidence.jobs[job_id].state != "CANCELLED":
            yield f"the cancellation of {job_id} was acknowledged, and it is not cancelled"
        if evidence.timers.get(job_id):
            yield f"a timer stands for {job_id}, which was cancelled"
    for run, entries in evidence.by_run.items():
        births = [entry.at for entry in entries if entry.before is None]
        if run.job_id in cancelled and any(at > cancelled[run.job_id] for at in births):
            yield f"{run} was begun after its job's cancellation was acknowledged"
    for run, leases in evidence.leases.items():
        for lease in leases:
            if run.job_id in cancelled and lease.granted_at > cancelled[run.job_id]:
                yield f"{run} was claimed after its job's cancellation was acknowledged"
    yield from _cancelled_runs(evidence)
    yield from _sent_though_cancelled(evidence)


def _cancelled_runs(evidence: Evidence) -> Iterator[str]:
    for run_id, at in evidence.witness.cancelled_runs.items():
        run = parse_run_id(run_id)
        row = evidence.ledger.get(run) if run is not None else None
        if run is None or row is None or row["outcome"] != "CANCELLED":
            yield f"{run_id} was acknowledged as cancelled, and is not in the ledger as that"
        elif any(lease.granted_at > at for lease in evidence.leases.get(run, [])):
            yield f"{run_id} was claimed after it was acknowledged as cancelled"


def _sent_though_cancelled(evidence: Evidence) -> Iterator[str]:
    for text in evidence.requests:
        run = parse_run_id(text)
        row = evidence.ledger.get(run) if run is not None else None
        if row is not None and row["outcome"] == "CANCELLED" and not row["attempts"]:
            yield f"{run} was cancelled before it began, and a request was sent"


def i20_a_key_makes_one_job_and_keeps_its_answer(evidence: Evidence) -> Iterator[str]:
    given: defaultdict[str, set[str]] = defaultdict(set)
    for answer in evidence.witness.answers:
        given[answer.key].add(answer.body_sha256)
    kept: defaultdict[str, set[str]] = defaultdict(set)
    for row in evidence.keys:
        kept[row["key"]].add(row["body"])
    for key, bodies in given.items():
        if len(bodies) > 1:
            yield f"the key {key} was answered in {len(bodies)} ways"
        if bodies != kept[key]:
            yield f"what is kept under the key {key} is not what was answered"
    if evidence.witness.asked is not None:
        for name, count in Counter(job.name for job in evidence.jobs.values()).items():
            if count > 1:
                yield f"{count} jobs were made under the key {name}"


def i21_all_is_well_again(evidence: Evidence) -> Iterator[str]:
    """Some time after the last fault has ended."""
    overdue = evidence.now - EPSILON
    for row in evidence.runs:
        since = {
            "READY": row["ready_at"] if row["hold"] is None else None,
            "RETRYING": row["retry_at"],
            "RUNNING": row["locked_until"],
        }[row["state"]]
        if since is not None and since < overdue:
            yield f"{key_of(row)} is {row['state']} since {since}, and nobody sees to it"
    for job_id, timers in evidence.timers.items():
        if timers[0]["due_at"] < overdue:
            yield f"the timer of {job_id} has been due since {timers[0]['due_at']}"
    for row in evidence.shards:
        if row["owner_id"] is None or row["leased_until"] < evidence.now:
            yield f"nobody owns shard {row['shard']}"
    yield from (f"{name} is not ready" for name in evidence.witness.unready)
