"""Each way in which a parent can end, and what becomes of those that wait for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from uuid import UUID

import pytest

from noonday.domain.dependencies import Fate, fate
from noonday.domain.lifecycle import Event, Transition
from noonday.domain.model import ExecutionStatus, LedgerOutcome, Once, Reason, RunKey
from noonday.store import Store, Tx, cancels, dead_letters, dependencies, jobs, locks, occurrences
from noonday.store.cancels import Which
from noonday.store.occurrences import Entry
from noonday.store.settlements import Settlement
from tests.support import families, seeds
from tests.support.invariants import broken, wipe

T = datetime.now(UTC).replace(microsecond=0)
SECOND = timedelta(seconds=1)


# --- ways to end ------------------------------------------------------------------------------


async def claimed(tx: Tx, parent: RunKey) -> None:
    assert await seeds.claim(tx)


async def complete(tx: Tx, parent: RunKey) -> None:
    await claimed(tx, parent)
    assert await seeds.settle(tx, seeds.completed(seeds.held(parent)))


async def dead_letter(tx: Tx, parent: RunKey) -> None:
    await claimed(tx, parent)
    transition = Transition(
        Event.DEAD_LETTER, ExecutionStatus.FAILED, reason=Reason.PERMANENT_ANSWER
    )
    assert await seeds.settle(tx, Settlement(seeds.held(parent), transition, seeds.FAILURE))


async def stop(tx: Tx, parent: RunKey) -> None:
    await claimed(tx, parent)
    assert await cancels.request(tx, Which.run(parent), "stop", stop=True)
    assert await seeds.settle(tx, seeds.stopped(seeds.held(parent)))


async def cancel(tx: Tx, parent: RunKey) -> None:
    assert await cancels.cancel(tx, Which.run(parent), "by hand")


async def kill(tx: Tx, parent: RunKey) -> None:
    assert await cancels.cancel(tx, Which.run(parent), "by hand", kill=True)


async def last_attempt(tx: Tx, parent: RunKey) -> None:
    await claimed(tx, parent)
    assert await cancels.request(tx, Which.run(parent), "not again")
    assert await seeds.settle(tx, seeds.retried(seeds.held(parent)))


async def killed_attempt(tx: Tx, parent: RunKey) -> None:
    await claimed(tx, parent)
    assert await cancels.request(tx, Which.run(parent), "not again", kill=True)
    assert await seeds.settle(tx, seeds.interrupted(seeds.held(parent)))


async def cancel_its_job(tx: Tx, parent: RunKey) -> None:
    await locks.own_shard(tx, parent.job_id.int % 64)
    job = await jobs.one(tx, parent.job_id, seeds.TENANT)
    assert job is not None
    assert await cancels.cancel_job(tx, job, "by hand")


async def miss(tx: Tx, parent: RunKey) -> None:
    entry = Entry(parent.job_id, T, T, "MISSED", "grace", None)
    written = await occurrences.materialize(
        tx, [seeds.fired(parent.job_id, T)], [entry], [], T + SECOND
    )
    assert written.missed == 1


End = Callable[[Tx, RunKey], Awaitable[None]]
OF_RUNS: dict[End, LedgerOutcome] = {
    complete: LedgerOutcome.COMPLETE,
    dead_letter: LedgerOutcome.FAILED,
    stop: LedgerOutcome.CANCELLED,
    cancel: LedgerOutcome.CANCELLED,
    kill: LedgerOutcome.FAILED,
    last_attempt: LedgerOutcome.CANCELLED,
    killed_attempt: LedgerOutcome.FAILED,
    cancel_its_job: LedgerOutcome.CANCELLED,
}
OF_TIMERS: dict[End, LedgerOutcome] = {
    miss: LedgerOutcome.MISSED,
    cancel_its_job: LedgerOutcome.CANCELLED,
}
CASES = [("run", *case) for case in OF_RUNS.items()]
CASES += [("timer", *case) for case in OF_TIMERS.items()]


async def parent_at(store: Store, place: str) -> RunKey:
    store.now = T
    async with store.transaction() as tx:
        if place == "run":
            return (await seeds.ready(tx))[0]
        (job,) = await seeds.armed(tx, Once(T), T)
        return families.run_of(job, T)


@pytest.mark.parametrize(("place", "end", "outcome"), CASES)
async def test_children_follow_what_came_of_their_parent(
    store: Store, place: str, end: End, outcome: LedgerOutcome, subtests: pytest.Subtests
) -> None:
    await wipe(store)
    parent = await parent_at(store, place)
    children: dict[tuple[str, bool], UUID] = {}
    for on, cascade in product(("success", "any"), (False, True)):
        made = await families.child_of(store, parent.job_id, on=on, cascade=cascade)
        children[on, cascade] = made[0]
    assert not await broken(store)
    store.now = T + SECOND
    async with store.transaction() as tx:
        await end(tx, parent)
        assert await tx.value("SELECT count(*) FROM endings") == 1
    assert not await broken(store)
    await families.told(store)
    for (on, cascade), child in children.items():
        with subtests.test(on=on, cascade=cascade):
            follows = fate("any" if on == "any" else "success", cascade, outcome)
            word = {Fate.GO_ON: "armed", Fate.SKIP: "SKIPPED", Fate.CANCEL: "CANCELLED"}[follows]
            why: tuple[str | None, str | None] = (None, None)
            if follows is not Fate.GO_ON:
                why = (f"parent_{outcome.lower()}", str(parent))
            assert await families.fate_of(store, child) == (word, *why)
    assert not await broken(store)
    await nothing_is_left(store)


async def nothing_is_left(store: Store) -> None:
    async with store.transaction() as tx:
        for table in ("dependents", "dependencies", "endings"):
            assert await tx.value(f"SELECT count(*) FROM {table}") == 0, table


@pytest.mark.parametrize("end", OF_RUNS)
async def test_what_has_no_children_notes_nothing(store: Store, end: End) -> None:
    await wipe(store)
    parent = await parent_at(store, "run")
    store.now = T + SECOND
    async with store.transaction() as tx:
        await end(tx, parent)
        assert not tx.wakes
    await nothing_is_left(store)


# --- where a parent stands --------------------------------------------------------------------


async def standing(store: Store, parent: UUID) -> dependencies.Standing:
    async with store.transaction() as tx:
        (stand,) = (await dependencies.standing(tx, families.parents_of(parent))).values()
        return stand


async def test_a_parent_is_open_once_it_was_told_that_it_is_awaited(store: Store) -> None:
    for place in ("run", "timer"):
        await wipe(store)
        parent = (await parent_at(store, place)).job_id
        stand = await standing(store, parent)
        assert (stand.outcome, stand.open) == (None, False)
        async with store.transaction() as tx:
            await families.announce(tx, parent)
        assert (await standing(store, parent)).open


async def test_the_flag_goes_with_the_parent_from_timer_to_run(store: Store) -> None:
    await wipe(store)
    grandparent = await parent_at(store, "run")
    (parent,) = await families.child_of(store, grandparent.job_id)
    (child,) = await families.child_of(store, parent)
    async with store.transaction() as tx:
        await complete(tx, grandparent)
    await families.told(store)
    assert await families.fate_of(store, parent) == ("armed", None, None)
    async with store.transaction() as tx:
        await occurrences.materialize(
            tx, [seeds.fired(parent, T, seq=1)], [seeds.open_entry(parent, T)], [], T
        )
    assert not await broken(store)
    async with store.transaction() as tx:
        await complete(tx, families.run_of(parent, T))
    await families.told(store)
    assert await families.fate_of(store, child) == ("armed", None, None)


async def test_a_replayed_parent_is_waited_for_again_and_whom_it_had_skipped_stays_so(
    store: Store,
) -> None:
    await wipe(store)
    parent = await parent_at(store, "run")
    (early,) = await families.child_of(store, parent.job_id)
    async with store.transaction() as tx:
        await dead_letter(tx, parent)
    assert (await standing(store, parent.job_id)).outcome == "FAILED"
    async with store.transaction() as tx:
        assert await dead_letters.replay(tx, [parent], seeds.TENANT, UUID(int=7))
        await families.announce(tx, parent.job_id)
    stand = await standing(store, parent.job_id)
    assert (stand.outcome, stand.open) == (None, False), "its former end is still to be told"
    await families.told(store)
    assert (await families.fate_of(store, early))[0] == "SKIPPED"
    (late,) = await families.child_of(store, parent.job_id)
    async with store.transaction() as tx:
        assert await seeds.claim(tx)
        assert await seeds.settle(tx, seeds.completed(seeds.held(parent, 2)))
    await families.told(store)
    assert await families.fate_of(store, late) == ("armed", None, None)
    assert (await families.fate_of(store, early))[0] == "SKIPPED"


async def test_a_suspended_parent_counts_as_failed(store: Store) -> None:
    await wipe(store)
    parent = (await parent_at(store, "timer")).job_id
    async with store.transaction() as tx:
        assert await jobs.suspend(tx, parent, "a test")
        await tx.execute("DELETE FROM timers")
    assert (await standing(store, parent)).outcome == "FAILED"


async def test_an_end_that_a_process_of_an_earlier_release_did_not_note_is_found(
    store: Store,
) -> None:
    await wipe(store)
    parent = await parent_at(store, "run")
    (child,) = await families.child_of(store, parent.job_id)
    async with store.transaction() as tx:
        await complete(tx, parent)
        await tx.execute("DELETE FROM endings")
    for expected in (1, 0):
        async with store.transaction() as tx:
            found = await dependencies.parents(tx, UUID(int=0), 10)
            assert await dependencies.note_missed(tx, found) == expected
    await families.told(store)
    assert await families.fate_of(store, child) == ("armed", None, None)
