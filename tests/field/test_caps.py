"""FAR-03: limits hold when many claim at the same time."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from noonday.client import NoondayApiError
from noonday.domain.caps import key_cap, tenant_cap
from tests.field.durations import scaled
from tests.support.cluster import Cluster
from tests.support.receivers import Answer
from tests.support.slots import peaks

WORKERS = scaled(4, 20)
TENANT = 1
WORK_SEC = 0.05
UNFINISHED = "SELECT count(*) FROM runs"
IN_ORDER = """
SELECT o.job_id FROM occurrences AS o JOIN executions AS e USING (job_id, occurrence_at, kind)
ORDER BY e.leased_at
"""


async def create(cluster: Cluster, count: int, **fields: Any) -> None:
    cluster.receiver.answer("/busy", Answer(delay_sec=WORK_SEC))
    async with cluster.client() as client:
        made = await client.jobs.create_many([cluster.body("/busy", **fields)] * count)
    for result in made["results"]:
        cluster.acknowledge(result["job"])


async def start(cluster: Cluster) -> None:
    for _ in range(WORKERS):
        cluster.add("worker", pool_size=3)  # they share one Postgres with other tests
    await cluster.start("api", "scheduler")


@pytest.mark.parametrize("limit", [1, 5])
async def test_a_key_is_never_carried_out_more_often_at_a_time_than_it_may_be(
    cluster: Cluster, limit: int
) -> None:
    """FAR-03: 500 runs of 50 ms with one key, among 20 workers."""
    await start(cluster)
    async with cluster.client() as client:
        await client.limits.set_key("k", max_running=limit)
    await create(cluster, scaled(20 * limit, 500), concurrency_key="k")
    await cluster.until(f"SELECT ({UNFINISHED}) = 0", deadline_sec=120)
    assert limit // 2 < (await peaks(cluster.store))[key_cap(TENANT, "k")] <= limit
    if limit == 1:
        async with cluster.store.transaction() as tx:
            order = [row["job_id"] for row in await tx.rows(IN_ORDER)]
        assert all(one < other for one, other in pairwise(order)), "in the order of their ids"
    assert await cluster.check() == []


async def test_a_tenant_never_has_more_runs_at_a_time_than_it_may_have(cluster: Cluster) -> None:
    """FAR-03: 10 may run, 200 wait."""
    await start(cluster)
    async with cluster.client() as client:
        await client.tenants.change("default", max_running=10)
    await create(cluster, scaled(60, 200))
    await cluster.until(f"SELECT ({UNFINISHED}) = 0", deadline_sec=60)
    assert 5 < (await peaks(cluster.store))[tenant_cap(TENANT)] <= 10
    assert await cluster.check() == []


async def test_of_fifty_triggers_of_a_job_that_does_not_overlap_itself_one_is_carried_out(
    cluster: Cluster,
) -> None:
    """FAR-03: the others are told why, with a clear 409."""
    cluster.receiver.answer("/busy", Answer(hold=True))
    await start(cluster)
    async with cluster.client() as client:
        body = cluster.body("/busy", schedule={"type": "interval", "interval_sec": 86_400})
        body["schedule"]["starts_at"] = "2100-01-01T00:00:00Z"
        id = str(cluster.acknowledge(await client.jobs.create(body)))
        said = await asyncio.gather(
            *(client.jobs.trigger(id) for _ in range(50)), return_exceptions=True
        )
    cluster.receiver.release()
    assert Counter(map(code, said)) == {"accepted": 1, "409 overlap": 49}
    await cluster.drain()
    assert len(cluster.receiver.requests) == 1
    assert await cluster.check() == []


def code(answer: dict[str, Any] | BaseException) -> str:
    if isinstance(answer, NoondayApiError):
        return f"{answer.status} {answer.code}"
    assert not isinstance(answer, BaseException), answer
    return "accepted"
