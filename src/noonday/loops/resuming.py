"""Resuming: jobs that were paused until some time go on by themselves.

Each is a transaction of its own, as a person's resume: it is looked at again when its shard is
held, and goes on as of the time that was named, whenever this gets to it.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import structlog

from noonday.domain.errors import ScheduleError
from noonday.domain.model import shard_of
from noonday.store import Row, Store, Tx, audit, jobs, locks, occurrence_ranges, pauses
from noonday.store.audit import Entry

BATCH: Final = 100

log = structlog.get_logger()


class Resuming:
    """Safe to run in any number of processes: who comes second finds nothing left to do."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def tick(self) -> int:
        """Resume jobs whose pause is over, at most ``BATCH``; how many.

        One that fails does not keep the others from going on.
        """
        async with self._store.in_turn() as tx:
            due = await pauses.due(tx, BATCH)
        resumed, failed = 0, None
        for row in due:
            try:
                resumed += await self._resume(row["job_id"], row["tenant_id"])
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed
        return resumed

    async def _resume(self, job_id: UUID, tenant_id: int) -> bool:
        async with self._store.transaction() as tx:
            await locks.own_shard(tx, shard_of(job_id))
            job, pause = await jobs.one(tx, job_id, tenant_id), await pauses.one(tx, job_id)
            now = await tx.moment()
            if job is None or job["state"] != "PAUSED" or pause is None:
                return False
            if pause.until_at is None or pause.until_at > now:
                return False
            after = {"state": "ACTIVE", "until": pause.until_at.isoformat()}
            try:
                await pauses.resume(tx, job, pause.until_at, now)
            except ScheduleError as error:
                await jobs.suspend(tx, job_id, str(error), "PAUSED")
                await pauses.prolong(tx, job_id, None, occurrence_ranges.BY_ITSELF)
                after = {"state": "SUSPENDED", "reason": str(error)}
                log.error("job.suspended", job_id=str(job_id), reason=str(error))
            await _note(tx, job, after)
        return True


async def _note(tx: Tx, job: Row, after: dict[str, str]) -> None:
    before = {"state": job["state"], "reason": job["state_reason"]}
    entry = Entry(
        job["tenant_id"], occurrence_ranges.BY_ITSELF, "job.resume", "job", str(job["id"]),
        audit.document(before), audit.document(after),
    )  # fmt: skip
    await audit.write(tx, [entry])
