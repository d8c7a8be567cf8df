"""What a check looks at: the database as it stands, its journal, and what witnesses saw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from noonday.domain.model import JobSpec, RunKey
from noonday.drill.checks import journal
from noonday.drill.checks.database import direct
from noonday.drill.checks.journal import Entry, moment
from noonday.drill.checks.received import Received
from noonday.store import Row, Tx
from noonday.store.runs import key_of

EXECUTIONS = "SELECT xmin::text::bigint AS txid, * FROM executions ORDER BY lease_version, attempt"
KEYS = "SELECT key, route, status, encode(sha256(body), 'hex') AS body FROM idempotency_keys"


@dataclass(frozen=True)
class Witness:
    """What was seen from outside: what the API has acknowledged, and what a receiver got."""

    acknowledged: set[UUID] = field(default_factory=set)
    """Ids of jobs that were answered with 202."""
    requests: list[Received] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    """The signing secrets of the tenants, as ``whsec_…``."""
    asked: set[str] | None = None
    """The names of all jobs that were ever asked for, each under a key that is its name; None when
    nobody kept a list."""
    answers: list[Answered] = field(default_factory=list)
    """Every answer to a keyed request that was a success."""
    triggered: set[str] = field(default_factory=set)
    """Runs that were acknowledged as triggered."""
    cancelled: dict[UUID, datetime] = field(default_factory=dict)
    """When the cancellation of a job was acknowledged."""
    cancelled_runs: dict[str, datetime] = field(default_factory=dict)
    """When a run was acknowledged as cancelled."""
    unready: list[str] = field(default_factory=list)
    """Processes that were not ready again in time after all faults had ended."""


class Answered(NamedTuple):
    """One answer to a request under an ``Idempotency-Key``."""

    key: str
    status: int
    body_sha256: str


class Job(NamedTuple):
    """A job, as far as its calendar goes."""

    id: UUID
    name: str
    state: str
    state_changed_at: datetime | None
    created_at: datetime
    schedule_version: int
    spec: JobSpec


@dataclass
class Lease:
    """One lease as the journal has it, in the order of commits."""

    run: RunKey
    lease_version: int
    attempt: int
    worker_id: UUID
    leased_at: datetime
    granted_at: datetime
    """When the claim was committed."""
    locked_until: datetime
    """As last extended."""
    released_at: datetime | None = None
    """When the run was committed as not RUNNING any more."""
    released_by: int | None = None
    """The transaction that did it."""

    @property
    def ends_at(self) -> datetime:
        if self.released_at is None:
            return self.locked_until
        return min(self.locked_until, self.released_at)


@dataclass(frozen=True)
class Evidence:
    """All of it, as of one moment."""

    now: datetime
    jobs: dict[UUID, Job]
    timers: dict[UUID, list[Row]]
    ledger: dict[RunKey, Row]
    ledger_rows: list[RunKey]
    ranges: dict[UUID, list[Row]]
    """Lines of the ledger that stand for many nominal times, by job."""
    runs: list[Row]
    executions: dict[RunKey, list[Row]]
    journal: list[Entry]
    keys: list[Row]
    """What is kept under each ``Idempotency-Key``."""
    shards: list[Row]
    dead_letters: dict[RunKey, Row]
    witness: Witness

    @cached_property
    def by_run(self) -> dict[RunKey, list[Entry]]:
        """The journal of ``runs``, by run."""
        return _grouped((e for e in self.journal if e.source == "runs"), lambda entry: entry.run)

    @cached_property
    def reopened(self) -> dict[RunKey, set[int]]:
        """The transactions that opened a row of the ledger again: replays of dead letters."""
        found: defaultdict[RunKey, set[int]] = defaultdict(set)
        for entry in self.journal:
            if entry.source == "occurrences" and entry.before is not None:
                outcomes = entry.before["outcome"], (entry.after or {"outcome": "?"})["outcome"]
                if outcomes == ("FAILED", None):
                    found[entry.run].add(entry.txid)
        return dict(found)

    def reopens(self, entry: Entry) -> bool:
        """Whether this entry belongs to a replay of its run."""
        return entry.txid in self.reopened.get(entry.run, ())

    @cached_property
    def leases(self) -> dict[RunKey, list[Lease]]:
        """Every lease that was granted, by run, in the order of commits."""
        return {run: list(_leases(run, entries)) for run, entries in self.by_run.items()}

    @cached_property
    def requests(self) -> dict[str, list[Received]]:
        """What the receiver got, by run id."""
        return _grouped(self.witness.requests, lambda request: request.run_id)


async def gather(dsn: str, witness: Witness, *, past: bool = True) -> Evidence:
    """Read everything in one snapshot; processes may go on meanwhile.

    Without the ``past`` (journal, attempts, keys) only what the tables hold now: that is quick.
    """
    async with direct(dsn) as connection, connection.transaction() as tx:
        await tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return await _gather(tx, witness, past)


async def _gather(tx: Tx, witness: Witness, past: bool) -> Evidence:
    jobs = [_job(row) for row in await tx.rows("SELECT * FROM jobs")]
    ledger = await tx.rows("SELECT * FROM occurrences ORDER BY occurrence_at")
    ranges = await tx.rows("SELECT * FROM occurrence_ranges ORDER BY from_at")
    executions = await tx.rows(EXECUTIONS) if past else []
    timers = await tx.rows("SELECT * FROM timers")
    return Evidence(
        now=await tx.value("SELECT clock_timestamp()"),
        jobs={job.id: job for job in jobs},
        timers=_grouped(timers, lambda row: row["job_id"]),
        ledger={key_of(row): row for row in ledger},
        ledger_rows=[key_of(row) for row in ledger],
        ranges=_grouped(ranges, lambda row: row["job_id"]),
        runs=await tx.rows("SELECT * FROM runs"),
        executions=_grouped(executions, key_of),
        journal=await journal.read(tx) if past else [],
        keys=await tx.rows(KEYS) if past else [],
        shards=await tx.rows("SELECT * FROM shards ORDER BY shard"),
        dead_letters={key_of(row): row for row in await tx.rows("SELECT * FROM dead_letters")},
        witness=witness,
    )


def _job(row: Row) -> Job:
    spec = msgspec.json.decode(row["spec"], type=JobSpec)
    return Job(
        row["id"], row["name"], row["state"], row["state_changed_at"], row["created_at"],
        row["schedule_version"], spec,
    )  # fmt: skip


def _leases(run: RunKey, entries: list[Entry]) -> Iterable[Lease]:
    current: Lease | None = None
    for entry in entries:
        before, after = entry.before or {}, entry.after or {}
        running = after.get("state") == "RUNNING"
        same = running and current is not None and _version(before) == _version(after)
        if current is not None and same:
            current.locked_until = moment(after["locked_until"])
            continue
        if current is not None:
            if not running:  # else it was taken away while it lasted
                current.released_at, current.released_by = entry.at, entry.txid
            yield current
        current = _granted(run, entry) if running else None
    if current is not None:
        yield current


def _granted(run: RunKey, entry: Entry) -> Lease:
    row = entry.row
    return Lease(
        run=run,
        lease_version=row["lease_version"],
        attempt=row["attempt"],
        worker_id=UUID(row["worker_id"]),
        leased_at=moment(row["leased_at"]),
        granted_at=entry.at,
        locked_until=moment(row["locked_until"]),
    )


def _version(row: dict[str, Any]) -> Any:
    return row.get("lease_version")


def _grouped(items: Iterable[Any], key: Any) -> dict[Any, list[Any]]:
    groups: defaultdict[Any, list[Any]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)
