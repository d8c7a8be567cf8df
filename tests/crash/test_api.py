"""API processes that are killed around the commit of what they were about to acknowledge."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
import pytest

from noonday.client import Document
from tests.support.cluster import Cluster
from tests.support.holds import Gate, blocked, holding
from tests.support.members import Member

KEY = "crash-1"
JOBS = "SELECT count(*) FROM jobs"

Send = Callable[[], object]
Kill = Callable[[Cluster, Member, Send], Awaitable[None]]


async def before_its_commit(cluster: Cluster, api: Member, send: Send) -> None:
    async with holding(cluster.dsn, "LOCK TABLE audit_log IN SHARE MODE"):
        send()
        await blocked(cluster.store, 'COPY "audit_log"')
        api.kill()


async def while_it_commits(cluster: Cluster, api: Member, send: Send) -> None:
    async with Gate.closed(cluster.dsn, "jobs") as gate:
        send()
        await gate.reached(cluster.store)
        api.kill()
        await gate.open()


async def after_its_commit(cluster: Cluster, api: Member, send: Send) -> None:
    async with Gate.closed(cluster.dsn, "jobs") as gate:
        send()
        await gate.reached(cluster.store)
        api.freeze()
        await gate.open()
        await cluster.until(JOBS)
        api.kill()


@pytest.mark.parametrize("kill", [before_its_commit, while_it_commits, after_its_commit])
async def test_a_job_whose_api_is_killed_is_created_once_and_answered_alike(
    cluster: Cluster, kill: Kill
) -> None:
    api, _, _ = await cluster.start("api", "scheduler", "worker")
    body = msgspec.json.encode(cluster.body())
    async with asyncio.TaskGroup() as group:
        sending: list[asyncio.Task[Document]] = []
        # This client sends again by itself, with the same key, when the connection is lost.
        await kill(cluster, api, lambda: sending.append(group.create_task(_create(cluster, body))))
        api.start()
    created = sending[0].result()
    cluster.acknowledge(created)
    assert await cluster.value(JOBS) == 1
    again, headers = await _post(cluster, body)
    assert again == created
    assert headers["Idempotent-Replayed"] == "true"
    await cluster.drain()
    assert len(cluster.receiver.requests) == 1
    assert await cluster.check() == []


async def _create(cluster: Cluster, body: bytes) -> Document:
    async with cluster.client(timeout_sec=20) as client:
        return await client.jobs.create(body, idempotency_key=KEY)


async def _post(cluster: Cluster, body: bytes) -> tuple[Any, Any]:
    """A plain request, to see its headers."""
    headers = {
        "Authorization": f"Bearer {cluster.token}",
        "Content-Type": "application/json",
        "Idempotency-Key": KEY,
    }
    url = f"{cluster.address}/v1/jobs"
    async with aiohttp.request("POST", url, data=body, headers=headers) as answer:
        assert answer.status == 202
        return await answer.json(), answer.headers
