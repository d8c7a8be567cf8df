"""One fault at each step of a tick in turn: the ticks after it make it good.

A step is a connection taken, a statement, or a COMMIT.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from noonday.domain.errors import FenceLost, StoreUnavailable
from noonday.domain.model import Interval, Outcome, OutcomeKind, RetryPolicy
from noonday.loops.reaper import Reaper
from noonday.loops.worker import Worker
from noonday.store import Store, shards
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics
from tests.support import backfills, seeds
from tests.support.database import open_store
from tests.support.faulty import Faults, FaultyStore, Kind
from tests.support.invariants import broken, wipe
from tests.support.scripted import Parts, Scripted, counted, landed

OTHER_LIVES = "UPDATE shards SET leased_until = $2 WHERE owner_id = $1"
T = datetime.now(UTC).replace(microsecond=0)
SECOND = timedelta(seconds=1)
OTHER = UUID(int=20)
KINDS = (
    Kind.TOO_MANY, Kind.SERIALIZATION, Kind.READ_ONLY, Kind.CUT, Kind.REFUSED, Kind.UNSAID,
    Kind.UNHEARD,
)  # fmt: skip
FEW = (Kind.SERIALIZATION, Kind.REFUSED, Kind.UNHEARD)
"""For what takes many steps."""
FAILURE = Outcome(OutcomeKind.TRANSIENT, http_status=503, error="busy", unknown=True)
GONE = Outcome(OutcomeKind.PERMANENT, http_status=404, error="no")

Tick = Callable[[], Awaitable[object]]


@pytest.fixture
async def faulty(database_url: str) -> AsyncIterator[FaultyStore]:
    opened = await open_store(database_url, FaultyStore.under(Faults()), size=4)
    assert isinstance(opened, FaultyStore)
    yield opened
    await opened.close()


@pytest.fixture
async def parts(faulty: FaultyStore, tmp_path: Path) -> AsyncIterator[Parts]:
    made = Parts(faulty, tmp_path)
    yield made
    made.close()


async def begin(*stores: Store, at: datetime) -> None:
    """Nothing is left of the step before: no job, no process."""
    await wipe(stores[0])
    async with stores[0].transaction() as tx:
        await tx.execute("DELETE FROM workers")
    for store in stores:
        store.now = at


class Steps:
    """Every step of a tick, one after the other, with each kind of fault."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._came = False

    def each(self, kinds: Sequence[Kind] = KINDS) -> Iterator[tuple[Kind, int]]:
        for kind in kinds:
            for step in range(60):
                yield kind, step
                if not self._came:
                    break
            assert 0 < step < 59, "it has that fault at one step at least, and is bounded"

    async def at(self, step: tuple[Kind, int], *ticks: Tick) -> None:
        """Do ``ticks``, and let the fault come at this step, counted over all of them."""
        self._faults.once(*step)
        for tick in ticks:
            with suppress(StoreUnavailable, FenceLost):
                await tick()
        self._came = not self._faults.waits
        self._faults.heal()


# --- the scheduler ----------------------------------------------------------------------------


async def due_jobs(store: Store, at: datetime) -> None:
    """Recurring jobs whose timers stand at ``at``, in shards of all sorts."""
    async with store.transaction() as tx:
        for shard in (0, 31, 32, 63):
            await seeds.armed(tx, seeds.every(3_600, at), at, shard=shard)


async def fired(store: Store) -> int:
    async with store.transaction() as tx:
        return int(await tx.value("SELECT count(*) FROM runs"))


async def test_a_fault_while_timers_fire_fires_none_twice_and_leaves_none(
    store: Store, faulty: FaultyStore, parts: Parts
) -> None:
    steps = Steps(faulty.faults)
    for step in steps.each():
        await begin(store, faulty, at=T)
        await due_jobs(store, T)
        scheduler = parts.scheduler(id=uuid4())
        await scheduler.keep_shards()
        await steps.at(step, scheduler.tick)
        await scheduler.tick()
        assert await fired(store) == 4, step
        assert await broken(store) == {}


async def test_a_fault_while_shards_change_hands_keeps_no_timer_waiting_for_a_sweep(
    store: Store, faulty: FaultyStore, parts: Parts
) -> None:
    steps = Steps(faulty.faults)
    for step in steps.each(FEW):
        await begin(store, faulty, at=T - 60 * SECOND)
        scheduler = parts.scheduler(id=uuid4())
        async with store.transaction() as tx:
            await seeds.own_all_shards(tx, OTHER)
            await shards.release(tx, OTHER, range(32))
        await scheduler.keep_shards()
        await scheduler.tick()
        await due_jobs(store, T - 60 * SECOND)  # half of them the other does not come to fire
        async with store.transaction() as tx:
            await tx.execute(OTHER_LIVES, OTHER, T)
        store.now = faulty.now = T - SECOND
        await scheduler.keep_shards()
        assert await scheduler.tick() == 2
        assert await scheduler.tick() == 0  # from here on it looks at what is later
        store.now = faulty.now = T + SECOND
        await steps.at(step, scheduler.keep_shards, scheduler.keep_shards)
        await scheduler.keep_shards()
        await scheduler.tick()
        assert await fired(store) == 4, step
        assert counted(scheduler, "floor_stragglers") == 0


