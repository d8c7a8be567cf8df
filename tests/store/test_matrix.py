"""Every event on every source, by the statements of the product on a real Postgres.

What ``TRANSITIONS`` allows does exactly what it says; what it does not allow changes no row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import pytest

from noonday.domain.caps import host_cap
from noonday.domain.lifecycle import TRANSITIONS, Event, Source, Transition, hold
from noonday.domain.model import (
    ExecutionStatus,
    Interval,
    Kind,
    LedgerOutcome,
    Reason,
    RunKey,
    RunState,
    shard_of,
)
from noonday.store import (
    Store,
    Tx,
    cancels,
    caps,
    dead_letters,
    holds,
    jobs,
    occurrences,
    runs,
    timers,
)
from noonday.store.cancels import Which
from noonday.store.occurrences import Opening
from noonday.store.runs import Held
from noonday.store.settlements import WRITERS, Settlement
from tests.support import families, seeds
from tests.support.dumps import changes, dump
from tests.support.invariants import broken, wipe

CAP = host_cap(seeds.TENANT, "capped")
T = datetime.now(UTC).replace(microsecond=0)
SECOND = timedelta(seconds=1)
LEASED_AT = T + SECOND
RETRY_AFTER = 10 * SECOND
DURING_THE_LEASE = LEASED_AT + 30 * SECOND
AFTER_THE_LEASE = LEASED_AT + 61 * SECOND
LEASE_END = LEASED_AT + seeds.LEASE_SEC * SECOND


class Found(NamedTuple):
    """What an event meets: the run's key, and the last lease version that was given out."""

    run: RunKey
    lease: Held
    now: datetime


# --- sources ----------------------------------------------------------------------------------


async def none(tx: Tx) -> RunKey:
    """A job whose timer is due."""
    (job,) = await seeds.armed(tx, Interval(3_600, T), T)
    return RunKey(job, Kind.SCHEDULE, T)


async def made(tx: Tx) -> RunKey:
    run = await none(tx)
    await materialize(tx, Found(run, seeds.held(run), T))
    return run


async def ready(tx: Tx) -> RunKey:
    """A cap of it has been lowered since it was let go."""
    run = await made(tx)
    await seeds.cap(tx, run, 0)
    return run


async def held(tx: Tx) -> RunKey:
    run = await made(tx)
    await seeds.hold(tx, run)
    return run


async def waiting(tx: Tx) -> RunKey:
    run = await made(tx)
    await seeds.hold(tx, run, "cap", await seeds.cap(tx, run, 1))
    return run


async def running(tx: Tx) -> RunKey:
    run = await made(tx)
    assert await claim(tx, Found(run, seeds.held(run), LEASED_AT)) == 1
    return run


async def retrying(tx: Tx) -> RunKey:
    run = await running(tx)
    assert await seeds.settle(tx, seeds.retried(seeds.held(run), RETRY_AFTER))
    return run


async def ended(tx: Tx) -> RunKey:
    run = await running(tx)
    assert await seeds.settle(tx, seeds.completed(seeds.held(run)))
    return run


async def dead(tx: Tx) -> RunKey:
    run = await running(tx)
    transition = SETTLEMENTS[Event.DEAD_LETTER]
    assert await seeds.settle(tx, Settlement(seeds.held(run), transition, seeds.FAILURE))
    return run


SOURCES: dict[Source, tuple[Callable[[Tx], Awaitable[RunKey]], datetime]] = {
    Source.NONE: (none, DURING_THE_LEASE),
    Source.READY: (ready, DURING_THE_LEASE),
    Source.HELD: (held, DURING_THE_LEASE),
    Source.WAITING: (waiting, DURING_THE_LEASE),
    Source.RUNNING: (running, DURING_THE_LEASE),
    Source.LAPSED: (running, AFTER_THE_LEASE),
    Source.RETRYING: (retrying, DURING_THE_LEASE),
    Source.ENDED: (ended, DURING_THE_LEASE),
    Source.DEAD: (dead, DURING_THE_LEASE),
}


# --- events -----------------------------------------------------------------------------------

