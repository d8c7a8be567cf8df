"""The reaper: settles expired leases and offers their runs again, or dead-letters them.

It reads the claim index up to the highest rank that workers say they were granted, and once in
a while all of it, for the grants of workers that died before they could say so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

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


class _Place(NamedTuple):
    """Where expired leases may be, and up to which rank."""

    lane: str
    span: Span
    ceiling: datetime


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
        async with self._store.in_turn() as tx:
            places = await (self._everywhere(tx) if full else self._granted(tx))
        count, failed = 0, None
        for place in places:
            try:
                count += await self._reap(*place)
            except Exception as error:
                failed = error
        if full:
            self._passed_at = started
        if count:
            self._wakeups.runs()
        if failed is not None:
            raise failed
        return count

    async def _everywhere(self, tx: Tx) -> list[_Place]:
        """Each lane, priority and band in which there is anything, up to where leases may be.

        Dead entries at the head of the index are passed over here, and not each second.
        """
        spans = {lane.name: Floors().each() for lane in await lanes.every(tx)}
        now, lowest = await runs.lowest_claimable(tx, spans)
        self._floors = {
            (lane, span.band): _floor(span.band, lowest.get(lane, {}).get(span.band), now)
            for lane, each in spans.items()
            for span in each
        }
        return [
            _Place(lane, self._from_floor(lane, span), END - SLACK if span.band.queued else now)
            for lane, each in spans.items()
            for span in each
            if span.band in lowest.get(lane, {})
        ]

    async def _granted(self, tx: Tx) -> list[_Place]:
        """Those of which workers say that they were granted some, as far as they say."""
        whole = {span.band: span for span in Floors().each()}
        places, spans = [], dict[str, list[Span]]()
        for key, ceiling in (await workers.granted(tx)).items():
            lane, band = workers.granted_in(key)
            span = self._from_floor(lane, whole[band])
            places.append(_Place(lane, span, ceiling))
            spans.setdefault(lane, []).append(span)
        _, lowest = await runs.lowest_claimable(tx, spans) if places else (None, {})
        return [each for each in places if each.span.band in lowest.get(each.lane, {})]

    def _from_floor(self, lane: str, span: Span) -> Span:
        return span._replace(floor=self._floors.get((lane, span.band), span.floor))

    async def _reap(self, lane: str, span: Span, ceiling: datetime) -> int:
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


def _floor(band: Band, lowest: datetime | None, now: datetime) -> datetime:
    """Below this there is nothing to reap for a while."""
    return lowest or QUEUE if band.queued else min(lowest or now, now - LATE_COMMIT)


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