# --- the worker -------------------------------------------------------------------------------


async def carry_out_in_vain(worker: Worker) -> None:
    for tick in (worker.tick, worker.settling.tick):
        with suppress(StoreUnavailable):
            await tick()
        await landed(worker)


@pytest.mark.parametrize("outcome", [seeds.SUCCESS, FAILURE, GONE], ids=lambda one: one.kind.value)
async def test_a_fault_while_runs_are_carried_out_sends_each_once_and_settles_it(
    store: Store, faulty: FaultyStore, parts: Parts, outcome: Outcome
) -> None:
    steps = Steps(faulty.faults)
    for step in steps.each():
        await begin(store, faulty, at=T)
        async with store.transaction() as tx:
            await seeds.ready(tx, count=3, policy=RetryPolicy(max_attempts=2, base_sec=60))
        executor = Scripted(outcome)
        worker = parts.worker(executor)
        await steps.at(step, lambda: carry_out_in_vain(worker))  # noqa: B023
        await carry_out_in_vain(worker)
        assert len(executor.attempts) == len({attempt.run for attempt in executor.attempts}) == 3
        assert {attempt.number for attempt in executor.attempts} == {1}
        async with store.transaction() as tx:
            left = await tx.value("SELECT count(*) FROM runs WHERE state <> 'RETRYING'")
            assert (left, await tx.value("SELECT count(*) FROM executions")) == (0, 3), step
        assert counted(worker, "stale_settles") == 0
        assert await broken(store) == {}


# --- what waits, and what has expired ---------------------------------------------------------


async def test_a_fault_while_retries_come_due_leaves_none_waiting(
    store: Store, faulty: FaultyStore, parts: Parts
) -> None:
    steps = Steps(faulty.faults)
    for step in steps.each():
        await begin(store, faulty, at=T)
        async with store.transaction() as tx:
            made = await seeds.ready(tx, count=3)
            await seeds.claim(tx)
            await seeds.settle(tx, *[seeds.retried(seeds.held(run), SECOND) for run in made])
        retries = parts.retries()
        await retries.tick()
        store.now = faulty.now = T + 2 * SECOND
        await steps.at(step, retries.tick)
        await retries.tick()
        async with store.transaction() as tx:
            assert await tx.value("SELECT count(*) FROM runs WHERE state = 'READY'") == 3, step
        assert await broken(store) == {}


async def test_a_fault_while_leases_are_reaped_settles_each_once(
    store: Store, faulty: FaultyStore
) -> None:
    steps = Steps(faulty.faults)
    for step in steps.each(FEW):
        await begin(store, faulty, at=T)
        async with store.transaction() as tx:
            await tx.execute("DELETE FROM lanes WHERE name <> 'default'")
            await seeds.ready(tx, count=3)
            await seeds.claim(tx)
        store.now = faulty.now = T + (seeds.LEASE_SEC + 1) * SECOND
        reaper = Reaper(faulty, Metrics(), Wakeups(faulty))
        await steps.at(step, reaper.tick)
        reaper._passed_at = 0
        await reaper.tick()
        async with store.transaction() as tx:
            rows = await tx.rows("SELECT status FROM executions")
            assert [row["status"] for row in rows] == ["LEASE_EXPIRED"] * 3, step
        assert await broken(store) == {}


# --- the past of a job ------------------------------------------------------------------------


async def test_a_fault_while_the_past_is_backfilled_opens_none_twice_and_leaves_none(
    store: Store, faulty: FaultyStore
) -> None:
    steps = Steps(faulty.faults)
    hour = timedelta(hours=1)
    for step in steps.each():
        await begin(store, faulty, at=T)
        async with store.transaction() as tx:
            await tx.execute("DELETE FROM operations")
            wanted = Interval(3_600, T - 9 * hour, overlap="allow")
            job = await backfills.recurring(tx, wanted, T - 9 * hour)
            await backfills.on_record(tx, job, T - 2 * hour, "COMPLETE")
        operation = await backfills.ask(store, job, T - 3 * hour, T - hour)
        loop = backfills.loop_over(faulty)
        await steps.at(step, loop.tick)
        for n in range(1, 5):
            store.now = faulty.now = T + 2 * n * SECOND
            await loop.tick()
        row = await backfills.shown(store, operation)
        assert (row["state"], row["looked_at"], row["done"]) == ("DONE", 3, 2), step
        assert await backfills.opened(store, job) == [T - 3 * hour, T - hour]
        assert await broken(store) == {}