SETTLEMENTS = {
    Event.COMPLETE: Transition(Event.COMPLETE, ExecutionStatus.SUCCESS),
    Event.RETRY: Transition(Event.RETRY, ExecutionStatus.FAILED, delay=RETRY_AFTER),
    Event.DEAD_LETTER: Transition(
        Event.DEAD_LETTER, ExecutionStatus.FAILED, reason=Reason.PERMANENT_ANSWER
    ),
    Event.INTERRUPT: Transition(Event.INTERRUPT, ExecutionStatus.INTERRUPTED),
    Event.HAND_BACK: Transition(Event.HAND_BACK),
    Event.EXPIRE: Transition(Event.EXPIRE, ExecutionStatus.LEASE_EXPIRED),
    Event.STOP: Transition(Event.STOP, ExecutionStatus.CANCELLED),
    Event.HOLD: hold("breaker", "target:1:x"),
}


async def materialize(tx: Tx, found: Found) -> int:
    job, _, at = found.run
    written = await occurrences.materialize(
        tx,
        [seeds.fired(job, at)],
        [seeds.open_entry(job, at)],
        [timers.Timer(job, at + SECOND, at + SECOND, 1, 1, shard_of(job))],
        T,
    )
    return written.ready


async def claim(tx: Tx, found: Found) -> int:
    tx.now = found.now
    return len(await seeds.claim(tx))


async def heartbeat(tx: Tx, found: Found) -> int:
    return len(await runs.heartbeat(tx, [(found.lease, seeds.LEASE_SEC)]))


async def retry_due(tx: Tx, found: Found) -> int:
    return await runs.retry_due(tx, 10)


async def request_cancel(tx: Tx, found: Found) -> int:
    return await cancels.request(tx, Which(found.run.job_id), "deleted")


async def cancel(tx: Tx, found: Found) -> int:
    return await cancels.cancel(tx, Which(found.run.job_id), "deleted")


async def kill(tx: Tx, found: Found) -> int:
    return await cancels.cancel(tx, Which.run(found.run), "by hand", kill=True)


async def admit(tx: Tx, found: Found) -> int:
    return await holds.admit(tx, seeds.HOLD_KEY, 10)


async def give_slot(tx: Tx, found: Found) -> int:
    return await caps.admit(tx, (await caps.waiting(tx, seeds.TENANT, [CAP], 10)).rows)


async def rekey(tx: Tx, found: Found) -> int:
    rows = (await caps.waiting(tx, seeds.TENANT, [CAP], 10)).rows
    return await caps.rekey(tx, [(row, host_cap(seeds.TENANT, "other")) for row in rows])


async def put_back(tx: Tx, found: Found) -> int:
    return await caps.put_back(tx, seeds.TENANT, CAP)


async def replay(tx: Tx, found: Found) -> int:
    return len(await dead_letters.replay(tx, [found.run], seeds.TENANT, UUID(int=7)))


def settling(event: Event) -> Callable[[Tx, Found], Awaitable[int]]:
    async def settle(tx: Tx, found: Found) -> int:
        item = Settlement(found.lease, SETTLEMENTS[event], seeds.FAILURE)
        return len(await seeds.settle(tx, item))

    return settle


EVENTS: dict[Event, Callable[[Tx, Found], Awaitable[int]]] = {
    Event.MATERIALIZE: materialize,
    Event.CLAIM: claim,
    Event.HEARTBEAT: heartbeat,
    Event.RETRY_DUE: retry_due,
    Event.REQUEST_CANCEL: request_cancel,
    Event.CANCEL: cancel,
    Event.KILL: kill,
    Event.ADMIT: admit,
    Event.GIVE_SLOT: give_slot,
    Event.REKEY: rekey,
    Event.PUT_BACK: put_back,
    Event.REPLAY: replay,
    **{event: settling(event) for event in SETTLEMENTS},
}
GUARDED = {Event.HEARTBEAT, *SETTLEMENTS}


# --- what each event leaves behind ------------------------------------------------------------


class Left(NamedTuple):
    """The run's row after an event, as far as the event decides it; beside it, what was written."""

    attempt: int
    lease_version: int
    failures: int = 0
    interruptions: int = 0
    worker: bool = False
    claimable: bool = True
    locked_until: datetime | None = None
    retry_at: datetime | None = None
    executions: tuple[str, ...] = ()
    letters: tuple[str, ...] = ()


