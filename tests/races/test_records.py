"""Keys, secrets, jobs and operations against each other, in every order of their steps."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from noonday.domain.model import Kind, RunKey, shard_of
from noonday.domain.roles import Role
from noonday.store import (
    Store,
    Tx,
    api_keys,
    cancels,
    idempotency,
    jobs,
    locks,
    occurrences,
    operations,
    partitions,
    retention,
    tenants,
)
from noonday.store.idempotency import Grip, KeyId, Stored, Use
from noonday.store.occurrences import Opening
from noonday.store.secretbox import SecretBox
from tests.races.conftest import EveryOrder
from tests.races.test_leases import LEASED_AT, at, leased
from tests.support import seeds
from tests.support.stepping import Plan, Played, Stage, Step, orders, rollback

T = datetime.now(UTC)
SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
BOX = SecretBox([os.urandom(32)])


async def each(stage: Stage, plan: Plan) -> AsyncIterator[Played]:
    """Every order of a plan that needs nothing made anew."""
    for order in orders(plan):
        yield await stage.play(plan, order)


# --- idempotency keys -------------------------------------------------------------------------


def using(use: Use, job: str) -> list[Step]:
    """A request under a key: reach for it, look it up, and keep the answer."""

    async def take(tx: Tx) -> Grip:
        (grip,) = await idempotency.take(tx, [use])
        return grip

    async def create(tx: Tx) -> str | None:
        (grip,) = await idempotency.take(tx, [use])
        if grip is not Grip.MINE:
            return None
        kept = await idempotency.find(tx, [use.id])
        if kept:
            return (kept[use.id].location or "") + " again"
        await idempotency.store(tx, [Stored(use.id, use.fingerprint, 202, job, b"{}")], T)
        return job

    return [take, create]


@pytest.mark.parametrize("same", [True, False])
async def test_of_two_requests_with_one_key_one_is_carried_out(
    store: Store, stage: Stage, same: bool
) -> None:
    id = KeyId("k", seeds.TENANT, "POST /v1/jobs")
    one, other = Use(id, b"1"), Use(id, b"1" if same else b"2")
    seen = set()
    async for played in each(stage, {"one": using(one, "a"), "other": using(other, "b")}):
        made = [results[1] for results in played.results.values()]
        assert len({"a", "b"} & set(made)) == 1, played
        assert set(made) <= {"a", "b", "a again", "b again", None}, played
        assert not played.waited, "who finds a key taken tries again"
        grips = {results[0] for results in played.results.values()}
        seen |= grips
        async with store.transaction() as tx:
            assert await tx.execute("DELETE FROM idempotency_keys") == 1
    assert seen == {Grip.MINE, Grip.SAME if same else Grip.OTHER}


async def test_a_key_that_is_forgotten_while_it_is_used_answers_or_is_new(
    store: Store, stage: Stage
) -> None:
    use = Use(KeyId("k", seeds.TENANT, "POST /v1/jobs"), b"1")

    async def forget(tx: Tx) -> int:
        return sum([await retention.forget_keys(tx, n, T + DAY, 10) for n in range(16)])

    for order in orders({"use": using(use, "b"), "forget": [forget]}):
        async with store.transaction() as tx:
            await tx.execute("DELETE FROM idempotency_keys")
            await idempotency.store(tx, [Stored(use.id, use.fingerprint, 202, "a", b"{}")], T)
        played = await stage.play({"use": using(use, "b"), "forget": [forget]}, order)
        assert played.results["use"][1] in ("a again", "b"), played
        assert not played.errors, played


# --- secrets and keys -------------------------------------------------------------------------


async def a_tenant(store: Store) -> tuple[int, bytes]:
    async with store.transaction() as tx:
        made = await tenants.create(tx, BOX, f"tenant-{os.urandom(6).hex()}")
    assert made is not None
    return made


def rotating(tenant: int) -> Step:
    async def step(tx: Tx) -> bytes:
        return await tenants.rotate(tx, BOX, tenant)

    return step


async def opened(tx: Tx, tenant: int) -> list[bytes]:
    sealed = (await tenants.signing_keys(tx, [tenant]))[tenant]
    return [BOX.open(one, tenant, "signing_secret") for one in sealed]


async def test_a_delivery_during_a_rotation_is_signed_with_a_secret_that_receivers_know(
    store: Store, stage: Stage
) -> None:
    tenant, known = await a_tenant(store)

    async def sign(tx: Tx) -> list[bytes]:
        return await opened(tx, tenant)

    for order in orders({"rotate": [rollback], "deliver": [rollback]}):
        tenant, known = await a_tenant(store)
        played = await stage.play({"rotate": [rotating(tenant)], "deliver": [sign]}, order)
        new = played.results["rotate"][0]
        assert played.results["deliver"][0] in ([known], [new, known]), played


async def test_two_rotations_at_once_take_no_secret_away(store: Store, stage: Stage) -> None:
    for order in orders({"one": [rollback], "other": [rollback]}):
        tenant, known = await a_tenant(store)
        played = await stage.play({"one": [rotating(tenant)], "other": [rotating(tenant)]}, order)
        made = {results[0] for results in played.results.values()}
        async with store.transaction() as tx:
            left = await opened(tx, tenant)
        assert set(left) == {*made, known}, played
        assert left[-1] == known


async def test_two_revocations_at_once_leave_an_admin(store: Store, stage: Stage) -> None:
    tenant, _ = await a_tenant(store)

    def revoking(key: str) -> list[Step]:
        async def look(tx: Tx) -> int:
            return await api_keys.other_admins(tx, key)

        async def revoke(tx: Tx) -> bool:
            return bool(await api_keys.other_admins(tx, key)) and await api_keys.revoke(tx, key)

        return [look, revoke]

    for order in orders({"one": [rollback] * 2, "other": [rollback] * 2}):
        async with store.transaction() as tx:
            await tx.execute("DELETE FROM api_keys")
            keys = [
                api_keys.id_of(await api_keys.create(tx, tenant, Role.ADMIN, "x")) for _ in "ab"
            ]
        played = await stage.play({"one": revoking(keys[0]), "other": revoking(keys[1])}, order)
        assert not played.errors, played
        assert [results[1] for results in played.results.values()].count(True) == 1, played


# --- jobs -------------------------------------------------------------------------------------


async def a_past_job(store: Store) -> UUID:
    """A one-off job that completed long ago."""
    run = await leased(store)
    async with store.transaction() as tx:
        await seeds.settle(tx, seeds.completed(seeds.held(run)))
    return run.job_id


def triggering(job: UUID, now: datetime) -> list[Step]:
    """As the API does it: own the shard, look at the job, open a run."""

    async def lock(tx: Tx) -> None:
        await locks.own_shard(tx, shard_of(job))

    async def trigger(tx: Tx) -> str | None:
        found = await jobs.one(tx, job, seeds.TENANT)
        if found is None or found["state"] == "CANCELLED":
            return None
        opening = Opening(job, now, Kind.TRIGGER, seeds.TENANT, now, 1, "default", 5)
        assert await occurrences.open_now(tx, [opening], now) == 1
        return str(RunKey(job, Kind.TRIGGER, now))

    return [at(now, lock), at(now, trigger)]


async def test_a_trigger_finds_a_job_that_is_kept_or_nothing(
    store: Store, every_order: EveryOrder
) -> None:
    now, bound = LEASED_AT + 60 * SECOND, LEASED_AT + 30 * SECOND

    async def prepare() -> Plan:
        job = await a_past_job(store)

        async def delete(tx: Tx) -> int:
            return (await retention.delete_ended(tx, UUID(int=0), bound, bound, 100)).jobs

        return {"trigger": triggering(job, now), "retention": [at(now, delete)]}

    seen = set()
    async for played in every_order(prepare):
        assert not played.errors, played
        triggered, deleted = played.results["trigger"][1], played.results["retention"][0]
        assert bool(triggered) + deleted == 1, played
        seen.add(deleted)
    assert seen == {0, 1}


async def test_a_job_is_triggered_before_it_is_cancelled_or_not_at_all(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        store.now = T
        async with store.transaction() as tx:
            (job,) = await seeds.armed(tx, seeds.every(3_600, T + DAY), T + DAY)

        async def lock(tx: Tx) -> None:
            await locks.own_shard(tx, shard_of(job))

        async def cancel(tx: Tx) -> bool:
            row = await jobs.one(tx, job, seeds.TENANT)
            assert row is not None
            return await cancels.cancel_job(tx, row, "asked")

        return {"trigger": triggering(job, T), "cancel": [lock, cancel]}

    async for played in every_order(prepare):
        assert not played.errors, played
        assert played.results["cancel"][1], played
        async with store.transaction() as tx:
            assert await tx.value("SELECT count(*) FROM runs") == 0, played
            outcomes = [row[0] for row in await tx.rows("SELECT outcome FROM occurrences")]
        assert outcomes == ["CANCELLED"] * bool(played.results["trigger"][1]), played


async def test_what_the_ledger_has_closed_is_not_materialized(
    store: Store, every_order: EveryOrder
) -> None:
    async with store.transaction() as tx:
        start = await tx.value(partitions.LEDGER_START)

    async def prepare() -> Plan:
        store.now = T
        async with store.transaction() as tx:
            await tx.execute("UPDATE ledger_start SET starts_at = $1", start)
            (job,) = await seeds.armed(tx, seeds.every(3_600, T), T)
            await seeds.own_all_shards(tx)

        async def close(tx: Tx) -> None:
            await tx.execute(partitions.RAISE_LEDGER_START, T + SECOND)

        async def materialize(tx: Tx) -> int:
            written = await occurrences.materialize(
                tx, [seeds.fired(job, T)], [seeds.open_entry(job, T)], [], T
            )
            return written.ready

        return {"tick": [materialize], "janitor": [close]}

    seen = set()
    async for played in every_order(prepare):
        assert not played.errors, played
        seen.add(played.results["tick"][0])
    assert seen == {0, 1}


# --- operations -------------------------------------------------------------------------------


async def test_a_step_of_an_operation_is_taken_once_and_not_after_it_was_aborted(
    store: Store, stage: Stage
) -> None:
    def moving(made: UUID) -> list[Step]:
        async def advance(tx: Tx) -> bool:
            return await operations.advance(tx, made, None, UUID(int=5), 1)

        async def count(tx: Tx) -> None:
            await operations.count(tx, made)

        return [advance, count]

    def aborting(made: UUID) -> list[Step]:
        async def abort(tx: Tx) -> bool:
            return await operations.end(tx, made, "ABORTED")

        return [abort]

    for other in (moving, aborting):
        steps = len(other(UUID(int=0)))
        for n, order in enumerate(orders({"one": [rollback] * 2, "other": [rollback] * steps})):
            made = UUID(int=100 + n)
            async with store.transaction() as tx:
                await tx.execute("DELETE FROM operations")
                await operations.create(tx, made, seeds.TENANT, "cancel_jobs", "{}", "me")
            played = await stage.play({"one": moving(made), "other": other(made)}, order)
            assert not played.errors, played
            moved, second = played.results["one"][0], played.results["other"][0]
            async with store.transaction() as tx:
                row = await operations.one(tx, made, seeds.TENANT)
            assert row is not None
            if other is moving:
                assert (moved + second, row["looked_at"]) == (1, 1), played
            else:
                assert second, played
                assert (row["state"], row["looked_at"]) == ("ABORTED", int(moved)), played
