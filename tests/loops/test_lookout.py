"""The lookout: whoever has something to do is woken, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

import pytest

from noonday.loops.lookout import Lookout
from noonday.store import Store, Tx, operations, pending, signs
from noonday.store.wakeups import POLL_SEC, QUIET_SEC, RETRIES, RUNS, Wakeups
from tests.support import seeds
from tests.support.holds import eventually
from tests.support.letters import ask, lie_there
from tests.support.links import Link

NOW = datetime.now(UTC)
SIGNS = ("held", "ended", "operations", "replays", "caps_changed", "counted")


async def seen(store: Store) -> set[str]:
    async with store.transaction() as tx:
        return await signs.look(tx)


async def test_where_nothing_is_to_be_done_nobody_is_woken(store: Store) -> None:
    async with store.transaction() as tx:
        await seeds.ready(tx, count=3)
    lookout, woken = Lookout(store), list[str]()
    for sign in SIGNS:
        lookout.on(sign, partial(woken.append, sign))
    assert await lookout.tick() == 0
    assert woken == []


async def hold(tx: Tx) -> None:
    await seeds.ready(tx)
    await tx.execute("UPDATE runs SET hold = 'cap', hold_key = 'key:1:a', claimable = false")


async def end(tx: Tx) -> None:
    await tx.execute(
        "INSERT INTO endings (parent_id, occurrence_at, outcome) VALUES ($1, $2, 'COMPLETE')",
        uuid4(), NOW,
    )  # fmt: skip


async def cancel_many(tx: Tx) -> None:
    await operations.create(tx, uuid4(), seeds.TENANT, "cancel_jobs", "{}", "me")


async def cap(tx: Tx) -> None:
    await tx.execute(
        """INSERT INTO tenants (name, signing_secrets, secrets_rotated_at, created_at,
                                caps_changed_at)
           VALUES ('capped', '{}', $1, $1, $1)""",
        NOW,
    )


async def count(tx: Tx) -> None:
    await pending.watch(tx, seeds.TENANT)


@pytest.mark.parametrize(
    ("sign", "make"),
    [
        ("held", hold),
        ("ended", end),
        ("operations", cancel_many),
        ("caps_changed", cap),
        ("counted", count),
    ],
)
async def test_what_is_there_is_seen_and_nothing_else(
    store: Store, sign: str, make: Callable[[Tx], Awaitable[None]]
) -> None:
    store.now = NOW
    async with store.transaction() as tx:
        await make(tx)
    assert await seen(store) == {sign}


async def test_a_replay_under_way_is_seen(store: Store) -> None:
    async with store.transaction() as tx:
        await lie_there(tx)
    await ask(store)
    assert "replays" in await seen(store)


async def test_a_cap_that_was_changed_long_ago_is_no_news(store: Store) -> None:
    store.now = NOW
    async with store.transaction() as tx:
        await cap(tx)
    store.now = NOW + 2 * signs.CHANGED_LATELY
    assert await seen(store) == set()


async def test_some_are_woken_at_every_other_look_only(store: Store) -> None:
    async with store.transaction() as tx:
        await hold(tx)
    lookout, woken = Lookout(store), list[str]()
    lookout.on("held", lambda: woken.append("often"))
    lookout.on("held", lambda: woken.append("seldom"), every=2)
    for _ in range(4):
        await lookout.tick()
    assert (woken.count("often"), woken.count("seldom")) == (4, 2)


async def test_looks_take_turns_on_one_connection_and_pass_one_that_is_slow(store: Store) -> None:
    async def backend() -> int:
        async with store.in_turn() as tx:
            return int(await tx.value("SELECT pg_backend_pid()"))

    first, second = await backend(), await backend()
    assert first == second
    async with store.in_turn() as tx:
        slow = await tx.value("SELECT pg_backend_pid()")
        assert await backend() != slow
    assert await backend() in (first, slow)


@pytest.mark.parametrize(("delay", "told"), [(0.5, True), (60.0, False)])
async def test_a_retry_that_is_near_is_told_to_those_whose_pause_may_be_longer(
    store: Store, delay: float, told: bool
) -> None:
    woken: list[str] = []
    store.wake = woken.append
    async with store.transaction() as tx:
        (run,) = await seeds.ready(tx)
        await seeds.claim(tx)
        again = seeds.retried(seeds.held(run), timedelta(seconds=delay))
        assert await seeds.settle(tx, again)
    assert (RETRIES in woken) == told


async def test_it_is_looked_more_often_while_no_wake_ups_are_heard(
    linked: Store, link: Link
) -> None:
    wakeups, woken = Wakeups(linked), list[float]()
    wakeups.on(RUNS, lambda: woken.append(wakeups.poll_sec()))
    assert wakeups.poll_sec() == POLL_SEC
    running = asyncio.create_task(wakeups.run())
    await eventually(lambda: wakeups.poll_sec() == QUIET_SEC)
    link.fault = "down"
    wakeups.runs()  # what it sends is the first to find that nobody is there
    await eventually(lambda: wakeups.poll_sec() == POLL_SEC)
    assert woken[-1] == POLL_SEC, "whoever sleeps for long is woken"
    running.cancel()
