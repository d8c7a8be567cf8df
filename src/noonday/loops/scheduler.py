"""The scheduler: owns shards of timers and turns due timers into occurrences and runs.

``keep_shards`` holds the leases; ``tick`` is one bounded pass over all shards owned: read what
is due, work out the next fires outside any transaction, then write everything in one fenced
transaction that takes effect only where nothing has changed meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import structlog

from noonday.domain import schedule
from noonday.domain.model import EPOCH, SHARDS, JobSpec, Once
from noonday.domain.ranking import LATE_COMMIT, Ranks, Work, by_time
from noonday.store import (
    Row,
    Store,
    Tx,
    batches,
    dependencies,
    jobs,
    locks,
    occurrences,
    partitions,
    shards,
    timers,
    workers,
)
from noonday.store.backlogs import Backlogs, Change
from noonday.store.occurrences import Entry, Fired
from noonday.store.runs import work_of
from noonday.store.timers import Timer
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics

ROLE: Final = "scheduler"
BATCH: Final = 500
MOST_ENTRIES: Final = 2_500
"""Ledger rows that a tick writes, about. After a long time down each of its timers may stand for
thousands: then all get their turn, a few rows each, in a transaction that ends in time."""
LOOK_AHEAD: Final = timedelta(seconds=1)
AHEAD: Final = timedelta(seconds=1)
"""How far the database's clock is expected to be ahead of ours at most."""
MOST_REASON: Final = 500
"""Characters kept of why a job was suspended."""
OWN_MARGIN_SEC: Final = 2.0
"""How much earlier than the database we ourselves stop trusting our lease."""

log = structlog.get_logger()
_spec = msgspec.json.Decoder(JobSpec)


