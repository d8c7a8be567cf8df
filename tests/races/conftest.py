"""Sessions for plays, and a check of all invariants after each."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from noonday.store import Store
from tests.support.invariants import broken, wipe
from tests.support.stepping import Plan, Played, Stage, orders

IS_ANOTHER = bool({"NOONDAY_TEST_PGBOUNCER", "NOONDAY_TEST_POSTGRES"} & os.environ.keys())
"""These tests run on another Postgres, or through a pooler, besides."""
FEW, OF_MANY = 100, 5
"""There only each fifth of more than a hundred orders is played."""

EveryOrder = Callable[[Callable[[], Awaitable[Plan]]], AsyncIterator[Played]]


@pytest.fixture
async def stage(database_url: str) -> AsyncIterator[Stage]:
    async with Stage.open(database_url) as opened:
        yield opened


@pytest.fixture
def every_order(store: Store, stage: Stage) -> EveryOrder:
    """Plays a plan, made anew each time on empty tables, in every order of its steps."""

    async def play_all(prepare: Callable[[], Awaitable[Plan]]) -> AsyncIterator[Played]:
        every = list(orders(await prepare()))
        for order in every[:: OF_MANY if IS_ANOTHER and len(every) > FEW else 1]:
            await wipe(store)
            played = await stage.play(await prepare(), order)
            assert not await broken(store), played
            yield played

    return play_all
