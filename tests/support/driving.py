"""A scheduler on a clock that a test sets, and what it leaves in the ledger."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from noonday.domain.model import Schedule
from noonday.loops.scheduler import Scheduler
from noonday.store import Store, timers
from tests.support import seeds
from tests.support.ledgers import lines

Line = tuple[datetime, str | None, str | None]
"""Of the ledger: nominal time, outcome and reason."""


async def arm(store: Store, schedule: Schedule, at: datetime, **how: Any) -> list[UUID]:
    """Jobs whose timers stand at ``at``; see :func:`seeds.armed`."""
    async with store.transaction() as tx:
        return await seeds.armed(tx, schedule, at, **how)


async def drive(scheduler: Scheduler, store: Store, now: datetime) -> int:
    """Be the scheduler at this moment: own all there is to own, and tick until all is done; how
    many timers were fired."""
    store.now = now
    await scheduler.keep_shards()
    fired = 0
    while ticked := await scheduler.tick():
        fired += ticked
    return fired


async def ledger(store: Store, job: UUID) -> list[Line]:
    """What is on record of a job, in order of time."""
    return [(each.at, each.outcome, each.reason) for each in await lines(store, job)]


async def next_of(store: Store, job: UUID) -> datetime | None:
    """Where its timer stands."""
    async with store.transaction() as tx:
        row = await timers.of_job(tx, job)
    return row["occurrence_at"] if row else None