def left_by(event: Event, source: Source) -> Left | None:
    """What is to be found of the run; None when it has ended."""
    now = SOURCES[source][1]
    lease_end = now + seeds.LEASE_SEC * SECOND
    return {
        Event.MATERIALIZE: Left(0, 0),
        Event.CLAIM: Left(1, 1, worker=True, locked_until=lease_end),
        Event.HEARTBEAT: Left(1, 1, worker=True, locked_until=lease_end),
        Event.RETRY: Left(
            1, 1, 1, claimable=False, retry_at=now + RETRY_AFTER, executions=("FAILED",)
        ),
        Event.INTERRUPT: Left(1, 1, interruptions=1, executions=("INTERRUPTED",)),
        Event.HAND_BACK: Left(0, 1),
        Event.EXPIRE: Left(1, 1, 1, executions=("LEASE_EXPIRED",)),
        Event.RETRY_DUE: Left(1, 1, 1, executions=("FAILED",)),
        Event.REQUEST_CANCEL: Left(1, 1, worker=True, locked_until=LEASE_END),
        Event.HOLD: Left(0, 1, claimable=False),
        Event.ADMIT: Left(0, 0),
        Event.GIVE_SLOT: Left(0, 0),
        Event.REKEY: Left(0, 0, claimable=False),
        Event.PUT_BACK: Left(0, 0, claimable=False),
        Event.REPLAY: Left(1, 1, executions=("FAILED",), letters=("REPLAYED",)),
    }.get(event)


WRITTEN = {
    Event.MATERIALIZE: {"timers", "occurrences", "runs"},
    Event.CLAIM: {"runs"},
    Event.HEARTBEAT: {"runs"},
    Event.COMPLETE: {"runs", "occurrences", "executions"},
    Event.RETRY: {"runs", "executions"},
    Event.DEAD_LETTER: {"runs", "occurrences", "executions", "dead_letters"},
    Event.INTERRUPT: {"runs", "executions"},
    Event.HAND_BACK: {"runs"},
    Event.EXPIRE: {"runs", "executions"},
    Event.RETRY_DUE: {"runs"},
    Event.REQUEST_CANCEL: {"runs"},
    Event.CANCEL: {"runs", "occurrences"},
    Event.KILL: {"runs", "occurrences", "dead_letters"},
    Event.STOP: {"runs", "occurrences", "executions"},
    Event.HOLD: {"runs"},
    Event.ADMIT: {"runs"},
    Event.GIVE_SLOT: {"runs"},
    Event.REKEY: {"runs"},
    Event.PUT_BACK: {"runs"},
    Event.REPLAY: {"runs", "occurrences", "dead_letters"},
}
"""The tables that an event writes to, and no others."""

ENDS = {
    # outcome, reason, status of the last execution, error of the dead letter
    Event.COMPLETE: ("COMPLETE", None, "SUCCESS", None),
    Event.DEAD_LETTER: ("FAILED", "permanent_answer", "FAILED", seeds.FAILURE.error),
    Event.CANCEL: ("CANCELLED", "deleted", None, None),
    Event.KILL: ("FAILED", "killed", None, "by hand"),
    Event.STOP: ("CANCELLED", "cancelled", "CANCELLED", None),
}


async def target_of(tx: Tx, run: RunKey) -> RunState | LedgerOutcome:
    row = await runs.one(tx, run)
    if row is not None:
        return RunState(row["state"])
    return LedgerOutcome(await tx.value("SELECT outcome FROM occurrences"))


async def check_open(tx: Tx, run: RunKey, expected: Left) -> None:
    row = await runs.one(tx, run)
    assert row is not None
    executions = await tx.rows("SELECT status FROM executions ORDER BY attempt")
    assert expected == Left(
        row["attempt"],
        row["lease_version"],
        row["failures"],
        row["interruptions"],
        row["worker_id"] is not None,
        row["claimable"],
        row["locked_until"],
        row["retry_at"],
        tuple(each["status"] for each in executions),
        tuple(each["state"] for each in await tx.rows("SELECT state FROM dead_letters")),
    )
    ledger = await tx.one("SELECT outcome, ended_at FROM occurrences")
    assert tuple(ledger.values()) == (None, None)


