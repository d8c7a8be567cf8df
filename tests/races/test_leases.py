"""What a lease's holder writes, against the reaper, a cancel, and its own heartbeat."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from noonday.domain import lifecycle
from noonday.domain.lifecycle import Event, Transition
from noonday.domain.model import (
    ExecutionStatus,
    Outcome,
    OutcomeKind,
    Reason,
    RetryPolicy,
    RunKey,
)
from noonday.store import Store, Tx, cancels, occurrences, runs
from noonday.store.cancels import Which
from noonday.store.occurrences import Opening
from noonday.store.runs import Held, held_key
from noonday.store.settlements import Settlement
from tests.races.conftest import EveryOrder
from tests.support import seeds
from tests.support.seeds import LEASE_SEC, OTHER_WORKER
from tests.support.stepping import Plan, Stage, Step, rollback

LEASED_AT = datetime.now(UTC)
IN_TIME = LEASED_AT + timedelta(seconds=LEASE_SEC - 1)
TOO_LATE = LEASED_AT + timedelta(seconds=LEASE_SEC + 1)
EXPIRED = Outcome(OutcomeKind.TRANSIENT, error="the lease ran out", unknown=True)

SETTLED = {
    Event.COMPLETE: Transition(Event.COMPLETE, ExecutionStatus.SUCCESS),
    Event.RETRY: Transition(Event.RETRY, ExecutionStatus.FAILED, delay=timedelta(seconds=10)),
    Event.DEAD_LETTER: Transition(
        Event.DEAD_LETTER, ExecutionStatus.FAILED, reason=Reason.PERMANENT_ANSWER
    ),
    Event.INTERRUPT: Transition(Event.INTERRUPT, ExecutionStatus.INTERRUPTED),
    Event.HAND_BACK: Transition(Event.HAND_BACK),
}
ENDS = {Event.COMPLETE: "COMPLETE", Event.DEAD_LETTER: "FAILED"}
LEFT_AS = {Event.RETRY: "RETRYING", Event.INTERRUPT: "READY", Event.HAND_BACK: "READY"}


# --- steps ------------------------------------------------------------------------------------


def at(now: datetime, step: Step) -> Step:
    """The step, in a transaction whose time is ``now``."""

    async def timed(tx: Tx) -> object:
        tx.now = now
        return await step(tx)

    return timed


def settling(lease: Held, event: Event = Event.COMPLETE) -> Step:
    async def step(tx: Tx) -> set[Held]:
        return await seeds.settle(tx, Settlement(lease, SETTLED[event], seeds.FAILURE))

    return step


def beating(lease: Held) -> Step:
    async def step(tx: Tx) -> set[Held]:
        return await runs.heartbeat(tx, [(lease, LEASE_SEC)])

    return step


class Reaping:
    """The reaper's transaction in its two statements."""

    def __init__(self) -> None:
        self.found: list[Settlement] = []

    async def read(self, tx: Tx) -> int:
        rows = await runs.expired(tx, "default", seeds.span(), TOO_LATE, 100)
        self.found = [
            Settlement(
                held_key(row),
                lifecycle.expire(
                    runs.lease_of(row, row["leased_at"]),
                    RetryPolicy(),
                    TOO_LATE,
                ),
                EXPIRED,
            )
            for row in rows
        ]
        return len(rows)

    async def write(self, tx: Tx) -> set[Held]:
        return await seeds.settle(tx, *self.found)

    async def both(self, tx: Tx) -> set[Held]:
        await self.read(tx)
        return await self.write(tx)


def reaping() -> list[Step]:
    reaper = Reaping()
    return [at(TOO_LATE, reaper.read), at(TOO_LATE, reaper.write)]


# --- what stands in the tables ----------------------------------------------------------------


async def leased(store: Store, **how: object) -> RunKey:
    """A run under its first lease, from ``LEASED_AT`` on."""
    store.now = LEASED_AT
    async with store.transaction() as tx:
        (run,) = await seeds.ready(tx, **how)  # type: ignore[arg-type]
        assert len(await seeds.claim(tx)) == 1
    return run


