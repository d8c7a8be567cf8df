"""Sessions for plays, and a check of all invariants after each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from noonday.store import Store
from tests.support.invariants import broken, wipe
from tests.support.stepping import Plan, Played, Stage, orders

EveryOrder = Callable[[Callable[[], Awaitable[Plan]]], AsyncIterator[Played]]


@pytest.fixture
async def stage(database_url: str) -> AsyncIterator[Stage]:
    async with Stage.open(database_url) as opened:
        yield opened


@pytest.fixture
def every_order(store: Store, stage: Stage) -> EveryOrder:
    """Plays a plan, made anew each time on empty tables, in every order of its steps."""

    async def play_all(prepare: Callable[[], Awaitable[Plan]]) -> AsyncIterator[Played]:
        for order in orders(await prepare()):
            await wipe(store)
            played = await stage.play(await prepare(), order)
            assert not await broken(store), played
            yield played

    return play_all
