"""FAR: who waits for whom when one asks for more than its share."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from noonday.domain.fair import Ranker
from noonday.domain.model import Attempt, Outcome, RunKey
from noonday.store import Store
from tests.field.durations import scaled
from tests.support import seeds
from tests.support.scripted import SUCCESS, Parts, Scripted

T = datetime.now(UTC).replace(microsecond=0)
STEP_SEC = 0.1
AGEING_SEC = 6.0


class Timed(Scripted):
    """Attempts that take so long in the time that the test sets."""

    def __init__(self, took: float) -> None:
        super().__init__()
        self.took = took
        self.now = 0.0
        self._ends: list[tuple[float, int, asyncio.Event]] = []
        self._came = asyncio.Condition()

    async def answer(self, attempt: Attempt) -> Outcome:
        end = asyncio.Event()
        heapq.heappush(self._ends, (self.now + self.took, len(self.attempts), end))
        async with self._came:
            self._came.notify_all()
        await end.wait()
        return SUCCESS

    async def came(self, count: int) -> None:
        """Until so many attempts have begun."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.attempts) >= count)

    async def pass_to(self, now: float) -> int:
        """Let attempts end; how many."""
        self.now, before = now, len(self._ends)
        while self._ends and self._ends[0][0] <= now + 1e-9:
            heapq.heappop(self._ends)[2].set()
        return before - len(self._ends)


class Service:
    """API processes that rank in turn and a worker, in time that passes by steps."""

    def __init__(
        self, store: Store, parts: Parts, *, slots: int, took: float, processes: int = 1
    ) -> None:
        self.store = store
        self.now = 0.0
        self.rankers = [Ranker() for _ in range(processes)]
        self.fairness = [parts.fairness(ranker) for ranker in self.rankers]
        self._turns = itertools.cycle(self.rankers)
        self.executor = Timed(took)
        self.worker = parts.worker(self.executor, slots=slots)
        self.worker.costs.note = lambda *_: None  # type: ignore[method-assign]
        for ranker in self.rankers:
            ranker.learn([(tenant, seeds.HOST, took) for tenant in range(1, 60)])
        self.posted: dict[RunKey, float] = {}
        self.started: dict[RunKey, float] = {}

    async def post(self, tenant: int, count: int = 1, *, priority: int = 5) -> list[RunKey]:
        async with self.store.transaction() as tx:
            made = await seeds.ready(
                tx, tenant=tenant, count=count, priority=priority, ranks=next(self._turns).ranks
            )
        self.posted |= dict.fromkeys(made, self.now)
        return made

    async def step(self) -> None:
        self.now = round(self.now + STEP_SEC, 3)
        self.store.now = T + timedelta(seconds=self.now)
        ended = await self.executor.pass_to(self.now)
        await self.landed(ended)
        await self.worker.settling.tick()
        before = len(self.executor.attempts)
        await self.executor.came(before + await self.worker.tick())
        for attempt in self.executor.attempts[before:]:
            self.started[attempt.run] = self.now
        if round(self.now / STEP_SEC) % 5 == 0:
            self.worker.beats._reported_at = float("-inf")
            await self.worker.beats.tick()
        if round(self.now / STEP_SEC) % 10 == 0:
            await self._exchange()

    async def landed(self, count: int) -> None:
        """Until so many more attempts have come to their outcome."""
        tasks = [flight.task for flight in self.worker._flights.values() if flight.task]
        for task in islice(asyncio.as_completed(tasks), count):
            await task

    async def begin(self) -> None:
        self.store.now = T
        await self.worker.beats.tick()
        await self._exchange()

    async def _exchange(self) -> None:
        for fairness in self.fairness:
            await fairness.tick()

    def weigh(self, weights: dict[int, float]) -> None:
        """Give tenants weights for good, without rows of theirs."""
        for ranker in self.rankers:
            ranker.weigh(weights)
            ranker.weigh = lambda weights: None  # type: ignore[method-assign]

    def waits(self, runs: Sequence[RunKey]) -> list[float]:
        return sorted(self.started[run] - self.posted[run] for run in runs)

    async def served(self, since: float) -> dict[int, int]:
        """Runs that were started since then, by tenant."""
        async with self.store.transaction() as tx:
            tenants = {row[0]: row[1] for row in await tx.rows("SELECT id, tenant_id FROM jobs")}
        found: dict[int, int] = {}
        for run, at in self.started.items():
            if at >= since:
                tenant = tenants[run.job_id]
                found[tenant] = found.get(tenant, 0) + 1
        return found


