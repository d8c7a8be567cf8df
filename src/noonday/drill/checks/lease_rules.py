"""What must hold for leases, attempts and the states of runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from noonday.domain.lifecycle import MAX_INTERRUPTIONS, TRANSITIONS, Event, Source
from noonday.domain.model import Reason, RunKey
from noonday.drill.checks.evidence import Evidence, Lease
from noonday.drill.checks.journal import Entry, moment
from noonday.store import Row
from noonday.store.runs import key_of

COUNTED = ("FAILED", "LEASE_EXPIRED")
ENDS = {
    ("RUNNING", "COMPLETE"): Event.COMPLETE,
    ("RUNNING", "FAILED"): Event.DEAD_LETTER,
    ("RUNNING", "CANCELLED"): Event.STOP,
    ("READY", "FAILED"): Event.KILL,
    ("RETRYING", "FAILED"): Event.KILL,
    ("READY", "CANCELLED"): Event.CANCEL,
    ("RETRYING", "CANCELLED"): Event.CANCEL,
}
_MARKS = ("awaited", "tenant_cap", "host_cap", "key_cap", "key_slot")
CHANGES = {
    ("READY", "RUNNING"): Event.CLAIM,
    ("RUNNING", "RETRYING"): Event.RETRY,
    ("RETRYING", "READY"): Event.RETRY_DUE,
}


def i5_leases_do_not_overlap(evidence: Evidence) -> Iterator[str]:
    for run, leases in evidence.leases.items():
        for earlier, later in itertools.pairwise(leases):
            if later.granted_at < earlier.ends_at:
                yield (
                    f"{run}: lease {later.lease_version} was granted {later.granted_at}, while "
                    f"lease {earlier.lease_version} held until {earlier.ends_at}"
                )
    for run, executions in evidence.executions.items():
        granted = {lease.lease_version: lease for lease in evidence.leases.get(run, [])}
        for row in executions:
            lease = granted.get(row["lease_version"])
            if lease is None or _of_execution(row) != _of_lease(lease):
                yield f"{run}: attempt {row['attempt']} is none of a lease that was granted"


def _of_execution(row: Row) -> tuple[Any, ...]:
    return row["attempt"], row["worker_id"], row["leased_at"], row["locked_until"]


def _of_lease(lease: Lease) -> tuple[Any, ...]:
    return lease.attempt, lease.worker_id, lease.leased_at, lease.locked_until


def i6_lease_versions_rise(evidence: Evidence) -> Iterator[str]:
    for run, entries in evidence.by_run.items():
        highest = 0
        for entry in entries:
            version = entry.row["lease_version"]
            if version < highest:
                yield f"{run}: the lease version fell to {version} in transaction {entry.txid}"
            highest = max(highest, version)
            if entry.before is None or entry.after is None:
                continue
            risen = entry.after["lease_version"] - entry.before["lease_version"]
            claimed = (entry.before["state"], entry.after["state"]) == ("READY", "RUNNING")
            if risen != claimed:
                yield f"{run}: the lease version rose by {risen} in transaction {entry.txid}"
    for run, executions in evidence.executions.items():
        for row in executions:
            if not any(_ended(entry, row) for entry in evidence.by_run.get(run, [])):
                yield (
                    f"{run}: attempt {row['attempt']} was written under version "
                    f"{row['lease_version']}, which was not the one that held the run"
                )


def _ended(entry: Entry, execution: Row) -> bool:
    """Whether this change of a run is the one that ended the attempt."""
    before = entry.before or {}
    return (
        entry.txid % 2**32 == execution["txid"]
        and before.get("state") == "RUNNING"
        and before["lease_version"] == execution["lease_version"]
    )


def i7_results_are_the_last_holders(evidence: Evidence) -> Iterator[str]:
    for run, row in evidence.ledger.items():
        if row["outcome"] not in ("COMPLETE", "FAILED") or row["reason"] == Reason.KILLED:
            continue
        executions, leases = evidence.executions.get(run, []), evidence.leases.get(run, [])
        if not executions or not leases:
            yield f"{run} is {row['outcome']} without an attempt"
            continue
        if executions[-1]["lease_version"] != leases[-1].lease_version:
            yield f"{run}: its result is not of the last lease, {leases[-1].lease_version}"
        successes = [one["attempt"] for one in executions if one["status"] == "SUCCESS"]
        expected = [executions[-1]["attempt"]] if row["outcome"] == "COMPLETE" else []
        if successes != expected:
            yield f"{run} is {row['outcome']} with successes in attempts {successes}"


def i8_only_allowed_transitions(evidence: Evidence) -> Iterator[str]:
    outcomes: dict[tuple[RunKey, int], str] = {}
    ended: set[RunKey] = set()
    for entry in evidence.journal:
        if entry.source != "occurrences":
            continue
        if evidence.reopens(entry):
            ended.discard(entry.run)
        if entry.before is not None and (entry.after is None or entry.run in ended):
            yield f"{entry.run} changed in the ledger after it had ended, or vanished"
        outcome = (entry.after or {}).get("outcome")
        if outcome is not None:
            ended.add(entry.run)
            outcomes[entry.run, entry.txid] = outcome
    for run, entries in evidence.by_run.items():
        gone = False
        for entry in entries:
            if _is_marked(entry):
                continue
            replayed = entry.before is None and evidence.reopens(entry)
            if gone and not replayed:
                yield f"{run} came back after it had ended"
            outcome = outcomes.get((run, entry.txid)) if entry.after is None else None
            event = Event.REPLAY if replayed else _event(entry, outcome)
            source = Source.DEAD if replayed and gone else _source(entry)
            if not _allowed(entry, event, source, outcome):
                states = _state(entry.before), _state(entry.after) or outcome
                yield f"{run} went from {states[0]} to {states[1]} ({event})"
            gone = entry.after is None


def _event(entry: Entry, outcome: str | None) -> Event | None:
    before, after = entry.before, entry.after
    if before is None:
        return Event.MATERIALIZE
    if after is None:
        return ENDS.get((before["state"], outcome or ""))
    match before["state"], after["state"]:
        case "RUNNING", "READY":
            return _release(before, after)
        case "RUNNING", "RUNNING":
            extended = before["locked_until"] != after["locked_until"]
            return Event.HEARTBEAT if extended else Event.REQUEST_CANCEL
        case "READY", "READY":
            return _let_on(before["hold"], after["hold"])
        case states:
            return CHANGES.get(states)


def _let_on(before: str | None, after: str | None) -> Event | None:
    """What happened to a READY run, by what held it and what holds it now."""
    match before, after:
        case None, "cap":
            return Event.PUT_BACK
        case "cap", "cap":
            return Event.REKEY
        case "cap", None:
            return Event.GIVE_SLOT
        case str(), None | "cap":
            return Event.ADMIT
    return None


def _is_marked(entry: Entry) -> bool:
    """Whether it counts against a cap from now on, or others wait for it, and nothing else has
    changed."""
    before, after = entry.before, entry.after
    if before is None or after is None:
        return False
    return before != after and {**before, **dict.fromkeys(_MARKS)} == {
        **after, **dict.fromkeys(_MARKS)
    }  # fmt: skip


def _release(before: dict[str, Any], after: dict[str, Any]) -> Event | None:
    counters = ("failures", "interruptions", "attempt")
    changes = tuple(after[name] - before[name] for name in counters)
    if after["hold"] is not None:
        return Event.HOLD if changes == (0, 0, -1) else None
    kinds = {(1, 0, 0): Event.EXPIRE, (0, 1, 0): Event.INTERRUPT, (0, 0, -1): Event.HAND_BACK}
    return kinds.get(changes)


def _allowed(entry: Entry, event: Event | None, source: Source, outcome: str | None) -> bool:
    if event is None:
        return False
    rule = TRANSITIONS[event]
    return source in rule.sources and rule.target == (_state(entry.after) or outcome)


def _source(entry: Entry) -> Source:
    before = entry.before
    if before is None:
        return Source.NONE
    if before["state"] == "READY" and before["hold"] is not None:
        return Source.WAITING if before["hold"] == "cap" else Source.HELD
    if before["state"] == "RUNNING" and moment(before["locked_until"]) < entry.began_at:
        return Source.LAPSED
    return Source(before["state"])


def _state(row: dict[str, Any] | None) -> str | None:
    return None if row is None else row["state"]


def i9_attempts_are_numbered_and_bounded(evidence: Evidence) -> Iterator[str]:
    last = {key_of(row): row for row in evidence.runs}
    for run, executions in evidence.executions.items():
        numbers = sorted(row["attempt"] for row in executions)
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"{run} has attempts {numbers}"
        counted = sum(row["status"] in COUNTED for row in executions)
        job = evidence.jobs.get(run.job_id)
        budgets = 1 + len(evidence.reopened.get(run, ()))  # each replay gives a fresh one
        if job is not None and counted > job.spec.retry_policy.max_attempts * budgets:
            yield f"{run} was tried {counted} times"
        interruptions = sum(row["status"] == "INTERRUPTED" for row in executions)
        if interruptions > MAX_INTERRUPTIONS * budgets:
            yield f"{run} was interrupted {interruptions} times"
        if any(row["finished_at"] < row["leased_at"] for row in executions):
            yield f"{run} has an attempt that ended before it began"
        said = last[run]["attempt"] if run in last else evidence.ledger[run]["attempts"]
        running = run in last and last[run]["state"] == "RUNNING"
        if run in evidence.ledger and said != len(numbers) + running:
            yield f"{run} says that it had {said} attempts, and has {len(numbers)}"
