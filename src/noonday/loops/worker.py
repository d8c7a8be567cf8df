"""The worker: claims READY runs up to its free slots and carries them out.

Three loops share the table of attempts in flight: ``tick`` claims, for each pool on its own;
``settling`` writes outcomes in batches, ``beats`` extends leases and aborts what is no longer held.
The worker trusts its own lease for a little less long than the database does: from before it
asked for it, less a margin.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from math import inf
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import structlog

from noonday.domain import pools
from noonday.domain.breaker import pauses
from noonday.domain.errors import BlobMissing, SecretUnreadable, StoreUnavailable
from noonday.domain.fair import Ranker
from noonday.domain.lifecycle import Event, Transition
from noonday.domain.model import (
    EPOCH,
    Attempt,
    HttpTarget,
    JobSpec,
    Once,
    Outcome,
    OutcomeKind,
    Reading,
)
from noonday.domain.ranking import Band, Floors, Span
from noonday.executors import Executor
from noonday.loops.beats import Beats
from noonday.loops.breakers import Breakers
from noonday.loops.costs import Costs
from noonday.loops.flight import Flight, Watch
from noonday.loops.pool import Pool, Served
from noonday.loops.rates import Rates
from noonday.loops.settling import Settling
from noonday.store import (
    Row,
    Store,
    Tx,
    lanes,
    runs,
    settlements,
    workers,
)
from noonday.store.backlogs import Backlogs
from noonday.store.blobs import BlobStore
from noonday.store.cancels import Asked
from noonday.store.lanes import Lanes, Refused
from noonday.store.runs import Claimed, Held, Taken
from noonday.store.settlements import Settlement
from noonday.store.signing import SigningKeys
from noonday.telemetry import Metrics

CLAIM_BATCH: Final = 500
OVERTIME_SEC: Final = 2.0
"""An executor that does not keep its own deadline is cut off this much later."""
CANCEL_SEC: Final = 5.0
"""How long an executor may take to let go of an attempt that is stopped."""
TOO_LATE: Final = "it was held back until it was too old to be tried again"
LOST_AT_SHUTDOWN: Final = "the worker was stopped"

log = structlog.get_logger()
_spec = msgspec.json.Decoder(JobSpec)
_UNKNOWN: Final = (Transition(Event.HAND_BACK), Outcome(OutcomeKind.NOT_SENT))
_UNREADABLE: Final = JobSpec(Once(EPOCH), HttpTarget(""))


class _Flown(NamedTuple):
    """A claimed run: its flight, all that is needed to carry it out, and what is wrong with it."""

    flight: Flight
    row: Row
    fault: str | None


class _Took(NamedTuple):
    """What a claim came to."""

    claimed: Claimed
    taken: list[_Flown]
    held: set[Held]
    """Those of them that were put on hold."""


class _NothingClaimed(Exception):
    """Ends the transaction of a claim that took nothing; ``more``: it may do so presently."""

    def __init__(self, *, more: bool) -> None:
        super().__init__()
        self.more = more


class Worker:
    """One worker process. Its ``id`` is random at each start, so it never vouches for a lease
    that an earlier process of the same name took."""

    def __init__(
        self,
        store: Store,
        beat_store: Store,
        id: UUID,
        name: str,
        *,
        executors: Mapping[type, Executor],
        blobs: BlobStore,
        keys: SigningKeys,
        metrics: Metrics,
        plan: Sequence[pools.Pool],
        pauses: Sequence[timedelta] = tuple(pauses()),
        backlogs: Backlogs | None = None,
        ranker: Ranker | None = None,
    ) -> None:
        """``plan``: how many attempts to carry out at the same time, and of which lanes.
        ``pauses``: for how long a target that fails is left alone. ``ranker``: where this process
        learns of lanes and costs, kept up to date by somebody."""
        self.id = id
        self._store = store
        self._executors = executors
        self._blobs = blobs
        self._keys = keys
        self._metrics = metrics
        self._ranker = ranker or Ranker()
        self._flights: dict[Held, Flight] = {}
        named = pools.named(plan)
        self.pools = {pool.name: Pool(pool, named) for pool in plan if pool.slots}
        self._lanes = Lanes(store)
        self.breakers = Breakers(store, metrics, pauses)
        self.costs = Costs(store, self._ranker.cost)
        self.rates = Rates(store, metrics)
        self.settling = Settling(store, metrics, self._flights, backlogs)
        self.beats = Beats(beat_store, id, name, metrics, self._flights, self.pools)
        self._ending = False
        self.wake_claim: Callable[[str], None] = _nobody
        """Called with a pool when slots of it have become free while more runs wait for them."""

    # --- claim ----------------------------------------------------------------------------

    async def tick(self, *names: str) -> int:
        """Claim up to the free slots of these pools, or of all, and start what was claimed, but for
        what is put on hold; how many were claimed."""
        claimed = 0
        for name in names or self.pools:
            claimed += await self._fill(self.pools[name])
        return claimed

    async def _fill(self, pool: Pool) -> int:
        # (Mute: a lease that cannot be extended would end as one more attempt.)
        if self._ending or self.beats.mute or self.settling.is_full:
            return 0
        claimed, failed = 0, None
        for lane in pool.doubtful:
            try:
                await self._let_go_of_unknown(lane)
            except StoreUnavailable as error:
                failed = error
        if not self.beats.stopping and pool.may_claim():
            waiting = [lane for lane in await self._waiting(pool) if not lane.in_doubt]
            # What one lane has no use for is dealt out again.
            while shares := pool.shares(waiting, CLAIM_BATCH):
                left = []
                for lane in waiting:
                    share, taken = shares.get(lane.name, 0), 0
                    try:
                        taken = await self._claim(pool, lane, share) if share else 0
                    except StoreUnavailable as error:
                        failed = error
                    claimed += taken
                    if not share or (taken and lane.more):
                        left.append(lane)
                if self._claims_nothing or len(left) == len(waiting):
                    break
                waiting = left
        if failed is not None:
            raise failed
        return claimed

    @property
    def _claims_nothing(self) -> bool:
        return self.beats.stopping or self.beats.mute or self.settling.is_full

    async def _waiting(self, pool: Pool) -> list[Served]:
        """The lanes of a pool in which runs wait, or may."""
        if pool.is_alone:
            return pool.serving
        pool.serve(await self._lanes.known())
        unknown = [lane for lane in pool.serving if not lane.more]
        if unknown:
            pool.looked()
            await self._look(unknown)
        return [lane for lane in pool.serving if lane.more]

    async def _look(self, unknown: Sequence[Served]) -> None:
        used = {lane.name: lane.floors.each() for lane in unknown}
        async with self._store.singly() as tx:
            clock, found = await runs.look(tx, used)
        for lane in unknown:
            lowest = found.get(lane.name, {})
            lane.more = bool(lowest)
            if not lane.more:
                lane.order.claimed({}, clock, everything=True)
            lane.floors.claimed(
                used[lane.name], lowest, clock, everything=True, tags=lane.order.start
            )

    async def _claim(self, pool: Pool, lane: Served, limit: int) -> int:
        asked, used = pool.claiming(lane), lane.floors.each()
        try:
            async with self._store.transaction(lanes.entering(lane.name)) as tx:
                took = await self._take(tx, pool, lane, used, limit, asked)
        except _NothingClaimed as nothing:
            lane.in_doubt, lane.more = False, nothing.more
            return 0
        if self._ending:
            await self._let_go_of_unknown(lane)  # nobody would wait for these any more
            return 0
        # Not before the commit: by this time we look for what an unknown claim took.
        claimed, clock = took.claimed, took.claimed.clock
        lane.claimed(claimed.leased_at if took.taken else clock, more=not claimed.drained)
        self._note_ranks(lane.name, claimed.taken)
        everything = claimed.saw_all
        lane.order.claimed(claimed.left, clock, everything=everything, highest=claimed.highest)
        lane.floors.claimed(
            used, claimed.lowest, clock, everything=everything, tags=lane.order.start
        )
        self._start(took, pool, lane)
        return len(took.taken)

    async def _take(
        self,
        tx: Tx,
        pool: Pool,
        lane: Served,
        used: Sequence[Span],
        limit: int,
        asked: float,
    ) -> _Took:
        """Claim as much as the lane lets; raises :class:`_NothingClaimed` when that is nothing."""
        claimed = capped = None
        if lane.version is not None:
            ranges = lane.order.ranges(used)
            claimed = await runs.claim_known(tx, lane.name, lane.version, ranges, limit, self.id)
        if claimed is None:
            claimed, capped = await self._enter(tx, lane, used, limit)
        taken = [_flown(row, claimed.leased_at, asked) for row in claimed.rows]
        if capped:
            for each in taken:
                each.flight.capped = True
        return _Took(claimed, taken, await self._hold(tx, [each.flight for each in taken], pool))

    async def _enter(
        self, tx: Tx, lane: Served, used: Sequence[Span], limit: int
    ) -> tuple[Claimed, bool]:
        """Read what the lane lets, and claim that; whether it has a cap."""
        lane.version = None
        entry = await lanes.enter(tx, lane.name, limit)
        if isinstance(entry, Refused):
            raise _NothingClaimed(more=entry.soon)
        if not entry.room:
            raise _NothingClaimed(more=False)  # woken when there is some
        lane.order.ageing_sec = entry.ageing_sec
        claimed = await runs.claim(tx, lane.name, lane.order.ranges(used), entry.room, self.id)
        await lanes.note_claimed(tx, lane.name, entry, claimed.taken)
        lane.version = None if entry.is_capped else entry.version
        return claimed, entry.is_capped

    async def _hold(self, tx: Tx, flights: Sequence[Flight], pool: Pool) -> set[Held]:
        """Put back what may not be sent now; which."""
        held = await self.breakers.hold(tx, flights)
        # Last of all: whoever takes of the same rate waits for this transaction to end.
        free = [flight for flight in flights if flight.held not in held]
        return held | await self.rates.hold(tx, free, pool.room)

    def _note_ranks(self, lane: str, taken: Mapping[Band, Taken]) -> None:
        for band, ranks in taken.items():
            name = workers.granted_key(lane, band)
            self.beats.granted[name] = max(ranks.last, self.beats.granted.get(name, ranks.last))

    async def _let_go_of_unknown(self, lane: Served) -> None:
        """The answer to a claim was lost: hand back what we hold without knowing of it.

        What is in flight is known, whatever the database's clock says after a failover.
        """
        async with self._store.transaction() as tx:
            found = await runs.held_since(tx, lane.name, lane.floors.each(), self.id, lane.clock)
            unknown = found - self._flights.keys()
            await settlements.apply(tx, [Settlement(held, *_UNKNOWN) for held in unknown])
        lane.in_doubt = False

    async def sweep(self) -> int:
        """Look below the floors for what was committed later than anything should be."""
        served = self._served
        async with self._store.singly() as tx:
            _, found = await runs.look(tx, {lane.name: Floors().each() for lane in served})
        for lane in served:
            for band, rank in found.get(lane.name, {}).items():
                if lane.floors.lower(band, rank):
                    self._metrics.straggler("runs")
        return 0

    @property
    def _served(self) -> list[Served]:
        return [lane for pool in self.pools.values() for lane in pool.lanes.values()]

    # --- carry out ------------------------------------------------------------------------

    def _start(self, took: _Took, pool: Pool, lane: Served) -> None:
        started = [taken for taken in took.taken if taken.flight.held not in took.held]
        Watch(self.beats.overdue, [taken.flight for taken in started])
        new_task, waits = asyncio.get_running_loop().create_task, list[timedelta]()
        for taken in started:
            flight = taken.flight
            self._flights[flight.held] = flight
            if flight.lease.attempt == 1:
                waits.append(flight.lease.leased_at - flight.lease.due_at)
            if flight.not_before is not None:
                pool.waits(flight.not_before)
            flight.task = task = new_task(self._carry_out(*taken))
            task.add_done_callback(partial(self._landed, flight, pool, lane))
        lane.began(len(started))
        self._metrics.began(lane.name, len(started))
        self._metrics.started(map(timedelta.total_seconds, waits))

    async def _carry_out(self, flight: Flight, row: Row, fault: str | None) -> Outcome:
        if fault is not None:
            return Outcome(OutcomeKind.BAD_PAYLOAD, error=fault)
        if flight.too_late:
            return Outcome(OutcomeKind.EXPIRED, error=TOO_LATE)
        try:
            attempt = await self._attempt(flight, row)
        except (BlobMissing, SecretUnreadable) as error:
            # Of this process, perhaps: a wrong key file or folder. Another may do better.
            return Outcome(OutcomeKind.TRANSIENT, error=str(error))
        except StoreUnavailable:
            return Outcome(OutcomeKind.NOT_SENT)
        await flight.wait()
        outcome = await self._execute(flight, attempt)
        self.breakers.note(flight, outcome)
        self.rates.note(flight, outcome)
        return outcome

    async def _execute(self, flight: Flight, attempt: Attempt) -> Outcome:
        executor = self._executors[type(attempt.target)]
        if flight.watch is not None:
            flight.watch.begins(flight, attempt.target.timeout_sec + OVERTIME_SEC)
        try:
            return await executor.execute(attempt, flight.sent)
        except asyncio.CancelledError:
            flight.deadline = inf
            url = flight.spec.cancel_url
            if flight.stop is None or url is None or not flight.sent.maybe:
                raise
            told = await executor.cancel(attempt, url, flight.stop.reason)
            return _stopped(flight.stop, f"cancel_url: {told.error or told.http_status}")

    async def _attempt(self, flight: Flight, row: Row) -> Attempt:
        old = row["payload_version"] != row["current_payload"]
        ref = row["old_payload_ref"] if old else row["payload_ref"]
        body = row["old_payload"] if old else row["payload"]
        lease = flight.lease
        terms = await self._keys.of(lease.tenant_id)
        flight.keeps_response = terms.keep_responses
        return Attempt(
            run=lease.run,
            number=lease.attempt,
            lease_version=lease.lease_version,
            target=flight.spec.target,
            headers=flight.spec.target.headers
            | self._keys.headers(lease.tenant_id, row["secret_headers"]),
            body=await self._blobs.get(ref) if ref is not None else body,
            content_type=row["old_content_type"] if old else row["content_type"],
            secrets=terms.keys,
            traceparent=row["traceparent"],
            clock=Reading(lease.leased_at.timestamp(), flight.asked, flight.claimed),
        )

    def _landed(
        self, flight: Flight, pool: Pool, lane: Served, task: asyncio.Task[Outcome]
    ) -> None:
        if flight.watch is not None:
            flight.watch.landed(flight)
        lane.landed()
        if flight.sent.maybe and flight.target is not None:
            took = time.monotonic() - flight.claimed
            self.costs.note(flight.lease.tenant_id, flight.target.host, took)
        self._metrics.landed(lane.name)
        if pool.more:
            self.wake_claim(pool.name)
        if flight.lost:
            self._flights.pop(flight.held, None)
            return
        self.settling.add(flight, _outcome_of(flight, task))

    # --- shutdown -------------------------------------------------------------------------

    def retire(self, wanted: bool) -> None:
        """Claim no more, and be :attr:`idle` when the last run has ended, however long that takes;
        or claim again, since it is needed after all."""
        self.beats.stopping = wanted or self._ending

    @property
    def idle(self) -> bool:
        """Whether it has nothing left to do, as it claims no more."""
        doubt = any(lane.in_doubt for lane in self._served)
        return self.beats.stopping and not (self._flights or self.settling.waiting or doubt)

    def end(self) -> None:
        """Claim no more from now on, and begin nothing of a claim that is under way."""
        self._ending = self.beats.stopping = True

    async def stop(self, grace_sec: float) -> None:
        """Let finish what fits into the grace period, and stop the rest.

        Outcomes go on being settled meanwhile; :meth:`leave` comes after.
        """
        self.end()
        await self._wait(grace_sec)
        for flight in self._flights.values():
            if not flight.landed:
                flight.cancel()
        await self._wait(CANCEL_SEC)

    async def _wait(self, within_sec: float) -> None:
        running = [flight.task for flight in self._flights.values() if flight.task is not None]
        if running:
            await asyncio.wait(running, timeout=within_sec)

    async def leave(self) -> None:
        """Write what is left, hand back what we hold without knowing of it, and go."""
        await self.settling.finish()
        for lane in self._served:
            if lane.in_doubt:
                await self._let_go_of_unknown(lane)
        async with self._store.transaction() as tx:
            await workers.gone(tx, self.id)


def _nobody(*_: object) -> None:
    """Nothing listens yet."""


def _flown(row: Row, leased_at: datetime, asked: float) -> _Flown:
    spec, fault = _read(row["spec"])
    return _Flown(Flight.of(row, leased_at, spec, asked), row, fault)


def _read(text: str) -> tuple[JobSpec, str | None]:
    """A job's document; when it cannot be read, one that stands for it, and why."""
    try:
        return _spec.decode(text), None
    except msgspec.MsgspecError as error:
        return _UNREADABLE, f"the job cannot be read: {error}"


def _stopped(asked: Asked, more: str | None = None) -> Outcome:
    kind = OutcomeKind.KILLED if asked.kills else OutcomeKind.CANCELLED
    error = asked.reason if more is None else f"{asked.reason}; {more}"
    return Outcome(kind, error=error, unknown=True)


def _outcome_of(flight: Flight, task: asyncio.Task[Outcome]) -> Outcome:
    """What an ended attempt came to, also when we stopped it ourselves or it broke."""
    if task.cancelled():
        if flight.overtime:
            error = "the attempt did not end in time"
            return Outcome(OutcomeKind.TIMEOUT, error=error, unknown=flight.sent.maybe)
        if not flight.sent.maybe:
            return Outcome(OutcomeKind.NOT_SENT)
        if flight.stop is not None:
            return _stopped(flight.stop)
        return Outcome(OutcomeKind.INTERRUPTED, error=LOST_AT_SHUTDOWN, unknown=True)
    broke = task.exception()
    if broke is not None:
        log.error("attempt.broke", run_id=str(flight.lease.run), exc_info=broke)
        text = f"{type(broke).__name__} in the worker"
        return Outcome(OutcomeKind.TRANSIENT, error=text, unknown=flight.sent.maybe)
    return task.result()
