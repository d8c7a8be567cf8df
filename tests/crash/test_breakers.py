"""An outage at a receiver while processes are killed: runs wait, and nothing of them is lost."""

from __future__ import annotations

from typing import Any

from tests.support.cluster import Cluster
from tests.support.receivers import Answer

STATE = "SELECT 1 FROM targets WHERE state = $1"
HELD = "SELECT count(*) FROM runs WHERE hold = 'breaker'"
SETTLED = "SELECT count(*) = $1 FROM occurrences WHERE outcome = 'COMPLETE'"
LEASED = "SELECT count(*) FROM runs WHERE state = 'RUNNING'"
DEAD = "SELECT count(*) FROM dead_letters"
PATIENT: dict[str, Any] = {"retry_policy": {"base_sec": 0.1, "cap_sec": 0.5, "max_attempts": 50}}


async def break_down(cluster: Cluster, count: int) -> None:
    """The receiver fails until its breaker is open, and ``count`` runs in all wait for it."""
    cluster.receiver.answer("/", 503)
    for _ in range(count):
        await cluster.post(**PATIENT)
    await cluster.until(STATE, "OPEN")
    await cluster.until(f"SELECT ({HELD}) >= {count // 2}")


async def assert_good(cluster: Cluster, count: int) -> None:
    await cluster.until(SETTLED, count, deadline_sec=40)
    assert await cluster.value(DEAD) == 0
    await cluster.drain()
    assert await cluster.check() == []


async def test_a_worker_killed_with_the_permits_of_a_target_delays_it_and_loses_nothing(
    cluster: Cluster,
) -> None:
    _, _, worker = await cluster.start("api", "scheduler", "worker")
    await break_down(cluster, 20)
    seen = len(cluster.receiver.requests)
    cluster.receiver.answer("/", Answer(hold=True), Answer(hold=True), Answer(hold=True), 200)
    await cluster.until(f"SELECT ({LEASED}) > 0 AND EXISTS ({STATE})", "HALF_OPEN")
    await cluster.receiver.wait_for(seen + 1, 20)
    worker.kill()
    cluster.receiver.release()
    await cluster.start("worker")
    await cluster.until(STATE, "CLOSED", deadline_sec=40)
    await assert_good(cluster, 20)


async def test_a_scheduler_killed_while_runs_flow_back_leaves_the_rest_to_the_next(
    cluster: Cluster,
) -> None:
    _, scheduler, _ = await cluster.start("api", "scheduler", "worker")
    await break_down(cluster, 60)
    cluster.receiver.answer("/", 200)
    await cluster.until(STATE, "CLOSED", deadline_sec=40)
    scheduler.kill()
    left = await cluster.value(HELD)
    assert left > 0
    for _ in range(3):  # and again, one after the other, while there is something left
        following = (await cluster.start("scheduler"))[0]
        following.kill()
    await cluster.start("scheduler")
    await assert_good(cluster, 60)


async def test_a_receiver_that_is_gone_is_called_no_more_until_it_is_resumed(
    cluster: Cluster,
) -> None:
    await cluster.start("api", "scheduler", "worker")
    cluster.receiver.answer("/gone", 410)
    await cluster.post("/gone")
    await cluster.until(STATE, "SUSPENDED")
    await cluster.post("/gone")
    await cluster.post("/")
    await cluster.until(f"SELECT ({HELD}) = 1")
    await cluster.until(SETTLED, 1)
    assert len(cluster.receiver.of("/gone")) == 1
    cluster.receiver.answer("/gone", 200)
    async with cluster.client() as client:
        (shown,) = (await client.targets.resume("127.0.0.1"))["resumed"]
    assert shown["url"].endswith("/gone")
    await cluster.until(SETTLED, 2)
    await cluster.drain()
    assert await cluster.check() == []
