"""PGD: many at work on the same rows, a big future, a herd, and what is pruned."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from noonday.domain.errors import StoreUnavailable
from noonday.domain.model import (
    EPOCH,
    SHARDS,
    Cron,
    Once,
    Outcome,
    OutcomeKind,
    RetryPolicy,
    shard_of,
)
from noonday.loops.janitor import Janitor
from noonday.loops.worker import Worker
from noonday.settings import Retention
from noonday.store import Store, cancels, dead_letters, jobs, locks, occurrences, retention, timers
from noonday.store.blobs import LocalBlobs
from noonday.store.cancels import Which
from noonday.store.runs import key_of
from noonday.store.secretbox import SecretBox
from tests.field.durations import scaled
from tests.support import seeds
from tests.support.database import open_store
from tests.support.holds import eventually
from tests.support.invariants import broken
from tests.support.plans import pages
from tests.support.scripted import Parts, Scripted, carry_out, landed
from tests.support.servers import Answered, a_context, a_job, running_api

SEED = int(os.environ.get("NOONDAY_TEST_SEED", "20270314"))
SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
T = datetime.now(UTC)
OWNED = list(range(SHARDS))


async def value(store: Store, query: str, *args: object) -> Any:
    async with store.transaction() as tx:
        return await tx.value(query, *args)


# --- many at work on the same rows ------------------------------------------------------------

UNFINISHED = "SELECT count(*) FROM runs"
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
COUNTS = """
SELECT count(*) AS ledger,
       count(*) FILTER (WHERE outcome = 'FAILED') AS failed,
       count(*) FILTER (WHERE outcome IN ('COMPLETE', 'FAILED', 'CANCELLED')) AS ended,
       (SELECT count(*) FROM dead_letters WHERE state = 'DEAD') AS letters,
       (SELECT count(*) FROM dead_letters WHERE replayed_at IS NOT NULL) AS replayed,
       (SELECT count(*) FROM jobs) AS jobs
FROM occurrences
"""
REPLAYABLE = """
SELECT d.job_id, d.occurrence_at, d.kind FROM dead_letters AS d JOIN jobs AS j ON j.id = d.job_id
WHERE d.state = 'DEAD' AND d.replayed_at IS NULL AND j.state <> 'CANCELLED' LIMIT 20
"""
POLICY = RetryPolicy(max_attempts=3, base_sec=0.1, cap_sec=0.2)
OUTCOMES = [
    *[Outcome(OutcomeKind.SUCCESS, http_status=200)] * 6,
    *[Outcome(OutcomeKind.TRANSIENT, http_status=503)] * 2,
    Outcome(OutcomeKind.PERMANENT, http_status=404),
]


class Moody(Scripted):
    """Answers at random."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    async def answer(self, attempt: object) -> Outcome:
        return self._chance.choice(OUTCOMES)


class Crowd:
    """Parts that go on beside each other until all runs have ended, and what went wrong."""

    def __init__(self, store: Store, runs: Sequence[UUID], chance: random.Random) -> None:
        self.store = store
        self.faults: list[str] = []
        self._jobs = list(runs)
        self._chance = chance
        self._over = asyncio.Event()

    async def work(self, parts: list[Callable[[], Awaitable[object]]]) -> None:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(self._again_and_again(part))
            await eventually(self._are_done, scaled(60, 3_600))
            self._over.set()

    async def _are_done(self) -> bool:
        async with self.store.transaction() as tx:
            return await tx.value(UNFINISHED) == 0 and not await tx.rows(REPLAYABLE)

    async def _again_and_again(self, part: Callable[[], Awaitable[object]]) -> None:
        while not self._over.is_set():
            try:
                await part()
            except StoreUnavailable as error:
                self.faults.append(str(error))
            await asyncio.sleep(0)

    def claiming(self, worker: Worker) -> Callable[[], Awaitable[object]]:
        async def part() -> None:
            await carry_out(worker)
            await worker.beats.tick()

        return part

    def losing(self, worker: Worker) -> Callable[[], Awaitable[object]]:
        """Takes runs and is never heard of again: the reaper gets them back."""

        async def part() -> None:
            async with self.store.transaction() as tx:
                await seeds.claim(tx, limit=3, worker=worker.id)
            await asyncio.sleep(0.1)

        return part

    async def archive(self) -> None:
        async with self.store.transaction() as tx:
            await retention.shorten_locks(tx)
            later = datetime.now(UTC) + DAY
            await retention.delete_ended(tx, UUID(int=0), later, later, 200)

    async def replay(self) -> None:
        """Each letter once."""
        async with self.store.transaction() as tx:
            letters = [key_of(row) for row in await tx.rows(REPLAYABLE)]
            await dead_letters.replay(tx, letters, seeds.TENANT, uuid4())
        await asyncio.sleep(0.02)

    async def cancel(self) -> None:
        for job in self._chance.sample(self._jobs, 5):
            async with self.store.transaction() as tx:
                await locks.own_shard(tx, shard_of(job))
                await timers.disarm(tx, job)
                await cancels.lock(tx, Which(job))
                await cancels.request(tx, Which(job), "cancelled", stop=True)
                await cancels.cancel(tx, Which(job), "cancelled")
                await jobs.cancel(tx, job, "cancelled")


