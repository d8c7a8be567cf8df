"""LSE: cancels that race with the start and the end of a run."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from noonday.client import AsyncClient
from noonday.store.runs import key_of
from tests.field.durations import scaled
from tests.support import journal
from tests.support.cluster import Cluster
from tests.support.database import direct
from tests.support.receivers import Answer

SEED = int(os.environ.get("NOONDAY_TEST_SEED", "20270314"))
AT_ONCE = 8
LEDGER = "SELECT * FROM occurrences"


@dataclass
class Cancelled:
    """A job that was cancelled around its run, and what the API said."""

    path: str
    first: dict[str, Any]
    again: dict[str, Any]
    at_last: dict[str, Any]


async def test_what_a_cancel_answers_is_what_becomes_of_the_run(cluster: Cluster) -> None:
    """LSE-07: cancels around claim and completion, twice each, also of what ended long ago."""
    chance = random.Random(SEED)
    cluster.receiver.answer("/moody", *chance.choices([Answer(), Answer(503)], k=5_000))
    await cluster.start("api", "scheduler", "worker")
    gate = asyncio.Semaphore(AT_ONCE)
    async with cluster.client() as client, asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(race(cluster, client, gate, chance.choice(["/well", "/moody"]), wait))
            for wait in (chance.uniform(0, 0.08) for _ in range(scaled(200, 1_000)))
        ]
    await cluster.drain(40)
    raced = dict(task.result() for task in tasks)
    async with cluster.client() as client:
        for id, one in raced.items():
            one.at_last = await client.jobs.get(str(id))
    assert await cluster.check() == [], f"seed {SEED}"
    await assert_answers_hold(cluster, raced)


async def race(
    cluster: Cluster, client: AsyncClient, gate: asyncio.Semaphore, path: str, wait_sec: float
) -> tuple[UUID, Cancelled]:
    async with gate:
        id = cluster.acknowledge(await client.jobs.create(cluster.body(path)))
        await asyncio.sleep(wait_sec)  # which of the two comes first is left to chance
        first = await client.jobs.delete(str(id))
        return id, Cancelled(path, first, await client.jobs.delete(str(id)), {})


async def assert_answers_hold(cluster: Cluster, raced: dict[UUID, Cancelled]) -> None:
    async with direct(cluster.dsn) as connection, connection.transaction() as tx:
        ledger = {row["job_id"]: row for row in await tx.rows(LEDGER)}
        entries = await journal.read(tx)
    asked, claimed_later = set(), set()
    for entry in entries:
        if entry.source == "runs" and entry.after is not None:
            before = entry.before or {}
            if entry.after["cancel_reason"] is not None:
                asked.add(entry.job_id)
                if entry.after["state"] == "RUNNING" != before.get("state"):
                    claimed_later.add(entry.job_id)
    assert not claimed_later, "an attempt began after the cancel"
    requests = Counter(UUID(hex=one.run_id.split("-")[0]) for one in cluster.receiver.requests)
    seen: Counter[tuple[str, str]] = Counter()
    for id, one in raced.items():
        said, outcome = one.first["status"], ledger[id]["outcome"]
        seen[said, outcome] += 1
        assert said == one.again["status"] == one.at_last["status"], one
        assert requests[id] == ledger[id]["attempts"], key_of(ledger[id])
        if said == "COMPLETE":
            assert outcome == "COMPLETE", one
        else:
            # Whoever was at work might finish: told so by what is noted on the run.
            assert said == "CANCELLED", one
            assert outcome == "CANCELLED" or id in asked, one
    print(dict(seen))
    assert {said for said, _ in seen} == {"COMPLETE", "CANCELLED"}, "both sides have won"
    assert asked, "some were cancelled while they ran"