async def check_ended(tx: Tx, event: Event, now: datetime, attempts: int) -> None:
    outcome, reason, status, error = ENDS[event]
    ledger = await tx.one("SELECT outcome, reason, ended_at, attempts FROM occurrences")
    assert tuple(ledger.values()) == (outcome, reason, now, attempts)
    executions = await tx.rows("SELECT status, finished_at, lease_version FROM executions")
    if status is not None:
        assert [tuple(each.values()) for each in executions] == [(status, now, 1)]
    letters = await tx.rows("SELECT reason, error, attempts, state, dead_at FROM dead_letters")
    expected = [] if error is None else [(reason, error, attempts, "DEAD", now)]
    assert [tuple(each.values()) for each in letters] == expected


# --- the matrix -------------------------------------------------------------------------------


def test_the_matrix_has_every_source_and_every_event() -> None:
    assert set(SOURCES) == set(Source)
    assert set(EVENTS) == set(WRITTEN) == set(Event) == set(TRANSITIONS)
    assert set(SETTLEMENTS) == set(WRITERS), "every event that ends a lease has its statement"
    for event, rule in TRANSITIONS.items():
        assert isinstance(rule.target, LedgerOutcome) == (event in ENDS)


async def found_at(store: Store, source: Source) -> Found:
    make, now = SOURCES[source]
    store.now = T
    async with store.transaction() as tx:
        run = await make(tx)
        last = await tx.value("SELECT max(lease_version) FROM runs") or 1
    store.now = now
    return Found(run, seeds.held(run, last), now)


@pytest.mark.parametrize("event", Event)
async def test_an_event_does_what_the_table_says_or_nothing(
    store: Store, event: Event, subtests: pytest.Subtests
) -> None:
    for source in Source:
        await wipe(store)
        with subtests.test(source=source):
            await check_pair(store, event, source)


async def check_pair(store: Store, event: Event, source: Source) -> None:
    found = await found_at(store, source)
    rule = TRANSITIONS[event]
    async with store.transaction() as tx:
        before = await dump(tx)
        attempts = await tx.value("SELECT coalesce(max(attempt), 0) FROM runs")
    async with store.transaction() as tx:
        count = await EVENTS[event](tx, found)
    async with store.transaction() as tx:
        changed = changes(before, await dump(tx))
        if source not in rule.sources:
            assert (count, changed) == (0, {})
            return
        assert count == 1
        assert changed.keys() == WRITTEN[event]
        assert await target_of(tx, found.run) is rule.target
        expected = left_by(event, source)
        if expected is not None:
            await check_open(tx, found.run, expected)
        else:
            await check_ended(tx, event, found.now, attempts)
    assert not await broken(store)


@pytest.mark.parametrize("event", sorted(GUARDED))
async def test_nothing_is_written_under_another_lease_version(
    store: Store, event: Event, subtests: pytest.Subtests
) -> None:
    for source in (Source.RUNNING, Source.LAPSED):
        await wipe(store)
        run, lease, now = await found_at(store, source)
        async with store.transaction() as tx:
            before = await dump(tx)
        for version in (lease.lease_version - 1, lease.lease_version + 1):
            with subtests.test(source=source, version=version):
                foreign = Found(run, lease._replace(lease_version=version), now)
                async with store.transaction() as tx:
                    assert await EVENTS[event](tx, foreign) == 0
                async with store.transaction() as tx:
                    assert changes(before, await dump(tx)) == {}


# --- what the table cannot say ----------------------------------------------------------------


async def test_the_holder_of_one_run_writes_no_other_occurrence_of_its_job(
    store: Store, subtests: pytest.Subtests
) -> None:
    for event in sorted(GUARDED):
        await wipe(store)
        found = await found_at(store, Source.LAPSED if event is Event.EXPIRE else Source.RUNNING)
        job, kind, at = found.run
        async with store.transaction() as tx:
            others = [
                Opening(job, at + SECOND, kind, seeds.TENANT, at, 1, "default", 5),
                Opening(job, at, Kind.TRIGGER, seeds.TENANT, at, 1, "default", 5),
            ]
            assert await occurrences.open_now(tx, others, found.now) == 2
            assert len(await seeds.claim(tx)) == 2
        async with store.transaction() as tx:
            before = await dump(tx)
        async with store.transaction() as tx:
            assert await EVENTS[event](tx, found) == 1
        async with store.transaction() as tx:
            gone, came = changes(before, await dump(tx))["runs"]
        with subtests.test(event=event):
            assert (gone, came) == (1, 0 if event in ENDS else 1)


