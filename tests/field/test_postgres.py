"""PGD: old snapshots, poolers, lost connections, locks, scale and retention."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from noonday.client import NoondayApiError, NoondayConnectionError
from noonday.domain.model import Cron, Outcome, OutcomeKind, RetryPolicy
from noonday.domain.ranking import Floors
from noonday.embedded import EmbeddedPostgres
from noonday.store import Store, Tx, gauges, runs, timers
from noonday.store.wakeups import POLL_SEC
from tests.field.durations import scaled
from tests.support import seeds, upkeep
from tests.support.cluster import Cluster
from tests.support.holds import eventually
from tests.support.invariants import broken
from tests.support.links import Link
from tests.support.members import Member
from tests.support.pgbouncer import keeps_statements, pooling
from tests.support.plans import pages
from tests.support.postgres import WHEEL_MAJOR, open_folder, start_postgres
from tests.support.receivers import Answer
from tests.support.scripted import Parts, Scripted, carry_out
from tests.support.storm import MOODS, Storm, customers

SEED = int(os.environ.get("NOONDAY_TEST_SEED", "20270314"))
SECOND, MINUTE, HOUR = (timedelta(seconds=n) for n in (1, 60, 3_600))
T = datetime.now(UTC)
EVERY_SECOND = {"type": "cron", "cron": "* * * * * *", "overlap": "allow"}


async def value(store: Store, query: str, *args: object) -> Any:
    async with store.transaction() as tx:
        return await tx.value(query, *args)


# --- an old snapshot --------------------------------------------------------------------------

UNWELL = Outcome(OutcomeKind.TRANSIENT, http_status=503)
WELL = Outcome(OutcomeKind.SUCCESS, http_status=200)
SOON = RetryPolicy(base_sec=0.1, cap_sec=0.5)
BATCH = 250
LEFT = "SELECT count(*) FROM runs"
FIRED = "SELECT count(*) FROM occurrences WHERE outcome IS DISTINCT FROM 'MISSED'"
DONE = "SELECT count(*) FROM occurrences WHERE outcome = 'COMPLETE'"


class Mill:
    """A scheduler, a worker and retries, driven through time while much comes and goes."""

    def __init__(self, store: Store, parts: Parts) -> None:
        self.store = store
        self.executor = Scripted()
        self.scheduler = parts.scheduler()
        self.worker = parts.worker(self.executor, slots=1_000)
        self.retries = parts.retries()
        self.made = 0

    async def turn(self, seconds: int) -> None:
        """Each second a batch of runs that fail at first, and jobs that fire."""
        for _ in range(seconds):
            assert self.store.now is not None
            self.store.now += SECOND
            async with self.store.transaction() as tx:
                await seeds.ready(tx, count=BATCH, policy=SOON)
            self.executor.outcomes = [UNWELL]
            await carry_out(self.worker)
            self.store.now += SECOND
            assert await self.retries.tick() == BATCH
            await self.scheduler.keep_shards()
            while await self.scheduler.tick():
                pass
            self.executor.outcomes = [WELL]
            await carry_out(self.worker)
            self.executor.attempts.clear()  # a million of them would hold up the process
            self.made += BATCH

    async def costs(self) -> dict[str, int]:
        """Pages that one look of each loop takes, from where it begins to look."""
        now = self.store.now
        assert now is not None
        epochs, floor, pool = (
            self.scheduler.epochs,
            self.scheduler._floor,
            self.worker.pools["default"],
        )
        until = now - SECOND / 2
        looks: dict[str, Callable[[Tx], Awaitable[object]]] = {
            runs.CLAIM: lambda tx: claim(tx, pool.lanes["default"].floors),
            runs.RETRIES_DUE: lambda tx: runs.retry_due(tx, 100, self.retries._floor),
            runs.NEXT_RETRY: lambda tx: runs.next_retry(tx, self.retries._floor),
            timers.DUE: lambda tx: timers.due(tx, floor, until, sorted(epochs), 500),
        }
        return {each: await pages(self.store, each, look) for each, look in looks.items()}


async def claim(tx: Tx, floors: Floors) -> None:
    await runs.claim(tx, "default", seeds.ranges(floors), 64, seeds.OTHER_WORKER)


async def test_while_a_snapshot_is_held_open_claims_retries_and_ticks_cost_what_they_did(
    store: Store, parts: Parts
) -> None:
    """PGD-01: what they look at does not grow with what has come and gone; nothing is lost."""
    store.now = T
    mill = Mill(store, parts)
    async with store.transaction() as tx:
        await seeds.armed(
            tx, Cron("* * * * * *", overlap="allow"), T.replace(microsecond=0), count=20
        )
    await mill.turn(10)
    async with upkeep.a_reader(store, "jobs", for_long=False):
        await mill.turn(10)
        before = await mill.costs()
        begun = time.monotonic()
        await mill.turn(scaled(20, 1_800))
        after = await mill.costs()
        took = time.monotonic() - begun
        print(f"{mill.made} runs, {took:.1f} s, pages {[*before.values()]} → {[*after.values()]}")
        below = await pages(store, runs.CLAIM, lambda tx: claim(tx, Floors()))
        assert below > 4 * after[runs.CLAIM], "the dead are there, below the floors"
    for statement, cost in after.items():
        assert cost <= 2 * before[statement] + 20, statement
    async with store.direct() as connection:
        await connection.execute("VACUUM runs")
    assert await pages(store, runs.CLAIM, lambda tx: claim(tx, Floors())) < below / 10
    await carry_out(mill.worker)
    assert await value(store, LEFT) == 0
    assert await value(store, DONE) == await value(store, FIRED) > mill.made
    assert not await broken(store)


async def test_a_transaction_that_keeps_dead_rows_is_seen_with_its_age(store: Store) -> None:
    """PGD-01: what an operator can be alarmed by."""
    async with store.transaction() as tx:
        assert (await gauges.horizon(tx))["age_sec"] < 60
    async with upkeep.a_reader(store, "jobs"), store.transaction() as tx:
        row = await gauges.horizon(tx)  # the reader has been there for more than a second
    assert row["age_sec"] > 1
    assert row["transactions"] >= 0


# --- behind a pooler --------------------------------------------------------------------------

NOTHING_LEFT = "SELECT (SELECT count(*) FROM timers) + (SELECT count(*) FROM runs) = 0"


@pytest.mark.debian("pgbouncer")
@pytest.mark.parametrize("prepared", [0, 100] if keeps_statements() else [0])
async def test_behind_a_pooler_in_transaction_mode_everything_works_and_survives_kills(
    database_url: str, tmp_path: Path, prepared: int
) -> None:
    """PGD-02: five server connections for all processes, whether or not it keeps statements."""
    with (
        open_folder() as folder,
        pooling(database_url, folder, pool_size=5, prepared=prepared) as pooled,
    ):
        async with Cluster.over(
            database_url,
            tmp_path,
            database_url=pooled,
            database_direct_url=database_url,
            pgbouncer=True,
        ) as cluster:
            chance = random.Random(SEED)
            for path, answers in MOODS.items():
                # Mostly well: else its breaker opens, and what it holds has to wait.
                often = [Answer(), *answers], [9 * len(answers), *[1] * len(answers)]
                cluster.receiver.answer(path, *chance.choices(*often, k=20_000))
            members = await cluster.start("api", "scheduler", "scheduler", "worker", "worker")
            async with customers(cluster, chance):
                await Storm(members, chance).rage(scaled(3, 600))
                await asyncio.gather(*(member.ready(30) for member in members))
            for path in MOODS:
                cluster.receiver.answer(path, Answer())
            await cluster.drain(90)
            # What a client gave up on may still have been taken, and be due in two seconds.
            members[0].signal(signal.SIGTERM)
            await members[0].ended(15)
            await cluster.until(NOTHING_LEFT, deadline_sec=40)
            assert await cluster.check() == [], f"seed {SEED}"
            for member in members:
                assert "prepared statement" not in member.log
        assert "prepared statement" not in (folder / "log").read_text()


NOTIFICATIONS = "noonday_notifications_total"


async def test_without_a_way_round_the_pooler_work_is_found_by_polling_and_each_process_says_so(
    database_url: str, tmp_path: Path
) -> None:
    """PGD-02: LISTEN needs the direct URL; what it would have told is found without it."""
    link = Link(database_url)
    async with link.open():
        direct = {"database_direct_url": link.url}
        async with Cluster.over(database_url, tmp_path, **direct) as cluster:
            link.fault = "down"
            members = await cluster.start("api", "scheduler", "worker")
            for member in members:
                (said,) = await eventually(partial(member.said, "wakeups.lost"))
                assert said["wait_sec"] == POLL_SEC
            await cluster.post("/now")
            await cluster.post("/soon", schedule={"type": "once", "delay": "PT1S"})
            await cluster.receiver.wait_for(2, 15)
            assert await members[2].metric(NOTIFICATIONS) == 0
            link.fault = "none"
            for member in members:
                await eventually(partial(member.said, "wakeups.back"))
            await hears_again(cluster, members[2])
            await cluster.drain()
            assert await cluster.check() == []


async def hears_again(cluster: Cluster, worker: Member) -> None:
    """A wake-up gets through to the worker, which itself sends none."""
    heard = await worker.metric(NOTIFICATIONS)

    async def hears() -> bool:
        await cluster.post("/wake-up")
        return await worker.metric(NOTIFICATIONS) > heard

    await eventually(hears, 30)


# --- lost connections -------------------------------------------------------------------------

LISTENERS = """
SELECT coalesce(array_agg(pid), '{}') FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'noonday upkeep' AND query ~ $1
"""
END = "SELECT count(pg_terminate_backend(pid)) FROM unnest($1::int[]) AS pid"


async def test_a_listener_that_is_ended_listens_again(cluster: Cluster) -> None:
    """PGD-03 (a), again and again."""
    _, _, worker = await cluster.start("api", "scheduler", "worker")
    for _ in range(scaled(2, 20)):
        ended = await listeners(cluster)
        await cluster.value(END, ended)
        await eventually(partial(others_listen, cluster, ended))
        await hears_again(cluster, worker)
    assert worker.runs
    await cluster.drain()
    assert await cluster.check() == []


async def listeners(cluster: Cluster) -> list[int]:
    """The backends of the connections for wake-ups; those that send are counted as well."""
    found: list[int] = await cluster.value(LISTENERS, "LISTEN|SELECT pg_notify|SELECT 1|^SET")
    return found


async def others_listen(cluster: Cluster, than: list[int]) -> bool:
    now = await listeners(cluster)
    return len(now) >= 2 and not set(now) & set(than)


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """A server of its own, which a test may stop."""
    with open_folder() as folder:
        server = start_postgres(folder, int(os.environ.get("NOONDAY_TEST_POSTGRES", WHEEL_MAJOR)))
        yield server
        server.stop()


async def test_after_a_long_time_without_postgres_everything_goes_on_by_itself(
    server: EmbeddedPostgres, tmp_path: Path
) -> None:
    """PGD-03 (b): red meanwhile, no 202, and well again within 30 s, without a restart."""
    async with Cluster.over(server.dsn(), tmp_path) as cluster:
        members = await cluster.start("api", "scheduler", "worker")
        await cluster.post("/often", schedule=EVERY_SECOND)
        await cluster.receiver.wait_for(1, 20)
        server.stop()
        await through_an_outage(cluster, members, scaled(0, 600))
        server.start()
        await well_again(cluster, members)


async def through_an_outage(cluster: Cluster, members: list[Member], last_sec: float) -> None:
    """All are red and nothing is promised, until all have seen it and ``last_sec`` have passed."""
    until = time.monotonic() + last_sec
    await asyncio.gather(*(eventually(member.is_red, 30) for member in members), refused(cluster))
    while time.monotonic() < until:
        await refused(cluster)
        await asyncio.sleep(1)


async def refused(cluster: Cluster) -> None:
    async with cluster.client(retries=0, timeout_sec=20) as client:
        with pytest.raises((NoondayApiError, NoondayConnectionError)):
            await client.jobs.create(cluster.body("/lost"))


async def well_again(cluster: Cluster, members: list[Member]) -> None:
    pids = [member.pid for member in members]
    await asyncio.gather(*(member.ready(30) for member in members))
    await cluster.post("/after")
    await hears_again(cluster, members[-1])
    await cluster.drain(30)
    assert [member.pid for member in members if member.runs] == pids
    assert not cluster.receiver.of("/lost")
    assert await cluster.check() == []


@pytest.mark.parametrize("fault", ["silent", "forgotten"])
async def test_when_packets_were_dropped_silently_everything_goes_on_by_itself(
    database_url: str, tmp_path: Path, fault: str
) -> None:
    """PGD-03 (c): nobody is told that the connections are dead, and some stay so for good."""
    link = Link(database_url)
    async with link.open(), Cluster.over(database_url, tmp_path, database_url=link.url) as cluster:
        members = await cluster.start("api", "scheduler", "worker")
        await cluster.post("/often", schedule=EVERY_SECOND)
        await cluster.receiver.wait_for(1, 20)
        link.fault = fault  # type: ignore[assignment]
        await through_an_outage(cluster, members, scaled(0, 300))
        link.fault = "none"
        await well_again(cluster, members)
