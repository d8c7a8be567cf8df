"""Commits in any order, however late, against floors: what was committed is found.

Time is set: a transaction takes its rank at one virtual moment and is committed at another, while
claims and ticks go on. The transactions are real and open at the same time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from noonday.domain.fair import Ranker
from noonday.domain.lifecycle import Event, Transition
from noonday.domain.model import ExecutionStatus, RunKey
from noonday.domain.ranking import LATE_COMMIT, Work
from noonday.loops.worker import Worker
from noonday.store import Store, Tx, dead_letters, holds, runs
from noonday.store.settlements import Settlement
from tests.support import seeds
from tests.support.database import open_store
from tests.support.holds import blocked
from tests.support.invariants import broken
from tests.support.letters import lie_there
from tests.support.scripted import Parts, Scripted, counted, landed
from tests.support.seeds import OTHER_WORKER

T = datetime.now(UTC)
SECOND = timedelta(seconds=1)
STEPS = 24
"""Virtual seconds that a test lasts; everything is committed by their end."""

Way = Callable[[Tx], Awaitable[object]]


@pytest.fixture
async def parts(store: Store, tmp_path: Path) -> AsyncIterator[Parts]:
    made = Parts(store, tmp_path)
    yield made
    made.close()


class Late(NamedTuple):
    """A transaction that takes its rank at one step and is committed at a later one."""

    way: Way
    begins: int
    ends: int


class Commits:
    """Transactions that are open until their step comes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._planned: Sequence[Late] = ()
        self._open: dict[Late, tuple[asyncio.Event, asyncio.Task[None]]] = {}

    def plan(self, planned: Sequence[Late]) -> None:
        self._planned = planned

    async def step(self, at: int) -> None:
        """Begin what begins at this step, commit what ends."""
        for late in self._planned:
            if late.begins == at:
                begun, go = asyncio.Event(), asyncio.Event()
                self._open[late] = go, asyncio.create_task(self._run(late, begun, go))
                await begun.wait()
        for late in [late for late in self._open if late.ends == at]:
            go, task = self._open.pop(late)
            go.set()
            await task

    async def _run(self, late: Late, begun: asyncio.Event, go: asyncio.Event) -> None:
        try:
            async with self._store.transaction() as tx:
                tx.now = T + late.begins * SECOND
                await tx.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
                await late.way(tx)
                begun.set()
                await go.wait()
        finally:
            begun.set()


@pytest.fixture
async def commits(database_url: str) -> AsyncIterator[Commits]:
    store = await open_store(database_url, size=24)
    yield Commits(store)
    await store.close()


# --- each way back ----------------------------------------------------------------------------


def inserting(priority: int) -> Way:
    async def way(tx: Tx) -> None:
        await seeds.ready(tx, priority=priority)

    return way


async def retrying(tx: Tx) -> None:
    assert await runs.retry_due(tx, 1) == 1


def writing(run: RunKey, event: Event) -> Way:
    status = {
        Event.INTERRUPT: ExecutionStatus.INTERRUPTED,
        Event.EXPIRE: ExecutionStatus.LEASE_EXPIRED,
    }.get(event)

    async def way(tx: Tx) -> None:
        item = Settlement(seeds.held(run), Transition(event, status), seeds.FAILURE)
        assert await seeds.settle(tx, item)

    return way


async def ways_back(store: Store, each: int) -> list[Way]:
    """So many of each: inserted, retried, interrupted, handed back, reaped."""
    store.now = T - 100 * SECOND
    async with store.transaction() as tx:
        await seeds.ready(tx, count=4 * each)
        claimed = [runs.key_of(row) for row in await seeds.claim(tx, worker=OTHER_WORKER)]
    waiting, rest = claimed[:each], claimed[each:]
    async with store.transaction() as tx:
        await seeds.settle(tx, *[seeds.retried(seeds.held(run)) for run in waiting])
    return [
        *[inserting(priority % 10) for priority in range(each)],
        *[retrying] * each,
        *[writing(run, Event.INTERRUPT) for run in rest[:each]],
        *[writing(run, Event.HAND_BACK) for run in rest[each : 2 * each]],
        *[writing(run, Event.EXPIRE) for run in rest[2 * each :]],
    ]


def at_random(chance: random.Random, ways: Sequence[Way], longest: int) -> list[Late]:
    planned = []
    for way in ways:
        begins = chance.randrange(STEPS - longest)
        planned.append(Late(way, begins, begins + chance.randint(0, longest)))
    return planned


async def sweep_and_claim(worker: Worker) -> None:
    await worker.sweep()
    await worker.tick()
    await landed(worker)


