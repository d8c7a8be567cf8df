"""The scheduler: owns shards of timers and turns due timers into occurrences and runs.

``keep_shards`` holds the leases; ``tick`` is one bounded pass over all shards owned: read what
is due, work out the next fires outside any transaction, then write everything in one fenced
transaction that takes effect only where nothing has changed meanwhile.

What is late after an outage is read apart, and gets a share (``catching_up``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final
from uuid import UUID

import structlog

from noonday.domain.catch_up import LATE
from noonday.domain.model import EPOCH, SHARDS
from noonday.domain.ranking import LATE_COMMIT, Ranks, by_time
from noonday.loops.catching_up import CatchingUp
from noonday.store import (
    Row,
    Store,
    Tx,
    batches,
    dependencies,
    jobs,
    locks,
    occurrence_ranges,
    occurrences,
    partitions,
    pauses,
    shards,
    timers,
    workers,
)
from noonday.store.backlogs import Backlogs, Change
from noonday.store.firing import Due, Unreadable, plan, ranked
from noonday.store.pauses import Pause
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics

ROLE: Final = "scheduler"
BATCH: Final = 500
MOST_DECIDED: Final = 25_000
"""Nominal times that a tick decides, about. After a long time down each of its timers may stand for
thousands: then all get their turn, a few of them each, in a transaction that ends in time."""
WORK_SEC: Final = 0.02
"""After planning for so long without a break, others of the process have their turn."""
LOOK_AHEAD: Final = timedelta(seconds=1)
AHEAD: Final = timedelta(seconds=1)
"""How far the database's clock is expected to be ahead of ours at most."""
OWN_MARGIN_SEC: Final = 2.0
"""How much earlier than the database we ourselves stop trusting our lease."""

log = structlog.get_logger()


