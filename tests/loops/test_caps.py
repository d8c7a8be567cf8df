"""Caps: who waits, who gets a slot, and when; one loop at a time, ticked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import uuid4

import pytest

from noonday.domain.caps import host_cap, key_cap, tenant_cap
from noonday.domain.errors import StoreUnavailable
from noonday.domain.model import Interval, Kind, RunKey
from noonday.loops.marking import Marking
from noonday.store import (
    Store,
    caps,
    dead_letters,
    holds,
    limits,
    locks,
    occurrences,
    runs,
)
from noonday.store import cancels as cancelling
from noonday.store.cancels import Which
from noonday.store.limits import Limit
from tests.support import seeds
from tests.support.holds import holding
from tests.support.letters import lie_there
from tests.support.scripted import Parts, counted

KEY = key_cap(seeds.TENANT, "k")
HOST = host_cap(seeds.TENANT, "a.example")
OWN = tenant_cap(seeds.TENANT)
SECOND = timedelta(seconds=1)


async def made(store: Store, count: int = 1, **how: object) -> list[RunKey]:
    async with store.transaction() as tx:
        return await seeds.ready(tx, count=count, **how)  # type: ignore[arg-type]


async def claimed(store: Store) -> list[runs.Held]:
    async with store.transaction() as tx:
        return [runs.held_key(row) for row in await seeds.claim(tx)]


async def settled(store: Store, *leases: runs.Held) -> None:
    async with store.transaction() as tx:
        assert len(await seeds.settle(tx, *map(seeds.completed, leases))) == len(leases)


async def waits_for(store: Store, run: RunKey) -> str | None:
    """The hold key of a run; None when it may be claimed, or is."""
    async with store.transaction() as tx:
        row = await runs.one(tx, run)
        assert row is not None
        assert (row["hold"] == "cap") == (row["hold_key"] is not None)
        return row["hold_key"]  # type: ignore[no-any-return]


async def lined_up(store: Store, made: Sequence[RunKey]) -> list[str | None]:
    return [await waits_for(store, run) for run in made]


# --- one at a time ----------------------------------------------------------------------------


async def test_runs_of_one_key_go_one_at_a_time_in_their_order(store: Store, parts: Parts) -> None:
    admitting = parts.admitting()
    made_ = await made(store, 3, key="k")
    for turn in range(3):
        assert await admitting.tick() == 1
        (lease,) = await claimed(store)
        assert lease.job_id == made_[turn].job_id
        assert await claimed(store) == []
        await settled(store, lease)
    assert await admitting.tick() == 0


async def test_a_key_with_a_limit_has_as_many_slots(store: Store, parts: Parts) -> None:
    admitting = parts.admitting()
    async with store.transaction() as tx:
        await seeds.limit(tx, "key", "k", 2)
    await made(store, 5, key="k")
    assert await admitting.tick() == 2
    assert len(await claimed(store)) == 2


async def test_what_has_no_cap_waits_for_nothing(store: Store, parts: Parts) -> None:
    admitting = parts.admitting()
    async with store.transaction() as tx:
        await seeds.limit(tx, "key", "k", None)
        await seeds.limit(tx, "host", "a.example", None)
        (run,) = await seeds.ready(tx, key="k", host="a.example")
        assert tx.caps == set()
    assert await waits_for(store, run) is None
    assert await admitting.tick() == 0


@pytest.mark.parametrize("cap", [HOST, OWN])
async def test_hosts_and_tenants_have_their_caps_too(store: Store, parts: Parts, cap: str) -> None:
    admitting = parts.admitting()
    async with store.transaction() as tx:
        await seeds.tenant(tx, max_running=3 if cap == OWN else None)
        if cap == HOST:
            await seeds.limit(tx, "host", "a.example", 3)
    waiting = await made(store, 5, host="a.example")
    assert await lined_up(store, waiting) == [cap] * 5
    assert await admitting.tick() == 3
    leases = await claimed(store)
    assert len(leases) == 3
    await settled(store, leases[0])
    assert await admitting.tick() == 1
    assert len(await claimed(store)) == 1
    assert await lined_up(store, waiting[4:]) == [cap]


async def test_a_cap_of_nought_lets_nothing_go(store: Store, parts: Parts) -> None:
    admitting = parts.admitting()
    async with store.transaction() as tx:
        await seeds.limit(tx, "key", "k", 0)
    await made(store, 2, key="k")
    assert await admitting.tick() == 0


async def test_a_run_waits_for_the_first_of_its_caps_that_has_no_slot(
    store: Store, parts: Parts
) -> None:
    """And for nothing else: it keeps its place in its key meanwhile."""
    admitting = parts.admitting()
    async with store.transaction() as tx:
        await seeds.tenant(tx, max_running=1)
    (other,) = await made(store)
    assert await admitting.tick() == 1
    first, second = await made(store, 2, key="k")
    await admitting.tick()
    assert await lined_up(store, [first, second]) == [OWN, KEY]
    (lease,) = await claimed(store)
    assert lease.job_id == other.job_id
    await settled(store, lease)
    await admitting.tick()
    assert await lined_up(store, [first, second]) == [None, KEY]


async def test_an_urgent_one_goes_before_those_that_have_waited_longer(
    store: Store, parts: Parts
) -> None:
    admitting = parts.admitting()
    async with store.transaction() as tx:
        await seeds.limit(tx, "host", "a.example", 1)
    await made(store, 2, host="a.example", priority=5)
    assert await admitting.tick() == 1
    (urgent,) = await made(store, host="a.example", priority=0)
    await settled(store, *await claimed(store))
    assert await admitting.tick() == 1
    assert [lease.job_id for lease in await claimed(store)] == [urgent.job_id]


async def test_those_that_are_blocked_by_their_keys_hold_up_nobody_behind_them(
    store: Store, parts: Parts
) -> None:
    admitting = parts.admitting()
    async with store.transaction() as tx:
        await seeds.tenant(tx, max_running=2)
        blocked = await seeds.ready(tx, count=4)
        free = await seeds.ready(tx, count=2)
        for run in blocked:  # as if a limit of their host had been set after they had lined up
            await seeds.cap(tx, run, 1)
    while await admitting.tick():
        pass
    assert (await lined_up(store, blocked)).count(None) == 1
    assert (await lined_up(store, free)).count(None) == 1


# --- what frees a slot, and what keeps it -------------------------------------------------------


async def a_claimed_one(store: Store, parts: Parts) -> tuple[runs.Held, RunKey]:
    """One run is under way, and one waits for its host. (Another waits for its key.)"""
    admitting = parts.admitting()
    async with store.transaction() as tx:
        await seeds.limit(tx, "host", "a.example", 1)
    await made(store, key="k", host="a.example")
    (behind,) = await made(store, key="l", host="a.example")
    (same,) = await made(store, key="k", host="a.example")
    assert await admitting.tick() == 1
    (lease,) = await claimed(store)
    assert await lined_up(store, [behind, same]) == [HOST, KEY]
    return lease, behind


async def test_a_retry_keeps_its_key_and_frees_the_rest(store: Store, parts: Parts) -> None:
    lease, behind = await a_claimed_one(store, parts)
    admitting = parts.admitting()
    async with store.transaction() as tx:
        await seeds.settle(tx, seeds.retried(lease, SECOND))
    assert await admitting.tick() == 1
    assert await waits_for(store, behind) is None
    store.now = await later(store, 2 * SECOND)
    assert await parts.retries().tick() == 1
    await admitting.tick()
    again = RunKey(lease.job_id, Kind(lease.kind), lease.occurrence_at)
    assert await waits_for(store, again) == HOST
    (other,) = await claimed(store)
    await settled(store, other)
    await admitting.tick()
    # The one of its key that was behind it all the time still is.
    assert await waits_for(store, again) is None
    assert [one.job_id for one in await claimed(store)] == [again.job_id]


async def later(store: Store, by: timedelta) -> datetime:
    async with store.transaction() as tx:
        return await tx.clock() + by


async def test_what_a_breaker_holds_keeps_its_key_and_lines_up_again(
    store: Store, parts: Parts
) -> None:
    lease, behind = await a_claimed_one(store, parts)
    admitting = parts.admitting()
    async with store.transaction() as tx:
        assert await holds.hold(tx, [(lease, "breaker", "target:1:x")])
    assert await admitting.tick() == 1
    assert await waits_for(store, behind) is None
    async with store.transaction() as tx:
        assert await holds.admit(tx, "target:1:x", 10) == 1
    await admitting.tick()
    again = RunKey(lease.job_id, Kind(lease.kind), lease.occurrence_at)
    assert await waits_for(store, again) == HOST
    await settled(store, *await claimed(store))
    await admitting.tick()
    assert await waits_for(store, again) is None


@pytest.mark.parametrize("how", ["interrupted", "handed_back"])
async def test_what_is_offered_again_at_once_keeps_all_its_slots(
    store: Store, parts: Parts, how: str
) -> None:
    lease, behind = await a_claimed_one(store, parts)
    async with store.transaction() as tx:
        await seeds.settle(tx, getattr(seeds, how)(lease))
    await parts.admitting().sweep()
    assert await waits_for(store, behind) == HOST
    assert [one.job_id for one in await claimed(store)] == [lease.job_id]


@pytest.mark.parametrize("state", ["held", "ready", "retrying"])
async def test_a_cancelled_run_frees_what_it_had(store: Store, parts: Parts, state: str) -> None:
    admitting = parts.admitting()
    (run,) = await made(store, key="k")
    (behind,) = await made(store, key="k")
    assert await admitting.tick() == 1
    if state == "held":
        run, behind = behind, run
    if state == "retrying":
        async with store.transaction() as tx:
            (row,) = await seeds.claim(tx)
            await seeds.settle(tx, seeds.retried(runs.held_key(row)))
    async with store.transaction() as tx:
        assert await cancelling.cancel(tx, Which.run(run), "not needed") == 1
        assert tx.caps == {KEY}
    await admitting.tick()
    assert await waits_for(store, behind) is None


async def test_a_worker_that_dies_keeps_no_slot(store: Store, parts: Parts) -> None:
    admitting = parts.admitting()
    await made(store, 2, key="k")
    assert await admitting.tick() == 1
    (lease,) = await claimed(store)
    store.now = await later(store, timedelta(seconds=seeds.LEASE_SEC + 1))
    assert await parts.reaper().tick() == 1
    assert await admitting.tick() == 0
    assert [one.job_id for one in await claimed(store)] == [lease.job_id]


async def test_a_dead_letter_frees_its_slots_and_lines_up_when_it_is_reopened(
    store: Store, parts: Parts
) -> None:
    admitting = parts.admitting()
    async with store.transaction() as tx:
        (dead,) = await lie_there(tx)
        await tx.execute("UPDATE jobs SET concurrency_key = 'k' WHERE id = $1", dead.job_id)
    (first,) = await made(store, key="k")
    assert await admitting.tick() == 1
    async with store.transaction() as tx:
        assert await dead_letters.replay(tx, [dead], seeds.TENANT, uuid4()) == {dead}
    assert await admitting.tick() == 0
    assert await lined_up(store, [first, dead]) == [None, KEY]
    await settled(store, *await claimed(store))
    assert await admitting.tick() == 1
    assert await waits_for(store, dead) is None


async def test_what_a_timer_fires_lines_up(store: Store, parts: Parts) -> None:
    admitting = parts.admitting()
    await made(store, key="k")
    assert await admitting.tick() == 1
    async with store.transaction() as tx:
        now = await tx.clock()
        (job,) = await seeds.armed(tx, Interval(3_600, now), now)
        await tx.execute("UPDATE jobs SET concurrency_key = 'k' WHERE id = $1", job)
        written = await occurrences.materialize(
            tx, [seeds.fired(job, now)], [seeds.open_entry(job, now)], [], now
        )
        assert (written.ready, tx.caps) == (1, {KEY})
    assert await waits_for(store, RunKey(job, Kind.SCHEDULE, now)) == KEY
    await settled(store, *await claimed(store))
    assert await admitting.tick() == 1


# --- what was not told --------------------------------------------------------------------------


async def test_a_wake_up_that_was_lost_strands_nobody_and_is_counted(
    store: Store, parts: Parts
) -> None:
    """The process that inserted them, or freed the slots, died right after its commit."""
    await made(store, 2, key="k")
    await made(store, 1, key="l")
    sweeping = parts.admitting()
    assert await sweeping.sweep() == 2
    assert counted(sweeping, "runs_admitted") == 2
    assert await sweeping.sweep() == 0
    await settled(store, *await claimed(store))
    sweeping._told.clear()
    assert await sweeping.sweep() == 1


async def test_one_tenant_that_fails_does_not_keep_the_others_from_their_slots(
    store: Store, parts: Parts, database_url: str
) -> None:
    admitting = parts.admitting()
    async with store.transaction() as tx:
        await seeds.ready(tx, key="k")
        await seeds.ready(tx, key="k", tenant=2)
    async with holding(database_url, locks.OWN_TENANT, locks.TENANT, 1):
        with pytest.raises(StoreUnavailable, match="LockNotAvailable"):
            await admitting.tick()
        assert len(await claimed(store)) == 1
    assert await admitting.tick() == 1


# --- when a cap changes -------------------------------------------------------------------------


async def change(store: Store, cap: str, most: int | None) -> None:
    """As the API does it."""
    kind, _, name = cap.partition(f":{seeds.TENANT}")
    async with store.transaction() as tx:
        await locks.own_tenant(tx, seeds.TENANT)
        if kind == "tenant":
            await limits.put_own(tx, seeds.TENANT, most)
        else:
            await limits.put(tx, seeds.TENANT, kind, name[1:], Limit(most))
        await caps.put_back(tx, seeds.TENANT, cap)


@pytest.mark.parametrize("cap", [KEY, HOST, OWN])
async def test_a_cap_below_what_runs_lets_that_finish_and_admits_none(
    store: Store, parts: Parts, cap: str
) -> None:
    admitting = parts.admitting()
    async with store.transaction() as tx:
        await seeds.tenant(tx, max_running=9)
        await seeds.limit(tx, "host", "a.example", 9)
        await seeds.limit(tx, "key", "k", 4)
    made_ = await made(store, 6, key="k", host="a.example")
    assert await admitting.tick() == 4
    async with store.transaction() as tx:
        leases = [runs.held_key(row) for row in await seeds.claim(tx, limit=2)]
    await change(store, cap, 1)
    while await admitting.tick():
        pass
    assert await claimed(store) == [], "what nobody had claimed waits again"
    assert await parts.admitting().sweep() == 0
    await settled(store, leases[0])
    assert await parts.admitting().sweep() == 0, "one still runs"
    await settled(store, leases[1])
    await parts.admitting().sweep()
    order = [made_[2].job_id]
    assert [lease.job_id for lease in await claimed(store)] == order


@pytest.mark.parametrize("cap", [KEY, HOST, OWN])
async def test_a_cap_that_is_raised_or_taken_away_lets_more_go_at_once(
    store: Store, parts: Parts, cap: str
) -> None:
    admitting = parts.admitting()
    async with store.transaction() as tx:
        await seeds.tenant(tx, max_running=1 if cap == OWN else None)
        if cap == HOST:
            await seeds.limit(tx, "host", "a.example", 1)
    await made(store, 9, key="k" if cap == KEY else None, host="a.example")
    assert await admitting.tick() == 1
    await change(store, cap, 3)
    assert await admitting.tick() == 2
    await change(store, cap, None)
    assert await admitting.tick() == 6


@pytest.mark.parametrize("cap", [KEY, HOST, OWN])
async def test_a_new_cap_counts_what_was_made_before_it(
    store: Store, parts: Parts, cap: str
) -> None:
    """What runs goes on, what waits for a time is marked, what was READY lines up."""
    admitting, marking = parts.admitting(), Marking(store, size=2)
    async with store.transaction() as tx:
        await seeds.tenant(tx)
        await seeds.limit(tx, "key", "k", None)
        before = await seeds.ready(tx, count=3, key="k", host="a.example")
        running, retrying = [runs.held_key(row) for row in await seeds.claim(tx, limit=2)]
        await seeds.settle(tx, seeds.retried(retrying))
        ready = next(run for run in before if run.job_id not in {running[0], retrying[0]})
        strangers = await seeds.ready(tx, count=3, tenant=2, host="a.example")
    await change(store, cap, 1)
    assert await marking.tick() == 3
    assert await marking.tick() == 0
    await admitting.tick()
    assert await waits_for(store, ready) == cap
    assert await lined_up(store, strangers) == [None] * 3
    store.now = await later(store, timedelta(seconds=20))
    assert await parts.retries().tick() == 1
    await admitting.tick()
    assert len(await claimed(store)) == 3, "none but the strangers'"
    await settled(store, running)
    await parts.admitting().sweep()
    (one,) = await claimed(store)
    await settled(store, one)
    await parts.admitting().sweep()
    assert len(await claimed(store)) == 1


async def test_what_was_inserted_beside_the_change_is_found_later(
    store: Store, parts: Parts
) -> None:
    """It did not see the new cap, and was committed after the others had been gone through."""
    admitting, marking = parts.admitting(), Marking(store)
    async with store.transaction() as tx:
        await seeds.tenant(tx)
    async with store.transaction() as late:
        (run,) = await seeds.ready(late)
        await change(store, OWN, 0)
        assert await marking.tick() == 0
    assert await waits_for(store, run) is None
    assert await marking.tick() == 1
    await admitting.tick()
    assert await waits_for(store, run) == OWN


async def test_a_tenant_whose_caps_have_not_changed_is_not_gone_through(
    store: Store, parts: Parts
) -> None:
    async with store.transaction() as tx:
        await seeds.tenant(tx, max_running=5)
        await seeds.ready(tx, count=3)
    marking = Marking(store)
    assert await marking.tick() == 0
    assert marking._began is None