# --- claims -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
async def test_what_is_committed_in_time_is_claimed_without_a_sweep(
    store: Store, parts: Parts, commits: Commits, seed: int
) -> None:
    chance = random.Random(seed)
    ways = await ways_back(store, 4)
    longest = int(LATE_COMMIT.total_seconds())
    commits.plan(at_random(chance, ways, longest))
    executor = Scripted()
    worker = parts.worker(executor)
    for step in range(STEPS + 1):
        store.now = T + step * SECOND
        await commits.step(step)
        if chance.random() < 0.7 or step == STEPS:
            await worker.tick()
            await landed(worker)
            await worker.settling.tick()
    assert len({attempt.run for attempt in executor.attempts}) == len(ways)
    assert len(executor.attempts) == len(ways)
    await worker.sweep()
    assert counted(worker, "floor_stragglers") == 0
    assert not await broken(store)


@pytest.mark.parametrize("seed", range(4))
async def test_what_is_committed_too_late_is_claimed_after_the_next_sweep(
    store: Store, parts: Parts, commits: Commits, seed: int
) -> None:
    chance = random.Random(seed)
    ways = await ways_back(store, 4)
    commits.plan(at_random(chance, ways, 20))
    executor = Scripted()
    worker = parts.worker(executor)
    for step in range(STEPS + 1):
        store.now = T + step * SECOND
        await commits.step(step)
        await worker.tick()
        await landed(worker)
    missed = len(ways) - len(executor.attempts)
    assert missed > 0, "or this shows nothing"
    await sweep_and_claim(worker)
    assert len(executor.attempts) == len({each.run for each in executor.attempts}) == len(ways)
    assert 0 < counted(worker, "floor_stragglers") <= missed
    await worker.settling.tick()
    assert not await broken(store)


async def test_a_straggler_is_claimed_although_a_claim_was_under_way_while_it_was_found(
    store: Store, parts: Parts
) -> None:
    executor = Scripted()
    worker = parts.worker(executor)
    store.now = T
    await worker.tick()
    async with store.transaction() as tx:
        tx.now = T - 60 * SECOND
        await seeds.ready(tx)
    async with store.transaction() as tx:
        await tx.execute("LOCK TABLE runs IN SHARE MODE")  # reads go on, a claim waits
        claiming = asyncio.create_task(worker.tick())
        await blocked(store, "candidate AS MATERIALIZED")
        await worker.sweep()
    assert await claiming == 0
    assert counted(worker, "floor_stragglers") == 1
    assert await worker.tick() == 1
    await landed(worker)


# --- in both bands ----------------------------------------------------------------------------


def ranked(ranker: Ranker, way: str, tenant: int, priority: int, count: int) -> Way:
    """A way back by which runs get their ranks from the ranker of a process."""

    async def insert(tx: Tx) -> None:
        await seeds.ready(tx, priority=priority, tenant=tenant, count=count, ranks=ranker.ranks)

    async def retry(tx: Tx) -> None:
        assert await runs.retry_due(tx, 1, ranks=ranker.ranks) == 1

    async def admit(tx: Tx) -> None:
        assert await holds.admit(tx, seeds.HOLD_KEY, 1, ranks=ranker.ranks) == 1

    async def reopen(tx: Tx) -> None:
        (letter,) = await tx.rows(
            "SELECT * FROM dead_letters WHERE state = 'DEAD' LIMIT 1 FOR UPDATE SKIP LOCKED"
        )
        work = Work(letter["tenant_id"], "default", priority, seeds.HOST)
        ranks = ranker.ranks([work], await tx.clock())
        again = await dead_letters.replay(
            tx, [runs.key_of(letter)], letter["tenant_id"], seeds.job_id(), ranks=ranks
        )
        assert len(again) == 1

    return {"insert": insert, "retry": retry, "admit": admit, "reopen": reopen}[way]


async def ranked_ways(store: Store, chance: random.Random, rankers: Sequence[Ranker]) -> list[Way]:
    """Each way some times, by any of the processes; half of the runs are one tenant's."""
    store.now = T - 100 * SECOND
    async with store.transaction() as tx:
        await lie_there(tx, 4)
        made = await seeds.ready(tx, count=8)
        await seeds.claim(tx, worker=OTHER_WORKER)
        await seeds.settle(tx, *[seeds.retried(seeds.held(run)) for run in made[:4]])
        await seeds.settle(tx, *[seeds.handed_back(seeds.held(run)) for run in made[4:]])
        for run in made[4:]:
            await seeds.hold(tx, run)
    each = [("insert", chance.choice((1, 3))) for _ in range(12)]
    each += [(way, 1) for way in ("retry", "admit", "reopen") for _ in range(4)]
    return [
        ranked(
            chance.choice(rankers), way, chance.choice((1, 1, 2, 3)), chance.choice((0, 5, 9)), n
        )
        for way, n in each
    ]


