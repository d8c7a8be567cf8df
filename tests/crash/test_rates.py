"""Workers are killed while runs wait for the instants that a rate gave them."""

from __future__ import annotations

from tests.support.cluster import Cluster

PER_SEC = 10
RUNS = 60
LIMIT = """
INSERT INTO limits (key, tenant_id, kind, name, rate_per_sec, changed_at)
VALUES ('host:1:127.0.0.1', 1, 'host', '127.0.0.1', $1, now())
"""
SETTLED = "SELECT count(*) = $1 FROM occurrences WHERE outcome = 'COMPLETE'"
WAITS = "SELECT count(*) FROM runs WHERE hold = 'rate'"
# From before the first one until after the last instant that was given out.
LASTED = "SELECT extract(epoch FROM next_at - $1)::float8 FROM rates WHERE key = 'host:1:127.0.0.1'"


async def post(cluster: Cluster, count: int) -> None:
    """All at once."""
    async with cluster.client() as client:
        answer = await client.jobs.create_many([cluster.body() for _ in range(count)])
    for item in answer["results"]:
        cluster.acknowledge(item["job"])


async def test_a_worker_killed_with_instants_of_a_rate_strands_nothing_and_nobody_uses_them_twice(
    cluster: Cluster,
) -> None:
    await cluster.execute(LIMIT, PER_SEC)
    _, _, first, second = await cluster.start("api", "scheduler", "worker", "worker")
    began = await cluster.value("SELECT now()")
    await post(cluster, RUNS)
    await cluster.until(f"SELECT ({WAITS}) > 0")
    seen = len(cluster.receiver.requests)
    for worker in (first, second):
        await cluster.receiver.wait_for(seen + 5, 20)
        worker.kill()
        seen = len(cluster.receiver.requests)
        await cluster.start("worker")
    await cluster.until(SETTLED, RUNS, deadline_sec=60)
    await cluster.drain()
    sent = len(cluster.receiver.requests)
    assert sent >= RUNS
    assert await cluster.value(LASTED, began) >= (sent - 1) / PER_SEC - 0.001
    assert await cluster.check() == []


async def test_while_no_scheduler_lives_what_waits_for_a_rate_waits_and_goes_on_with_the_next(
    cluster: Cluster,
) -> None:
    await cluster.execute(LIMIT, PER_SEC)
    _, scheduler, _ = await cluster.start("api", "scheduler", "worker")
    await post(cluster, RUNS // 2)
    await cluster.until(f"SELECT ({WAITS}) > 0")
    scheduler.kill()
    await cluster.start("scheduler")
    await cluster.until(SETTLED, RUNS // 2, deadline_sec=60)
    await cluster.drain()
    assert await cluster.check() == []
