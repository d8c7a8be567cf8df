"""What is taken of a rate never exceeds it, however many take at once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from noonday.store import Store, rates
from noonday.store.rates import Block, Wanted

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


async def take(store: Store, number: int, *, at: datetime, burst: float = 1.0, ahead: float = 0.0,
               per_sec: float = 10.0) -> Block:  # fmt: skip
    store.now = at
    async with store.transaction() as tx:
        return (await rates.take(tx, [Wanted("tenant:1", per_sec, burst, ahead, number)]))[
            "tenant:1"
        ]


async def test_a_pause_is_worth_a_burst_and_no_more(store: Store) -> None:
    assert (await take(store, 100, at=NOW, burst=5)).number == 5
    assert (await take(store, 100, at=NOW, burst=5)).number == 0
    assert (await take(store, 100, at=NOW + timedelta(seconds=0.3), burst=5)).number == 3
    assert (await take(store, 100, at=NOW + timedelta(hours=1), burst=5)).number == 5


async def test_what_lies_ahead_is_taken_once_each_at_its_own_instant(store: Store) -> None:
    first = await take(store, 3, at=NOW, ahead=1.0)
    following = await take(store, 100, at=NOW, ahead=1.0)
    assert (first.number, first.first_at) == (3, NOW)
    assert (following.number, following.first_at) == (8, NOW + timedelta(seconds=0.3))
    assert following.next_at == NOW + timedelta(seconds=1.1)


async def test_a_rate_that_was_slowed_gives_accordingly_less(store: Store) -> None:
    await take(store, 1, at=NOW)
    async with store.transaction() as tx:
        await tx.execute("UPDATE rates SET slowed = 0.5")
    block = await take(store, 100, at=NOW + timedelta(seconds=10), ahead=1.0)
    assert (block.number, block.spacing) == (6, timedelta(seconds=0.2))


async def test_takers_at_the_same_time_never_get_more_than_there_is(store: Store) -> None:
    blocks = await asyncio.gather(*(take(store, 3, at=NOW, burst=20) for _ in range(20)))
    assert sum(block.number for block in blocks) == 20
