"""Ticks against ticks, against a takeover, and against whoever changes a job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from noonday.domain.errors import FenceLost, StoreUnavailable
from noonday.domain.model import Kind, RunKey, shard_of
from noonday.store import Store, Tx, cancels, jobs, locks, occurrences, runs, shards, timers
from noonday.store.cancels import Which
from noonday.store.occurrences import Opening
from noonday.store.timers import Timer
from tests.races.conftest import EveryOrder
from tests.support import seeds
from tests.support.invariants import broken
from tests.support.stepping import Plan, Stage, Step

T = datetime.now(UTC)
SECOND = timedelta(seconds=1)
TAKEOVER_AT = T + shards.LEASE + SECOND
SHARD = 7
OLD, NEW = UUID(int=10), UUID(int=11)


# --- steps ------------------------------------------------------------------------------------


def at(now: datetime, step: Step) -> Step:
    async def timed(tx: Tx) -> object:
        tx.now = now
        return await step(tx)

    return timed


def ticking(owner: UUID, epoch: int, job: UUID, now: datetime = T) -> list[Step]:
    """A tick's writing transaction: the fence, then the timer that was read before."""

    async def fence(tx: Tx) -> None:
        await shards.fence(tx, owner, {SHARD: epoch})

    async def materialize(tx: Tx) -> tuple[int, int]:
        written = await occurrences.materialize(
            tx,
            [seeds.fired(job, T, epoch=epoch)],
            [seeds.open_entry(job, T, overlap="skip")],
            [Timer(job, T + 60 * SECOND, T + 60 * SECOND, 1, 1, SHARD)],
            now,
        )
        return written.ready, written.skipped

    return [at(now, fence), at(now, materialize)]


def taking_over(now: datetime = TAKEOVER_AT) -> Step:
    async def step(tx: Tx) -> dict[int, int]:
        return await shards.acquire(tx, NEW, 64)

    return at(now, step)


async def lock(tx: Tx) -> None:
    await locks.own_shard(tx, SHARD)


# --- what stands in the tables ----------------------------------------------------------------


async def armed_job(store: Store) -> UUID:
    """A recurring job that is due now, in a shard that ``OLD`` owns; its shard's epoch is kept."""
    store.now = T
    async with store.transaction() as tx:
        await tx.execute("UPDATE shards SET epoch = 0, owner_id = NULL, leased_until = NULL")
        # The shards beside it have an owner who lives on.
        await tx.execute(
            "UPDATE shards SET owner_id = $1, leased_until = $2 WHERE shard <> $3",
            UUID(int=12), T + timedelta(days=1), SHARD,
        )  # fmt: skip
        assert await shards.acquire(tx, OLD, 64) == {SHARD: 1}
        (job,) = await seeds.armed(tx, seeds.every(60, T), T, shard=SHARD)
    return job


async def ledger(store: Store) -> list[tuple[int | None, str | None, str | None]]:
    async with store.transaction() as tx:
        rows = await tx.rows(
            "SELECT shard_epoch, outcome, blocking_run FROM occurrences ORDER BY kind"
        )
    return [(row["shard_epoch"], row["outcome"], row["blocking_run"]) for row in rows]


async def timers_of(store: Store) -> list[tuple[int, datetime]]:
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT schedule_version, occurrence_at FROM timers")
    return [(row["schedule_version"], row["occurrence_at"]) for row in rows]


# --- two schedulers ---------------------------------------------------------------------------