async def test_a_retry_stays_until_its_time_has_come(store: Store) -> None:
    await found_at(store, Source.RETRYING)
    for late, count in ((-SECOND, 0), (timedelta(0), 1)):
        store.now = LEASED_AT + RETRY_AFTER + late
        async with store.transaction() as tx:
            assert await runs.next_retry(tx) == (store.now, LEASED_AT + RETRY_AFTER)
            assert await runs.retry_due(tx, 10) == count
    async with store.transaction() as tx:
        assert await runs.next_retry(tx) == (store.now, None)


async def test_a_lease_ends_after_its_last_instant(store: Store) -> None:
    await found_at(store, Source.RUNNING)
    for late, count in ((timedelta(0), 0), (timedelta(microseconds=1), 1)):
        store.now = LEASED_AT + seeds.LEASE_SEC * SECOND + late
        async with store.transaction() as tx:
            assert len(await runs.expired(tx, "default", seeds.span(), store.now, 10)) == count


async def test_that_others_wait_for_it_changes_nothing_else_of_a_run(
    store: Store, subtests: pytest.Subtests
) -> None:
    for source in Source:
        await wipe(store)
        with subtests.test(source=source):
            found = await found_at(store, source)
            async with store.transaction() as tx:
                await tx.execute("UPDATE jobs SET schedule_type = 'once'")
                before = await dump(tx)
                unfinished = [dict(row) for row in await tx.rows("SELECT * FROM runs")]
            async with store.transaction() as tx:
                await families.announce(tx, found.run.job_id)
            async with store.transaction() as tx:
                changed = changes(before, await dump(tx))
                flagged = [dict(row) for row in await tx.rows("SELECT * FROM runs")]
            where = "timers" if source is Source.NONE else "runs"
            assert changed == ({} if source in ENDED else {where: (1, 1)})
            assert flagged == [row | {"awaited": True} for row in unfinished]


ENDED = (Source.ENDED, Source.DEAD)
BACK_AGAIN = {
    Event.INTERRUPT: Source.RUNNING,
    Event.HAND_BACK: Source.RUNNING,
    Event.EXPIRE: Source.LAPSED,
    Event.RETRY_DUE: Source.RETRYING,
    Event.ADMIT: Source.HELD,
    Event.REPLAY: Source.DEAD,
}


@pytest.mark.parametrize("event", [*BACK_AGAIN])
async def test_what_becomes_claimable_again_ranks_by_the_clock_of_that_moment(
    store: Store, event: Event
) -> None:
    found = await found_at(store, BACK_AGAIN[event])
    async with store.transaction() as tx:
        assert await EVENTS[event](tx, found) == 1
        assert await tx.value("SELECT rank FROM runs") == found.now


async def test_an_occurrence_that_is_in_the_ledger_makes_no_second_run(store: Store) -> None:
    found = await found_at(store, Source.ENDED)
    job = found.run.job_id
    async with store.transaction() as tx:
        armed = await timers.disarm(tx, job)
        assert armed is not None
        assert armed["occurrence_at"] == T + SECOND
        await timers.arm(tx, [timers.Timer(job, T, T, 1, 0, shard_of(job))], T)
        before = await dump(tx)
    async with store.transaction() as tx:
        assert await materialize(tx, found) == 0
        opening = Opening(job, T, Kind.SCHEDULE, seeds.TENANT, T, 1, "default", 5)
        assert await occurrences.open_now(tx, [opening], found.now) == 0
    async with store.transaction() as tx:
        assert changes(before, await dump(tx)) == {"timers": (1, 1)}, "only the timer goes on"


async def test_a_timer_whose_job_has_changed_fires_nothing(store: Store) -> None:
    found = await found_at(store, Source.NONE)
    async with store.transaction() as tx:
        assert await jobs.suspend(tx, found.run.job_id, "a test")
        before = await dump(tx)
    async with store.transaction() as tx:
        assert await materialize(tx, found) == 0
    async with store.transaction() as tx:
        assert changes(before, await dump(tx)) == {}
