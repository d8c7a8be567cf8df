"""Breakers and holds, stepped against each other in every order."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from noonday.domain.breaker import HALF_OPEN_RUNS, Target, target_of
from noonday.store import Store, Tx, cancels, holds, locks, runs, targets
from noonday.store.cancels import Which
from tests.races.conftest import EveryOrder
from tests.support import seeds
from tests.support.stepping import Plan, Step, rollback

URL = "http://dead.example/hook"
PAUSES = [timedelta(seconds=30)]
NOTHING = timedelta(0)


def _target() -> Target:
    found = target_of(seeds.TENANT, URL)
    assert found is not None
    return found


TARGET = _target()
KEY = TARGET.key


async def stand(store: Store, state: str, permits: int = 0, generation: int = 1) -> None:
    """A target that stands so since a minute; if it is OPEN its pause is over."""
    async with store.transaction() as tx:
        await tx.execute(
            "INSERT INTO targets (hold_key, tenant_id, host, port, state, reason, since, permits, "
            "generation, probe_at, released_at) VALUES ($1, 1, 'dead.example', 80, $2, '', "
            "now() - interval '1 minute', $3, $4, CASE WHEN $2 IN ('OPEN', 'HALF_OPEN') "
            "THEN now() - interval '1 second' END, now() - interval '1 minute')",
            KEY, state, permits, generation,
        )  # fmt: skip


async def standing(store: Store) -> tuple[Any, ...]:
    """State, generation, permits and successes."""
    async with store.transaction() as tx:
        row = await tx.one("SELECT state, generation, permits, successes FROM targets")
    return tuple(row.values())


def permit(count: int) -> Step:
    async def step(tx: Tx) -> int:
        found = await targets.permit(tx, {KEY: count})
        return int(found[KEY]["permits"]) if KEY in found else 0

    return step


async def opening(tx: Tx) -> bool:
    return await targets.open(tx, seeds.TENANT, TARGET, "503", NOTHING, PAUSES)


async def half_open(tx: Tx) -> int:
    return await targets.half_open(tx, KEY, PAUSES[0])


async def refill(tx: Tx) -> int:
    return await targets.refill(tx, KEY, PAUSES[0])


async def resume(tx: Tx) -> int:
    return len(await targets.resume(tx, seeds.TENANT, "dead.example", "by hand") or ())


def succeeded(generation: int, count: int = 1) -> Step:
    async def step(tx: Tx) -> bool:
        return await targets.probe_succeeded(tx, KEY, generation, count)

    return step


def failed(generation: int) -> Step:
    async def step(tx: Tx) -> bool:
        return await targets.probe_failed(tx, KEY, generation, "503", PAUSES)

    return step


async def test_no_more_runs_go_than_there_are_permits_and_no_claim_waits_for_another(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        await stand(store, "HALF_OPEN", HALF_OPEN_RUNS)
        return {"a": [permit(2)], "b": [permit(2)], "c": [permit(1)]}

    async for played in every_order(prepare):
        given = sum(sum(played.results[name]) for name in "abc")
        assert given <= HALF_OPEN_RUNS, played
        assert await standing(store) == ("HALF_OPEN", 1, HALF_OPEN_RUNS - given, 0), played
        assert not played.waited, played


async def test_a_claim_that_is_given_up_gives_its_permits_back(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        await stand(store, "HALF_OPEN", HALF_OPEN_RUNS)
        return {"a": [permit(3), rollback], "b": [permit(3)]}

    async for played in every_order(prepare):
        (given,) = played.results["b"]
        assert await standing(store) == ("HALF_OPEN", 1, HALF_OPEN_RUNS - given, 0), played


@pytest.mark.parametrize("known", [False, True])
async def test_two_workers_open_a_breaker_once(
    store: Store, every_order: EveryOrder, known: bool
) -> None:
    async def prepare() -> Plan:
        if known:
            await stand(store, "CLOSED")
        return {"a": [opening], "b": [opening]}

    async for played in every_order(prepare):
        assert sorted([*played.results["a"], *played.results["b"]]) == [False, True], played
        assert await standing(store) == ("OPEN", 1 + known, 0, 0), played


async def test_two_admissions_try_a_target_once(store: Store, every_order: EveryOrder) -> None:
    async def prepare() -> Plan:
        await stand(store, "OPEN")
        return {"a": [half_open], "b": [half_open]}

    async for played in every_order(prepare):
        both = sorted([*played.results["a"], *played.results["b"]])
        assert both == [0, HALF_OPEN_RUNS], played
        assert await standing(store) == ("HALF_OPEN", 2, HALF_OPEN_RUNS, 0), played


async def test_a_result_of_the_try_before_changes_nothing_of_the_next(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        await stand(store, "OPEN", generation=3)
        return {"next": [half_open], "late": [succeeded(2, 9)], "later": [failed(2)]}

    async for played in every_order(prepare):
        assert (played.results["late"], played.results["later"]) == ([False], [False]), played
        assert await standing(store) == ("HALF_OPEN", 4, HALF_OPEN_RUNS, 0), played


async def test_of_results_that_meet_the_first_to_decide_does(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        await stand(store, "HALF_OPEN", generation=2)
        return {"well": [succeeded(2, 3)], "ill": [failed(2)]}

    async for played in every_order(prepare):
        closed, opened = played.results["well"][0], played.results["ill"][0]
        assert closed != opened, played
        assert await standing(store) == (("CLOSED", 3, 0, 3) if closed else ("OPEN", 3, 0, 0)), (
            played
        )


async def test_successes_of_two_workers_add_up(store: Store, every_order: EveryOrder) -> None:
    async def prepare() -> Plan:
        await stand(store, "HALF_OPEN", generation=2)
        return {"a": [succeeded(2, 2)], "b": [succeeded(2, 1)]}

    async for played in every_order(prepare):
        assert sorted([*played.results["a"], *played.results["b"]]) == [False, True], played
        assert (await standing(store))[0] == "CLOSED", played


async def test_permits_are_given_again_once_and_not_to_a_target_that_was_decided_on(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        await stand(store, "HALF_OPEN", generation=2)
        return {"a": [refill], "b": [refill], "result": [failed(2)]}

    async for played in every_order(prepare):
        given = sum([*played.results["a"], *played.results["b"]])
        assert given in (0, HALF_OPEN_RUNS), played
        assert await standing(store) == ("OPEN", 3, 0, 0), played


async def test_a_person_who_resumes_comes_before_a_result_or_after_it(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        await stand(store, "HALF_OPEN", generation=2)
        return {"person": [resume], "result": [failed(2)]}

    async for played in every_order(prepare):
        assert played.results["person"] == [1], played
        generation = 4 if played.results["result"][0] else 3
        assert (await standing(store))[:2] == ("CLOSED", generation), played


# --- runs -------------------------------------------------------------------------------------

CLAIMABLE = "SELECT count(*) FROM runs WHERE state = 'READY' AND claimable"
HELD = "SELECT count(*) FROM runs WHERE state = 'READY' AND hold_key = $1"


async def claim_and_hold(tx: Tx) -> int:
    leases = [runs.held_key(row) for row in await seeds.claim(tx)]
    return len(await holds.hold(tx, [(lease, "breaker", KEY) for lease in leases]))


async def admit(tx: Tx) -> int:
    if not all(await locks.try_keys(tx, [locks.hashed("hold", KEY)])):
        return 0
    return await holds.admit(tx, KEY, 10)


async def counts(store: Store) -> tuple[int, int]:
    async with store.transaction() as tx:
        return await tx.value(CLAIMABLE), await tx.value(HELD, KEY)


async def test_what_is_being_held_and_what_is_let_go_are_never_the_same_and_none_is_lost(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        async with store.transaction() as tx:
            await seeds.ready(tx, count=2)
            await claim_and_hold(tx)
            await seeds.ready(tx, count=3)
        return {"worker": [claim_and_hold], "one": [admit], "other": [admit]}

    async for played in every_order(prepare):
        claimable, held = await counts(store)
        assert claimable + held == 5, played
        assert not played.waited, played


async def test_a_held_run_that_is_cancelled_and_let_go_at_once_ends_once(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        async with store.transaction() as tx:
            (run,) = await seeds.ready(tx)
            await claim_and_hold(tx)

        async def cancel(tx: Tx) -> int:
            which = Which(run.job_id)
            await cancels.lock(tx, which)
            return await cancels.cancel(tx, which, "deleted")

        return {"admission": [admit], "person": [cancel], "worker": [claim_and_hold]}

    async for played in every_order(prepare):
        assert played.results["person"] == [1], played
        assert await counts(store) == (0, 0), played


async def test_a_worker_that_dies_within_its_claim_leaves_what_it_was_to_hold_claimable(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        async with store.transaction() as tx:
            await seeds.ready(tx, count=2)
        return {"dies": [claim_and_hold, rollback], "admission": [admit]}

    async for played in every_order(prepare):
        assert await counts(store) == (2, 0), played
