"""The check of the invariants is itself checked: whatever is planted is found."""

from __future__ import annotations

import base64
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from noonday.domain.model import Attempt, HttpTarget, Interval, Kind, Once, RunKey
from noonday.drill.checks import journal
from noonday.drill.checks.evidence import Answered, Witness
from noonday.drill.checks.history import RULES, check
from noonday.drill.checks.received import Received
from noonday.executors import Sent
from noonday.executors.http import HttpExecutor
from noonday.loops.scheduler import Scheduler
from noonday.store import Store, Tx, runs
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics
from tests.crash.planted import PLANTED
from tests.support import seeds
from tests.support.receivers import RecordingReceiver

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
DAY = timedelta(days=1)


@dataclass(frozen=True)
class History:
    """A short one without a fault: what is planted goes into it."""

    dsn: str
    store: Store
    witness: Witness
    done: RunKey
    """Completed at the second attempt, after one failure."""
    running: RunKey
    ready: RunKey
    later: UUID
    """A one-off job with a timer."""
    hourly: UUID
    """A recurring job: two occurrences missed, one READY, a timer."""

    async def broken(self, *, drained: bool = False, healed: bool = True) -> set[str]:
        violations = await check(self.dsn, self.witness, drained=drained, healed=healed)
        return {violation.partition(":")[0] for violation in violations}

    async def sql(self, *statements: str) -> None:
        """Run what is planted in one transaction, with names for what is in the history."""
        names = {
            "done": f"'{self.done.job_id}'",
            "running": f"'{self.running.job_id}'",
            "ready": f"'{self.ready.job_id}'",
            "later": f"'{self.later}'",
            "hourly": f"'{self.hourly}'",
        }
        async with self.store.transaction() as tx:
            for statement in statements:
                await tx.execute(statement.format_map(names))


@pytest.fixture
async def history(database_url: str, store: Store) -> History:
    await journal.install(database_url)
    async with store.transaction() as tx:
        done, running = await seeds.ready(tx, count=2)
    await _two_attempts(store, done)
    requests = [await _request(done, 1), await _request(done, 2)]
    async with store.transaction() as tx:
        (ready,) = await seeds.ready(tx)
        now = await tx.clock()
        (later,) = await seeds.armed(tx, Once(now + DAY), now + DAY)
        start = now - timedelta(hours=2.5)
        (hourly,) = await seeds.armed(tx, Interval(3600, start), start)
    scheduler = Scheduler(store, uuid4(), "scheduler", Metrics(), Wakeups(store))
    await scheduler.keep_shards()
    assert await scheduler.tick() == 1
    ids = {done.job_id, running.job_id, ready.job_id, later, hourly}
    async with store.transaction() as tx:
        named = await tx.rows("UPDATE jobs SET name = id::text RETURNING name")
        names = {row["name"] for row in named}
    witness = Witness(ids, requests, [SECRET], asked=names | {"one"})
    return History(database_url, store, witness, done, running, ready, later, hourly)


async def _two_attempts(store: Store, done: RunKey) -> None:
    """Claim two runs; one fails, is retried and succeeds."""
    steps: list[Callable[[Tx], Awaitable[object]]] = [
        seeds.claim,
        lambda tx: seeds.settle(tx, seeds.retried(seeds.held(done), timedelta())),
        lambda tx: runs.retry_due(tx, 10),
        seeds.claim,
        lambda tx: runs.heartbeat(tx, [(seeds.held(done, 2), 90)]),
        lambda tx: seeds.settle(tx, seeds.completed(seeds.held(done, 2))),
    ]
    for step in steps:
        async with store.transaction() as tx:
            assert await step(tx)


async def _request(run: RunKey, number: int, body: bytes = b"{}") -> Received:
    """A request as the executor sends it."""
    executor = HttpExecutor(allow_private=True, ports=None)
    await executor.open()
    async with RecordingReceiver() as receiver:
        attempt = Attempt(
            run=run,
            number=number,
            lease_version=number,
            target=HttpTarget(receiver.url),
            headers={},
            body=body,
            content_type="application/json",
            secrets=(KEY,),
        )
        await executor.execute(attempt, Sent())
    await executor.close()
    return receiver.requests[0]


async def test_a_history_without_a_fault_has_no_violation(history: History) -> None:
    assert await check(history.dsn, history.witness, drained=False, healed=True) == []


