"""Workers that are killed, stopped or told to go, at exact points of an attempt."""

from __future__ import annotations

from tests.support.cluster import Cluster
from tests.support.holds import blocked, holding
from tests.support.receivers import Answer

RUN_OF = "SELECT 1 FROM runs WHERE job_id = $1 FOR UPDATE"
GRANTED = "SELECT count(*) FROM workers WHERE granted IS NOT NULL"
OUTCOME = "SELECT outcome FROM occurrences WHERE job_id = $1"
HISTORY = """
SELECT array_agg(array[attempt::text, lease_version::text, status] ORDER BY lease_version)
FROM executions WHERE job_id = $1
"""


async def test_a_worker_killed_after_the_answer_and_before_its_settle_costs_one_more_attempt(
    cluster: Cluster,
) -> None:
    cluster.receiver.answer("/", Answer(hold=True))
    _, _, worker = await cluster.start("api", "scheduler", "worker")
    job = await cluster.post()
    await cluster.receiver.wait_for(1)
    await cluster.until(GRANTED)
    async with holding(cluster.dsn, RUN_OF, job):
        cluster.receiver.release()
        await blocked(cluster.store, "DELETE FROM runs")
        worker.kill()
    worker.start()
    await cluster.until(OUTCOME, job)
    first, second = cluster.receiver.requests
    assert (first.attempt, first.lease_version) == (1, 1)
    assert (second.attempt, second.lease_version) == (2, 2)
    assert await cluster.value(HISTORY, job) == [
        ["1", "1", "LEASE_EXPIRED"],
        ["2", "2", "SUCCESS"],
    ]
    assert await cluster.value(OUTCOME, job) == "COMPLETE"
    await cluster.drain()
    assert await cluster.check() == []
