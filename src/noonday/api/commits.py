"""Shared commits: jobs that are POSTed at the same time are written by few transactions.

What arrives while other transactions are under way is gathered for two milliseconds, up to 256
jobs, and written together. Tenants take turns, so that a batch of one holds up no job of another.
Each job has its own result: one that the database refuses is taken out of its batch, one whose key
is in other hands leaves it and comes back a little later.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Final, cast

from noonday.api import creation, parents
from noonday.api.context import AppContext
from noonday.api.creation import Created, Moving, Order, Result
from noonday.api.keys import Answer, Busy, pauses, refusal
from noonday.api.problems import Problem
from noonday.api.reading import Fault
from noonday.domain.errors import CommitUnknown, StoreUnavailable
from noonday.store import ROW_FAULTS, batches

LINGER_SEC: Final = 0.002
MOST: Final = 256
TRANSACTIONS: Final = 3
TURN: Final = 16
"""So many of a tenant are taken before it is the next one's turn."""
MOST_OPEN: Final = 4_096
"""Jobs of a tenant that may wait for their commit; more are turned away, or waiting would outlast
callers."""
CROWD: Final = 4
"""All tenants together may have so many times as many."""
LOOK_UP_SEC: Final = 5.0
"""How long to find out what became of a commit whose answer was lost."""

_LATER: Final = (Busy, Moving)
"""Results by which an order has to come back. (A tuple: asking for a union takes twice as long.)"""

Outcome = Answer | Exception


class _Party:
    """Orders that came together, and whoever waits for the outcomes of all."""

    __slots__ = ("outcomes", "over", "pending")

    def __init__(self, size: int) -> None:
        self.outcomes: list[Outcome | None] = [None] * size
        self.pending = size
        self.over = asyncio.get_running_loop().create_future()


class _Waiting:
    """One order of a party, by its number."""

    __slots__ = ("number", "order", "party", "pauses")

    def __init__(self, order: Order, party: _Party, number: int) -> None:
        self.order = order
        self.party = party
        self.number = number
        self.pauses: Iterator[float] | None = None
        """To come once it has been sent away."""


class Commits:
    """Takes orders and writes those together that come together."""

    def __init__(self, context: AppContext, most_open: int = MOST_OPEN) -> None:
        self._context = context
        self._most_open = most_open
        self._waiting: dict[int, deque[_Waiting]] = {}
        """By tenant, in the order of their turns."""
        self._open: Counter[int] = Counter()
        self._gathering = False
        self._in_flight = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit_all(self, orders: Sequence[Order]) -> list[Outcome]:
        """For each order of one caller its answer as soon as that is durable, or a problem or
        ``StoreUnavailable``; when there is an outcome for all of them."""
        if not orders:
            return []
        tenant_id = orders[0].caller.tenant_id
        room = self._room(tenant_id)
        party = _Party(min(room, len(orders)))
        if room > 0:
            line = self._waiting.setdefault(tenant_id, deque())
            line.extend([_Waiting(order, party, n) for n, order in enumerate(orders[:room])])
            self._open[tenant_id] += party.pending
            self._staff()
            await party.over
        turned_away = len(orders) - len(party.outcomes)
        return [
            *cast("list[Outcome]", party.outcomes),
            *(_overloaded() for _ in range(turned_away)),
        ]

    def _room(self, tenant_id: int) -> int:
        """How many more jobs of a tenant may wait."""
        everybody = self._most_open * CROWD - self._open.total()
        return max(0, min(self._most_open - self._open[tenant_id], everybody))

    async def create_all(self, orders: Sequence[Order]) -> list[Answer]:
        """All of ``orders`` in a transaction of their own, or none; raises the first problem.

        The problem's ``errors`` point to the job, as ``/jobs/3``.
        """
        waits = pauses()
        while True:
            try:
                return await self._create_all(orders)
            except _NotNow as blocked:
                pause = next(waits, None)
                if pause is None:
                    raise _not_now(blocked.result) from None
            await asyncio.sleep(pause)

    def _enqueue(self, waiting: _Waiting) -> None:
        self._waiting.setdefault(waiting.order.caller.tenant_id, deque()).append(waiting)
        self._staff()

    def _take(self, most: int) -> list[_Waiting]:
        """The next to be written: tenants take turns."""
        taken: list[_Waiting] = []
        while self._waiting and len(taken) < most:
            tenant_id = next(iter(self._waiting))
            line = self._waiting.pop(tenant_id)
            turn = min(len(line), TURN, most - len(taken))
            taken += [line.popleft() for _ in range(turn)]
            if line:
                self._waiting[tenant_id] = line
        return taken

    def _staff(self) -> None:
        """Have somebody gather what waits, unless somebody does or enough is under way."""
        if self._waiting and not self._gathering and self._in_flight < TRANSACTIONS:
            self._gathering = True
            task = asyncio.create_task(self._gather())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _gather(self) -> None:
        await asyncio.sleep(LINGER_SEC if self._in_flight else 0)
        batch = self._take(MOST)
        self._gathering = False
        self._in_flight += 1
        self._staff()
        try:
            await self._write_all(batch)
        finally:
            self._in_flight -= 1
            self._staff()

    async def _write_all(self, batch: Sequence[_Waiting]) -> None:
        try:
            results = await batches.bisect(batch, self._write)
        except Exception as error:
            # What a half of the batch has got by then stands.
            for waiting in batch:
                self._conclude(waiting, error)
        else:
            for waiting, result in zip(batch, results, strict=True):
                if isinstance(result, ROW_FAULTS):
                    self._conclude(waiting, _refused())

    async def _write(self, batch: Sequence[_Waiting]) -> Sequence[Result]:
        created = await _commit(self._context, [waiting.order for waiting in batch])
        for waiting, result in zip(batch, created.results, strict=True):
            if isinstance(result, _LATER):
                self._put_off(waiting, result)
            else:
                self._conclude(waiting, result)
        return created.results

    def _put_off(self, waiting: _Waiting, result: Busy | Moving) -> None:
        """Have it come back a little later, as long as its patience lasts."""
        waiting.pauses = waiting.pauses or pauses()
        pause = None if waiting.party.over.done() else next(waiting.pauses, None)
        if pause is None:
            self._conclude(waiting, _not_now(result))
        else:
            asyncio.get_running_loop().call_later(pause, self._enqueue, waiting)

    def _conclude(self, waiting: _Waiting, outcome: Outcome) -> None:
        """It came to this, unless it came to something before."""
        party = waiting.party
        if party.outcomes[waiting.number] is not None:
            return
        party.outcomes[waiting.number] = outcome
        party.pending -= 1
        tenant_id = waiting.order.caller.tenant_id
        self._open[tenant_id] -= 1
        if not self._open[tenant_id]:
            del self._open[tenant_id]
        if not party.pending and not party.over.done():  # else the caller has gone
            party.over.set_result(None)

    async def _create_all(self, orders: Sequence[Order]) -> list[Answer]:
        try:
            created = await _commit(self._context, orders, whole=True)
        except ROW_FAULTS:
            raise _refused() from None
        return [result for result in created.results if isinstance(result, Answer)]