async def test_a_timer_that_two_ticks_have_read_fires_once(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        job = await armed_job(store)
        return {"one": ticking(OLD, 1, job), "other": ticking(OLD, 1, job)}

    async for played in every_order(prepare):
        fired = [results[1] for results in played.results.values()]
        assert sorted(fired) == [(0, 0), (1, 0)], played
        assert await ledger(store) == [(1, None, None)], played
        assert await timers_of(store) == [(1, T + 60 * SECOND)], played


async def test_an_owner_with_an_old_epoch_writes_nothing(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        job = await armed_job(store)
        async with store.transaction() as tx:
            assert await taking_over()(tx) == {SHARD: 2}
        return {"old": ticking(OLD, 1, job, TAKEOVER_AT), "new": ticking(NEW, 2, job, TAKEOVER_AT)}

    async for played in every_order(prepare):
        assert isinstance(played.errors.pop("old"), FenceLost), played
        assert not played.errors, played
        assert await ledger(store) == [(2, None, None)], played


async def test_an_owner_that_lost_and_regained_its_shard_does_not_write_under_its_old_term(
    store: Store,
) -> None:
    job = await armed_job(store)
    async with store.transaction() as tx:
        assert await taking_over()(tx) == {SHARD: 2}
        assert await shards.release(tx, NEW, [SHARD]) == 1
        tx.now = TAKEOVER_AT
        assert await shards.acquire(tx, OLD, 64) == {SHARD: 3}
    fence, materialize = ticking(OLD, 1, job, TAKEOVER_AT)
    with pytest.raises(FenceLost):
        async with store.transaction() as tx:
            await fence(tx)
    fence, materialize = ticking(OLD, 3, job, TAKEOVER_AT)
    async with store.transaction() as tx:
        await fence(tx)
        assert await materialize(tx) == (1, 0)


async def test_an_owner_whose_lease_ran_out_unseen_does_not_write(store: Store) -> None:
    job = await armed_job(store)
    with pytest.raises(FenceLost):
        async with store.transaction() as tx:
            await ticking(OLD, 1, job, TAKEOVER_AT)[0](tx)


async def test_a_takeover_comes_before_a_tick_or_after_it_and_never_within(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        job = await armed_job(store)
        return {"tick": ticking(OLD, 1, job), "takeover": [taking_over()]}

    outcomes = set()
    async for played in every_order(prepare):
        taken = played.results["takeover"][0]
        lost = isinstance(played.errors.get("tick"), FenceLost)
        fired = await ledger(store)
        # Not taken: the tick was under way, and the next try finds the lock free.
        assert (taken, lost, fired) in (
            ({SHARD: 2}, True, []),
            ({SHARD: 2}, False, [(1, None, None)]),
            ({}, False, [(1, None, None)]),
        ), played
        outcomes.add((bool(taken), lost))
    assert outcomes == {(True, True), (True, False), (False, False)}


async def test_two_takeovers_give_a_shard_one_owner(store: Store, every_order: EveryOrder) -> None:
    async def prepare() -> Plan:
        await armed_job(store)

        async def another(tx: Tx) -> dict[int, int]:
            return await shards.acquire(tx, UUID(int=13), 64)

        return {"one": [taking_over()], "other": [at(TAKEOVER_AT, another)]}

    async for played in every_order(prepare):
        taken = [results[0] for results in played.results.values()]
        assert sorted(map(len, taken)) == [0, 1], played
        assert {SHARD: 2} in taken, played


async def test_a_renewal_and_a_takeover_do_not_both_succeed(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        await armed_job(store)

        async def renew(tx: Tx) -> dict[int, int]:
            return await shards.renew(tx, OLD)

        return {"renewal": [at(T + SECOND, renew)], "takeover": [taking_over()]}

    async for played in every_order(prepare):
        renewed, taken = played.results["renewal"][0], played.results["takeover"][0]
        assert (renewed, taken) in (({SHARD: 1}, {}), ({}, {SHARD: 2})), played


# --- a scheduler that stops inside its transaction --------------------------------------------


async def test_a_scheduler_that_stops_inside_its_transaction_is_taken_over_and_writes_nothing(
    store: Store, stage: Stage
) -> None:
    job = await armed_job(store)
    fence, materialize = ticking(OLD, 1, job)

    async def impatient(tx: Tx) -> None:
        # In service the role has 5 s, half of a shard's lease.
        await tx.execute("SET LOCAL idle_in_transaction_session_timeout = '200ms'")

    async def until_taken(tx: Tx) -> dict[int, int]:
        tx.now = TAKEOVER_AT
        while not (taken := await shards.acquire(tx, NEW, 64)):
            pass
        return taken

    played = await stage.play(
        {
            "stopped": [impatient, fence, materialize],
            "new": [until_taken, *ticking(NEW, 2, job, TAKEOVER_AT)],
        },
        ["stopped"] * 3 + ["new"] * 4 + ["stopped"],
    )
    assert played.results["stopped"][2] == (1, 0), "it had written all, but for the commit"
    assert isinstance(played.errors.pop("stopped"), StoreUnavailable), played
    assert not played.errors, played
    assert played.results["new"] == [{SHARD: 2}, None, (1, 0)], played
    assert await ledger(store) == [(2, None, None)]
    assert not await broken(store)


# --- whoever changes a job --------------------------------------------------------------------


async def test_after_a_delete_nothing_of_the_job_materializes(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        job = await armed_job(store)

        async def delete(tx: Tx) -> tuple[int, int]:
            disarmed = await timers.disarm(tx, job)
            stopped = await cancels.cancel(tx, Which(job), "deleted")
            assert await jobs.cancel(tx, job, "deleted")
            return int(disarmed is not None), stopped

        return {"tick": ticking(OLD, 1, job), "delete": [lock, delete]}

    seen = set()
    async for played in every_order(prepare):
        fired = played.results["tick"][1] == (1, 0)
        assert played.results["delete"][1] == (1, int(fired)), played
        assert await timers_of(store) == [], played
        assert await ledger(store) == ([(1, "CANCELLED", None)] if fired else []), played
        async with store.transaction() as tx:
            assert await seeds.claim(tx) == [], "nothing is left to run"
        seen.add(fired)
    assert seen == {True, False}


async def test_a_trigger_and_the_schedule_do_not_overlap(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        job = await armed_job(store)

        async def trigger(tx: Tx) -> str | None:
            if await runs.of_job(tx, job, 1):
                return None
            at = T + SECOND
            opening = Opening(job, at, Kind.TRIGGER, seeds.TENANT, at, 1, "default", 5)
            assert await occurrences.open_now(tx, [opening], at) == 1
            return str(RunKey(job, Kind.TRIGGER, at))

        return {"tick": ticking(OLD, 1, job), "trigger": [lock, trigger]}

    seen = set()
    async for played in every_order(prepare):
        triggered = played.results["trigger"][1]
        assert played.results["tick"][1] == ((0, 1) if triggered else (1, 0)), played
        expected = [(1, "SKIPPED", triggered), (None, None, None)]
        assert await ledger(store) == (expected if triggered else [(1, None, None)]), played
        seen.add(bool(triggered))
    assert seen == {True, False}
    assert shard_of(seeds.job_id(SHARD)) == SHARD
