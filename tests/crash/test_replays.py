"""Replays over processes that are killed in the middle of them."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from tests.support.cluster import LEASE_SEC, Cluster
from tests.support.holds import Gate
from tests.support.receivers import Answer

COUNT = 40
DEAD = "SELECT count(*) FROM dead_letters WHERE state = 'DEAD'"
STATE = "SELECT state FROM replays"
REPLAYED = "SELECT replayed FROM replays"
REOPENED = "SELECT count(*) FROM dead_letters WHERE replay_id IS NOT NULL"


async def dead_letters(cluster: Cluster) -> None:
    """As many dead letters as there are jobs, each after one attempt."""
    cluster.receiver.answer("/", 400)
    async with cluster.client() as client:
        made = await client.jobs.create_many([cluster.body("/")] * COUNT)
    for result in made["results"]:
        cluster.acknowledge(result["job"])
    await cluster.until(f"SELECT ({DEAD}) = {COUNT}")
    cluster.receiver.answer("/", 200)


async def replay(cluster: Cluster, **body: Any) -> UUID:
    async with cluster.client() as client:
        made = await client.replays.create(
            {"filter": {}, "rate_per_sec": 200, "ramp_sec": 0, **body}
        )
    return UUID(made["id"])


async def test_a_replay_goes_on_where_it_was_when_everything_is_killed_in_the_middle(
    cluster: Cluster,
) -> None:
    _, *others = await cluster.start("api", "scheduler", "scheduler", "worker")
    await dead_letters(cluster)
    await replay(cluster, rate_per_sec=30, stop_when={"failure_ratio": 1, "window": 50})
    for done in (COUNT // 4, COUNT // 2):
        await cluster.until(f"SELECT ({REPLAYED}) >= {done}")
        for member in others:
            member.kill()
        assert await cluster.value(REPLAYED) == await cluster.value(REOPENED)
        for member in others:
            member.start()
    await cluster.until(f"SELECT ({STATE}) = 'DONE'", deadline_sec=60)
    await cluster.until(f"SELECT ({DEAD}) = 0")
    await cluster.drain(60)
    runs = Counter(request.run_id for request in cluster.receiver.requests)
    assert len(runs) == COUNT, "the same runs, under the same ids"
    assert min(runs.values()) >= 2
    row = await cluster.value(
        "SELECT concat_ws(' ', replayed, succeeded + failed + cancelled) FROM replays"
    )
    assert row == f"{COUNT} {COUNT}"
    assert await cluster.check() == []


async def test_a_scheduler_killed_while_it_commits_a_step_has_taken_it_whole_or_not_at_all(
    cluster: Cluster,
) -> None:
    _, scheduler, _ = await cluster.start("api", "scheduler", "worker")
    await dead_letters(cluster)
    async with Gate.closed(cluster.dsn, "runs", "INSERT") as gate:
        await replay(cluster)
        await gate.reached(cluster.store)
        scheduler.kill()
        await gate.open()
        await cluster.until(f"SELECT ({REPLAYED}) >= 1")
        assert await cluster.value(REPLAYED) == await cluster.value(REOPENED) == 1
        scheduler.start()
        await cluster.until(f"SELECT ({STATE}) = 'DONE'", deadline_sec=60)
    await cluster.drain(60)
    assert {request.attempt for request in cluster.receiver.requests} == {1, 2}
    assert await cluster.check() == []


async def test_a_worker_killed_over_the_canary_makes_it_fail_and_the_rest_stays(
    cluster: Cluster,
) -> None:
    _, _, worker = await cluster.start("api", "scheduler", "worker")
    await dead_letters(cluster)
    before = len(cluster.receiver.requests)
    cluster.receiver.answer("/", Answer(hold=True))
    await replay(cluster)
    await cluster.receiver.wait_for(before + 1, 20)
    worker.kill()
    await cluster.until(f"SELECT ({STATE}) = 'STOPPED'", deadline_sec=LEASE_SEC + 30)
    assert await cluster.value(REPLAYED) == 1
    assert await cluster.value(DEAD) == COUNT - 1
