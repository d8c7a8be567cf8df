"""Has runs count against caps that were set after they were made.

Whoever inserts a run looks up its caps; one that was inserted before a cap was set, or beside that,
has none. After a change all unfinished runs of the tenant are gone through, and again for as long
as somebody may still insert who did not see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import structlog

from noonday.domain.model import EPOCH, Kind, RunKey
from noonday.domain.ranking import LATE_COMMIT
from noonday.store import Store, caps, locks
from noonday.store.caps import Slice

SLICE: Final = 5_000
"""Unfinished runs that are looked at by one statement."""
SLICES: Final = 40
"""Slices that one tick looks at, at most."""
_BEGINNING: Final = RunKey(UUID(int=0), Kind.SCHEDULE, EPOCH)

log = structlog.get_logger()


class Marking:
    """Safe to run in any number of processes: what is marked once stays so."""

    def __init__(self, store: Store, size: int = SLICE) -> None:
        self._store = store
        self._size = size
        self._since = EPOCH
        self._began: datetime | None = None
        self._tenants: list[int] = []
        self._after = _BEGINNING

    async def tick(self) -> int:
        """Go on through the runs of tenants of whose caps one has changed; how many were marked."""
        if self._began is None:
            await self._begin()
        count = 0
        for _ in range(SLICES):
            if self._began is None:
                break
            count += await self._look()
        if count:
            log.info("caps.marked", count=count)
        return count

    async def _begin(self) -> None:
        async with self._store.transaction() as tx:
            now = await tx.clock()
            tenants = await caps.changed(tx, self._since)
        if tenants:
            self._began, self._tenants, self._after = now, tenants, _BEGINNING

    async def _look(self) -> int:
        async with self._store.transaction() as tx:
            where = await caps.slice_after(tx, self._after, self._size)
            found = await caps.unmarked(tx, where, self._tenants)
        count = await self._mark(where, found)
        if where.upto is not None:
            self._after = where.upto
        elif self._began is not None:
            # Whoever began before this and did not see the change has ended by the next time.
            self._since, self._began = self._began - LATE_COMMIT, None
        return count

    async def _mark(self, where: Slice, tenants: Sequence[int]) -> int:
        count = 0
        for tenant_id in tenants:
            async with self._store.transaction() as tx:
                await locks.own_tenant(tx, tenant_id)
                count += await caps.mark(tx, where, tenant_id)
        return count
