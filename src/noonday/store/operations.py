"""Bulk actions that take their time: what was asked for, and how far it is.

One that cancels jobs moves along those of its tenant by their ids. Each step is one transaction
that does something to one job and moves the position past it, so that it happens once and goes on
from there, whoever dies. What is particular to backfills is in ``backfills``.
"""

from __future__ import annotations

from typing import Final, Literal
from uuid import UUID

import msgspec

from noonday.store import Row, Tx
from noonday.store.jobs import Filter


class BulkCancel(msgspec.Struct, frozen=True):
    """What an operation of the kind ``cancel_jobs`` is to do."""

    filter: Filter
    running: Literal["finish", "cancel"]
    reason: str


SHOWN: Final = """id, tenant_id, kind, state, request, created_by, created_at, changed_at,
       ended_at, total, looked_at, done, position, position_at, error"""

CREATE: Final = """
INSERT INTO operations (id, tenant_id, kind, state, request, created_by, created_at, changed_at,
                        total)
SELECT $1, $2, $3, 'RUNNING', $4::json, $5, now, now, $7 FROM coalesce($6, now()) AS now
"""


async def create(
    tx: Tx,
    operation_id: UUID,
    tenant_id: int,
    kind: str,
    request: str,
    created_by: str,
    total: int | None = None,
) -> None:
    """Ask for an operation; a loop carries it out. ``total``: what it has to look at, if that is
    known."""
    args = (operation_id, tenant_id, kind, request, created_by, tx.now, total)
    await tx.execute(CREATE, *args)


ONE: Final = f"SELECT {SHOWN} FROM operations WHERE id = $1 AND tenant_id = $2"


async def one(tx: Tx, operation_id: UUID, tenant_id: int) -> Row | None:
    """A tenant's operation."""
    return await tx.row(ONE, operation_id, tenant_id)


PAGE: Final = f"""
SELECT {SHOWN} FROM operations WHERE tenant_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3
"""


async def page(tx: Tx, tenant_id: int, before: UUID, limit: int) -> list[Row]:
    """A tenant's operations, newest first, from just before one."""
    return await tx.rows(PAGE, tenant_id, before, limit)


RUNNING: Final = f"""
SELECT {SHOWN} FROM operations WHERE state = 'RUNNING' AND kind = 'cancel_jobs'
ORDER BY id LIMIT $1
"""


async def running(tx: Tx, limit: int) -> list[Row]:
    """Operations that are under way and cancel jobs, oldest first."""
    return await tx.rows(RUNNING, limit)


# Of those that were there when it was asked for. Looks at a bounded number of jobs, and says how
# far it looked.
JOBS: Final = """
WITH looked AS (
    SELECT * FROM jobs WHERE tenant_id = $1 AND id > $2 ORDER BY id LIMIT $3
)
SELECT id, created_at <= $4
       AND ($5::text IS NULL OR schedule_type = $5)
       AND ($6::text IS NULL OR lane = $6)
       AND ($7::text IS NULL OR starts_with(name, $7))
       AND ($8::text IS NULL OR labels ->> $8 = $9)
       AND ($10::text IS NULL OR target_host = $10)
       AND ($11::timestamptz IS NULL OR created_at >= $11)
       AND ($12::timestamptz IS NULL OR created_at < $12) AS matches
FROM looked ORDER BY id
"""


async def jobs_after(tx: Tx, operation: Row, by: Filter, limit: int) -> list[Row]:
    """The next jobs after the position of an operation, and whether each is meant (its status is
    not looked at)."""
    name, value = by.label or (None, None)
    return await tx.rows(
        JOBS, operation["tenant_id"], operation["position"] or UUID(int=0), limit,
        operation["created_at"], by.schedule_type, by.lane, by.name_prefix, name, value,
        by.target_host, by.created_from, by.created_to,
    )  # fmt: skip


ADVANCE: Final = """
UPDATE operations
SET position = $3, looked_at = looked_at + $4, changed_at = coalesce($5, now())
WHERE id = $1 AND state = 'RUNNING' AND position IS NOT DISTINCT FROM $2
"""


async def advance(
    tx: Tx, operation_id: UUID, was: UUID | None, position: UUID, looked_at: int
) -> bool:
    """Move past jobs; False when it was aborted, or somebody else has moved it meanwhile."""
    args = (operation_id, was, position, looked_at, tx.now)
    return await tx.execute(ADVANCE, *args) == 1


COUNT: Final = "UPDATE operations SET done = done + 1 WHERE id = $1"


async def count(tx: Tx, operation_id: UUID) -> None:
    """Something was done to the job that the operation has just moved past."""
    await tx.execute(COUNT, operation_id)


END: Final = """
UPDATE operations
SET state = $2, error = $3, ended_at = coalesce($4, now()), changed_at = coalesce($4, now())
WHERE id = $1 AND state = 'RUNNING'
"""


async def end(tx: Tx, operation_id: UUID, state: str, error: str | None = None) -> bool:
    """RUNNING → DONE, ABORTED or FAILED; whether it was running."""
    return await tx.execute(END, operation_id, state, error, tx.now) == 1