async def test_archiving_claiming_reaping_retrying_cancelling_and_replaying_get_along(
    database_url: str, tmp_path: Path
) -> None:
    """PGD-04: no deadlock, also none that is hidden by a retry; no row is lost or there twice."""
    chance = random.Random(SEED)
    store = await open_store(database_url, size=24)
    parts = Parts(store, tmp_path)
    count = scaled(1_500, 100_000)
    made: list[UUID] = []
    for _ in range(count // 500):
        async with store.transaction() as tx:
            ready = await seeds.ready(tx, count=500, policy=POLICY, lease_sec=1)
        made += [run.job_id for run in ready]
    crowd = Crowd(store, made, chance)
    reaper, retries = parts.reaper(), parts.retries()
    workers = [parts.worker(Moody(chance), slots=20) for _ in range(8)]
    await crowd.work(
        [
            *(crowd.claiming(worker) for worker in workers),
            crowd.losing(parts.worker(Scripted())),
            *[crowd.archive] * 4,
            crowd.cancel,
            crowd.replay,
            reaper.tick,
            retries.tick,
        ]
    )
    for worker in workers:
        await landed(worker)
        await worker.settling.tick()
    async with store.transaction() as tx:
        counts = await tx.one(COUNTS)
    await store.close()
    parts.close()
    print(dict(counts), crowd.faults)
    assert (counts["ledger"], counts["ended"]) == (count, count)
    assert counts["failed"] == counts["letters"] > 0
    assert counts["replayed"] > 0
    assert counts["letters"] <= counts["jobs"] < count
    assert not [fault for fault in crowd.faults if "deadlock" in fault.lower()]
    witness = await open_store(database_url, size=1)
    assert await value(witness, DEADLOCKS) == 0
    assert not await broken(witness)
    await witness.close()


# --- a big future, and a herd -----------------------------------------------------------------

A_YEAR = """
INSERT INTO timers (job_id, occurrence_at, due_at, schedule_version, seq, shard)
SELECT gen_random_uuid(), at, at, 1, 0, n % 64
FROM generate_series(1, $2) AS n,
     LATERAL (SELECT $1::timestamptz + n * (interval '365 days' / $2) AS at) AS t
"""
FIRED = "SELECT count(*) FROM runs"
ORDER = "SELECT count(*) FROM runs WHERE due_at = $1"


async def test_what_is_due_in_the_future_costs_a_tick_nothing(store: Store) -> None:
    """PGD-05: a look finds as little to read among two million delayed jobs as among none."""
    store.now = T
    before = await looks(store)
    async with store.direct() as connection:  # which has no time limits
        await connection.execute(A_YEAR, T + HOUR, scaled(100_000, 2_000_000))
    after = await looks(store)
    print(before, after)
    for look, cost in after.items():
        assert cost <= before[look] + 8, look


async def looks(store: Store) -> dict[str, int]:
    """Pages that an idle tick and a sweep read, from the floor and from the very beginning."""
    soon = T + SECOND
    return {
        "tick": await pages(
            store, timers.DUE, lambda tx: timers.due(tx, T - 5 * SECOND, T, OWNED, 500)
        ),
        "next": await pages(store, timers.NEXT_DUE, lambda tx: timers.next_due(tx, T, soon, OWNED)),
        "sweep": await pages(
            store, timers.NEXT_DUE, lambda tx: timers.next_due(tx, EPOCH, T, OWNED)
        ),
    }


async def test_a_herd_at_one_second_fires_whole_and_oldest_first(
    store: Store, parts: Parts
) -> None:
    """PGD-05: cron jobs that are all due at midnight, and one a second before and after."""
    store.now = at = T.replace(microsecond=0)
    size = scaled(2_000, 200_000)
    for _ in range(size // 500):
        async with store.transaction() as tx:
            await seeds.armed(tx, Cron("0 0 * * *"), at, count=500)
    async with store.transaction() as tx:
        for other in (at - SECOND, at + SECOND):
            await seeds.armed(tx, Once(other), other)
    scheduler = parts.scheduler()
    store.now = at + 2 * SECOND
    await scheduler.keep_shards()
    begun, read = time.monotonic(), [await scheduler.tick()]
    assert await value(store, ORDER, at - SECOND) == 1, "the oldest is among the first"
    while ticked := await scheduler.tick():
        read.append(ticked)
        await scheduler.keep_shards()
    print(f"{size} in {time.monotonic() - begun:.1f} s")
    assert (sum(read), len(read)) == (size + 2, size // 500 + 1), "none is read in vain"
    assert await value(store, FIRED) == size + 2
    assert not await broken(store)


# --- retention --------------------------------------------------------------------------------

JOBS = "SELECT count(*) FROM jobs"
LETTERS = "SELECT count(*) FROM dead_letters"
LEDGER = "SELECT count(*) FROM occurrences"


@pytest.fixture
async def parts(store: Store, tmp_path: Path) -> AsyncIterator[Parts]:
    made = Parts(store, tmp_path)
    yield made
    made.close()


async def test_what_is_pruned_takes_no_protection_against_duplicates_along(
    store: Store, tmp_path: Path, parts: Parts
) -> None:
    """PGD-07: jobs go, their keys and occurrences are remembered as long as was promised, and
    dead letters stay."""
    store.now = T
    blobs = LocalBlobs(tmp_path / "blobs")
    kept = Retention(success_days=1, failure_days=2, ledger_days=5, idempotency_hours=24 * 30)
    janitor = Janitor(store, blobs, kept, leads=lambda: True)
    executor = Scripted(Outcome(OutcomeKind.PERMANENT, http_status=404), seeds.SUCCESS)
    box = SecretBox([bytes(32)])  # that of the worker, too
    async with running_api(a_context(store, tmp_path / "payloads", secretbox=box)) as api:

        async def post(n: int) -> Answered:
            body = a_job(schedule={"type": "once"}, name=f"job {n}")
            return await api.admin.post("/v1/jobs", body, idempotency_key=f"key-{n}")

        first = [await post(n) for n in range(scaled(40, 5_000))]
        await carry_out(parts.worker(executor, slots=10_000))
        assert await value(store, UNFINISHED) == 0

        await pass_time(store, janitor, days=3)
        assert await value(store, JOBS) == 1, "the one with a dead letter"
        again = [await post(n) for n in range(len(first))]
        assert [one.raw for one in again] == [one.raw for one in first]
        assert {one.headers["idempotent-replayed"] for one in again} == {"true"}
        assert await value(store, UNFINISHED) == 0

        await pass_time(store, janitor, days=30)
        assert (await post(1)).body["id"] != first[1].body["id"], "a key is kept for 30 days"
    await pass_time(store, janitor, days=40)
    assert await value(store, LETTERS) == 1
    assert await value(store, JOBS) >= 1
    blobs.close()


async def pass_time(store: Store, janitor: Janitor, *, days: int) -> None:
    """Let days go by, and then do all that there is to do."""
    assert store.now is not None
    store.now += days * DAY
    while await janitor.tick():
        pass


@pytest.mark.parametrize(("days", "kept"), [(1, 1), (50, 0)])
async def test_an_occurrence_that_was_pruned_is_not_made_again(
    store: Store, tmp_path: Path, parts: Parts, days: int, kept: int
) -> None:
    """PGD-07: a timer that comes back, from a backup or by a mistake, after any time."""
    store.now = at = T.replace(microsecond=0)
    async with store.transaction() as tx:
        (job,) = await seeds.armed(tx, Cron("0 0 1 1 *"), at)
    scheduler, executor = parts.scheduler(), Scripted()
    await scheduler.keep_shards()
    await scheduler.tick()
    await carry_out(parts.worker(executor))
    blobs = LocalBlobs(tmp_path / "blobs")
    janitor = Janitor(store, blobs, Retention(ledger_days=5), leads=lambda: True)
    await pass_time(store, janitor, days=days)
    blobs.close()
    assert await value(store, LEDGER) == kept
    async with store.transaction() as tx:
        await timers.disarm(tx, job)
        fired = [seeds.fired(job, store.now)]
        armed = timers.Timer(job, at, store.now, 1, 0, shard_of(job))
        await timers.arm(tx, [armed], store.now)
        entries = [seeds.open_entry(job, at)]
        written = await occurrences.materialize(tx, fired, entries, [], store.now)
    assert (written.fired, written.ready) == (1, 0)
    assert await value(store, UNFINISHED) == 0
    assert len(executor.attempts) == 1
