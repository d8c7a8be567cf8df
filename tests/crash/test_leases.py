"""Leases of long work: workers that are killed, cut off, told to go, or short of connections."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from uuid import UUID

import pytest

from tests.support.cluster import LEASE_SEC, Cluster
from tests.support.holds import blocked, holding
from tests.support.links import Link
from tests.support.receivers import Answer, RecordingReceiver

OUTCOME = "SELECT outcome FROM occurrences WHERE job_id = $1"
HISTORY = """
SELECT string_agg(concat_ws(' ', attempt, lease_version, status), ', ' ORDER BY lease_version)
FROM executions WHERE job_id = $1
"""
GRANTED = "SELECT count(*) FROM workers WHERE granted IS NOT NULL"
LOCKED_UNTIL = "SELECT locked_until FROM runs WHERE job_id = $1 AND state = 'RUNNING'"
FIRST_LEASE = """
SELECT locked_until, extract(epoch FROM locked_until - leased_at)::float AS lasted, worker_id
FROM executions WHERE job_id = $1 AND lease_version = 1
"""
RUN_OF = "SELECT 1 FROM runs WHERE job_id = $1 FOR UPDATE"
SETTLE = "DELETE FROM runs"
EXTENDED_BEYOND_A_LEASE = f"""
SELECT bool_and(locked_until > leased_at + interval '{2 * LEASE_SEC} s') FROM runs
WHERE job_id <> $1
"""
LIVING = "SELECT id FROM workers WHERE role = 'worker' ORDER BY started_at DESC LIMIT 1"


async def history(cluster: Cluster, job: UUID, outcome: str = "COMPLETE") -> str:
    """Attempt number, lease version and status of each attempt, once the run has ended."""
    assert await cluster.until(OUTCOME, job) == outcome
    return str(await cluster.value(HISTORY, job))


async def assert_good(cluster: Cluster) -> None:
    await cluster.drain()
    assert await cluster.check() == []


async def test_a_worker_started_again_under_its_name_does_not_vouch_for_the_leases_it_had(
    cluster: Cluster,
) -> None:
    """LSE-03."""
    cluster.receiver.answer("/", Answer(hold=True), 200)
    worker = cluster.add("worker", worker_name="worker-1")
    await cluster.start("api", "scheduler")
    job = await cluster.post()
    await cluster.receiver.wait_for(1)
    await cluster.until(GRANTED)
    before = await cluster.value(LIVING)
    worker.kill()
    locked_until = await cluster.value(LOCKED_UNTIL, job)
    worker.start()
    await worker.ready()
    await cluster.until(f"SELECT $1 <> ({LIVING})", before)  # an id of its own at each start
    assert await history(cluster, job) == "1 1 LEASE_EXPIRED, 2 2 SUCCESS"
    async with cluster.store.transaction() as tx:
        first = await tx.one(FIRST_LEASE, job)
    assert first["worker_id"] == before
    assert first["locked_until"] == locked_until, "nobody extended it"
    await assert_good(cluster)


async def test_a_worker_that_is_cut_off_hangs_up_before_another_begins_and_works_on_afterwards(
    cluster: Cluster,
) -> None:
    """LSE-04 (c): cut off from the database for three leases while a webhook takes long."""
    lease_sec = 3
    cluster.receiver.answer("/", Answer(hold=True), 200)
    async with Link(cluster.dsn).open() as link:
        await cluster.start("api", "scheduler")
        job = await cluster.post()
        await cluster.execute("UPDATE jobs SET lease_sec = $1", lease_sec)
        cut_off = cluster.add("worker", database_url=link.url)
        await cluster.receiver.wait_for(1, 15)
        await cluster.until(GRANTED)
        (other,) = await cluster.start("worker")
        link.fault = "down"
        cut_at = await cluster.value("SELECT clock_timestamp()")
        await cluster.receiver.wait_for_hang_up(1, lease_sec)
        assert len(cluster.receiver.requests) == 1, "it hung up before another began"
        assert await history(cluster, job) == "1 1 LEASE_EXPIRED, 2 2 SUCCESS"
        await cluster.until(
            "SELECT now() > $1::timestamptz + $2 * interval '3 s'", cut_at, lease_sec
        )
        assert cut_off.said("lease.lost")
        other.kill()
        link.fault = "none"
        again = await cluster.post("/again")
        assert await history(cluster, again) == "1 1 SUCCESS"
        assert cut_off.runs, "the same process"
        await assert_good(cluster)


async def test_five_restarts_within_one_run_use_no_attempt_and_wait_for_no_lease(
    cluster: Cluster,
) -> None:
    """LSE-05. The lease is so long that waiting for its end would fail the test."""
    cluster.receiver.answer("/", *[Answer(hold=True)] * 5, 200)
    await cluster.start("api", "scheduler")
    job = await cluster.post(lease_sec=3_600, retry_policy={"max_attempts": 3})
    for number in range(1, 6):
        worker = cluster.add("worker", worker_grace_sec=0.0)
        await cluster.receiver.wait_for(number, 15)
        worker.signal(signal.SIGTERM)
        assert await worker.ended(10) == 0
    await cluster.start("worker")
    # (A claim that a worker hands back as it goes leaves no attempt, but a risen version.)
    attempts = [tuple(one.split()) for one in (await history(cluster, job)).split(", ")]
    statuses = [(str(number), "INTERRUPTED") for number in range(1, 6)] + [("6", "SUCCESS")]
    assert [(number, status) for number, _, status in attempts] == statuses
    versions = [int(version) for _, version, _ in attempts]
    assert versions == sorted(set(versions))
    assert [request.attempt for request in cluster.receiver.requests] == [1, 2, 3, 4, 5, 6]
    await assert_good(cluster)


async def test_an_attempt_ends_at_its_timeout_although_its_lease_was_extended_meanwhile(
    cluster: Cluster,
) -> None:
    cluster.receiver.answer("/", Answer(hold=True))
    await cluster.start("api", "scheduler", "worker")
    target = {"type": "http", "url": cluster.receiver.url + "/", "timeout_sec": LEASE_SEC + 1}
    job = await cluster.post(target=target, retry_policy={"max_attempts": 1})
    assert await history(cluster, job, "FAILED") == "1 1 FAILED"
    assert await cluster.value("SELECT reason FROM dead_letters") == "timeout"
    async with cluster.store.transaction() as tx:
        first = await tx.one(FIRST_LEASE, job)
    assert first["lasted"] > LEASE_SEC + 1, "extended, and no way to hang for ever"
    await cluster.receiver.wait_for_hang_up()
    await assert_good(cluster)


async def test_exports_that_take_all_slots_of_their_lane_hold_up_no_webhook(
    cluster: Cluster,
) -> None:
    cluster.receiver.answer("/export", Answer(hold=True))
    await cluster.start("api", "scheduler")
    cluster.add("worker", worker_pools=("default=1", "long=2"))
    target = {"type": "http", "url": cluster.receiver.url + "/export", "timeout_sec": 86_400}
    exports = [await cluster.post(target=target) for _ in range(3)]
    await cluster.receiver.wait_for(2, 15, path="/export")
    for _ in range(3):
        assert await history(cluster, await cluster.post("/hook")) == "1 1 SUCCESS"
    assert len(cluster.receiver.of("/export")) == 2, "the third waits for a slot of its lane"
    cluster.receiver.release()
    for job in exports:
        assert await history(cluster, job) == "1 1 SUCCESS"
    await assert_good(cluster)


async def test_heartbeats_go_on_while_the_pool_has_no_connection_left(cluster: Cluster) -> None:
    """PGD-06: the only connection of the pool waits within a settle, for longer than a lease."""
    cluster.receiver.answer("/", Answer(hold=True))
    await cluster.start("api", "scheduler")
    jobs = [await cluster.post() for _ in range(20)]
    async with RecordingReceiver() as slow:
        cluster.receivers.append(slow)
        slow.answer("/", Answer(hold=True))
        stuck = await cluster.post(target={"type": "http", "url": slow.url + "/"})
        worker = cluster.add("worker", pool_size=1, worker_pools=("default=21",))
        await cluster.receiver.wait_for(20, 15)
        await slow.wait_for(1)
        async with holding(cluster.dsn, RUN_OF, stuck):
            slow.release()
            await blocked(cluster.store, SETTLE)
            await cluster.until(EXTENDED_BEYOND_A_LEASE, stuck)
        cluster.receiver.release()
        for job in jobs:
            assert await history(cluster, job) == "1 1 SUCCESS"
        assert not worker.said("lease.lost")
        await assert_good(cluster)


@pytest.mark.parametrize(
    ("before", "variables", "said"),
    [
        ("", {"NOONDAY_POOL_SIZE": "5000"}, "pool_size needs 5002 connections"),
        (
            "ulimit -n 1000;",
            {"NOONDAY_WORKER_POOLS": "default,batch=64, long=5000"},
            "worker_pools needs 5200 open files",
        ),
    ],
)
def test_a_worker_that_cannot_have_what_its_settings_ask_for_says_so_and_does_not_start(
    cluster: Cluster, before: str, variables: dict[str, str], said: str
) -> None:
    """PGD-06."""
    environment = os.environ | {
        "NOONDAY_DATABASE_URL": cluster.dsn,
        "NOONDAY_HOME": str(cluster.settings.home),
        **variables,
    }
    ended = subprocess.run(
        ["/bin/sh", "-c", f"{before} exec {sys.executable} -m noonday worker"],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ended.returncode == 1
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
