"""Backfills over processes that are killed in the middle of them."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.cluster import Cluster
from tests.support.holds import Gate

COUNT = 40
STATE = "SELECT state FROM operations"
DONE = "SELECT done FROM operations"
OPENED = "SELECT count(*) FROM occurrences WHERE kind = 2"
HOUR = timedelta(hours=1)


async def backfill(cluster: Cluster, **terms: Any) -> None:
    """The last nominal times of an hourly job that was made between two of them."""
    last = datetime.now(UTC) - HOUR / 2
    schedule = {
        "type": "interval", "interval_sec": 3_600, "starts_at": (last - 99 * HOUR).isoformat(),
        "overlap": "allow",
    }  # fmt: skip
    async with cluster.client() as client:
        job = await client.jobs.create(cluster.body("/", schedule=schedule))
        cluster.acknowledge(job)
        first = last - (COUNT - 1) * HOUR
        made = await client.jobs.backfill(job["id"], from_at=first, to_at=last, **terms)
        assert made["total"] == COUNT


async def test_a_backfill_goes_on_where_it_was_when_everything_is_killed_in_the_middle(
    cluster: Cluster,
) -> None:
    _, *others = await cluster.start("api", "scheduler", "scheduler", "worker")
    await backfill(cluster, rate_per_sec=20, lane="default")
    for done in (COUNT // 4, COUNT // 2):
        await cluster.until(f"SELECT ({DONE}) >= {done}")
        for member in others:
            member.kill()
        assert await cluster.value(DONE) == await cluster.value(OPENED)
        for member in others:
            member.start()
    await cluster.until(f"SELECT ({STATE}) = 'DONE'", deadline_sec=60)
    assert await cluster.value(DONE) == await cluster.value(OPENED) == COUNT
    await cluster.until("SELECT count(*) = 0 FROM runs", deadline_sec=60)
    runs = Counter(request.run_id for request in cluster.receiver.requests)
    assert sum("-b" in run for run in runs) == COUNT
    await cluster.drain(60)
    assert await cluster.check() == []


async def test_a_scheduler_killed_while_it_commits_a_step_has_taken_it_whole_or_not_at_all(
    cluster: Cluster,
) -> None:
    _, scheduler, _ = await cluster.start("api", "scheduler", "worker")
    async with Gate.closed(cluster.dsn, "operations", "UPDATE") as gate:
        await backfill(cluster, rate_per_sec=200, lane="default")
        await gate.reached(cluster.store)
        scheduler.kill()
        await gate.open()
        await cluster.until(f"SELECT ({DONE}) >= 1")
        assert await cluster.value(DONE) == await cluster.value(OPENED)
        scheduler.start()
        await cluster.until(f"SELECT ({STATE}) = 'DONE'", deadline_sec=60)
    assert await cluster.value(OPENED) == COUNT
    await cluster.until("SELECT count(*) = 0 FROM runs", deadline_sec=60)
    await cluster.drain(60)
    assert await cluster.check() == []
