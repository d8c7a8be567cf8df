"""Workers that are killed, stopped or told to go, at exact points of an attempt."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import UUID

from tests.support.cluster import Cluster
from tests.support.holds import Gate, blocked, eventually, holding
from tests.support.receivers import Answer, RecordingReceiver

RUN_OF = "SELECT 1 FROM runs WHERE job_id = $1 FOR UPDATE"
OUTCOME = "SELECT outcome FROM occurrences WHERE job_id = $1"
HISTORY = """
SELECT string_agg(concat_ws(' ', attempt, lease_version, status), ', ' ORDER BY lease_version)
FROM executions WHERE job_id = $1
"""
# The reaper looks at once where workers have said that they were granted something; elsewhere
# only in a full pass.
GRANTED = "SELECT count(*) FROM workers WHERE granted IS NOT NULL"
JUST_EXTENDED = """
SELECT count(*) FROM runs WHERE job_id = $1 AND locked_until > leased_at + interval '5 s'
       AND locked_until > now() + interval '4.5 s'
"""
SETTLE = "DELETE FROM runs"
HOLDER = "SELECT concat_ws(' ', state, lease_version) FROM runs WHERE job_id = $1"
IN_TRANSACTION = """
SELECT count(*) FROM pg_stat_activity
WHERE state = 'idle in transaction' AND query ~ $1 AND datname = current_database()
"""


async def history(cluster: Cluster, job: UUID) -> str:
    """Attempt number, lease version and status of each attempt, once the run has ended."""
    assert await cluster.until(OUTCOME, job) == "COMPLETE"
    return str(await cluster.value(HISTORY, job))


async def assert_good(cluster: Cluster) -> None:
    await cluster.drain()
    assert await cluster.check() == []


async def test_a_worker_killed_after_the_answer_and_before_its_settle_costs_one_more_attempt(
    cluster: Cluster,
) -> None:
    cluster.receiver.answer("/", Answer(hold=True))
    worker = cluster.add("worker", worker_name="worker-1")
    await cluster.start("api", "scheduler")
    job = await cluster.post()
    await cluster.receiver.wait_for(1)
    await cluster.until(GRANTED)
    async with holding(cluster.dsn, RUN_OF, job):
        cluster.receiver.release()
        await blocked(cluster.store, SETTLE)
        worker.kill()
    worker.start()  # under the same name, which makes the lease no longer
    assert await history(cluster, job) == "1 1 LEASE_EXPIRED, 2 2 SUCCESS"
    seen = [(request.attempt, request.lease_version) for request in cluster.receiver.requests]
    assert seen == [(1, 1), (2, 2)]
    await assert_good(cluster)


async def test_a_worker_killed_while_its_settle_commits_has_settled(cluster: Cluster) -> None:
    _, _, worker = await cluster.start("api", "scheduler", "worker")
    async with Gate.closed(cluster.dsn, "runs", "DELETE") as gate:
        job = await cluster.post()
        await gate.reached(cluster.store)
        worker.kill()
        await gate.open()
        assert await history(cluster, job) == "1 1 SUCCESS"
    worker.start()
    await worker.ready()
    assert len(cluster.receiver.requests) == 1
    await assert_good(cluster)


async def test_a_worker_killed_within_a_request_leaves_the_run_to_another(
    cluster: Cluster,
) -> None:
    cluster.receiver.answer("/", Answer(hold=True), 200)
    _, _, first = await cluster.start("api", "scheduler", "worker")
    job = await cluster.post()
    await cluster.receiver.wait_for(1)
    await cluster.until(GRANTED)
    first.kill()
    await cluster.receiver.wait_for_hang_up()
    await cluster.start("worker")
    assert await history(cluster, job) == "1 1 LEASE_EXPIRED, 2 2 SUCCESS"
    await assert_good(cluster)


async def test_a_worker_that_slept_through_its_lease_cannot_settle(cluster: Cluster) -> None:
    """LSE-02."""
    cluster.receiver.answer("/", Answer(hold=True), 200)
    _, _, sleeper = await cluster.start("api", "scheduler", "worker")
    job = await cluster.post()
    await cluster.receiver.wait_for(1)
    await cluster.until(GRANTED)
    sleeper.freeze()
    await cluster.start("worker")
    before = await history(cluster, job)
    cluster.receiver.release()
    sleeper.thaw()
    await eventually(lambda: sleeper.said("settle.stale") or sleeper.said("lease.lost"))
    assert before == await history(cluster, job) == "1 1 LEASE_EXPIRED, 2 2 SUCCESS"
    first, second = cluster.receiver.requests
    assert first["webhook-id"] == second["webhook-id"]
    assert (first.attempt, second.attempt) == (1, 2)
    await sleeper.ready()
    await assert_good(cluster)


async def test_a_worker_stopped_within_its_settle_cannot_complete_a_run_that_was_taken_over(
    cluster: Cluster,
) -> None:
    cluster.receiver.answer("/", Answer(hold=True))
    _, _, sleeper = await cluster.start("api", "scheduler", "worker")
    job = await cluster.post()
    await cluster.receiver.wait_for(1)
    await cluster.until(GRANTED)
    # A heartbeat would wait for the same row, and its transaction be stopped first.
    await cluster.until(JUST_EXTENDED, job)
    async with holding(cluster.dsn, RUN_OF, job):
        cluster.receiver.release()
        await blocked(cluster.store, SETTLE)
        sleeper.freeze()
        cluster.receiver.hold()
    await cluster.until(IN_TRANSACTION, SETTLE)
    await cluster.start("worker")
    await cluster.receiver.wait_for(2, 20)
    sleeper.thaw()
    await eventually(lambda: sleeper.said("settle.stale"))
    assert await sleeper.metric("noonday_stale_settles_total") == 1
    assert await cluster.value(HOLDER, job) == "RUNNING 2"
    cluster.receiver.release()
    assert await history(cluster, job) == "1 1 LEASE_EXPIRED, 2 2 SUCCESS"
    await assert_good(cluster)


async def test_a_worker_told_to_stop_finishes_what_it_can_and_hands_back_the_rest_uncounted(
    cluster: Cluster,
) -> None:
    leaving, _, _ = await cluster.start("worker", "api", "scheduler")
    once: dict[str, Any] = {"retry_policy": {"max_attempts": 1}}
    cluster.receiver.answer("/finishes", Answer(hold=True))
    finishes = await cluster.post("/finishes", **once)
    with _deaf_listener() as port:
        target = {"type": "http", "url": f"http://127.0.0.1:{port}/"}
        unsent = await cluster.post(**once, target=target)
        async with RecordingReceiver() as hanging:
            hanging.answer("/", Answer(hold=True), 200)
            target = {"type": "http", "url": hanging.url + "/"}
            hangs = await cluster.post(**once, target=target)
            await hanging.wait_for(1)
            await cluster.receiver.wait_for(1)
            await cluster.until("SELECT count(*) = 3 FROM runs WHERE state = 'RUNNING'")
            await cluster.start("worker")
            leaving.signal(signal.SIGTERM)
            await eventually(lambda: leaving.said("process.stopping"))
            cluster.receiver.release()
            assert await leaving.ended(10) == 0
            assert await history(cluster, hangs) == "1 1 INTERRUPTED, 2 2 SUCCESS"
    async with RecordingReceiver(port=port) as late:
        assert await history(cluster, unsent) == "1 2 SUCCESS"
    assert await history(cluster, finishes) == "1 1 SUCCESS"
    cluster.receivers += [hanging, late]
    ended_at = await cluster.value(
        "SELECT extract(epoch FROM finished_at)::float FROM executions WHERE status = 'INTERRUPTED'"
    )
    assert hanging.requests[1].at - ended_at < 2, "offered again at once"
    await assert_good(cluster)


async def test_a_worker_told_to_stop_while_it_claims_hands_the_claim_back(
    cluster: Cluster,
) -> None:
    leaving, _, _ = await cluster.start("worker", "api", "scheduler")
    async with Gate.closed(cluster.dsn, "runs", "UPDATE") as gate:
        job = await cluster.post()
        await gate.reached(cluster.store)
        leaving.signal(signal.SIGTERM)
        await eventually(lambda: leaving.said("process.stopping"))
        await gate.open()
        assert await leaving.ended(10) == 0
    assert await cluster.value("SELECT state FROM runs WHERE job_id = $1", job) == "READY"
    await cluster.start("worker")
    assert await history(cluster, job) == "1 2 SUCCESS"
    await assert_good(cluster)


@contextmanager
def _deaf_listener() -> Iterator[int]:
    """A port that neither accepts nor refuses: its queue of connections is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = listener.getsockname()[1]
        for _ in range(4):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.1", port))
        yield port
