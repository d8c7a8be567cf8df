"""A thousand caps among sixteen workers that compete for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID

import pytest

from noonday.domain.model import Attempt, Outcome
from noonday.loops.admitting import Admitting
from noonday.loops.worker import Worker
from noonday.store import Store
from tests.support import seeds
from tests.support.database import open_store
from tests.support.scripted import Parts, Scripted, carry_out

WORKERS = 16
KEYS = 1_000
EACH = 2
MOST = 25
"""Of the tenant's runs at a time."""
KEY_OF = "SELECT id, concurrency_key FROM jobs"
UNFINISHED = "SELECT count(*) FROM runs"


class Counting(Scripted):
    """Notes how many runs of each key, and of all, are under way; shared by all workers."""

    def __init__(self, keys: dict[UUID, str]) -> None:
        super().__init__()
        self._keys = keys
        self._running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def answer(self, attempt: Attempt) -> Outcome:
        key = self._keys[attempt.run.job_id]
        for each in (key, "all"):
            self._running[each] += 1
            self.most[each] = max(self.most[each], self._running[each])
        await asyncio.sleep(0)  # the others get their turn
        try:
            return await super().answer(attempt)
        finally:
            self._running.subtract((key, "all"))


@pytest.fixture
async def stores(database_url: str) -> AsyncIterator[list[Store]]:
    """One for each worker, as each process has its own."""
    async with AsyncExitStack() as stack:
        opened = [await open_store(database_url, size=2) for _ in range(WORKERS)]
        for store in opened:
            stack.push_async_callback(store.close)
        yield opened


async def test_a_thousand_keys_among_sixteen_workers_are_never_carried_out_twice_at_a_time(
    store: Store, stores: list[Store], tmp_path: Path
) -> None:
    async with store.transaction() as tx:
        await seeds.tenant(tx, max_running=MOST)
        for number in range(KEYS):
            await seeds.ready(tx, count=EACH, key=f"k{number}")
        keys = {row["id"]: row["concurrency_key"] for row in await tx.rows(KEY_OF)}
    executor, parts = Counting(keys), Parts(store, tmp_path)
    work = [
        until_all_is_done(store, parts.worker(executor, store=each), parts.admitting(store=each))
        for each in stores
    ]
    async with asyncio.timeout(100):
        await asyncio.gather(*work)
    parts.close()
    assert len(executor.attempts) == KEYS * EACH
    assert executor.most.pop("all") <= MOST
    assert set(executor.most.values()) == {1}


async def until_all_is_done(store: Store, worker: Worker, admitting: Admitting) -> None:
    while True:
        moved = await admitting.tick() + await carry_out(worker)
        if not moved and not await admitting.sweep():
            async with store.transaction() as tx:
                if not await tx.value(UNFINISHED):
                    return