async def test_endless_urgent_work_does_not_stop_the_least_urgent(
    store: Store, parts: Parts
) -> None:
    """FAR-01."""
    service = Service(store, parts, slots=2, took=0.1)
    await service.begin()
    patient = await service.post(2, 10, priority=9)
    urgent: list[RunKey] = []
    await service.post(1, 50, priority=0)
    while service.now < scaled(70.0, 600.0):
        waiting = 50 - (len(service.posted) - len(service.started) - _left(service, patient))
        if waiting > 0:
            urgent += await service.post(1, waiting, priority=0)
        await service.step()
    assert service.waits(patient)[-1] <= 9 * AGEING_SEC + 6, "within its ageing"
    done = [run for run in urgent if run in service.started]
    assert len(done) >= 0.9 * service.now * 2 / STEP_SEC - 60, "the slots were full throughout"


def _left(service: Service, runs: Sequence[RunKey]) -> int:
    return sum(run not in service.started for run in runs)


async def test_a_flood_does_not_delay_the_single_runs_of_others(store: Store, parts: Parts) -> None:
    """FAR-02."""
    service = Service(store, parts, slots=8, took=0.2)
    await service.begin()
    for _ in range(scaled(2, 100)):
        await service.post(1, 1_000)
    others: list[RunKey] = []
    until = scaled(25.0, 120.0)
    while service.now < until:
        if round(service.now / STEP_SEC) % 10 == 0 and service.now < until - 2:
            for tenant in (2, 3, 4):
                others += await service.post(tenant)
        await service.step()
    waits = service.waits(others)
    assert waits[len(waits) // 2] <= 2
    assert waits[int(len(waits) * 0.99)] <= 5
    served = await service.served(0.0)
    spare = until * 8 / 0.2 - len(others)
    assert served[1] >= 0.9 * spare, "all that is left is the flood's"


@pytest.mark.parametrize("backlog", [600, 1_200])
async def test_the_wait_of_the_least_urgent_does_not_depend_on_how_much_waits_before_it(
    store: Store, parts: Parts, backlog: int
) -> None:
    """FAR-04: its ageing never stops growing."""
    service = Service(store, parts, slots=4, took=0.4)
    await service.begin()
    await service.post(1, backlog, priority=0)
    for _ in range(30):
        await service.step()
    patient = await service.post(2, priority=9)
    while patient[0] not in service.started:
        assert service.now < 3 + 9 * AGEING_SEC + 3
        await service.step()
    assert service.waits(patient)[0] == pytest.approx(9 * AGEING_SEC, abs=2.0)


async def test_fifty_tenants_get_their_shares_by_weight(store: Store, parts: Parts) -> None:
    """FAR-04: weights 1 and 10."""
    service = Service(store, parts, slots=55, took=0.2)
    await service.begin()
    weights = {tenant: 10.0 if tenant <= 25 else 1.0 for tenant in range(1, 51)}
    service.weigh(weights)
    seconds = scaled(10.0, 60.0)
    for tenant, weight in weights.items():
        await service.post(tenant, int(weight * seconds * 1.2))
    while service.now < seconds:
        await service.step()
    served = await service.served(0.0)
    total = sum(served.values())
    for tenant, weight in weights.items():
        share = weight / sum(weights.values()) * total
        assert abs(served[tenant] - share) <= max(0.1 * share, 1.0)


@pytest.mark.parametrize("processes", [1, 3])
async def test_processes_that_tell_each_other_share_as_one_does(
    store: Store, parts: Parts, processes: int
) -> None:
    """Three tenants that always want more, of weights 1, 1 and 2."""
    service = Service(store, parts, slots=8, took=0.2, processes=processes)
    await service.begin()
    service.weigh({3: 2.0})
    seconds = scaled(20.0, 120.0)
    while service.now < seconds:
        for tenant in (1, 2, 3):
            await service.post(tenant, 4)
        await service.step()
    served = await service.served(4.0)
    total = sum(served.values())
    for tenant, weight in ((1, 1), (2, 1), (3, 2)):
        assert served[tenant] / total == pytest.approx(weight / 4, rel=0.2)
