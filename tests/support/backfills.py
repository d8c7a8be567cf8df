"""Backfills that a test asks for and moves on by hand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import uuid_utils.compat

from noonday.domain import backfill, schedule
from noonday.domain.model import JobSpec, Schedule, shard_of
from noonday.loops.backfills import Backfills
from noonday.store import Store, Tx, backfills, jobs, operations, timers
from noonday.store.backfills import Backfill
from noonday.store.timers import Timer
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics
from tests.support import seeds

LEDGER = """
INSERT INTO occurrences (job_id, occurrence_at, kind, tenant_id, due_at, materialized_at, outcome,
                         reason, ended_at, attempts)
VALUES ($1, $2::timestamptz, $3, $4, $2, $2, $5::text,
        CASE WHEN $5 IN ('SKIPPED', 'MISSED', 'CANCELLED') THEN 'a test' END,
        CASE WHEN $5 IS NOT NULL THEN $2::timestamptz END, 0)
"""
FORMER = """
INSERT INTO schedule_versions (job_id, version, schedule, from_at, until_at)
VALUES ($1, $2, $3, $4, $5)
"""


async def recurring(
    tx: Tx, wanted: Schedule, made_at: datetime, stands_at: datetime | None = None, **fields: Any
) -> UUID:
    """A job that was made then; its timer stands at its next occurrence, or at ``stands_at``."""
    now = await tx.clock()
    job = seeds.new_job(seeds.spec_of(wanted), made_at)._replace(**fields)
    await jobs.insert(tx, [job])
    at = stands_at or schedule.next_after(wanted, now, job.id)
    if at is not None:
        due_at = at + schedule.jitter(job.id, wanted.jitter_sec)
        await timers.arm(tx, [Timer(job.id, at, due_at, 1, 1, shard_of(job.id))], due_at)
    return job.id


async def on_record(tx: Tx, job: UUID, at: datetime, outcome: str | None, kind: int = 0) -> None:
    """A line of the ledger."""
    await tx.execute(LEDGER, job, at, kind, seeds.TENANT, outcome)


async def ask(store: Store, job: UUID, from_at: datetime, to_at: datetime, **terms: Any) -> UUID:
    """A new backfill, as the API makes one."""
    made: UUID = uuid_utils.compat.uuid7()
    fields = {"lane": "batch", "priority": None, "rate_per_sec": 10.0, "reason": "", **terms}
    async with store.transaction() as tx:
        row = await jobs.one(tx, job, seeds.TENANT)
        assert row is not None
        wanted = msgspec.json.decode(row["spec"], type=JobSpec).schedule
        versions = await backfills.versions(tx, row, wanted)
        spans = backfill.spans(versions, job, from_at, to_at, await backfills.armed(tx, job))
        asked = msgspec.json.encode(Backfill(job, spans, **fields)).decode()
        count = backfill.count(spans, job)
        await operations.create(tx, made, seeds.TENANT, "backfill", asked, "key", count)
    return made


def loop_over(store: Store) -> Backfills:
    """A loop as a scheduler process has one."""
    return Backfills(store, Metrics(), Wakeups(store))


async def shown(store: Store, operation: UUID) -> dict[str, Any]:
    """An operation's row."""
    async with store.transaction() as tx:
        found = await tx.one("SELECT * FROM operations WHERE id = $1", operation)
    return {str(name): value for name, value in found.items()}


async def pass_until_ended(
    store: Store, operation: UUID, loops: Sequence[Backfills], step_sec: float = 0.05
) -> dict[str, Any]:
    """Let bound time pass until the backfill is no longer RUNNING; how it stands then."""
    assert store.now is not None
    for n in range(2_000):
        await loops[n % len(loops)].tick()
        row = await shown(store, operation)
        if row["state"] != "RUNNING":
            return row
        store.now += timedelta(seconds=step_sec)
    raise AssertionError(f"still RUNNING: {row}")


async def opened(store: Store, job: UUID) -> list[datetime]:
    """The nominal times that have a line of the kind backfill."""
    async with store.transaction() as tx:
        rows = await tx.rows(
            "SELECT occurrence_at FROM occurrences WHERE job_id = $1 AND kind = 2 "
            "ORDER BY occurrence_at",
            job,
        )
    return [row["occurrence_at"] for row in rows]
