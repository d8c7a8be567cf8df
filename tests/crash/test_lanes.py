"""A lane's cap, while workers that hold its slots are killed or stand still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.crash.test_worker import GRANTED, assert_good, history
from tests.support.cluster import Cluster
from tests.support.receivers import Answer

CAP = 2
RUNNING = "SELECT count(*) FROM runs WHERE lane = 'batch' AND state = 'RUNNING'"
REAPED = "SELECT count(*) = $1 FROM executions WHERE status = 'LEASE_EXPIRED'"


@asynccontextmanager
async def never_more_than(cluster: Cluster, cap: int) -> AsyncIterator[None]:
    """Look all the time how many run; at no look may there be more than ``cap``."""
    seen: set[int] = set()

    async def watch() -> None:
        while True:
            seen.add(await cluster.value(RUNNING))

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    assert watching.cancelled(), watching
    assert max(seen) == cap


async def test_slots_of_a_lane_come_back_from_a_worker_that_was_killed_and_none_is_given_twice(
    cluster: Cluster,
) -> None:
    cluster.receiver.answer("/", Answer(hold=True))
    first = cluster.add("worker")
    await cluster.start("api", "scheduler")
    async with cluster.client() as client:
        await client.lanes.put("batch", max_running=CAP)
    async with never_more_than(cluster, CAP):
        jobs = [await cluster.post(lane="batch") for _ in range(6)]
        await cluster.receiver.wait_for(CAP)
        await cluster.until(GRANTED)
        first.kill()
        await cluster.start("worker", "worker")
        await cluster.until(REAPED, CAP)
        await cluster.receiver.wait_for(2 * CAP)
        assert len(cluster.receiver.requests) == 2 * CAP, "two more, and none beside them"
        cluster.receiver.release()
        found = sorted([await history(cluster, job) for job in jobs])
    again = "1 1 LEASE_EXPIRED, 2 2 SUCCESS"
    assert found == [again] * CAP + ["1 1 SUCCESS"] * (len(jobs) - CAP)
    await assert_good(cluster)


async def test_a_worker_that_stands_still_within_its_claim_holds_up_no_other_lane(
    cluster: Cluster,
) -> None:
    worker = cluster.add("worker")
    await cluster.start("api", "scheduler")
    async with cluster.client() as client:
        await client.lanes.put("batch", max_running=CAP)
        await client.lanes.pause("batch", "for now")
    job = await cluster.post(lane="batch")
    assert await history(cluster, await cluster.post()) == "1 1 SUCCESS"
    worker.freeze()
    async with cluster.client() as client:
        await client.lanes.resume("batch")
    await cluster.start("worker")
    assert await history(cluster, await cluster.post()) == "1 1 SUCCESS"
    assert await history(cluster, job) == "1 1 SUCCESS"
    worker.thaw()
    await assert_good(cluster)
