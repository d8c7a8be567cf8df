"""Everybody at the same rows at once: nobody waits in a circle, and the counts add up."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from noonday.domain.lifecycle import Event, Transition
from noonday.domain.model import ExecutionStatus, Reason, RunKey, shard_of
from noonday.loops.reaper import Reaper
from noonday.loops.retries import Retries
from noonday.store import Store, cancels, dead_letters, jobs, locks, retention, runs
from noonday.store.runs import Held, held_key
from noonday.store.settlements import Settlement
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics
from tests.support import seeds
from tests.support.database import open_store
from tests.support.invariants import broken

ROUNDS = 40
AT_ONCE = 40
"""Runs that one claim takes, and jobs that are added in a round."""
CLAIMERS = 4
DEAD = Transition(Event.DEAD_LETTER, ExecutionStatus.FAILED, reason=Reason.PERMANENT_ANSWER)

Act = Callable[[Store, random.Random], Awaitable[None]]


class Crowd:
    """What they do, each over and over, and what came of it."""

    def __init__(self) -> None:
        self.did: Counter[str] = Counter()

    async def add(self, store: Store, chance: random.Random) -> None:
        async with store.transaction() as tx:
            # Half of the leases run out at once: the reaper is always a rival of the holder.
            made = await seeds.ready(
                tx, count=AT_ONCE, lease_sec=chance.choice((0, 60)), priority=chance.randrange(3)
            )
        self.did["added"] += len(made)

    async def carry_out(self, store: Store, chance: random.Random) -> None:
        worker = uuid4()
        async with store.transaction() as tx:
            claimed = await runs.claim(tx, "default", seeds.ranges(), AT_ONCE, worker)
        held = [held_key(row) for row in claimed.rows]
        chance.shuffle(held)
        async with store.transaction() as tx:
            await cancels.asked(tx, worker, 100)
        async with store.transaction() as tx:
            await runs.heartbeat(tx, [(one, 60) for one in held])
        async with store.transaction() as tx:
            done = await seeds.settle(tx, *(self._outcome(one, chance) for one in held))
        self.did["settled"] += len(done)

    def _outcome(self, held: Held, chance: random.Random) -> Settlement:
        return chance.choice(
            [
                seeds.completed(held),
                seeds.retried(held, timedelta()),
                seeds.stopped(held),
                seeds.interrupted(held),
                seeds.handed_back(held),
                Settlement(held, DEAD, seeds.FAILURE),
            ]
        )

    async def reap(self, store: Store, _: random.Random) -> None:
        reaper = Reaper(store, Metrics(), Wakeups(store))
        self.did["reaped"] += await reaper.tick()

    async def retry(self, store: Store, _: random.Random) -> None:
        self.did["retried"] += await Retries(store, Wakeups(store)).tick()

    async def cancel(self, store: Store, chance: random.Random) -> None:
        """Of all jobs there are, a few."""
        async with store.transaction() as tx:
            found = await tx.rows("SELECT id FROM jobs ORDER BY id DESC LIMIT 500")
        for row in chance.sample(list(found), min(5, len(found))):
            async with store.transaction() as tx:
                await locks.own_shard(tx, shard_of(row["id"]))
                job = await jobs.one(tx, row["id"], seeds.TENANT)
                if job is not None:
                    stop = chance.random() < 0.5
                    self.did["cancelled"] += await cancels.cancel_job(tx, job, "asked", stop=stop)

    async def replay(self, store: Store, chance: random.Random) -> None:
        async with store.transaction() as tx:
            found = await tx.rows(
                "SELECT job_id, kind, occurrence_at FROM dead_letters WHERE state = 'DEAD'"
            )
        letters = [RunKey(*row.values()) for row in found]
        some = chance.sample(letters, min(20, len(letters)))
        async with store.transaction() as tx:
            for shard in sorted({shard_of(letter.job_id) for letter in some}):
                await locks.own_shard(tx, shard)
            done = await dead_letters.replay(tx, some, seeds.TENANT, uuid4(), again=True)
        self.did["replayed"] += len(done)

    async def forget(self, store: Store, _: random.Random) -> None:
        async with store.transaction() as tx:
            now = await tx.clock()
            self.did["deleted"] += (
                await retention.delete_ended(tx, UUID(int=0), now, now, 10_000)
            ).jobs


@pytest.fixture
async def stores(database_url: str) -> AsyncIterator[list[Store]]:
    async with AsyncExitStack() as stack:
        made = [await open_store(database_url, size=1) for _ in range(12)]
        for store in made:
            stack.push_async_callback(store.close)
        yield made


async def over_and_over(act: Act, store: Store, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(ROUNDS):
        await act(store, chance)


async def beside(others: Sequence[asyncio.Task[None]], act: Act, store: Store, seed: int) -> None:
    """The same for as long as the others go on, and once more: it has to meet what they leave."""
    while not all(other.done() for other in others):
        await over_and_over(act, store, seed)
    await act(store, random.Random(seed))


@pytest.mark.parametrize("seed", [1, 2])
async def test_claims_reaper_cancels_replays_and_retention_do_not_wait_in_a_circle(
    store: Store, stores: list[Store], seed: int
) -> None:
    crowd = Crowd()
    givers: list[Act] = [crowd.add, *[crowd.carry_out] * CLAIMERS]
    rivals: list[Act] = [
        crowd.reap, crowd.reap, crowd.retry, crowd.cancel, crowd.cancel, crowd.replay, crowd.forget,
    ]  # fmt: skip
    seeded = enumerate(stores, seed * 100)
    giving = [
        asyncio.create_task(over_and_over(act, one, n))
        for act, (n, one) in zip(givers, seeded, strict=False)
    ]
    found = await asyncio.gather(
        *giving,
        *(beside(giving, act, one, n) for act, (n, one) in zip(rivals, seeded, strict=False)),
        return_exceptions=True,
    )
    print(dict(crowd.did))
    assert [error for error in found if error is not None] == []
    assert all(crowd.did[name] for name in ("settled", "reaped", "retried", "cancelled", "deleted"))
    assert crowd.did["replayed"]
    assert await broken(store) == {}
    async with store.transaction() as tx:
        kept = await tx.value("SELECT count(*) FROM jobs")
        lost = await tx.value(
            "SELECT count(*) FROM jobs WHERE NOT EXISTS "
            "(SELECT FROM occurrences AS o WHERE o.job_id = jobs.id)"
        )
    assert (kept + crowd.did["deleted"], lost) == (crowd.did["added"], 0)