class Processes:
    """Two processes that rank and one worker with few slots, moved on a second at a time."""

    def __init__(self, store: Store, parts: Parts) -> None:
        self.store = store
        self.rankers = [Ranker(), Ranker()]
        for ranker in self.rankers:
            ranker.learn([(tenant, seeds.HOST, 1.0) for tenant in (1, 2, 3)])
        self.fairness = [parts.fairness(ranker) for ranker in self.rankers]
        self.executor = Scripted()
        self.worker = parts.worker(self.executor, slots=2)

    async def step(self) -> int:
        started = len(self.executor.attempts)
        await self.worker.tick()
        self.worker.beats._reported_at = float("-inf")
        await self.worker.beats.tick()
        await landed(self.worker)
        await self.worker.settling.tick()
        for fairness in self.fairness:
            await fairness.tick()
        return len(self.executor.attempts) - started

    async def drain(self) -> None:
        for step in range(STEPS + 1, STEPS * 10):
            self.store.now = T + step * SECOND
            if not await self.step():
                break


QUEUED = "SELECT count(*) FROM runs WHERE rank > '2900-01-01'"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("longest", "late"), [(1, False), (20, True)])
async def test_in_front_and_queued_all_is_claimed_without_a_sweep_or_found_by_it_and_counted(
    store: Store, parts: Parts, commits: Commits, seed: int, longest: int, late: bool
) -> None:
    chance = random.Random(seed)
    processes = Processes(store, parts)
    commits.plan(at_random(chance, await ranked_ways(store, chance, processes.rankers), longest))
    queued = 0
    for step in range(STEPS + 1):
        store.now = T + step * SECOND
        await commits.step(step)
        await processes.step()
        async with store.transaction() as tx:
            queued += await tx.value(QUEUED)
    await processes.drain()
    assert queued, "or this shows only one band"
    async with store.transaction() as tx:
        missed = await tx.value("SELECT count(*) FROM runs WHERE claimable")
    if not late:
        assert missed == 0
    await processes.worker.sweep()
    assert (counted(processes.worker, "floor_stragglers") > 0) == (missed > 0)
    await processes.drain()
    async with store.transaction() as tx:
        assert await tx.value("SELECT count(*) FROM runs") == 0
    assert not await broken(store)


# --- what waits for a time --------------------------------------------------------------------


def failing(run: RunKey) -> Way:
    async def way(tx: Tx) -> None:
        assert await seeds.settle(tx, seeds.retried(seeds.held(run), SECOND))

    return way


@pytest.mark.parametrize(("longest", "late"), [(5, False), (20, True)])
async def test_a_retry_that_is_committed_late_is_due_at_once_or_at_the_next_full_pass(
    store: Store, parts: Parts, commits: Commits, longest: int, late: bool
) -> None:
    store.now = T - SECOND
    async with store.transaction() as tx:
        made = await seeds.ready(tx, count=20)
        await seeds.claim(tx, worker=OTHER_WORKER)
    ways = [failing(run) for run in made]
    commits.plan(at_random(random.Random(longest), ways, longest))
    retries, ready = parts.retries(), 0
    for step in range(STEPS + 1):
        store.now = T + step * SECOND
        await commits.step(step)
        ready += await retries.tick()
    assert (ready < len(made)) == late
    retries._passed_at -= 1_000
    assert ready + await retries.tick() == len(made)
    assert not await broken(store)


# --- ticks ------------------------------------------------------------------------------------


def arming(begins: int) -> Way:
    async def way(tx: Tx) -> None:
        at = T + begins * SECOND
        await seeds.armed(tx, seeds.every(3_600, at), at)

    return way


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("longest", "late"), [(5, False), (20, True)])
async def test_a_timer_that_is_committed_late_fires_at_once_or_after_the_next_sweep(
    store: Store, parts: Parts, commits: Commits, seed: int, longest: int, late: bool
) -> None:
    chance = random.Random(seed)
    planned = []
    for _ in range(24):
        begins = chance.randrange(STEPS - longest)
        ends = begins + chance.randint(0, longest)
        planned.append(Late(arming(begins), begins, ends))
    commits.plan(planned)
    scheduler = parts.scheduler()
    for step in range(STEPS + 1):
        store.now = T + step * SECOND
        await scheduler.keep_shards()
        await commits.step(step)
        await scheduler.tick()
    missed = len(planned) - await fired(store)
    assert (missed > 0) == late
    await scheduler.sweep()
    await scheduler.tick()
    assert await fired(store) == len(planned)
    assert (counted(scheduler, "floor_stragglers") > 0) == late
    assert not await broken(store)


async def fired(store: Store) -> int:
    async with store.transaction() as tx:
        return int(await tx.value("SELECT count(*) FROM occurrences WHERE occurrence_at < $1",
                                  T + STEPS * SECOND))  # fmt: skip
