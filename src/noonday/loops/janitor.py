"""The janitor: makes partitions ahead, and lets go of what has been kept long enough.

One process does it at a time, the one that owns shard 0; should two overlap for a moment, they
get in each other's way, but do no harm. Each piece of work stands alone: one that fails is
logged, counted, and tried again at the next pass, and the others go on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Final
from uuid import UUID

import structlog

from noonday.domain.errors import StoreUnavailable
from noonday.settings import Retention
from noonday.store import (
    DirectConnection,
    Store,
    Tx,
    changes,
    charges,
    costs,
    letters,
    occurrence_ranges,
    partitions,
    replays,
    retention,
    timer_upkeep,
    unavailable,
    workers,
)
from noonday.store.blobs import BlobStore
from noonday.store.ranges import Range
from noonday.telemetry import Metrics

NAME: Final = "janitor"
BATCH: Final = 1_000
JOB_BATCHES: Final = 50
LETTER_BATCHES: Final = 10
KEY_BATCHES: Final = 4
"""Most batches in a pass; of keys, for each of their partitions."""
PARTS: Final = 32
"""Most old partitions of one kind in a pass; what is needed is made at once, whatever it takes."""
FIRST_PAYLOAD: Final = (UUID(int=0), 0)
LOOK_SEC: Final = 2.0
"""How soon a process that does not lead looks again whether it does."""

_Work = Callable[[DirectConnection, Range], Awaitable[bool]]

log = structlog.get_logger()


class Janitor:
    """Keeps the database in shape. ``leads`` says whether this process is the one to do it."""

    def __init__(
        self,
        store: Store,
        blobs: BlobStore,
        kept: Retention,
        metrics: Metrics | None = None,
        *,
        leads: Callable[[], bool],
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._kept = kept
        self._metrics = metrics
        self._leads = leads
        self._cursor = UUID(int=0)
        self._payload_cursor = FIRST_PAYLOAD

    def sleep_for(self) -> float | None:
        """Seconds to wait at most: a process that comes to lead does not wait for a full pause."""
        return None if self._leads() else LOOK_SEC

    async def tick(self) -> int:
        """One bounded pass over all there is to do; how many things were done."""
        if not self._leads():
            return 0
        async with self._store.transaction() as tx:
            now = await tx.clock()
        done = 0
        for chore in (
            self._make_partitions, self._split_timers, self._index_timers, self._retire_timers,
            self._compact_executions, self._drop_executions, self._drop_ledger,
            self._forget_ranges, self._forget_keys, self._forget_workers, self._forget_letters,
            self._delete_jobs, self._forget_payloads, self._sweep_blobs,
        ):  # fmt: skip
            if self._leads():
                done += await self._attempt(chore.__name__.strip("_"), partial(chore, now))
        return done

    async def _attempt(self, what: str, work: Callable[[], Awaitable[int]]) -> int:
        try:
            return await work()
        except StoreUnavailable as error:  # a lock that somebody else has, more often than not
            log.warning("upkeep.put_off", loop=NAME, reason=what, error=str(error))
        except Exception as error:
            log.exception("upkeep.failed", loop=NAME, reason=what, error=str(error))
        if self._metrics is not None:
            self._metrics.loop_failed(NAME)
        return 0

    async def _each(self, event: str, parts: Sequence[Range], work: _Work) -> int:
        """Do ``work`` for each partition, on a direct connection; ``event`` is what was done."""
        if not parts:
            return 0
        async with self._store.direct() as connection:
            return sum(
                [
                    await self._attempt(part.name, partial(_do, event, work, connection, part))
                    for part in parts
                ]
            )

    @asynccontextmanager
    async def _brief(self) -> AsyncIterator[Tx]:
        """A transaction that waits for nobody's locks."""
        async with self._store.transaction() as tx:
            await retention.shorten_locks(tx)
            yield tx

    # --- partitions -----------------------------------------------------------------------

    async def _make_partitions(self, now: datetime) -> int:
        async with self._store.transaction() as tx:
            parts = await partitions.missing(tx, now)
        return await self._each("partition.made", parts, partitions.make)

    async def _split_timers(self, now: datetime) -> int:
        async with self._store.transaction() as tx:
            parts = await timer_upkeep.coarse(tx, now)
        return await self._each("partition.split", parts, partial(timer_upkeep.split, now=now))

    async def _index_timers(self, now: datetime) -> int:
        async with self._store.transaction() as tx:
            parts = await timer_upkeep.unindexed(tx, now)
        return await self._each("partition.indexed", parts, partial(timer_upkeep.index, now=now))

    async def _retire_timers(self, now: datetime) -> int:
        async with self._store.transaction() as tx:
            parts = await timer_upkeep.over(tx, now)
        return await self._each(
            "partition.dropped", parts[:PARTS], partial(timer_upkeep.retire, bound=self._store.now)
        )

    async def _compact_executions(self, now: datetime) -> int:
        async with self._store.transaction() as tx:
            days = await retention.succeeded(
                tx, self._success_before(now), self._failure_before(now)
            )
        return await self._each("partition.compacted", days[:PARTS], retention.compact)

    async def _drop_executions(self, now: datetime) -> int:
        async with self._store.transaction() as tx:
            parts = await retention.expired(tx, self._failure_before(now))
        return await self._each("partition.dropped", parts[:PARTS], retention.remove)

    async def _drop_ledger(self, now: datetime) -> int:
        async with self._brief() as tx:
            await retention.raise_ledger_start(tx, now - timedelta(days=self._kept.ledger_days))
        # In a transaction of its own: what is dropped has been closed for all to see.
        async with self._store.transaction() as tx:
            parts = await retention.closed(tx)
        return await self._each("partition.dropped", parts[:PARTS], retention.remove)

    # --- rows -----------------------------------------------------------------------------

    async def _forget_keys(self, now: datetime) -> int:
        before = now - timedelta(hours=self._kept.idempotency_hours)
        return sum([await self._forget_some(n, before) for n in range(retention.KEY_PARTITIONS)])

    async def _forget_some(self, number: int, before: datetime) -> int:
        forgotten = 0
        for _ in range(KEY_BATCHES):
            async with self._brief() as tx:
                count = await retention.forget_keys(tx, number, before, BATCH)
            forgotten += count
            if count < BATCH:
                break
        return forgotten

    async def _forget_ranges(self, _now: datetime) -> int:
        """Of the ledger, what partitions do not hold; and schedules from before its start."""
        async with self._brief() as tx:
            count = await occurrence_ranges.forget(tx, BATCH)
            return count + await changes.forget_schedules(tx, BATCH)

    async def _forget_workers(self, _now: datetime) -> int:
        async with self._brief() as tx:
            return await workers.forget(tx) + await charges.forget(tx) + await costs.forget(tx)

    async def _forget_letters(self, now: datetime) -> int:
        """Letters that were dealt with, and replays that are over."""
        before, forgotten = self._failure_before(now), 0
        for _ in range(LETTER_BATCHES):
            async with self._brief() as tx:
                count = await letters.forget(tx, before, BATCH)
                count += await replays.forget(tx, before, BATCH)
            forgotten += count
            if count < BATCH:
                break
        return forgotten

    async def _delete_jobs(self, now: datetime) -> int:
        deleted = 0
        for _ in range(JOB_BATCHES):
            async with self._brief() as tx:
                batch = await retention.delete_ended(
                    tx, self._cursor, self._success_before(now), self._failure_before(now), BATCH
                )
            self._cursor = batch.cursor or UUID(int=0)
            deleted += batch.jobs
            for reference in batch.blobs:
                await self._attempt(f"blob {reference}", partial(self._delete_blob, reference))
            if batch.cursor is None:
                break
        if deleted:
            log.info("jobs.deleted", count=deleted)
        return deleted

    async def _forget_payloads(self, _now: datetime) -> int:
        forgotten = 0
        for _ in range(JOB_BATCHES):
            async with self._brief() as tx:
                batch = await changes.forget_payloads(tx, self._payload_cursor, BATCH)
            self._payload_cursor = batch.cursor or FIRST_PAYLOAD
            forgotten += batch.rows
            for reference in batch.blobs:
                await self._attempt(f"blob {reference}", partial(self._delete_blob, reference))
            if batch.cursor is None:
                break
        return forgotten

    async def _delete_blob(self, reference: str) -> int:
        await self._blobs.delete(reference)
        return 1

    async def _sweep_blobs(self, _now: datetime) -> int:
        return await self._blobs.sweep()

    def _success_before(self, now: datetime) -> datetime:
        return now - timedelta(days=self._kept.success_days)

    def _failure_before(self, now: datetime) -> datetime:
        return now - timedelta(days=self._kept.failure_days)


async def _do(event: str, work: _Work, connection: DirectConnection, part: Range) -> int:
    with unavailable():
        done = await work(connection, part)
    if done:
        log.info(event, partition=part.name)
    else:
        log.debug("partition.left", partition=part.name)
    return done
