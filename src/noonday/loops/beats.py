"""A worker's signs of life: leases are extended, what is cancelled is heeded, all is reported.

On a connection of its own, so that none of it ever waits behind claims and settles.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import structlog

from noonday.domain.errors import StoreUnavailable
from noonday.domain.lane_clock import LaneReport
from noonday.loops.flight import Flight
from noonday.loops.pool import Pool
from noonday.store import Store, cancels, runs, workers
from noonday.store.runs import Held
from noonday.telemetry import Metrics

ROLE: Final = "worker"
REPORT_SEC: Final = 2.0
STOPPED_AT_ONCE: Final = 1_000
"""Runs that a worker is told to cut off in one beat; the others come with the next ones."""
HEARTBEATS: Final = 10_000
"""Most leases that one statement extends; fewer for a time when that took too long."""
FEWEST_HEARTBEATS: Final = 500

log = structlog.get_logger()


class Beats:
    """Extends the leases of one worker process, and says that it is alive."""

    def __init__(
        self,
        store: Store,
        id: UUID,
        name: str,
        metrics: Metrics,
        flights: Mapping[Held, Flight],
        pools: Mapping[str, Pool],
    ) -> None:
        self._store = store
        self._id = id
        self._name = name
        self._metrics = metrics
        self._flights = flights
        self._pools = pools
        self._reported_at = 0.0
        self._noted: dict[str, LaneReport] = {}
        self._at_once = HEARTBEATS
        self.mute = False
        """Whether the last beat failed: a lease that is taken now might not be extended."""
        self.stopping = False
        self.granted: dict[str, datetime] = {}
        """The highest ranks claimed, as ``workers.granted_key`` names them: how far the reaper has
        to look."""

    async def tick(self) -> int:
        """Extend leases of which a third has passed, all together; abort what is held no longer,
        or is to be cut off.

        Until this succeeds again after a failure, nothing is claimed.
        """
        wanted = [flight for flight in self._flights.values() if flight.wants_heartbeat()]
        if any(flight.presses() for flight in wanted):
            await self._extend_all(sorted(wanted, key=lambda flight: flight.trusted_until))
        if self._flights:
            await self._heed()
        await self._report()
        for pool in self._pools.values():
            self._metrics.slots_stand_at(pool.name, pool.slots, pool.busy)
            for lane in pool.lanes:
                self._metrics.serves(lane, pool.slots, pool.free)
        return 0

    async def _heed(self) -> None:
        """Cut off what is cancelled."""
        try:
            async with self._store.transaction() as tx:
                asked = await cancels.asked(tx, self._id, STOPPED_AT_ONCE)
        except StoreUnavailable as error:
            log.warning("heed.failed", error=str(error))
            return
        for one in asked:
            flight = self._flights.get(one.held)
            if flight is not None:
                flight.cut_off(one)

    async def _extend_all(self, wanted: Sequence[Flight]) -> None:
        """In one statement, unless that has proven to be more than the database does in time."""
        for start in range(0, len(wanted), self._at_once):
            if not await self._extend(wanted[start : start + self._at_once]):
                self._at_once = max(self._at_once // 2, FEWEST_HEARTBEATS)
                return
        self._at_once = min(self._at_once * 2, HEARTBEATS)

    async def _extend(self, wanted: Sequence[Flight]) -> bool:
        asked = time.monotonic()
        try:
            async with self._store.transaction() as tx:
                extended = await runs.heartbeat(
                    tx, [(flight.held, flight.lease_sec) for flight in wanted]
                )
                missing = [flight.held for flight in wanted if flight.held not in extended]
                locked = await runs.standing(tx, missing) if missing else set()
        except StoreUnavailable as error:
            self.mute = True
            log.warning("heartbeat.failed", error=str(error), count=len(wanted))
            return False
        self.mute = False
        for flight in wanted:
            if flight.held in extended:
                flight.extend(asked)
            elif flight.held in locked:
                continue  # asked for again with the next beat, as long as it is trusted
            elif flight.held in self._flights and not flight.landed:
                self._lose(flight, "somebody else holds it, or it has ended")
        return True

    def overdue(self, flight: Flight) -> None:
        """Its lease may be somebody else's soon."""
        self._lose(flight, "no confirmed heartbeat")

    def _lose(self, flight: Flight, why: str) -> None:
        if flight.landed or flight.lost:
            return
        flight.lost = True
        log.warning(
            "lease.lost", run_id=str(flight.lease.run), attempt=flight.lease.attempt, reason=why
        )
        flight.cancel()

    async def _report(self) -> None:
        lanes = {
            name: report for pool in self._pools.values() for name, report in pool.report().items()
        }
        due = time.monotonic() - self._reported_at >= REPORT_SEC
        if not due and lanes == self._noted:
            return
        try:
            async with self._store.singly() as tx:
                if due:
                    await workers.report(
                        tx, self._id, ROLE, self._name,
                        slots=sum(pool.slots for pool in self._pools.values()),
                        in_flight=sum(pool.busy for pool in self._pools.values()),
                        granted=self.granted, stopping=self.stopping, lanes=lanes,
                    )  # fmt: skip
                else:
                    await workers.note_lanes(tx, self._id, lanes)
        except StoreUnavailable as error:
            self.mute = True
            log.warning("report.failed", error=str(error))
            return
        self.mute = False
        self._noted = lanes
        if due:
            self._reported_at = time.monotonic()
