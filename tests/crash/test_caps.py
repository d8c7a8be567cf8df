"""Caps while everything that gives and frees their slots is killed."""

from __future__ import annotations

import asyncio
import random
from urllib.parse import urlsplit

from noonday.domain.caps import host_cap, key_cap, tenant_cap
from tests.support.cluster import LEASE_SEC, Cluster
from tests.support.members import Member
from tests.support.receivers import Answer
from tests.support.slots import peaks

EACH = 25
TENANT = 1
KILLS = 6
LIMITS = {
    key_cap(TENANT, "one"): 1,
    key_cap(TENANT, "five"): 5,
    host_cap(TENANT, "localhost"): 3,
    tenant_cap(TENANT): 10,
    "lane:batch": 4,
}
UNFINISHED = "SELECT count(*) FROM runs"
ENDED = "SELECT count(*) FROM occurrences WHERE outcome = 'COMPLETE'"


async def limit(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.limits.set_key("five", max_running=5)
        await client.limits.set_host("localhost", max_running=3)
        await client.lanes.put("batch", max_running=4)
        await client.tenants.change("default", max_running=10)


def jobs(cluster: Cluster) -> list[dict[str, object]]:
    """Of each kind some; each fails once in a while, and so waits for its retry."""
    elsewhere = f"http://localhost:{urlsplit(cluster.receiver.url).port}/busy"
    wishes: list[dict[str, object]] = [
        {"concurrency_key": "one"},
        {"concurrency_key": "five"},
        {"target": {"type": "http", "url": elsewhere}},
        {"lane": "batch"},
        {},
    ]
    made = [cluster.body("/busy", **wish) for wish in wishes for _ in range(EACH)]
    random.Random(7).shuffle(made)
    return made


async def kill_in_turn(members: list[Member]) -> None:
    for turn in range(KILLS):
        await asyncio.sleep(0.4)  # in the middle of whatever they are doing
        member = members[turn % len(members)]
        member.kill()
        member.start()


async def test_no_cap_is_exceeded_and_no_slot_lost_however_often_processes_are_killed(
    cluster: Cluster,
) -> None:
    """A sweep over all attempts, from claim to settle or reap: never more than the cap at once."""
    moods = random.Random(11).choices([Answer(delay_sec=0.02), Answer(503)], [9, 1], k=2_000)
    cluster.receiver.answer("/busy", *moods)
    api, *others = await cluster.start("api", "scheduler", "scheduler", "worker", "worker")
    await limit(cluster)
    async with cluster.client() as client:
        first, rest = jobs(cluster)[: EACH * 2], jobs(cluster)[EACH * 2 :]
        for result in (await client.jobs.create_many(first))["results"]:
            cluster.acknowledge(result["job"])
        killing = asyncio.create_task(kill_in_turn([*others, api]))
        for result in (await client.jobs.create_many(rest))["results"]:
            cluster.acknowledge(result["job"])
        await killing
    await cluster.until(f"SELECT ({UNFINISHED}) = 0", deadline_sec=60 + 2 * LEASE_SEC)
    found = await peaks(cluster.store)
    assert {cap: found[cap] for cap, most in LIMITS.items() if found[cap] > most} == {}
    assert await cluster.value(ENDED) == 5 * EACH, "nothing is stranded"
    assert await cluster.check() == []


async def test_runs_whose_process_died_right_after_it_inserted_them_are_carried_out(
    cluster: Cluster,
) -> None:
    """Nobody was told that they wait."""
    await cluster.start("api", "scheduler", "worker")
    await cluster.post(concurrency_key="k")
    await cluster.until(f"SELECT ({ENDED}) = 1")
    await cluster.execute(AGAIN)
    await cluster.until(f"SELECT ({ENDED}) = 2")


AGAIN = """
WITH ledger AS (
    INSERT INTO occurrences (job_id, occurrence_at, kind, tenant_id, due_at, materialized_at,
                             attempts)
    SELECT id, now(), 1, tenant_id, now(), now(), 0 FROM jobs
    RETURNING *
)
INSERT INTO runs (job_id, occurrence_at, kind, tenant_id, payload_version, lane, priority, rank,
                  state, claimable, due_at, ready_at, hold, hold_key, key_cap)
SELECT job_id, occurrence_at, kind, tenant_id, 1, 'default', 5, now(), 'READY', false, now(), now(),
       'cap', 'key:1:k', 'key:1:k' FROM ledger
"""