@pytest.mark.parametrize("plant", PLANTED)
async def test_what_is_planted_in_the_database_is_found(history: History, plant: str) -> None:
    await history.sql(*PLANTED[plant])
    assert plant.split(maxsplit=1)[0] in await history.broken()


async def test_an_extension_of_a_lease_that_has_run_out_is_found(history: History) -> None:
    await history.sql("UPDATE runs SET locked_until = now() WHERE job_id = {running}")
    await history.sql(
        "UPDATE runs SET locked_until = now() + interval '9 s' WHERE job_id = {running}"
    )
    assert "I8" in await history.broken()


async def test_work_that_is_left_is_found_after_a_drain(history: History) -> None:
    assert await history.broken(drained=True) == {"I10"}


async def test_an_unknown_acknowledgement_is_found(history: History) -> None:
    history.witness.acknowledged.add(uuid4())
    assert await history.broken() == {"I1"}


Seen = Callable[[History], Awaitable[Received]]


def _changed(**changes: object) -> Seen:
    """The first request once more, with changes."""

    async def see(history: History) -> Received:
        return replace(history.witness.requests[0], **changes)  # type: ignore[arg-type]

    return see


async def _for_nothing(history: History) -> Received:
    first = history.witness.requests[0]
    headers = [header for header in first.headers if header[0] != "X-Run-Id"]
    return replace(first, headers=(*headers, ("X-Run-Id", "x-1")))


REQUESTS: dict[str, Seen] = {
    "I2 a request for nobody's job": lambda history: _request(
        RunKey(uuid4(), Kind.SCHEDULE, history.done.occurrence_at), 1
    ),
    "I2 a request for nothing": _for_nothing,
    "I12 an attempt is sent twice": _changed(),
    "I12 an attempt that nobody recorded is sent": lambda history: _request(history.done, 3),
    "I13 a body that was changed on the way": _changed(body=b"[]"),
    "I13 another body at another attempt": lambda history: _request(history.done, 3, b"[]"),
    "I13 an old signature": _changed(at=time.time() - 10),
}


@pytest.mark.parametrize("plant", REQUESTS)
async def test_what_a_receiver_should_not_have_seen_is_found(history: History, plant: str) -> None:
    history.witness.requests.append(await REQUESTS[plant](history))
    assert plant.split(maxsplit=1)[0] in await history.broken()


LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
WITNESSED: dict[str, Callable[[History], object]] = {
    "I1 a run that was acknowledged as triggered is not there": lambda history: (
        history.witness.triggered.add("nobody-t1")
    ),
    "I2 a job that nobody asked for": lambda history: history.witness.asked.clear(),  # type: ignore[union-attr]
    "I12 an attempt succeeds that no receiver has seen": lambda history: (
        history.witness.requests.pop()
    ),
    "I17 a cancelled job is not cancelled": lambda history: history.witness.cancelled.update(
        {history.ready.job_id: datetime.now(UTC)}
    ),
    "I17 a cancelled job is claimed": lambda history: history.witness.cancelled.update(
        {history.done.job_id: LONG_AGO}
    ),
    "I17 a cancelled run completes": lambda history: history.witness.cancelled_runs.update(
        {str(history.done): LONG_AGO}
    ),
    "I20 an answer that is not kept": lambda history: history.witness.answers.append(
        Answered("one", 202, "0")
    ),
    "I20 two answers under one key": lambda history: history.witness.answers.extend(
        [Answered("one", 202, "0"), Answered("one", 202, "1")]
    ),
    "I21 a process is not ready": lambda history: history.witness.unready.append("worker-1"),
}


@pytest.mark.parametrize("plant", WITNESSED)
async def test_what_witnesses_hold_against_it_is_found(history: History, plant: str) -> None:
    WITNESSED[plant](history)
    assert plant.split(maxsplit=1)[0] in await history.broken()


async def test_a_request_for_what_was_cancelled_before_it_began_is_found(history: History) -> None:
    await history.sql(
        "DELETE FROM runs WHERE job_id = {ready}",
        "UPDATE occurrences SET outcome = 'CANCELLED', reason = 'x', ended_at = now(),"
        " attempts = 0 WHERE job_id = {ready}",
    )
    assert await history.broken() == set()
    history.witness.requests.append(await _request(history.ready, 1))
    assert "I17" in await history.broken()


def test_something_is_planted_for_every_invariant() -> None:
    planted = {plant.split()[0] for plant in [*PLANTED, *REQUESTS, *WITNESSED]} | {"I10"}
    assert planted == set(RULES)