async def stands(store: Store, run: RunKey) -> str:
    """The run's state, or how it ended."""
    async with store.transaction() as tx:
        row = await runs.one(tx, run)
        if row is not None:
            return str(row["state"])
        return str(await tx.value("SELECT outcome FROM occurrences WHERE job_id = $1", run.job_id))


async def executions(store: Store, run: RunKey) -> list[str]:
    async with store.transaction() as tx:
        rows = await tx.rows(
            "SELECT status FROM executions WHERE job_id = $1 ORDER BY attempt, lease_version",
            run.job_id,
        )
    return [row["status"] for row in rows]


# --- plays ------------------------------------------------------------------------------------


async def test_a_result_and_the_reaper_do_not_both_end_a_lease(
    store: Store, every_order: EveryOrder
) -> None:
    """LSE-01."""

    async def prepare() -> Plan:
        run = await leased(store)
        return {"worker": [at(TOO_LATE, settling(seeds.held(run)))], "reaper": reaping()}

    seen = set()
    async for played in every_order(prepare):
        async with store.transaction() as tx:
            run = runs.key_of(await tx.one("SELECT * FROM occurrences"))
        completed, (found, reaped) = played.results["worker"][0], played.results["reaper"]
        assert len(completed) + len(reaped) == 1, played
        assert found == len(reaped), "what the reaper has read it holds"
        if completed:
            assert (await stands(store, run), await executions(store, run)) == (
                "COMPLETE", ["SUCCESS"],
            )  # fmt: skip
        else:
            assert (await stands(store, run), await executions(store, run)) == (
                "READY", ["LEASE_EXPIRED"],
            )  # fmt: skip
        seen.add(bool(completed))
    assert seen == {True, False}


@pytest.mark.parametrize("meanwhile", ["completed", "extended", "claimed again"])
async def test_a_reaper_that_acts_on_what_it_read_long_ago_changes_nothing(
    store: Store, meanwhile: str
) -> None:
    """LSE-01: what it read was not locked, as after a failover or a pause between two steps."""
    run = await leased(store)
    reaper, now = Reaping(), Reaping()
    async with store.transaction() as tx:
        await at(TOO_LATE, reaper.read)(tx)
    async with store.transaction() as tx:
        if meanwhile == "completed":
            assert await settling(seeds.held(run))(tx)
        elif meanwhile == "extended":
            await tx.execute("UPDATE runs SET locked_until = $1", TOO_LATE + timedelta(seconds=60))
        else:
            assert await at(TOO_LATE, now.both)(tx)
            tx.now = TOO_LATE
            assert len(await seeds.claim(tx, worker=OTHER_WORKER)) == 1
    before = await everything(store)
    async with store.transaction() as tx:
        assert await at(TOO_LATE, reaper.write)(tx) == set()
    assert await everything(store) == before


async def everything(store: Store) -> list[str]:
    """All that is known of runs, as text."""
    tables = ("runs", "occurrences", "executions", "dead_letters")
    async with store.transaction() as tx:
        return [
            str(await tx.value(f"SELECT json_agg(t ORDER BY t::text)::text FROM {table} AS t"))
            for table in tables
        ]


