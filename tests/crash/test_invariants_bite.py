"""The check of the invariants is itself checked: whatever is planted is found."""

from __future__ import annotations

import base64
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from noonday.domain.model import Attempt, Cron, HttpTarget, Interval, Kind, Once, RunKey, Schedule
from noonday.domain.schedule import upcoming
from noonday.executors import Sent
from noonday.executors.http import HttpExecutor
from noonday.loops.scheduler import Scheduler
from noonday.store import Store, Tx, runs
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics
from tests.support import journal, seeds
from tests.support.evidence import Witness
from tests.support.history import RULES, check
from tests.support.receivers import Received, RecordingReceiver
from tests.support.reference import calendar

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

    async def broken(self, *, drained: bool = False) -> set[str]:
        violations = await check(self.dsn, self.witness, drained=drained)
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
    witness = Witness(ids, requests, [SECRET])
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
    assert await check(history.dsn, history.witness, drained=False) == []


COPY_OF_A_RUN = """
INSERT INTO runs (job_id, occurrence_at, kind, tenant_id, payload_version, lane, priority, rank,
                  claimable, state, due_at, ready_at)
SELECT {0}, kind, tenant_id, 1, 'default', 5, now(), true, 'READY', due_at, now()
FROM occurrences WHERE {1}
"""
COPY_OF_A_LEDGER_ROW = """
INSERT INTO occurrences (job_id, occurrence_at, kind, tenant_id, due_at, materialized_at,
                         shard_epoch, outcome, reason, ended_at, attempts)
SELECT {0}, 0, 1, now(), now(), {1}, {2} FROM occurrences WHERE {3}
"""
MISSED = "'MISSED', 'grace', now(), 0"
HOURLY_AND_OPEN = "job_id = {hourly} AND outcome IS NULL"
OPEN = "NULL, NULL, NULL, 0"
STALE_SUCCESS = """
INSERT INTO executions SELECT job_id, occurrence_at, kind, tenant_id, attempt, lease_version,
       worker_id, 'SUCCESS', leased_at, locked_until, now(), NULL, 200, NULL, false
FROM executions WHERE {0} AND attempt = 1
"""
DELETE_AND_COMPLETE = (
    "DELETE FROM runs WHERE {0}",
    "UPDATE occurrences SET outcome = 'COMPLETE', ended_at = now() WHERE {0}",
)

