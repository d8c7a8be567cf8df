"""Slots of caps, given and freed by several at once: every order of their steps."""

from __future__ import annotations

from typing import Any

from noonday.domain import caps as rules
from noonday.domain.caps import key_cap, tenant_cap
from noonday.domain.model import RunKey
from noonday.loops.admitting import Admitting
from noonday.loops.marking import Marking
from noonday.store import Store, Tx, caps, limits, locks, runs
from noonday.store import cancels as cancelling
from noonday.store.cancels import Which
from noonday.store.caps import Waiting
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics
from tests.races.conftest import EveryOrder
from tests.support import seeds
from tests.support.stepping import Plan, Step

KEY = key_cap(seeds.TENANT, "k")
OWN = tenant_cap(seeds.TENANT)
CLAIMABLE = "SELECT count(*) FROM runs WHERE claimable"
WAITING = "SELECT count(*) FROM runs WHERE hold = 'cap'"


async def lock(tx: Tx) -> None:
    await locks.own_tenant(tx, seeds.TENANT)


def giving(*moved: str) -> list[Step]:
    """All that gives slots, in its three steps."""
    found: list[Waiting] = []

    async def look(tx: Tx) -> None:
        found.append(await caps.waiting(tx, seeds.TENANT, moved, 10))

    async def give(tx: Tx) -> int:
        (waiting,) = found
        verdicts = rules.admit(waiting.rooms, waiting.candidates)
        chosen = [row for row, cap in zip(waiting.rows, verdicts, strict=True) if cap is None]
        return await caps.admit(tx, chosen)

    return [lock, look, give]


async def count(store: Store, query: str) -> int:
    async with store.transaction() as tx:
        found: int = await tx.value(query)
        return found


async def told(store: Store, *moved: str) -> None:
    """What follows the commit of what frees a slot, or inserts."""
    admitting = Admitting(store, Metrics(), Wakeups(store))
    admitting.tell(moved)
    while await admitting.tick():
        pass


async def made(store: Store, number: int, **how: Any) -> list[RunKey]:
    async with store.transaction() as tx:
        return await seeds.ready(tx, count=number, key="k", **how)


async def test_two_who_give_slots_give_no_more_than_there_are(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        await made(store, 3)
        return {"one": giving(KEY), "other": giving(KEY)}

    async for played in every_order(prepare):
        assert await count(store, CLAIMABLE) == 1, played
        assert sorted(results[-1] for results in played.results.values()) == [0, 1], played


async def test_what_is_inserted_while_slots_are_given_gets_one_or_waits(
    store: Store, every_order: EveryOrder
) -> None:
    async def insert(tx: Tx) -> None:
        await seeds.ready(tx, key="k")

    async def prepare() -> Plan:
        async with store.transaction() as tx:
            await seeds.limit(tx, "key", "k", 2)
        await made(store, 1)
        return {"inserts": [insert], "gives": giving(KEY)}

    async for played in every_order(prepare):
        await told(store, KEY)
        assert await count(store, CLAIMABLE) == 2, played


async def test_a_slot_that_is_freed_while_slots_are_given_goes_to_the_next(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        await made(store, 3)
        await told(store, KEY)
        async with store.transaction() as tx:
            (row,) = await seeds.claim(tx)

        async def settle(tx: Tx) -> set[str]:
            await seeds.settle(tx, seeds.completed(runs.held_key(row)))
            return set(tx.caps)

        return {"settles": [settle], "gives": giving(KEY)}

    async for played in every_order(prepare):
        assert await count(store, CLAIMABLE) <= 1, played
        (moved,) = played.results["settles"]
        await told(store, *moved)
        assert await count(store, CLAIMABLE) == 1, played
        assert await count(store, WAITING) == 1, played


async def test_a_run_that_is_cancelled_while_it_gets_its_slot_takes_none_along(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        first, _ = await made(store, 2)

        async def cancel(tx: Tx) -> set[str]:
            assert await cancelling.cancel(tx, Which.run(first), "not needed") == 1
            return set(tx.caps)

        return {"cancels": [cancel], "gives": giving(KEY)}

    async for played in every_order(prepare):
        (moved,) = played.results["cancels"]
        await told(store, *moved)
        assert (await count(store, CLAIMABLE), await count(store, WAITING)) == (1, 0), played


async def test_a_cap_that_is_set_beside_an_insert_holds_for_it_once_it_is_gone_through(
    store: Store, every_order: EveryOrder
) -> None:
    async def insert(tx: Tx) -> None:
        await seeds.ready(tx, count=2)

    async def change(tx: Tx) -> None:
        await limits.put_own(tx, seeds.TENANT, 1)

    async def put_back(tx: Tx) -> None:
        await caps.put_back(tx, seeds.TENANT, OWN)

    async def prepare() -> Plan:
        async with store.transaction() as tx:
            await seeds.tenant(tx)
            await seeds.ready(tx)
        return {"inserts": [insert], "changes": [lock, change, put_back]}

    async for played in every_order(prepare):
        marking = Marking(store)
        await marking.tick()
        assert await marking.tick() == 0
        await told(store, OWN)
        assert (await count(store, CLAIMABLE), await count(store, WAITING)) == (1, 2), played


async def test_a_cap_that_is_lowered_beside_a_claim_holds_back_what_was_not_claimed(
    store: Store, every_order: EveryOrder
) -> None:
    async def lower(tx: Tx) -> None:
        await seeds.limit(tx, "key", "k", 1)

    async def put_back(tx: Tx) -> int:
        return await caps.put_back(tx, seeds.TENANT, KEY)

    async def claim(tx: Tx) -> int:
        return len(await seeds.claim(tx, limit=2))

    async def prepare() -> Plan:
        async with store.transaction() as tx:
            await seeds.limit(tx, "key", "k", 4)
        await made(store, 4)
        await told(store, KEY)
        return {"lowers": [lock, lower, put_back], "claims": [claim]}

    async for played in every_order(prepare):
        await told(store, KEY)
        (claimed,) = played.results["claims"]
        claimable = await count(store, CLAIMABLE)
        # A claim that comes later finds one; what was claimed before goes on, and none beside it.
        assert (claimed, claimable) in {(1, 1), (2, 2)}, played


async def test_two_tenants_do_not_wait_for_each_other(
    store: Store, every_order: EveryOrder
) -> None:
    other = key_cap(2, "k")

    async def lock_other(tx: Tx) -> None:
        await locks.own_tenant(tx, 2)

    async def give_other(tx: Tx) -> int:
        waiting = await caps.waiting(tx, 2, [other], 10)
        return await caps.admit(tx, waiting.rows)

    async def prepare() -> Plan:
        await made(store, 1)
        await made(store, 1, tenant=2)
        return {"one": giving(KEY), "other": [lock_other, give_other]}

    async for played in every_order(prepare):
        assert not played.waited
        assert await count(store, CLAIMABLE) == 2
