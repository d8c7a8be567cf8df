"""Processes that are killed between the end of a job and the start of those that wait for it."""

from __future__ import annotations

from uuid import UUID

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


async def family(cluster: Cluster) -> list[UUID]:
    """A parent that is due now, and children that wait for it."""
    parent = await cluster.post("/parent", schedule={"type": "once", "delay": "PT3S"})
    return [parent] + [
        await cluster.post("/child", schedule={"type": "once"}, after=[str(parent)])
        for _ in range(CHILDREN)
    ]


async def test_a_scheduler_killed_while_it_tells_children_forgets_none(cluster: Cluster) -> None:
    _, _, scheduler = await cluster.start("api", "worker", "scheduler")
    await family(cluster)
    async with holding(cluster.dsn, ONE_CHILD):
        await blocked(cluster.store, "FROM dependents WHERE job_id")
        scheduler.kill()
    await cluster.start("scheduler")
    assert await cluster.until(OUTCOMES, CHILDREN + 1, deadline_sec=40)
    assert await cluster.value(LEFT) == 0
    assert not await cluster.check()


async def test_a_worker_killed_while_it_notes_an_end_takes_it_back_whole(
    cluster: Cluster,
) -> None:
    _, _, worker = await cluster.start("api", "scheduler", "worker")
    await family(cluster)
    async with holding(cluster.dsn, NO_NEW_ENDING):
        await blocked(cluster.store, "INSERT INTO endings")
        worker.kill()
    assert await cluster.value("SELECT count(*) FROM endings") == 0
    await cluster.start("worker")
    assert await cluster.until(OUTCOMES, CHILDREN + 1, deadline_sec=40)
    assert await cluster.value(LEFT) == 0
    assert not await cluster.check()