class Scheduler:
    """One scheduler process. Its ``id`` is random at each start."""

    def __init__(
        self,
        store: Store,
        id: UUID,
        name: str,
        metrics: Metrics,
        wakeups: Wakeups,
        ranks: Ranks = by_time,
        backlogs: Backlogs | None = None,
        catching_up: CatchingUp | None = None,
    ) -> None:
        self._backlogs = backlogs
        self._late = catching_up or CatchingUp(metrics, BATCH)
        self._store = store
        self.id = id
        self._name = name
        self._metrics = metrics
        self._wakeups = wakeups
        self._ranks = ranks
        self.epochs: dict[int, int] = {}
        self._trusted_until = 0.0
        self._floor = EPOCH
        self._indexed_until = EPOCH
        self._sleep_sec: float | None = None
        self._clock: tuple[datetime, float] | None = None

    # --- shards ---------------------------------------------------------------------------

    async def keep_shards(self) -> int:
        """Renew what is owned, take what is free up to a fair share, give up what is above it."""
        before = time.monotonic()
        async with self._store.transaction() as tx:
            how = self._late.report(await self._now(tx))
            await workers.report(tx, self.id, ROLE, self._name, catch_up=how)
            owned = await shards.renew(tx, self.id)
            # One that has let its lease run out has no share: its shards are to be taken at once.
            share = -(-SHARDS // max(await workers.alive(tx, ROLE, shards.LEASE), 1))
        for shard in self.epochs.keys() - owned.keys():
            log.warning("shard.lost", shard=shard)
        if owned.items() - self.epochs.items():
            # Taken, or not given up, by a commit that we did not hear of.
            self._look_everywhere()
        self.epochs = owned
        self._trusted_until = before + shards.LEASE.total_seconds() - OWN_MARGIN_SEC
        if len(owned) < share:
            await self._acquire(share - len(owned))
        elif len(owned) > share:
            await self.release(sorted(owned)[share:])
        self._metrics.shards_owned(len(self.epochs))
        return 0

    async def _acquire(self, limit: int) -> None:
        async with self._store.transaction() as tx:
            taken = await shards.acquire(tx, self.id, limit)
        if taken:
            self.epochs = self.epochs | taken
            self._look_everywhere()
            log.info("shards.taken", count=len(taken), owned=len(self.epochs))

    def _look_everywhere(self) -> None:
        self._floor = EPOCH
        self._late.reset()

    async def release(self, given: Sequence[int] | None = None) -> None:
        """Give shards up; all of them at shutdown."""
        given = sorted(self.epochs) if given is None else given
        self.epochs = {shard: epoch for shard, epoch in self.epochs.items() if shard not in given}
        async with self._store.transaction() as tx:
            await shards.release(tx, self.id, given)

    async def leave(self) -> None:
        """Hand everything over and go."""
        await self.release()
        async with self._store.transaction() as tx:
            await workers.gone(tx, self.id)

    # --- tick -----------------------------------------------------------------------------

    def sleep_for(self) -> float | None:
        """Seconds until the next timer is due, when one is near, or what is late has its turn."""
        late = None if self._clock is None else self._late.wait_sec(self._estimated(*self._clock))
        return min((each for each in (self._sleep_sec, late) if each is not None), default=None)

    async def tick(self) -> int:
        """Fire the due timers of all owned shards, at most ``BATCH``; how many were fired."""
        epochs = self.epochs
        started = time.monotonic()
        if not epochs or started > self._trusted_until:
            return 0
        now, due = await self._read(sorted(epochs))
        late = 0
        if due:
            self._metrics.materialization_lag((now - due[0]["due_at"]).total_seconds())
            late = await self._fire(due, epochs, now)
        took = time.monotonic() - started
        self._late.spent(now + timedelta(seconds=took), took, late, len(due))
        return len(due)

    async def sweep(self) -> int:
        """Look below the floor for what was committed later than anything should be."""
        epochs = self.epochs
        floor = self._floor if self._late.floor is None else self._late.floor
        if not epochs:
            return 0
        async with self._store.transaction() as tx:
            self._indexed_until = await partitions.indexed_until(tx)
            found = await timers.next_due(tx, EPOCH, floor, sorted(epochs))
        if found is not None:
            self._metrics.straggler("timers")
            self._lower(found)
        return 0

    def _lower(self, floor: datetime) -> None:
        if self._late.floor is not None:
            self._late.lower(floor)
        self._floor = min(self._floor, floor)

    async def _read(self, owned: list[int]) -> tuple[datetime, list[Row]]:
        async with self._store.singly() as tx:
            at = await self._now(tx)
            # The planner wants a value that the database's clock will hardly have passed when it is
            # asked for what is due. Should it have jumped, the next tick knows.
            expected = at + AHEAD
            if expected >= self._indexed_until:
                self._indexed_until = await partitions.indexed_until(tx)
            floor, until = self._floor, min(expected, self._indexed_until)
            begun = self._late.floor is not None
            start = min(at - LATE, until) if begun else floor
            reserved = self._late.reserves(tx, at)
            now, due = await timers.due(tx, max(start, floor), until, owned, BATCH - reserved)
            self._clock = now, time.monotonic()
            late: list[Row] = []
            if begun and due:
                self._late.saw_fresh(now)
            if reserved:
                left, still = BATCH - len(due), partial(self._owns_only, owned)
                late = await self._late.read(tx, start, owned, left, now, still)
            # Shards that came, or a straggler that was found, while we read: we did not look there.
            if self._floor == floor and self._owns_only(owned):
                seen = min(now, until)
                self._floor = min(due[0]["due_at"] if due else seen, now - LATE_COMMIT)
                if not begun:
                    due = self._late.begin(due, now)
            near = None if due else await timers.next_due(tx, now, now + LOOK_AHEAD, owned)
        self._sleep_sec = (near - now).total_seconds() if near else None
        return now, late + due

    def _owns_only(self, shards: Collection[int]) -> bool:
        return self.epochs.keys() <= set(shards)

    def _estimated(self, then: datetime, at: float) -> datetime:
        return then + timedelta(seconds=time.monotonic() - at)

    async def _now(self, tx: Tx) -> datetime:
        """About what the database's clock shows, without asking it each time."""
        if tx.now is not None or self._clock is None:
            return await tx.clock()
        return self._estimated(*self._clock)

    async def _fire(self, due: Sequence[Row], epochs: dict[int, int], now: datetime) -> int:
        """Fire timers; how many of them were late."""
        ready: list[Due] = []
        unreadable: list[Unreadable] = []
        stale: list[Row] = []
        limit = max(MOST_DECIDED // len(due), 1)
        planned_since = time.monotonic()
        for row in due:
            if time.monotonic() - planned_since > WORK_SEC:
                await asyncio.sleep(0)
                planned_since = time.monotonic()
            if not row["current"]:
                stale.append(row)
                continue
            planned = plan(row, epochs[row["shard"]], now, limit)
            if isinstance(planned, Due):
                planned = self._paced(planned, now)
            (ready if isinstance(planned, Due) else unreadable).append(planned)  # type: ignore[arg-type]
        write = partial(self._write, epochs)
        for item, result in zip(ready, await batches.bisect(ready, write), strict=True):
            if isinstance(result, Exception):
                job_id = item.fired.job_id
                unreadable.append(Unreadable.because(job_id, "refused by the database", result))
        if unreadable or stale:
            tenants = {row["job_id"]: row["tenant_id"] for row in due}
            await self._set_aside(unreadable, stale, epochs, tenants)
        return sum(item.late for item in ready)

    def _paced(self, due: Due, now: datetime) -> Due:
        """One that has more to catch up on has its turn again when those before it had theirs."""
        again = due.rearm
        if again is None or again.occurrence_at > now:
            return due
        slot = self._late.pace.slot(max(again.due_at, now), now)
        return due._replace(rearm=again._replace(due_at=slot))

    async def _write(self, epochs: dict[int, int], batch: Sequence[Due]) -> Sequence[None]:
        used = {item.fired.shard: epochs[item.fired.shard] for item in batch}
        over = {item.fired.job_id: item.work.tenant_id for item in batch if item.is_over}
        changes = Change(self._backlogs, over)
        async with self._store.transaction(locks.sharing(used)) as tx:
            now = await shards.fence(tx, self.id, used)
            await changes.begin(tx)
            written = await occurrences.materialize(
                tx,
                [item.fired for item in batch],
                ranked(batch, self._ranks, now),
                [item.rearm for item in batch if item.rearm is not None],
                now,
                [each for item in batch for each in item.ranges],
            )
            await jobs.end(
                tx,
                [
                    (item.fired.job_id, item.fired.schedule_version)
                    for item in batch
                    if item.recurs and item.rearm is None
                ],
                now,
            )
            await changes.end(tx)
        changes.note()
        self._metrics.materialized(written.ready, written.missed, written.skipped)
        if written.ready:
            self._wakeups.runs()
        return [None] * len(batch)

    async def _set_aside(
        self,
        unreadable: Sequence[Unreadable],
        stale: Sequence[Row],
        epochs: dict[int, int],
        tenants: Mapping[UUID, int],
    ) -> None:
        """Suspend the jobs that cannot be computed, drop timers that no job stands behind."""
        changes = Change(self._backlogs, {job: tenants[job] for job, _ in unreadable})
        async with self._store.transaction(locks.sharing(epochs)) as tx:
            await shards.fence(tx, self.id, epochs)
            await changes.begin(tx)
            for job_id, reason in unreadable:
                if await jobs.suspend(tx, job_id, reason):
                    await self._disarm(tx, job_id)
                    self._metrics.job_suspended()
                    log.error("job.suspended", job_id=str(job_id), reason=reason)
            await occurrences.drop_stale(
                tx, [(r["job_id"], r["due_at"], r["schedule_version"], r["seq"]) for r in stale]
            )
            await changes.end(tx)
        changes.note()

    async def _disarm(self, tx: Tx, job_id: UUID) -> None:
        """What waits for a job that will not run waits for nothing more."""
        armed = await timers.disarm(tx, job_id)
        if armed is None:
            return
        at = armed["occurrence_at"]
        await pauses.begin(
            tx, Pause(job_id, at, armed["seq"], False, None, occurrence_ranges.BY_ITSELF)
        )
        if armed["awaited"]:
            await dependencies.note(tx, [(job_id, at, "FAILED")])
