"""Processes that are killed between the end of a job and the start of those that wait for it."""

from __future__ import annotations

from tests.support.cluster import Cluster
from tests.support.holds import blocked, holding

LEFT = """
SELECT (SELECT count(*) FROM dependents) + (SELECT count(*) FROM endings)
     + (SELECT count(*) FROM dependencies)
"""
OUTCOMES = """
SELECT count(*) FROM occurrences WHERE outcome = 'COMPLETE' HAVING count(*) = $1
"""
ONE_CHILD = "SELECT job_id FROM dependents ORDER BY job_id DESC LIMIT 1 FOR UPDATE"
NO_NEW_ENDING = "LOCK TABLE endings IN SHARE MODE"
CHILDREN = 20


async def family(cluster: Cluster) -> None:
    """A parent that is due now, though there is no worker yet, and children that wait for it."""
    parent = await cluster.post("/parent")
    for _ in range(CHILDREN):
        await cluster.post("/child", after=[str(parent)])


async def test_a_scheduler_killed_while_it_tells_children_forgets_none(cluster: Cluster) -> None:
    _, scheduler = await cluster.start("api", "scheduler")
    await family(cluster)
    async with holding(cluster.dsn, ONE_CHILD):
        await cluster.start("worker")
        await blocked(cluster.store, "FROM dependents WHERE job_id")
        scheduler.kill()
    await cluster.start("scheduler")
    await all_is_done(cluster)


async def test_a_worker_killed_while_it_notes_an_end_takes_it_back_whole(
    cluster: Cluster,
) -> None:
    await cluster.start("api", "scheduler")
    await family(cluster)
    async with holding(cluster.dsn, NO_NEW_ENDING):
        (worker,) = await cluster.start("worker")
        await blocked(cluster.store, "INSERT INTO endings")
        worker.kill()
    assert await cluster.value("SELECT count(*) FROM endings") == 0
    await cluster.start("worker")
    await all_is_done(cluster)


async def all_is_done(cluster: Cluster) -> None:
    assert await cluster.until(OUTCOMES, CHILDREN + 1, deadline_sec=60)
    assert await cluster.value(LEFT) == 0
    assert not await cluster.check()
