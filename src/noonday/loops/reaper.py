"""The reaper: settles expired leases and offers their runs again, or dead-letters them.

It reads the claim index up to the highest rank that workers say they were granted, and once in
a while all of it, for the grants of workers that died before they could say so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import product
from typing import Final

import msgspec
import structlog

from noonday.domain import lifecycle
from noonday.domain.model import (
    JobSpec,
    OnUnknown,
    Outcome,
    OutcomeKind,
    RetryPolicy,
)
from noonday.domain.ranking import END, LATE_COMMIT, QUEUE, Band, Floors, Span
from noonday.loops import tally
from noonday.loops.tally import Ended
from noonday.store import Row, Store, Tx, lanes, runs, settlements, workers
from noonday.store.backlogs import Backlogs
from noonday.store.endings import Endings
from noonday.store.runs import Held, held_key, key_of, lease_of
from noonday.store.settlements import Settlement
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics

BATCH: Final = 500
FULL_PASS_SEC: Final = 10.0
SLACK: Final = timedelta(seconds=5)
"""Ranks are reported every other second; this much more than reported may be granted."""

log = structlog.get_logger()
_spec = msgspec.json.Decoder(JobSpec)
_EXPIRED: Final = Outcome(
    OutcomeKind.TRANSIENT,
    error="the lease ran out: its worker died, hung or was cut off",
    unknown=True,
)


class Reaper:
    """Safe to run in any number of processes: each takes what the others have not locked."""

    def __init__(
        self, store: Store, metrics: Metrics, wakeups: Wakeups, backlogs: Backlogs | None = None
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._wakeups = wakeups
        self._backlogs = backlogs
        self._passed_at = 0.0
        self._floors: dict[tuple[str, Band], datetime] = {}

    async def tick(self) -> int:
        """Settle expired leases, at most ``BATCH`` for each lane, priority and band; how many.

        One of these that fails does not keep the others from being looked after.
        """
        started = time.monotonic()
        full = started - self._passed_at > FULL_PASS_SEC
        async with self._store.transaction() as tx:
            now = await tx.clock()
            granted = await workers.granted(tx)
            names = [lane.name for lane in await lanes.every(tx)]
        count, failed = 0, None
        for lane, span in product(names, Floors().each()):
            try:
                if full:
                    await self._find_floor(lane, span, now)
                    ceiling: datetime | None = END - SLACK if span.band.queued else now
                else:
                    ceiling = granted.get(workers.granted_key(lane, span.band))
                if ceiling is not None:
                    count += await self._reap(lane, span, ceiling)
            except Exception as error:
                failed = error
        if full:
            self._passed_at = started
        if count:
            self._wakeups.runs()
        if failed is not None:
            raise failed
        return count

    async def _find_floor(self, lane: str, span: Span, now: datetime) -> None:
        """Dead entries at the head of the index are passed over once, not each second."""
        async with self._store.transaction() as tx:
            lowest = await runs.lowest_claimable(tx, lane, span)
        if span.band.queued:
            self._floors[lane, span.band] = lowest or QUEUE
        else:
            self._floors[lane, span.band] = min(lowest or now, now - LATE_COMMIT)

    async def _reap(self, lane: str, span: Span, ceiling: datetime) -> int:
        span = span._replace(floor=self._floors.get((lane, span.band), span.floor))
        async with self._store.transaction() as tx:
            rows = await runs.expired(tx, lane, span, ceiling + SLACK, BATCH)
            if not rows:
                return 0
            now = await tx.clock()
            items = [_settlement(row, now) for row in rows]
            written = await settlements.apply(tx, items)
            ended = await self._ended(tx, rows, items, written)
        ended.note()
        counted: list[Ended] = []
        for row, item in zip(rows, items, strict=True):
            if item.held in written:
                self._metrics.lease_expired()
                counted.append(Ended.of(row["tenant_id"], item.transition, item.outcome))
                log.warning("lease.expired", run_id=str(key_of(row)), attempt=row["attempt"])
        tally.ended(self._metrics, counted)
        return len(written)

    async def _ended(
        self, tx: Tx, rows: Sequence[Row], items: Sequence[Settlement], written: set[Held]
    ) -> Endings:
        endings = Endings(self._backlogs)
        for row, item in zip(rows, items, strict=True):
            if item.held in written and (spec := _read(row["spec"])) is not None:
                endings.add(row["tenant_id"], item, spec.schedule)
        await endings.look(tx)
        return endings


def _settlement(row: Row, now: datetime) -> Settlement:
    policy, on_unknown = _policy(row["spec"])
    transition = lifecycle.expire(lease_of(row, row["leased_at"]), policy, now, on_unknown)
    return Settlement(held_key(row), transition, _EXPIRED)


def _policy(text: str) -> tuple[RetryPolicy, OnUnknown]:
    """What a job says. One that cannot be read is offered again: the claim tells what is wrong."""
    spec = _read(text)
    return (RetryPolicy(), "retry") if spec is None else (spec.retry_policy, spec.on_unknown)


def _read(text: str) -> JobSpec | None:
    try:
        return _spec.decode(text)
    except msgspec.MsgspecError:
        return None