async def test_a_reaper_that_gives_up_leaves_the_lease_to_its_holder(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        run = await leased(store)
        return {
            "worker": [at(TOO_LATE, settling(seeds.held(run)))],
            "reaper": [*reaping(), rollback],
        }

    async for played in every_order(prepare):
        assert len(played.results["worker"][0]) == 1, played


async def test_a_heartbeat_and_the_reaper_agree_on_who_has_the_run(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        run = await leased(store)
        return {"worker": [at(IN_TIME, beating(seeds.held(run)))], "reaper": reaping()}

    seen = set()
    async for played in every_order(prepare):
        extended, (found, reaped) = played.results["worker"][0], played.results["reaper"]
        assert len(extended) + len(reaped) == 1, played
        assert found == len(reaped), played
        seen.add(bool(extended))
    assert seen == {True, False}


@pytest.mark.parametrize("event", SETTLED)
async def test_a_heartbeat_that_moves_the_row_does_not_lose_what_its_holder_writes(
    store: Store, every_order: EveryOrder, event: Event
) -> None:
    async def prepare() -> Plan:
        run = await leased(store)
        lease = seeds.held(run)
        return {
            "beat": [at(IN_TIME, beating(lease))],
            "settle": [at(IN_TIME, settling(lease, event))],
        }

    waited = set()
    async for played in every_order(prepare):
        async with store.transaction() as tx:
            run = runs.key_of(await tx.one("SELECT * FROM occurrences"))
        assert len(played.results["settle"][0]) == 1, played
        assert await stands(store, run) == (ENDS | LEFT_AS)[event], played
        status = SETTLED[event].execution
        assert await executions(store, run) == ([status] if status else []), played
        waited |= played.waited
    assert waited == {"settle"}, "each was tried in the midst of the other; a beat waits for none"


@pytest.mark.parametrize("event", [Event.COMPLETE, Event.RETRY, Event.HAND_BACK])
async def test_what_was_settled_once_is_not_settled_again(
    store: Store, every_order: EveryOrder, event: Event
) -> None:
    async def prepare() -> Plan:
        lease = seeds.held(await leased(store))
        return {"once": [settling(lease, event)], "again": [settling(lease, event)]}

    async for played in every_order(prepare):
        assert len(played.results["once"][0] | played.results["again"][0]) == 1
        assert not played.results["once"][0] & played.results["again"][0], played


async def test_two_reapers_take_a_lease_away_once(store: Store, every_order: EveryOrder) -> None:
    async def prepare() -> Plan:
        await leased(store)
        return {"one": reaping(), "other": reaping()}

    async for played in every_order(prepare):
        reaped = [len(results[1]) for results in played.results.values()]
        assert sorted(reaped) == [0, 1], played
        assert not played.waited, "a reaper never waits for another"


async def test_a_stale_worker_cannot_complete_a_reclaimed_run(
    store: Store, every_order: EveryOrder
) -> None:
    async def claim(tx: Tx) -> int:
        return len(await seeds.claim(tx, worker=OTHER_WORKER))

    async def prepare() -> Plan:
        run = await leased(store)
        return {
            "stale": [at(TOO_LATE, settling(seeds.held(run)))],
            "reaper": [at(TOO_LATE, Reaping().both)],
            "other": [at(TOO_LATE, claim)],
        }

    seen = set()
    async for played in every_order(prepare):
        completed, reaped = len(played.results["stale"][0]), len(played.results["reaper"][0])
        claimed = played.results["other"][0]
        assert completed + reaped == 1, played
        assert claimed <= reaped, played
        if claimed:
            async with store.transaction() as tx:
                row = await tx.one("SELECT state, worker_id, lease_version, attempt FROM runs")
            assert tuple(row.values()) == ("RUNNING", OTHER_WORKER, 2, 2), played
        seen.add((completed, claimed))
    assert seen == {(1, 0), (0, 0), (0, 1)}


@pytest.mark.parametrize("event", SETTLED)
async def test_a_cancel_and_a_result_tell_the_same_story(
    store: Store, every_order: EveryOrder, event: Event
) -> None:
    async def prepare() -> Plan:
        run = await leased(store)

        async def cancel(tx: Tx) -> int:
            return await cancels.cancel(tx, Which(run.job_id), "deleted")

        return {"settle": [settling(seeds.held(run), event)], "cancel": [cancel]}

    async for played in every_order(prepare):
        async with store.transaction() as tx:
            run = runs.key_of(await tx.one("SELECT * FROM occurrences"))
        cancelled = played.results["cancel"][0]
        assert len(played.results["settle"][0]) == 1, "what runs is not ended by a cancel"
        ended = await stands(store, run)
        assert (ended == "CANCELLED") == bool(cancelled), played
        if not cancelled:
            assert ended == (ENDS | LEFT_AS)[event], played


def cancelling(job: UUID) -> list[Step]:
    """All that a cancel does to the runs of a job, as the API does it."""

    async def lock(tx: Tx) -> int:
        return await cancels.lock(tx, Which(job))

    async def request(tx: Tx) -> int:
        return await cancels.request(tx, Which(job), "deleted")

    async def cancel(tx: Tx) -> int:
        return await cancels.cancel(tx, Which(job), "deleted")

    return [lock, request, cancel]


@pytest.mark.parametrize("event", SETTLED)
async def test_after_a_cancel_nothing_is_tried_again_however_the_running_attempt_ends(
    store: Store, every_order: EveryOrder, event: Event
) -> None:
    async def prepare() -> Plan:
        run = await leased(store)
        return {
            "settle": [settling(seeds.held(run), event)],
            "cancel": cancelling(run.job_id),
        }

    async for played in every_order(prepare):
        async with store.transaction() as tx:
            run = runs.key_of(await tx.one("SELECT * FROM occurrences"))
        assert len(played.results["settle"][0]) == 1, "what runs is not ended by a cancel"
        assert await stands(store, run) == ENDS.get(event, "CANCELLED"), played


async def test_a_cancel_and_a_batch_of_results_do_not_wait_for_each_other_in_a_circle(
    store: Store, stage: Stage
) -> None:
    other = await leased(store)
    first = await leased(store)
    second = first._replace(occurrence_at=first.occurrence_at + timedelta(seconds=1))
    async with store.transaction() as tx:
        opening = Opening(*_columns(second), seeds.TENANT, LEASED_AT, 1, "default", 5)
        assert await occurrences.open_now(tx, [opening], LEASED_AT) == 1
        assert len(await seeds.claim(tx)) == 1
    items = [
        Settlement(seeds.held(run), SETTLED[event], seeds.FAILURE)
        for run, event in (
            (other, Event.COMPLETE),
            (first, Event.RETRY),
            (second, Event.COMPLETE),
        )
    ]
    # By events, the second run would be written before the first.
    for order in itertools.permutations(["held", "cancel", "settle"]):
        plan: Plan = {
            "held": [holding(first), rollback],
            "cancel": [*cancelling(first.job_id), rollback],
            "settle": [settling_all(items), rollback],
        }
        rest = ["held", "cancel", "cancel", "cancel", "settle"]
        played = await stage.play(plan, [*order, *rest])
        assert not played.errors, played


def _columns(run: RunKey) -> tuple[UUID, datetime, int]:
    return run.job_id, run.occurrence_at, run.kind


def holding(run: RunKey) -> Step:
    async def step(tx: Tx) -> None:
        await tx.execute(
            "SELECT FROM runs WHERE job_id = $1 AND occurrence_at = $2 FOR UPDATE",
            *_columns(run)[:2],
        )

    return step


def settling_all(items: list[Settlement]) -> Step:
    async def step(tx: Tx) -> set[Held]:
        return await seeds.settle(tx, *items)

    return step


async def test_a_run_whose_retry_is_due_is_cancelled_or_was_claimable_before(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        run = await leased(store)
        async with store.transaction() as tx:
            await seeds.settle(tx, seeds.retried(seeds.held(run)))

        async def due(tx: Tx) -> int:
            return await runs.retry_due(tx, 100)

        async def cancel(tx: Tx) -> int:
            return await cancels.cancel(tx, Which(run.job_id), "deleted")

        return {"due": [at(TOO_LATE, due)], "cancel": [cancel]}

    async for played in every_order(prepare):
        async with store.transaction() as tx:
            run = runs.key_of(await tx.one("SELECT * FROM occurrences"))
        assert played.results["cancel"][0] == 1, played
        assert await stands(store, run) == "CANCELLED", played


async def test_two_passes_over_due_retries_make_each_ready_once(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        run = await leased(store)
        async with store.transaction() as tx:
            await seeds.settle(tx, seeds.retried(seeds.held(run)))

        async def due(tx: Tx) -> int:
            return await runs.retry_due(tx, 100)

        return {"one": [at(TOO_LATE, due)], "other": [at(TOO_LATE, due)]}

    async for played in every_order(prepare):
        assert sorted(result[0] for result in played.results.values()) == [0, 1], played
