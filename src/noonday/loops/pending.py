"""The recount of jobs that have not ended, for tenants with a quota of them.

One process does it at a time, the one that owns shard 0. It goes along the jobs of one tenant after
the other, slice by slice; should it die, whoever leads next begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import structlog

from noonday.domain.model import EPOCH
from noonday.store import Row, Store, pending
from noonday.telemetry import Metrics

SLICE: Final = 1_000
"""Jobs that one statement looks at."""
SLICES: Final = 5
"""Slices of a tick."""
EVERY: Final = timedelta(minutes=5)
REST: Final = 20
"""A recount that took long is followed by so many times its time without one."""
LAG: Final = timedelta(seconds=5)
"""So long after a quota was set every process notes that tenant's jobs."""
SETTLED: Final = timedelta(seconds=15)
"""What began earlier than this is committed or gone: no transaction takes so long."""
FORGOTTEN: Final = 5_000

_START: Final = UUID(int=0)

log = structlog.get_logger()


@dataclass
class _Walk:
    base: Row
    at: datetime
    began_at: datetime
    after: UUID = _START
    found: int = 0


class Recount:
    """Counts what no process has noted rightly. ``leads`` says whether it is ours to do."""

    def __init__(self, store: Store, metrics: Metrics, *, leads: Callable[[], bool]) -> None:
        self._store = store
        self._metrics = metrics
        self._leads = leads
        self._walk: _Walk | None = None
        self._every = EVERY
        self._forget_at = EPOCH

    async def tick(self) -> int:
        """A few slices of the recount under way, or of the next one; how many."""
        if not self._leads():
            self._walk = None
            return 0
        if self._walk is None:
            await self._begin()
        slices = 0
        while self._walk is not None and slices < SLICES:
            await self._go_on(self._walk)
            slices += 1
        return slices

    async def _begin(self) -> None:
        async with self._store.transaction() as tx:
            now = await tx.clock()
            at = pending.bucket_of(now - SETTLED)
            due = await pending.due(tx, at - LAG, now - self._every, 1)
            if now >= self._forget_at:
                await pending.forget(tx, FORGOTTEN)
                self._forget_at = now + pending.KEPT
        if due:
            self._walk = _Walk(due[0], at, now)

    async def _go_on(self, walk: _Walk) -> None:
        tenant_id = walk.base["tenant_id"]
        off = None
        async with self._store.transaction() as tx:
            part = await pending.count(tx, tenant_id, walk.after, walk.at, SLICE)
            if part.ends_at is None:
                off = await pending.rebase(tx, walk.base, walk.at, walk.found + part.pending)
            now = await tx.clock()
        if part.ends_at is not None:
            walk.after, walk.found = part.ends_at, walk.found + part.pending
            return
        self._walk = None
        self._every = max(EVERY, (now - walk.began_at) * REST)
        if off:
            self._metrics.pending_corrected(abs(off))
            log.warning("pending.corrected", tenant=str(tenant_id), count=off)
