"""Operations that cancel jobs, carried out job by job until they are through or aborted."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec
import structlog

from noonday.domain.model import shard_of
from noonday.store import Row, Store, Tx, audit, cancels, jobs, locks, operations
from noonday.store.audit import Entry
from noonday.store.backlogs import Backlogs, Change
from noonday.store.operations import BulkCancel

AT_ONCE: Final = 4
"""Operations that get their turn in one tick; the others come after."""
LOOK: Final = 500
"""Jobs that a tick looks at for each of them."""

log = structlog.get_logger()
_request = msgspec.json.Decoder(BulkCancel)


class Operations:
    """Safe to run in any number of processes: the position decides who takes a step."""

    def __init__(self, store: Store, backlogs: Backlogs | None = None) -> None:
        self._store = store
        self._backlogs = backlogs

    async def tick(self) -> int:
        """Take the next steps of operations; how many jobs were looked at.

        One that fails does not keep the others from going on.
        """
        async with self._store.in_turn() as tx:
            found = await operations.running(tx, AT_ONCE)
        looked_at, failed = 0, None
        for operation in found:
            try:
                looked_at += await self._go_on(operation)
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed
        return looked_at

    async def _go_on(self, operation: Row) -> int:
        wanted = _request.decode(operation["request"])
        async with self._store.transaction() as tx:
            rows = await operations.jobs_after(tx, operation, wanted.filter, LOOK)
            if not rows and await operations.end(tx, operation["id"], "DONE"):
                log.info("operation.done", operation=str(operation["id"]))
        position, passed = operation["position"], 0
        for row in rows:
            passed += 1
            if row["matches"]:
                if not await self._cancel(operation, position, row["id"], passed, wanted):
                    return passed
                position, passed = row["id"], 0
        if passed:
            async with self._store.transaction() as tx:
                await operations.advance(tx, operation["id"], position, rows[-1]["id"], passed)
        return len(rows)

    async def _cancel(
        self, operation: Row, was: UUID | None, job_id: UUID, passed: int, wanted: BulkCancel
    ) -> bool:
        """Cancel a job and move past it; False when this is no longer ours to do."""
        change = Change(self._backlogs, {job_id: operation["tenant_id"]})
        async with self._store.transaction() as tx:
            # The position first: it is locked by this, and who comes second finds it moved.
            if not await operations.advance(tx, operation["id"], was, job_id, passed):
                return False
            await locks.own_shard(tx, shard_of(job_id))
            job = await jobs.one(tx, job_id, operation["tenant_id"])
            reason = wanted.reason or f"cancelled by {operation['created_by']}"
            stop = wanted.running == "cancel"
            await change.begin(tx)
            done = job is not None and await cancels.cancel_job(tx, job, reason, stop=stop)
            if done and job is not None:
                await operations.count(tx, operation["id"])
                await _note(tx, operation, job)
            await change.end(tx)
        change.note()
        return True


async def _note(tx: Tx, operation: Row, job: Row) -> None:
    before = audit.document({"state": job["state"]})
    after = audit.document({"state": "CANCELLED", "operation": str(operation["id"])})
    entry = Entry(
        operation["tenant_id"], operation["created_by"], "job.cancel", "job", str(job["id"]),
        before, after,
    )  # fmt: skip
    await audit.write(tx, [entry])
