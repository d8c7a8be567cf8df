"""What came of a worker's attempts, written in batches; what cannot be written now waits."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, MutableMapping, Sequence, Set
from datetime import timedelta
from typing import Final, NamedTuple

import msgspec
import structlog

from noonday.domain import lifecycle
from noonday.domain.errors import StoreUnavailable
from noonday.domain.model import Outcome
from noonday.loops import tally
from noonday.loops.flight import Flight
from noonday.loops.tally import Ended
from noonday.store import Store, Tx, batches, executions, runs, settlements
from noonday.store.backlogs import Backlogs
from noonday.store.endings import Endings
from noonday.store.runs import Held
from noonday.store.settlements import Settlement
from noonday.telemetry import Metrics

BATCH: Final = 1_000
LOCKED_SEC: Final = 0.5
"""After so long what could not be written is tried again, since somebody had its row locked."""
LOOK_SEC: Final = 60.0
"""For so long after a batch has failed, or a lock was seen, it is looked for locks first."""
MOST: Final = 10_000
"""More outcomes than this wait to be written: no more should be claimed."""

log = structlog.get_logger()


class _Landed(NamedTuple):
    """An attempt that ended, and what is to be written of it."""

    flight: Flight
    item: Settlement


class Settling:
    """The outcomes of one worker process that wait to be written.

    ``flights`` has the attempts by their leases; what is settled is taken out of it.
    """

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        flights: MutableMapping[Held, Flight],
        backlogs: Backlogs | None = None,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._flights = flights
        self._backlogs = backlogs
        self._unsettled: list[tuple[Flight, Outcome]] = []
        self._aside: list[tuple[Flight, Outcome]] = []
        """Those whose rows somebody has locked, until they are tried again."""
        self._look_until = 0.0
        self.wake: Callable[[], None] = lambda: None
        """Called when outcomes wait to be written."""
        self.made_room: Callable[[], None] = lambda: None
        """Called when runs of a lane with a cap were settled: others may start, anywhere."""

    @property
    def waiting(self) -> int:
        """How many outcomes wait."""
        return len(self._unsettled) + len(self._aside)

    @property
    def is_full(self) -> bool:
        """Whether so many wait that no more should be claimed."""
        return self.waiting >= MOST

    def add(self, flight: Flight, outcome: Outcome) -> None:
        """An attempt has come to its outcome."""
        if not flight.keeps_response:
            outcome = msgspec.structs.replace(outcome, response=None)
        self._unsettled.append((flight, outcome))
        self.wake()

    async def tick(self) -> int:
        """Write the outcomes that wait, in one transaction; how many.

        A batch that fails may have met a row that somebody keeps locked. So for a while each batch
        is looked for such rows first, and what has them waits by itself.
        """
        batch, self._unsettled = self._unsettled[:BATCH], self._unsettled[BATCH:]
        if not batch:
            return 0
        landed = [_Landed(flight, self._decide(flight, outcome)) for flight, outcome in batch]
        for flight, _ in batch:
            flight.settling = True
        try:
            results = await batches.bisect(landed, self._write)
        except BaseException:
            self._look_until = time.monotonic() + LOOK_SEC
            self._unsettled = batch + self._unsettled
            for flight, _ in batch:
                flight.settling, flight.in_doubt = False, True
            raise
        counted: list[Ended] = []
        for (flight, item), result in zip(landed, results, strict=True):
            self._note(flight, item, result, counted)
        tally.ended(self._metrics, counted)
        locked = results.count(None)
        if locked < len(batch) and any(flight.capped for flight, _ in batch):
            self.made_room()
        return len(batch) - locked

    def _set_aside(self, flight: Flight, outcome: Outcome) -> None:
        flight.settling = False
        self._look_until = time.monotonic() + LOOK_SEC
        if not self._aside:
            asyncio.get_running_loop().call_later(LOCKED_SEC, self._try_again)
        self._aside.append((flight, outcome))

    def _try_again(self) -> None:
        log.warning("settle.locked", count=len(self._aside))
        self._unsettled += self._aside
        self._aside = []
        self.wake()

    async def finish(self) -> None:
        """Write all that waits, but for what somebody has locked: that ends with its lease. Raises
        ``StoreUnavailable``."""
        while self._unsettled:
            looked = time.monotonic() < self._look_until
            try:
                await self.tick()
            except StoreUnavailable:
                if looked:
                    raise
        if self._aside:
            log.warning("settle.left", count=len(self._aside))

    def _decide(self, flight: Flight, outcome: Outcome) -> Settlement:
        # One decision per attempt: a settle that is tried again must not draw another delay.
        if flight.decision is None:
            now = flight.lease.leased_at + timedelta(seconds=time.monotonic() - flight.asked)
            flight.decision = lifecycle.settle(
                flight.lease,
                outcome,
                flight.spec.retry_policy,
                now,
                random.random(),  # noqa: S311
                flight.spec.on_unknown,
            )
        return Settlement(flight.held, flight.decision, outcome)

    async def _write(self, landed: Sequence[_Landed]) -> Sequence[bool | None]:
        """Whether each was written by us, now or before; None where its row is locked."""
        doubtful = [item.held for flight, item in landed if flight.in_doubt]
        async with self._store.transaction() as tx:
            done = await executions.written(tx, doubtful) if doubtful else set()
            items = await self._explained(tx, landed)
            locked = await self._locked(tx, items)
            out = done | locked
            written = await settlements.apply(
                tx, [item for item in items if item.held not in out] if out else items
            )
            ended = await self._ended(tx, landed, written)
        ended.note()
        if len(written) == len(landed):
            return [True] * len(landed)
        done |= written
        return [
            None if item.held in locked and item.held not in done else item.held in done
            for item in items
        ]

    async def _locked(self, tx: Tx, items: Sequence[Settlement]) -> set[Held]:
        if time.monotonic() >= self._look_until:
            return set()
        return await runs.locked_elsewhere(tx, sorted(item.held for item in items))

    async def _ended(self, tx: Tx, landed: Sequence[_Landed], written: Set[Held]) -> Endings:
        """One-off jobs of which that was the last word, where they are counted."""
        endings = Endings(self._backlogs)
        for flight, item in landed:
            if item.held in written:
                endings.add(flight.lease.tenant_id, item, flight.spec.schedule)
        await endings.look(tx)
        return endings

    async def _explained(self, tx: Tx, landed: Sequence[_Landed]) -> Sequence[Settlement]:
        """Where the receiver says that it had done it before: why that is."""
        items = [item for _, item in landed]
        repeated = [item.held for item in items if item.outcome.duplicate]
        if not repeated:
            return items
        causes = await executions.causes(tx, repeated)
        for held, cause in causes.items():
            self._flights[held].duplicate_cause = cause
        return [item._replace(duplicate_cause=causes.get(item.held)) for item in items]

    def _note(
        self,
        flight: Flight,
        item: Settlement,
        result: bool | Exception | None,
        counted: list[Ended],
    ) -> None:
        if result is None:
            self._set_aside(flight, item.outcome)
            return
        if isinstance(result, Exception):
            # Its own words cannot be stored; what came of the attempt still can.
            log.error("settle.refused", run_id=str(flight.lease.run), error=str(result))
            if item.outcome.error is not None or item.outcome.response is not None:
                plain = msgspec.structs.replace(item.outcome, error=None, response=None)
                flight.settling = False
                self._unsettled.append((flight, plain))
                return
        self._flights.pop(flight.held, None)
        if result is True:
            counted.append(Ended.of(flight.lease.tenant_id, item.transition, item.outcome))
            if flight.duplicate_cause is not None:
                self._metrics.duplicate(flight.duplicate_cause)
        elif not (flight.in_doubt and item.transition.execution is None):
            # (What was handed back leaves no trace by which to tell that it was we who did.)
            self._metrics.stale_settle()
            log.warning("settle.stale", run_id=str(flight.lease.run), attempt=flight.lease.attempt)
