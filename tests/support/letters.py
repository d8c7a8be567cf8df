"""Dead letters that a test begins with, as many as it wants, and replays of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from noonday.domain.model import HttpTarget, JobSpec, Once, RetryPolicy, RunKey, Schedule
from noonday.domain.replay import Terms
from noonday.loops.replays import Replays
from noonday.loops.worker import Worker
from noonday.store import Store, Tx, jobs, replays
from noonday.store.runs import key_of
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics
from tests.support import seeds
from tests.support.scripted import carry_out

URL = "http://127.0.0.1/hook"
FINGERPRINT = "0123456789abcdef"

LIE_THERE = """
WITH ledger AS (
    INSERT INTO occurrences (job_id, occurrence_at, kind, tenant_id, due_at, materialized_at,
                             outcome, reason, ended_at, attempts)
    SELECT id, at, 0, $4, at, at, 'FAILED', $5, dead_at, 1
    FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[]) AS l(id, at, dead_at)
)
INSERT INTO dead_letters (job_id, occurrence_at, kind, tenant_id, reason, fingerprint, error,
                          http_status, request, attempts, lease_version, payload_version,
                          target_host, dead_at)
SELECT id, at, 0, $4, $5, $6, 'answered 503', 503,
       json_build_object('method', 'POST', 'url', $7::text, 'payload_bytes', 2), 1, 1, 1, $8,
       dead_at
FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[]) AS l(id, at, dead_at)
RETURNING job_id, occurrence_at, kind
"""
EXECUTED = """
INSERT INTO executions (job_id, occurrence_at, kind, tenant_id, attempt, lease_version, worker_id,
                        status, leased_at, locked_until, finished_at, unknown)
SELECT job_id, occurrence_at, kind, tenant_id, 1, 1, gen_random_uuid(), 'FAILED', dead_at, dead_at,
       dead_at, true
FROM dead_letters WHERE job_id = ANY ($1::uuid[])
"""


async def lie_there(
    tx: Tx,
    count: int = 1,
    *,
    url: str = URL,
    reason: str = "transient",
    fingerprint: str = FINGERPRINT,
    host: str = "127.0.0.1",
    tenant: int = seeds.TENANT,
    schedule: Schedule | None = None,
    of: UUID | None = None,
    policy: RetryPolicy | None = None,
    before: timedelta = timedelta(hours=1),
    history: bool = True,
) -> list[RunKey]:
    """Runs that were given up after one attempt, a millisecond after each other; oldest first.

    Each is of a job of its own, or all are of one job (``of``: that one, or a new one with a
    ``schedule``). Without ``history`` there is no attempt on record.
    """
    now = await tx.clock()
    start = (now - before).replace(microsecond=0)
    spec = JobSpec(
        schedule or Once(start), HttpTarget(url), policy or RetryPolicy(max_attempts=1), 60
    )
    ids = [of or seeds.job_id()] * count if of or schedule else []
    if not ids:
        made = [seeds.new_job(spec, start, tenant=tenant) for _ in range(count)]
        await jobs.insert(tx, [job._replace(target_host=host) for job in made])
        ids = [job.id for job in made]
    elif of is None:
        made = [seeds.new_job(spec, start, id=ids[0], tenant=tenant)]
        await jobs.insert(tx, [job._replace(target_host=host) for job in made])
    moments = [start + n * timedelta(milliseconds=1) for n in range(count)]
    rows = await tx.rows(
        LIE_THERE, ids, moments, [at + timedelta(seconds=1) for at in moments], tenant, reason,
        fingerprint, url, host,
    )  # fmt: skip
    if history:
        await tx.execute(EXECUTED, list(dict.fromkeys(ids)))
    return sorted((key_of(row) for row in rows), key=lambda key: (key.occurrence_at, key.job_id))


async def ask(store: Store, tenant: int = seeds.TENANT, **terms: Any) -> UUID:
    """A new replay; without a ramp unless it says so."""
    wanted = Terms(**{"ramp_sec": 0.0, **terms})
    async with store.transaction() as tx:
        found = await replays.count(tx, tenant, wanted)
        return await replays.create(tx, tenant, wanted, "a test", "key", found)


async def shown(store: Store, replay_id: UUID) -> dict[str, Any]:
    """A replay's row, with what is unfinished."""
    async with store.transaction() as tx:
        found = await tx.one("SELECT * FROM replays WHERE id = $1", replay_id)
    row = {str(name): value for name, value in found.items()}
    row["skipped"] = msgspec.json.decode(row["skipped"])
    row["unfinished"] = row["replayed"] - row["succeeded"] - row["failed"] - row["cancelled"]
    return row


async def letters(store: Store, column: str = "state") -> list[Any]:
    """A column of all letters, in the order of their runs."""
    async with store.transaction() as tx:
        rows = await tx.rows(f"SELECT {column} FROM dead_letters ORDER BY dead_at, job_id")
    return [row[0] for row in rows]


def loop_over(store: Store) -> Replays:
    """A loop as a scheduler process has one."""
    return Replays(store, Metrics(), Wakeups(store))


class Played:
    """A replay in bound time: loops and a worker that a test moves on by hand."""

    def __init__(self, store: Store, worker: Worker, loops: Sequence[Replays]) -> None:
        self.store = store
        self.worker = worker
        self.loops = loops

    async def go(self, replay_id: UUID, *, step_sec: float = 0.05, steps: int = 2_000) -> Any:
        """Let time pass until the replay is no longer RUNNING; how it stands then."""
        for _ in range(steps):
            row = await self.step(replay_id, step_sec)
            if row["state"] != "RUNNING":
                return row
        raise AssertionError(f"still RUNNING: {row}")

    async def step(self, replay_id: UUID, step_sec: float = 0.05) -> dict[str, Any]:
        """One tick of each loop; then all that is READY is carried out."""
        for loop in self.loops:
            await loop.tick()
        while await carry_out(self.worker):
            pass
        self.store.now = _after(self.store.now, step_sec)
        return await shown(self.store, replay_id)


def _after(now: datetime | None, seconds: float) -> datetime:
    assert now is not None
    return now + timedelta(seconds=seconds)
