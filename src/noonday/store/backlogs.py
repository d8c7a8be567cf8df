"""What one process notes of jobs that come and end, and what it knows of how many there are.

Nothing is noted of tenants without a quota of pending jobs. What was noted is written once a
second; a process that dies before that leaves the count wrong until the next recount.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final
from uuid import UUID

from noonday.store import Store, Tx, cancels, pending
from noonday.store.cancels import Which
from noonday.store.pending import Noted, Standing, bucket_of

ASKED_TICKS: Final = 60
"""A tenant that nobody asked about for so many ticks is no longer read."""


class Change:
    """What becomes of jobs in a transaction that may end them in ways that only the database can
    tell: looked at before and after. Tenants that have no such quota cost nothing."""

    def __init__(self, backlogs: Backlogs | None, tenants: Mapping[UUID, int]) -> None:
        """``tenants``: by job, whose it is."""
        self._backlogs = backlogs
        self._tenants = {} if backlogs is None else {
            job: tenant for job, tenant in sorted(tenants.items()) if backlogs.watches(tenant)
        }  # fmt: skip
        self._before: set[UUID] = set()
        self._after: set[UUID] = set()
        self._at: datetime | None = None

    async def begin(self, tx: Tx) -> None:
        """Look before anything is changed. Settles that are under way come first: what they end
        they note for themselves."""
        for job_id in self._tenants:
            await cancels.lock(tx, Which(job_id))
        self._before = await pending.still(tx, list(self._tenants))

    async def end(self, tx: Tx) -> None:
        """Look again, in the same transaction."""
        if self._tenants:
            self._after = await pending.still(tx, list(self._tenants))
            self._at = await tx.clock()

    def note(self) -> None:
        """It is committed."""
        if self._backlogs is None or self._at is None:
            return
        for job, tenant in self._tenants.items():
            came, went = job in self._after - self._before, job in self._before - self._after
            self._backlogs.note(tenant, self._at, came=int(came), ended=int(went))


class Backlogs:
    """One per process. ``process_id`` is random at each start."""

    def __init__(self, store: Store, process_id: UUID) -> None:
        self._store = store
        self._process_id = process_id
        self._watched: set[int] | None = None
        self._noted: dict[tuple[int, datetime], Noted] = {}
        self._unwritten: set[tuple[int, datetime]] = set()
        self._standing: dict[int, Standing] = {}
        self._fresh: dict[int, int] = defaultdict(int)
        self._writing: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        self._looking: dict[int, asyncio.Lock] = {}

    def watches(self, tenant_id: int) -> bool:
        """Whether a tenant's jobs are to be noted; all are until it is known."""
        return self._watched is None or tenant_id in self._watched

    def note(self, tenant_id: int, at: datetime, *, came: int = 0, ended: int = 0) -> None:
        """Jobs came or ended in a transaction of that time that is committed."""
        if not (came or ended) or not self.watches(tenant_id):
            return
        key = tenant_id, bucket_of(at)
        was = self._noted.get(key) or Noted(*key, 0, 0)
        self._noted[key] = was._replace(delta=was.delta + came - ended, ended=was.ended + ended)
        self._unwritten.add(key)
        self._fresh[tenant_id] += came - ended

    async def tick(self) -> int:
        """Write what was noted, read what others have; how many rows were written."""
        self._writing, self._fresh = dict(self._fresh), defaultdict(int)
        keys, self._unwritten = self._unwritten, set()
        asked = list(self._asked)
        # (A look without anything to write or to ask for is a statement by itself.)
        begun = self._store.transaction if keys or asked else self._store.in_turn
        try:
            async with begun() as tx:
                watched = await pending.watched(tx)
                rows = [self._noted[key] for key in sorted(keys) if key[0] in watched]
                await pending.note(tx, self._process_id, rows)
                found = await pending.standing(tx, asked) if asked else {}
                now = await tx.clock() if self._noted else None
        except BaseException:
            self._unwritten |= keys
            for tenant, delta in self._writing.items():
                self._fresh[tenant] += delta
            self._writing = {}
            raise
        self._writing, self._watched = {}, watched
        self._has_read(asked, found)
        if now is not None:
            self._forget(now)
        return len(rows)

    async def write(self) -> None:
        """Write what was noted, for the last time."""
        await self.tick()

    def _has_read(self, asked: Collection[int], found: Mapping[int, Standing]) -> None:
        for tenant in list(self._asked):
            self._asked[tenant] += 1
            if self._asked[tenant] > ASKED_TICKS:
                del self._asked[tenant]
        for tenant in list(self._standing):
            if tenant in asked or tenant not in self._asked:
                del self._standing[tenant]
        self._standing |= found

    def _forget(self, now: datetime) -> None:
        """Let go of what is written and will not change any more."""
        until = bucket_of(now) - pending.KEPT
        self._noted = {
            key: noted
            for key, noted in self._noted.items()
            if key in self._unwritten or (key[1] > until and self.watches(key[0]))
        }

    async def standing(self, tenant_id: int) -> Standing | None:
        """How it stands with a tenant: as it was read in the last second, and with what this
        process has noted since. None while it is not counted."""
        if tenant_id not in self._asked:
            await self._look(tenant_id)
        self._asked[tenant_id] = 0
        found = self._standing.get(tenant_id)
        if found is None:
            return None
        more = self._fresh.get(tenant_id, 0) + self._writing.get(tenant_id, 0)
        return found._replace(pending=max(found.pending + more, 0))

    async def _look(self, tenant_id: int) -> None:
        """Read it for all who ask at the same time."""
        lock = self._looking.setdefault(tenant_id, asyncio.Lock())
        async with lock:
            if tenant_id in self._asked:
                return
            try:
                async with self._store.transaction() as tx:
                    self._standing |= await pending.standing(tx, [tenant_id])
                self._asked[tenant_id] = 0
            finally:
                self._looking.pop(tenant_id, None)
