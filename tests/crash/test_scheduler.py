"""Schedulers that are killed or stopped within the transaction that fires a timer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from uuid import UUID

from tests.support.cluster import Cluster
from tests.support.holds import Gate, blocked, eventually, holding
from tests.support.members import Member

SHARD_LEASE = timedelta(seconds=10)
EVERY_SECOND = {"type": "cron", "cron": "* * * * * *", "overlap": "allow"}

SHARED_OUT = """
SELECT count(DISTINCT owner_id) = $1 AND count(*) FILTER (WHERE leased_until > now()) = 64
FROM shards WHERE owner_id IS NOT NULL
"""
BOUNDARY = "SELECT date_trunc('second', now()) + interval '2 s'"
OWNER = """
SELECT w.pid FROM shards AS s JOIN workers AS w ON w.id = s.owner_id WHERE s.shard = $1
"""
SAME_LEDGER_KEY = """
INSERT INTO occurrences (job_id, occurrence_at, kind, tenant_id, due_at, materialized_at, attempts)
VALUES ($1, $2, 0, 1, now(), now(), 0)
"""
MATERIALIZE = "DELETE FROM timers"
OUTCOME = "SELECT outcome FROM occurrences WHERE job_id = $1 AND outcome IS NOT NULL"
WRITTEN_AT = "SELECT materialized_at FROM occurrences WHERE job_id = $1"
NOW = "SELECT clock_timestamp()"
STEAL = "UPDATE shards SET leased_until = now() - interval '1 s'"
TERMS = "SELECT min(epoch) FROM shards"
LAPSE = """
WITH late AS (UPDATE shards SET leased_until = now() - interval '1 s'
              WHERE owner_id IN (SELECT id FROM workers WHERE pid = $1))
UPDATE workers SET seen_at = seen_at - interval '1 minute' WHERE pid = $1
"""


async def a_pair(cluster: Cluster) -> None:
    """Two schedulers that share the shards, what else there is, and jobs for every second."""
    await cluster.start("api", "worker", "scheduler", "scheduler")
    await cluster.until(SHARED_OUT, 2)
    for _ in range(4):
        await cluster.post("/often", schedule=EVERY_SECOND)


@asynccontextmanager
async def caught_firing(cluster: Cluster) -> AsyncIterator[tuple[UUID, Member]]:
    """A one-off job due at the next full second, and the scheduler that is about to write it.

    It has deleted the timer and waits for the key of the ledger row. When the block ends it may
    go on.
    """
    at: datetime = await cluster.value(BOUNDARY)
    job = await cluster.post("/once", schedule={"type": "once", "run_at": at.isoformat()})
    pid = await cluster.value(OWNER, job.int % 64)
    member = next(member for member in cluster.members if member.pid == pid)
    async with holding(cluster.dsn, SAME_LEDGER_KEY, job, at):
        await blocked(cluster.store, MATERIALIZE)
        yield job, member


async def took(cluster: Cluster, job: UUID, since: datetime) -> timedelta:
    """How long it was until somebody else fired the job."""
    assert await cluster.until(OUTCOME, job, deadline_sec=30) == "COMPLETE"
    written_at: datetime = await cluster.value(WRITTEN_AT, job)
    return written_at - since


async def test_a_scheduler_killed_while_it_fires_is_replaced_within_its_lease_and_five_seconds(
    cluster: Cluster,
) -> None:
    await a_pair(cluster)
    async with caught_firing(cluster) as (job, victim):
        victim.kill()
        killed_at = await cluster.value(NOW)
    assert await took(cluster, job, killed_at) < SHARD_LEASE + timedelta(seconds=5)
    await cluster.drain()
    assert await cluster.check() == []


async def test_no_boundary_is_lost_or_doubled_however_often_schedulers_are_killed_at_one(
    cluster: Cluster,
) -> None:
    await a_pair(cluster)
    for _ in range(3):
        async with caught_firing(cluster) as (job, victim):
            pid = victim.pid
            victim.kill()
        victim.start()
        await cluster.execute(LAPSE, pid)
        assert await cluster.until(OUTCOME, job) == "COMPLETE"
        await victim.ready()
    await cluster.drain()
    assert await cluster.check() == []


async def test_shards_that_are_lost_and_taken_again_and_again_fire_everything_once(
    cluster: Cluster,
) -> None:
    await a_pair(cluster)
    for _ in range(5):
        terms = await cluster.value(TERMS)
        await cluster.execute(STEAL)
        await cluster.until(f"SELECT ({TERMS}) > $1", terms)
    await cluster.drain()
    assert await cluster.check() == []


async def test_a_scheduler_stopped_while_it_fires_is_replaced_and_cannot_write_afterwards(
    cluster: Cluster,
) -> None:
    await a_pair(cluster)
    async with caught_firing(cluster) as (job, sleeper):
        sleeper.freeze()
        frozen_at = await cluster.value(NOW)
    assert await took(cluster, job, frozen_at) < SHARD_LEASE + timedelta(seconds=5)
    sleeper.thaw()
    await eventually(lambda: sleeper.said("shard.lost"))
    await cluster.until(SHARED_OUT, 2)  # the same process leads again
    await cluster.drain()
    assert await cluster.check() == []


async def test_a_scheduler_killed_while_it_commits_has_fired(cluster: Cluster) -> None:
    _, _, scheduler = await cluster.start("api", "worker", "scheduler")
    at = await cluster.value(BOUNDARY)
    job = await cluster.post("/once", schedule={"type": "once", "run_at": at.isoformat()})
    async with Gate.closed(cluster.dsn, "timers", "DELETE") as gate:
        await gate.reached(cluster.store)
        scheduler.kill()
        await gate.open()
        assert await cluster.until(OUTCOME, job) == "COMPLETE"
    scheduler.start()
    await scheduler.ready()
    await cluster.drain()
    assert await cluster.check() == []