PLANTED = {
    "I1 a job that was acknowledged is deleted": ("DELETE FROM jobs WHERE id = {later}",),
    "I2 a ledger row of nobody's job": (
        COPY_OF_A_LEDGER_ROW.format(
            "gen_random_uuid(), occurrence_at", "NULL", MISSED, "job_id = {done}"
        ),
    ),
    "I2 a run beside the calendar": (
        COPY_OF_A_LEDGER_ROW.format(
            "job_id, occurrence_at + interval '1 s'", "NULL", OPEN, "job_id = {done}"
        ),
        COPY_OF_A_RUN.format("job_id, occurrence_at", "job_id = {done} AND outcome IS NULL"),
    ),
    "I3 two ledger rows of one occurrence": (
        "ALTER TABLE occurrences DROP CONSTRAINT occurrences_pkey",
        COPY_OF_A_LEDGER_ROW.format("job_id, occurrence_at", "NULL", MISSED, "job_id = {done}"),
    ),
    "I3 a second run of an occurrence that ended": (
        COPY_OF_A_RUN.format("job_id, occurrence_at", "job_id = {done}"),
    ),
    "I3 a run that is not in the ledger": (
        COPY_OF_A_RUN.format("job_id, occurrence_at + interval '1 s'", "job_id = {done}"),
    ),
    "I3 an open ledger row without a run": (
        COPY_OF_A_LEDGER_ROW.format(
            "job_id, occurrence_at + interval '1 hour'", "NULL", OPEN, "job_id = {ready}"
        ),
    ),
    "I4 a missed occurrence vanishes from the ledger": (
        "DELETE FROM occurrences WHERE job_id = {hourly} AND occurrence_at ="
        " (SELECT min(occurrence_at) FROM occurrences WHERE outcome = 'MISSED')",
    ),
    "I4 the timer of a recurring job is lost": ("DELETE FROM timers WHERE job_id = {hourly}",),
    "I4 the timer of a one-off job is lost": ("DELETE FROM timers WHERE job_id = {later}",),
    "I4 a timer leaps over an occurrence": (
        "UPDATE timers SET occurrence_at = occurrence_at + interval '1 hour'"
        " WHERE job_id = {hourly}",
    ),
    "I4 a timer is due and nobody fires it": (
        "UPDATE timers SET due_at = now() - interval '1 minute' WHERE job_id = {hourly}",
    ),
    "I4 a job is suspended and its past is not written": (
        "DELETE FROM timers WHERE job_id = {hourly}",
        "UPDATE jobs SET state = 'SUSPENDED', state_changed_at = now() + interval '2 hours'"
        " WHERE id = {hourly}",
    ),
    "I5 a lease is granted while another holds": (
        "UPDATE runs SET lease_version = lease_version + 1, attempt = attempt + 1,"
        " worker_id = gen_random_uuid() WHERE job_id = {running}",
    ),
    "I5 an attempt reaches beyond its lease": (
        "UPDATE executions SET locked_until = locked_until + interval '1 h' WHERE attempt = 1",
    ),
    "I6 a lease version falls": (
        "UPDATE runs SET lease_version = lease_version - 1 WHERE job_id = {running}",
    ),
    "I6 a write of somebody who lost the lease": (STALE_SUCCESS.format("job_id = {done}"),),
    "I7 a result of somebody who lost the lease": (
        "UPDATE executions SET status = 'FAILED' WHERE attempt = 2",
        "UPDATE executions SET status = 'SUCCESS' WHERE attempt = 1",
    ),
    "I7 a success without an attempt": tuple(
        statement.format("job_id = {running}") for statement in DELETE_AND_COMPLETE
    ),
    "I8 a run completes without having run": tuple(
        statement.format("job_id = {ready}") for statement in DELETE_AND_COMPLETE
    ),
    "I8 a run vanishes": ("DELETE FROM runs WHERE job_id = {ready}",),
    "I8 a run is released for no reason": (
        "UPDATE runs SET state = 'READY', worker_id = NULL, leased_at = NULL, locked_until = NULL"
        " WHERE job_id = {running}",
    ),
    "I8 a lease is taken back before its end": (
        "UPDATE runs SET state = 'READY', worker_id = NULL, leased_at = NULL, locked_until = NULL,"
        " failures = failures + 1 WHERE job_id = {running}",
    ),
    "I8 what has ended ends again": (
        "UPDATE occurrences SET outcome = 'FAILED' WHERE job_id = {done}",
    ),
    "I8 what has ended comes back": (
        COPY_OF_A_RUN.format("job_id, occurrence_at", "job_id = {done}"),
    ),
    "I9 an attempt is missing": ("DELETE FROM executions WHERE attempt = 1",),
    "I9 an attempt number is given twice": ("UPDATE executions SET attempt = 1",),
    "I9 a run is tried too often": (
        "UPDATE jobs SET spec = jsonb_set(spec::jsonb, '{{retry_policy,max_attempts}}', '0')",
    ),
    "I15 a scheduler writes under an epoch that is over": (
        "UPDATE shards SET epoch = epoch + 1",
        COPY_OF_A_LEDGER_ROW.format(
            "job_id, occurrence_at + interval '1 h'", "1", MISSED, HOURLY_AND_OPEN
        ),
    ),
    "I15 an epoch falls": ("UPDATE shards SET epoch = epoch - 1",),
}  # fmt: skip


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
    "I13 an old signature": _changed(at=time.time() + 10),
}


@pytest.mark.parametrize("plant", REQUESTS)
async def test_what_a_receiver_should_not_have_seen_is_found(history: History, plant: str) -> None:
    history.witness.requests.append(await REQUESTS[plant](history))
    assert plant.split(maxsplit=1)[0] in await history.broken()


def test_something_is_planted_for_every_invariant() -> None:
    planted = {plant.split()[0] for plant in [*PLANTED, *REQUESTS]} | {"I10"}
    assert planted == set(RULES)


@pytest.mark.parametrize(
    "schedule",
    [
        Interval(7, datetime(2027, 3, 1, 0, 0, 3, tzinfo=UTC)),
        Cron("* * * * * *"),
        Cron("*/7 * * * * *"),
        Cron("5,50 2-59/9 * * * *"),
        Cron("*/2 * * * *"),
        Cron("30 2 * * *", "Europe/Paris"),
        Once(datetime(2027, 3, 28, 1, tzinfo=UTC)),
    ],
    ids=str,
)
def test_the_reference_calendar_and_the_scheduler_agree(schedule: Schedule) -> None:
    since = datetime(2027, 3, 28, 0, 30, 0, 500_000, tzinfo=UTC)
    expected = upcoming(schedule, uuid4(), since, 100)
    assert expected
    assert calendar(schedule, since, expected[-1]) == expected
