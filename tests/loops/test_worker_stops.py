"""A worker that is told to stop, and what it keeps of the answers that it gets."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from uuid import uuid4

import msgspec
import pytest

from noonday.domain.model import (
    Excerpt,
    Kind,
    Once,
    Outcome,
    OutcomeKind,
    RetryPolicy,
    RunKey,
)
from noonday.loops.worker import Worker
from noonday.store import Store, cancels, dead_letters, jobs, occurrences, tenants
from noonday.store.cancels import Which
from noonday.store.occurrences import Opening
from noonday.store.secretbox import SecretBox
from tests.support import seeds
from tests.support.holds import eventually
from tests.support.invariants import broken
from tests.support.links import Link
from tests.support.scripted import Hanging, Parts, Scripted, carry_out, counted, landed


async def ready(store: Store, **how: object) -> list[RunKey]:
    async with store.transaction() as tx:
        return await seeds.ready(tx, **how)  # type: ignore[arg-type]


async def outcomes(store: Store) -> list[str | None]:
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT outcome FROM occurrences ORDER BY job_id")
    return [row["outcome"] for row in rows]


async def database_now(store: Store) -> datetime:
    async with store.transaction() as tx:
        return await tx.clock()


# --- runs that are cancelled while they are under way ------------------------------------------


async def asked_to_stop(store: Store, run: RunKey, *, kill: bool = False) -> None:
    async with store.transaction() as tx:
        assert await cancels.request(tx, Which.run(run), "not needed", stop=True, kill=kill) == 1


@pytest.mark.parametrize(("kill", "outcome"), [(False, "CANCELLED"), (True, "FAILED")])
async def test_a_worker_cuts_off_what_is_cancelled_and_nothing_else(
    store: Store, parts: Parts, kill: bool, outcome: str
) -> None:
    mine, other = await ready(store, count=2)
    executor = Hanging()
    worker = parts.worker(executor)
    await begun(worker, executor, 2)
    await asked_to_stop(store, mine, kill=kill)
    await worker.beats.tick()
    await worker.beats.tick()  # told twice, it stops once
    await landed_one(worker)
    assert [attempt.run for attempt in executor.cancelled] == [mine]
    assert await worker.settling.tick() == 1
    assert await outcomes(store) == [outcome, None]
    async with store.transaction() as tx:
        row = await tx.one("SELECT status, error, unknown FROM executions")
        assert tuple(row.values()) == ("CANCELLED", "not needed", True)
    executor.free.set()
    await landed(worker)
    assert await worker.settling.tick() == 1
    assert other.job_id != mine.job_id
    assert sorted(str(each) for each in await outcomes(store)) == sorted(["COMPLETE", outcome])
    assert not await broken(store)


async def begun(worker: Worker, executor: Scripted, count: int = 1) -> None:
    """Until the executor has so many attempts in its hands."""
    await worker.tick()
    await eventually(lambda: len(executor.attempts) == count)


async def landed_one(worker: Worker) -> None:
    """Until one of the attempts under way has come to its outcome."""
    flights = [flight.task for flight in worker._flights.values() if flight.task is not None]
    await asyncio.wait(flights, return_when=asyncio.FIRST_COMPLETED)


async def test_what_was_cancelled_before_anything_was_sent_leaves_no_attempt(
    store: Store, parts: Parts
) -> None:
    (run,) = await ready(store)
    worker = parts.worker(Hanging(sends=False))
    await worker.tick()
    await asked_to_stop(store, run)
    await worker.beats.tick()
    await landed(worker)
    assert await worker.settling.tick() == 1
    assert await outcomes(store) == ["CANCELLED"]
    async with store.transaction() as tx:
        assert await tx.value("SELECT count(*) FROM executions") == 0
        assert await tx.value("SELECT attempts FROM occurrences") == 0


async def test_the_receiver_is_told_at_the_url_that_the_job_names_for_it(
    store: Store, parts: Parts
) -> None:
    async with store.transaction() as tx:
        now = await tx.clock()
        spec = msgspec.structs.replace(seeds.spec_of(Once(now)), cancel_url="http://127.0.0.1/stop")
        job = seeds.new_job(spec, now)
        await jobs.insert(tx, [job])
        opening = Opening(job.id, now, Kind.SCHEDULE, 1, now, 1, "default", 5)
        assert await occurrences.open_now(tx, [opening], now) == 1
    run = RunKey(job.id, Kind.SCHEDULE, now)
    executor = Hanging()
    worker = parts.worker(executor)
    await begun(worker, executor)
    await asked_to_stop(store, run)
    await worker.beats.tick()
    await landed(worker)
    assert await worker.settling.tick() == 1
    ((attempt, url, reason),) = executor.told
    assert (attempt.run, url, reason) == (run, "http://127.0.0.1/stop", "not needed")
    async with store.transaction() as tx:
        error = await tx.value("SELECT error FROM executions")
    assert error == "not needed; cancel_url: 200"
    assert await outcomes(store) == ["CANCELLED"]


async def test_work_that_is_done_when_the_worker_is_told_stays_done(
    store: Store, parts: Parts
) -> None:
    (run,) = await ready(store)
    worker = parts.worker(Scripted())
    await worker.tick()
    await landed(worker)
    await asked_to_stop(store, run)
    await worker.beats.tick()
    assert await worker.settling.tick() == 1
    assert await outcomes(store) == ["COMPLETE"]


async def test_what_a_dead_worker_was_asked_to_stop_ends_when_its_lease_has(
    store: Store, parts: Parts
) -> None:
    (run,) = await ready(store)
    await parts.worker(Hanging()).tick()
    await asked_to_stop(store, run)
    store.now = (await database_now(store)) + timedelta(seconds=61)
    assert await parts.reaper().tick() == 1
    assert await outcomes(store) == ["CANCELLED"]
    assert not await broken(store)


async def test_a_worker_that_cannot_ask_goes_on_and_asks_again(
    store: Store, parts: Parts, linked: Store, link: Link
) -> None:
    (run,) = await ready(store)
    executor = Hanging()
    worker = parts.worker(executor, beats=linked)
    await begun(worker, executor)
    await asked_to_stop(store, run)
    link.fault = "after commit"
    await worker.beats.tick()
    assert executor.cancelled == []
    await worker.beats.tick()
    await landed(worker)
    assert [attempt.run for attempt in executor.cancelled] == [run]


# --- what is kept of an answer, and what it says ------------------------------------------------

ANSWER = Outcome(
    OutcomeKind.SUCCESS, http_status=200, response=Excerpt({"content-type": "text/plain"}, "ok")
)


@pytest.mark.parametrize("keep", [True, False])
async def test_an_excerpt_of_the_answer_is_kept_unless_its_tenant_wants_none(
    store: Store, parts: Parts, keep: bool
) -> None:
    async with store.transaction() as tx:
        await tenants.create(tx, SecretBox([bytes(32)]), "one")
        await tenants.change(tx, 1, max_payload_bytes=None, keep_responses=keep)
    await ready(store)
    assert await carry_out(parts.worker(Scripted(ANSWER))) == 1
    async with store.transaction() as tx:
        kept = await tx.value("SELECT response FROM executions")
    if keep:
        assert msgspec.json.decode(kept, type=Excerpt) == ANSWER.response
    else:
        assert kept is None


DUPLICATE = Outcome(OutcomeKind.SUCCESS, http_status=200, duplicate=True)
BEFORE: dict[str, Outcome | None] = {
    "lost_answer": Outcome(OutcomeKind.TRANSIENT, error="cut", unknown=True),
    "failed_answer": Outcome(OutcomeKind.TRANSIENT, http_status=500, error="answered 500"),
    "interrupted": Outcome(OutcomeKind.INTERRUPTED, error="stopped", unknown=True),
    "lease_expired": None,
}


@pytest.mark.parametrize("cause", BEFORE)
async def test_a_repeat_that_the_receiver_tells_of_is_explained_by_what_went_before(
    store: Store, parts: Parts, cause: str
) -> None:
    await ready(store, policy=RetryPolicy(base_sec=0.001))
    first = BEFORE[cause]
    if first is None:
        await parts.worker(Hanging()).tick()
        store.now = (await database_now(store)) + timedelta(seconds=61)
        assert await parts.reaper().tick() == 1
    else:
        assert await carry_out(parts.worker(Scripted(first))) == 1
        store.now = (await database_now(store)) + timedelta(seconds=5)
        await parts.retries().tick()
    worker = parts.worker(Scripted(DUPLICATE))
    assert await carry_out(worker) == 1
    async with store.transaction() as tx:
        found = await tx.rows("SELECT duplicate_cause FROM executions ORDER BY attempt")
    assert [row["duplicate_cause"] for row in found] == [None, cause]
    assert counted(worker, "duplicates") == 1
    assert worker._metrics.totals().unexplained == 0


async def test_a_repeat_at_the_first_attempt_is_not_explained(store: Store, parts: Parts) -> None:
    await ready(store)
    worker = parts.worker(Scripted(DUPLICATE))
    assert await carry_out(worker) == 1
    async with store.transaction() as tx:
        assert await tx.value("SELECT duplicate_cause FROM executions") == "unexplained"
    assert worker._metrics.totals().unexplained == 1


@pytest.mark.parametrize(
    ("before", "cause"), [(OutcomeKind.PERMANENT, "replay"), (OutcomeKind.TRANSIENT, "replay")]
)
async def test_a_repeat_after_a_replay_is_explained_by_it(
    store: Store, parts: Parts, before: OutcomeKind, cause: str
) -> None:
    (run,) = await ready(store, policy=RetryPolicy(max_attempts=1))
    assert await carry_out(parts.worker(Scripted(Outcome(before, error="no")))) == 1
    async with store.transaction() as tx:
        assert await dead_letters.replay(tx, [run], 1, uuid4()) == {run}
    assert await carry_out(parts.worker(Scripted(DUPLICATE))) == 1
    async with store.transaction() as tx:
        found = await tx.rows("SELECT attempt, duplicate_cause FROM executions ORDER BY attempt")
    assert [tuple(row.values()) for row in found] == [(1, None), (2, cause)]
    assert not await broken(store)


# --- one that is needed no more ---------------------------------------------------------------


async def test_a_worker_that_is_needed_no_more_claims_nothing_and_ends_all_that_it_has(
    store: Store, parts: Parts
) -> None:
    executor = Hanging()
    worker = parts.worker(executor)
    await ready(store)
    await begun(worker, executor)
    worker.retire(True)
    await ready(store)
    assert await worker.tick() == 0
    assert not worker.idle
    executor.free.set()
    await landed(worker)
    assert not worker.idle, "what came of it is not written yet"
    await worker.settling.tick()
    assert worker.idle
    assert sorted(await outcomes(store), key=str) == ["COMPLETE", None]


async def test_a_worker_that_is_needed_after_all_goes_on(store: Store, parts: Parts) -> None:
    worker = parts.worker(Scripted())
    await ready(store)
    worker.retire(True)
    assert await worker.tick() == 0
    assert worker.idle
    worker.retire(False)
    assert not worker.idle
    assert await carry_out(worker) == 1


async def test_what_was_claimed_just_before_a_worker_was_to_go_is_carried_out_by_it(
    store: Store, parts: Parts
) -> None:
    worker = parts.worker(Scripted())
    await ready(store)
    claim = asyncio.create_task(worker.tick())
    await asyncio.sleep(0)  # on its way: what it takes is not known yet
    worker.retire(True)
    assert await claim == 1
    assert not worker.idle
    await landed(worker)
    await worker.settling.tick()
    assert worker.idle


async def test_a_worker_that_is_told_to_stop_does_not_come_back(store: Store, parts: Parts) -> None:
    worker = parts.worker(Scripted())
    await ready(store)
    await worker.stop(0)
    worker.retire(False)
    assert await worker.tick() == 0
    assert await outcomes(store) == [None]