class Due(NamedTuple):
    """A due timer and what its firing will write."""

    fired: Fired
    entries: tuple[Entry, ...]
    rearm: Timer | None
    work: Work

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of the job: it was a one-off one, and came too late."""
        return self.rearm is None and all(entry.outcome is not None for entry in self.entries)


class Unreadable(NamedTuple):
    """A job that cannot be computed, and why."""

    job_id: UUID
    reason: str

    @classmethod
    def because(cls, job_id: UUID, what: str, error: Exception) -> Unreadable:
        """The error may quote the job: what cannot be stored of that is shown escaped."""
        text = f"{what}: {error}"[:MOST_REASON].encode("unicode_escape").decode("ascii")
        return cls(job_id, text)


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
    ) -> None:
        self._backlogs = backlogs
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
            await workers.report(tx, self.id, ROLE, self._name)
            owned = await shards.renew(tx, self.id)
            # One that has let its lease run out has no share: its shards are to be taken at once.
            share = -(-SHARDS // max(await workers.alive(tx, ROLE, shards.LEASE), 1))
        for shard in self.epochs.keys() - owned.keys():
            log.warning("shard.lost", shard=shard)
        if owned.items() - self.epochs.items():
            # Taken, or not given up, by a commit that we did not hear of.
            self._floor = EPOCH
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
            self._floor = EPOCH
            log.info("shards.taken", count=len(taken), owned=len(self.epochs))

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
        """Seconds until the next timer is due, when one is near."""
        return self._sleep_sec

    async def tick(self) -> int:
        """Fire the due timers of all owned shards, at most ``BATCH``; how many were read."""
        epochs = self.epochs
        if not epochs or time.monotonic() > self._trusted_until:
            return 0
        now, due = await self._read(sorted(epochs))
        if due:
            self._metrics.materialization_lag((now - due[0]["due_at"]).total_seconds())
            await self._fire(due, epochs, now)
        return len(due)

    async def sweep(self) -> int:
        """Look below the floor for what was committed later than anything should be."""
        epochs, floor = self.epochs, self._floor
        if not epochs:
            return 0
        async with self._store.transaction() as tx:
            self._indexed_until = await partitions.indexed_until(tx)
            found = await timers.next_due(tx, EPOCH, floor, sorted(epochs))
        if found is not None:
            self._metrics.straggler("timers")
            self._floor = min(self._floor, found)
        return 0

    async def _read(self, owned: list[int]) -> tuple[datetime, list[Row]]:
        async with self._store.singly() as tx:
            expected = await self._expected(tx)
            if expected >= self._indexed_until:
                self._indexed_until = await partitions.indexed_until(tx)
            floor, until = self._floor, min(expected, self._indexed_until)
            now, due = await timers.due(tx, floor, until, owned, BATCH)
            self._clock = now, time.monotonic()
            # Shards that came, or a straggler that was found, while we read: we did not look there.
            if self._floor == floor and self.epochs.keys() <= set(owned):
                seen = min(now, until)
                self._floor = min(due[0]["due_at"] if due else seen, now - LATE_COMMIT)
            near = None if due else await timers.next_due(tx, now, now + LOOK_AHEAD, owned)
        self._sleep_sec = (near - now).total_seconds() if near else None
        return now, due

    async def _expected(self, tx: Tx) -> datetime:
        """A time that the database's clock will hardly have passed when it is asked for what is
        due: the planner wants a value. Should it have jumped, the next tick knows."""
        if tx.now is not None or self._clock is None:
            return await tx.clock()
        then, at = self._clock
        return then + timedelta(seconds=time.monotonic() - at) + AHEAD

    async def _fire(self, due: Sequence[Row], epochs: dict[int, int], now: datetime) -> None:
        ready: list[Due] = []
        unreadable: list[Unreadable] = []
        stale: list[Row] = []
        limit = max(MOST_ENTRIES // len(due), 1)
        for row in due:
            if not row["current"]:
                stale.append(row)
                continue
            planned = plan(row, epochs[row["shard"]], now, limit)
            (ready if isinstance(planned, Due) else unreadable).append(planned)  # type: ignore[arg-type]
        write = partial(self._write, epochs)
        for item, result in zip(ready, await batches.bisect(ready, write), strict=True):
            if isinstance(result, Exception):
                job_id = item.fired.job_id
                unreadable.append(Unreadable.because(job_id, "refused by the database", result))
        if unreadable or stale:
            tenants = {row["job_id"]: row["tenant_id"] for row in due}
            await self._set_aside(unreadable, stale, epochs, tenants)

    async def _write(self, epochs: dict[int, int], batch: Sequence[Due]) -> Sequence[None]:
        used = {item.fired.shard: item.fired.epoch for item in batch}
        over = {item.fired.job_id: item.work.tenant_id for item in batch if item.is_over}
        changes = Change(self._backlogs, over)
        async with self._store.transaction(locks.sharing(used)) as tx:
            now = await shards.fence(tx, self.id, used)
            await changes.begin(tx)
            written = await occurrences.materialize(
                tx,
                [item.fired for item in batch],
                self._rank(batch, now),
                [item.rearm for item in batch if item.rearm is not None],
                now,
            )
            await changes.end(tx)
        changes.note()
        self._metrics.materialized(written["ready"], written["missed"], written["skipped"])
        if written["ready"]:
            self._wakeups.runs()
        return [None] * len(batch)

    def _rank(self, batch: Sequence[Due], now: datetime) -> list[Entry]:
        """The entries of a batch; those that become runs know where they queue."""
        opened = [item for item in batch if item.entries and item.entries[-1].outcome is None]
        given = iter(self._ranks([item.work for item in opened], now))
        return [
            entry._replace(rank=next(given)) if entry.outcome is None else entry
            for item in batch
            for entry in item.entries
        ]

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
        if armed is not None and armed["awaited"]:
            await dependencies.note(tx, [(job_id, armed["occurrence_at"], "FAILED")])


def plan(row: Row, epoch: int, now: datetime, limit: int) -> Due | Unreadable:
    """What a due timer writes: its ledger rows, about ``limit`` at most, and its next timer.
    Whatever goes wrong with one job is that job's own affair."""
    job_id: UUID = row["job_id"]
    try:
        spec = _spec.decode(row["spec"])
        planned = schedule.plan(spec.schedule, row["occurrence_at"], job_id, now, limit)
        jitter = schedule.jitter(job_id, spec.schedule.jitter_sec)
    except Exception as error:
        return Unreadable.because(job_id, "the schedule cannot be computed", error)
    skip = not isinstance(spec.schedule, Once) and spec.schedule.overlap == "skip"
    entries = [
        Entry(job_id, at, at + jitter, schedule.OUTCOMES[reason], reason, False)
        for at, reason in planned.missed
    ]
    if planned.fire is not None:
        due_at = planned.fire + jitter
        if isinstance(spec.schedule, Once):  # one that waited for others was not due before
            due_at = max(due_at, row["due_at"])
        entries.append(Entry(job_id, planned.fire, due_at, None, None, skip))
    rearm = None
    if planned.rearm is not None:
        at = planned.rearm
        seq = row["seq"] + len(entries)
        rearm = Timer(job_id, at, at + jitter, row["schedule_version"], seq, row["shard"])
    fired = Fired(job_id, row["due_at"], row["schedule_version"], row["seq"], row["shard"], epoch)
    return Due(fired, tuple(entries), rearm, work_of(row))
