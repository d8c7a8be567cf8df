"""Several sessions stepped by hand through every order of their steps.

After Postgres' own isolation tester: each session runs its steps in one transaction, and its
COMMIT is a step like any other. A step that waits for a lock keeps waiting while the others go
on; what its session was told to do next follows as soon as it may. Whether a session waits is
asked of Postgres, never guessed from time passing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import Any, TypeAlias

from noonday.store import Store, Tx
from tests.support.database import open_store

Step: TypeAlias = Callable[[Tx], Awaitable[object]]
Plan: TypeAlias = Mapping[str, Sequence[Step]]
DEADLINE_SEC = 20
LOOK_SEC = 0.002
"""How often Postgres is asked whether a session waits; asking takes time from what it does."""
BLOCKED = "SELECT cardinality(pg_blocking_pids($1)) > 0"


class Rollback(Exception):
    """Raised by a step that ends its transaction without a commit."""


async def rollback(tx: Tx) -> None:
    """A step: the process dies here, or gives up."""
    raise Rollback


def orders(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Every order of all steps, commits included, in which each session keeps its own."""
    return _orders({name: len(steps) + 1 for name, steps in plan.items()})


def _orders(left: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    if not any(left.values()):
        yield ()
    for name, count in left.items():
        if count:
            for rest in _orders({**left, name: count - 1}):
                yield (name, *rest)


class Played:
    """What came of one order: each session's results, and who waited for whom to go on."""

    def __init__(self, order: Sequence[str], sessions: Mapping[str, _Session]) -> None:
        self.order = " ".join(order)
        self.results = {name: session.results for name, session in sessions.items()}
        self.errors = {name: session.error for name, session in sessions.items() if session.error}
        self.waited = {name for name, session in sessions.items() if session.waited}

    def __repr__(self) -> str:
        return f"order [{self.order}], waited {self.waited}, {self.results}, {self.errors}"


class Stage:
    """Connections that plays run on, one for each session, and one that watches."""

    def __init__(self, watcher: Store, stores: Sequence[Store]) -> None:
        self._watcher = watcher
        self._stores = stores

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, sessions: int = 3) -> AsyncIterator[Stage]:
        async with AsyncExitStack() as stack:
            stores = [await open_store(url, size=1, name="a test") for _ in range(sessions + 1)]
            for store in stores:
                stack.push_async_callback(store.close)
            yield cls(stores[0], stores[1:])

    def set_clock(self, now: datetime | None) -> None:
        """Bind the time of all sessions."""
        for store in self._stores:
            store.now = now

    async def play(self, plan: Plan, order: Sequence[str]) -> Played:
        """Run the steps of ``plan`` in ``order``; what a session was told last must end in time."""
        sessions = {
            name: _Session(store, plan[name])
            for name, store in zip(plan, self._stores, strict=False)
        }
        assert len(sessions) == len(plan), "a play needs a connection for each session"
        async with asyncio.timeout(DEADLINE_SEC), asyncio.TaskGroup() as group:
            for session in sessions.values():
                group.create_task(session.run())
            for name in order:
                sessions[name].tell()
                for session in sessions.values():
                    await self._until_it_rests(session)
        return Played(order, sessions)

    async def _until_it_rests(self, session: _Session) -> None:
        """Until a session has done what it was told, or waits for another in Postgres."""
        while not await session.rested(LOOK_SEC):
            if session.pid and await self._is_blocked(session.pid):
                session.waited = True
                return

    async def _is_blocked(self, pid: int) -> bool:
        async with self._watcher.transaction() as tx:
            return bool(await tx.value(BLOCKED, pid))


class _Session:
    def __init__(self, store: Store, steps: Sequence[Step]) -> None:
        self._store = store
        self._steps = steps
        self._told = 0
        self._done = 0
        self._news = asyncio.Event()
        self._moved = asyncio.Event()
        self.pid = 0
        self.results: list[Any] = []
        self.error: Exception | None = None
        self.waited = False

    @property
    def rests(self) -> bool:
        return self._done >= self._told

    def tell(self) -> None:
        self._told += 1
        self._news.set()

    async def rested(self, within_sec: float) -> bool:
        """Whether it has done what it was told, which it may take a moment for."""
        try:
            async with asyncio.timeout(within_sec):
                while not self.rests:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            pass
        return self.rests

    async def run(self) -> None:
        try:
            await self._turn()
            async with self._store.transaction() as tx:
                self.pid = await tx.value("SELECT pg_backend_pid()")
                for step in self._steps:
                    self.results.append(await step(tx))
                    self._done += 1
                    self._moved.set()
                    await self._turn()
        except Rollback:
            pass
        except Exception as error:
            self.error = error
        self._done = len(self._steps) + 1
        self._moved.set()

    async def _turn(self) -> None:
        """Wait until there is a step that was told and not done."""
        while self.rests:
            self._news.clear()
            await self._news.wait()