class _NotNow(Exception):
    def __init__(self, result: Busy | Moving) -> None:
        super().__init__(result)
        self.result = result


def _not_now(result: Busy | Moving) -> Problem:
    if isinstance(result, Busy):
        return refusal(result)
    return Problem(
        503,
        "parents_moving",
        "A job to wait for is just changing; nothing was created. Try again.",
        headers={"Retry-After": "1"},
    )


async def _commit(context: AppContext, orders: Sequence[Order], *, whole: bool = False) -> Created:
    """One transaction. ``whole``: a result that is not an answer rolls everything back."""
    created = None
    await parents.announce(context.store, creation.wanting(orders))
    try:
        async with context.store.transaction() as tx:
            created = await creation.create(tx, orders, context.secretbox, context.ranks)
            if whole:
                _require_all(created)
    except CommitUnknown:
        if created is None or (created.ids and not await _happened(context, created)):
            raise
    if created.runs:
        context.wakeups.runs()
    if created.timers_soon:
        context.wakeups.timers()
    context.metrics.jobs_accepted(len(created.ids))
    for tenant_id, came in created.tenants.items():
        context.backlogs.note(tenant_id, created.at, came=came)
    return created


async def _happened(context: AppContext, created: Created) -> bool:
    until = asyncio.get_running_loop().time() + LOOK_UP_SEC
    while True:
        try:
            async with context.store.transaction() as tx:
                return await creation.happened(tx, created)
        except StoreUnavailable:
            if asyncio.get_running_loop().time() > until:
                raise
        await asyncio.sleep(0.1)


def _require_all(created: Created) -> None:
    for n, result in enumerate(created.results):
        if isinstance(result, Problem):
            raise _of_job(n, result)
    for result in created.results:
        if isinstance(result, _LATER):
            raise _NotNow(result)


def _of_job(n: int, problem: Problem) -> Problem:
    if problem.exceeded is not None:  # not the job's fault
        return problem
    errors = [Fault(f"/jobs/{n}/job{f.pointer}", f.code, f.detail) for f in problem.errors]
    errors = errors or [Fault(f"/jobs/{n}", problem.code, problem.detail)]
    return Problem(problem.status, problem.code, problem.detail, errors=errors)


def _overloaded() -> Problem:
    return Problem(
        503,
        "overloaded",
        "Too many jobs wait to be made durable; nothing was promised. Try again.",
        headers={"Retry-After": "1"},
    )


def _refused() -> Problem:
    return Problem(422, "refused", "The database refuses to hold this job; nothing was created.")
