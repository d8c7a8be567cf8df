"""A lane in virtual hands: rankers, workers and time, without a database.

What a claim does in SQL is done here on lists: it looks at the ranks from its floors on, in both
bands, and takes those with the lowest keys. One step is one look of each process.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from noonday.domain.fair import Ranker
from noonday.domain.lane_clock import LaneClock, LaneReport
from noonday.domain.ranking import Band, Floors, Work, is_queued

T = datetime(2027, 3, 1, 12, 0, tzinfo=UTC)
LANE = "default"
HOST = "receiver.example"


@dataclass(order=True)
class Run:
    """A READY run in the order of its rank; ``arrived`` is when it became claimable."""

    rank: datetime
    number: int
    tenant: int = field(compare=False)
    priority: int = field(compare=False)
    took: float = field(compare=False)
    arrived: float = field(compare=False)
    started: float = field(compare=False, default=-1.0)


class SimulatedWorker:
    """Slots, and the order and floors by which they are filled."""

    def __init__(self, slots: int, ageing_sec: float) -> None:
        self.slots = slots
        self.order = LaneClock(ageing_sec)
        self.floors = Floors()
        self.busy: list[float] = []

    @property
    def free(self) -> int:
        return self.slots - len(self.busy)


class SimulatedLane:
    """Everything of a lane, moved on by :meth:`step`."""

    def __init__(
        self,
        slots: Sequence[int] = (8,),
        *,
        rankers: int = 1,
        weights: dict[int, float] | None = None,
        ageing_sec: float = 6.0,
        step_sec: float = 0.05,
        news_sec: float = 0.0,
    ) -> None:
        """``news_sec``: how old the workers' reports are when they are read."""
        self.now = 0.0
        self.news_sec = news_sec
        self._reports: list[tuple[float, list[dict[str, LaneReport]]]] = []
        self.step_sec = step_sec
        self.ageing_sec = ageing_sec
        self.workers = [SimulatedWorker(each, ageing_sec) for each in slots]
        self.rankers = [Ranker() for _ in range(rankers)]
        for ranker in self.rankers:
            ranker.weigh(weights or {})
        self.ready: dict[Band, list[Run]] = defaultdict(list)
        self.started: list[Run] = []
        self.uncommitted: list[tuple[float, Run]] = []
        self.overlooked = 0
        self._number = 0
        self._refreshed_at = -1.0
        self.refresh()

    @property
    def clock(self) -> datetime:
        return T + timedelta(seconds=self.now)

    def learn(self, *costs: tuple[int, float]) -> None:
        """What runs of tenants are expected to take."""
        for ranker in self.rankers:
            ranker.learn([(tenant, HOST, seconds) for tenant, seconds in costs])

    def post(
        self,
        tenant: int,
        count: int = 1,
        *,
        priority: int = 5,
        took: float = 0.2,
        by: int = 0,
        late: float = 0.0,
        overdue: bool = False,
    ) -> list[Run]:
        """Runs of a tenant become claimable, ranked by one of the processes, and committed so many
        seconds later. They may be ``overdue``, after an outage."""
        works = [Work(tenant, LANE, priority, HOST, late=overdue)] * count
        made = []
        for rank in self.rankers[by].ranks(works, self.clock):
            self._number += 1
            run = Run(rank, self._number, tenant, priority, took, self.now)
            self.uncommitted.append((self.now + late, run))
            made.append(run)
        self._commit()
        return made

    def _commit(self) -> None:
        for at, run in self.uncommitted:
            if at <= self.now:
                insort(self.ready[Band(run.priority, is_queued(run.rank))], run)
        self.uncommitted = [each for each in self.uncommitted if each[0] > self.now]

    def refresh(self) -> None:
        """Every process reads what the workers report and what the others have told."""
        reports = next(
            (told for at, told in reversed(self._reports) if at <= self.now - self.news_sec),
            self._report(),
        )
        told = [ranker.tell() for ranker in self.rankers]
        for number, ranker in enumerate(self.rankers):
            ranker.refresh(self.clock, {LANE: self.ageing_sec}, reports)
            others = [(str(n), LANE, each[LANE]) for n, each in enumerate(told)
                      if n != number and LANE in each]  # fmt: skip
            ranker.hear(others)
        self._refreshed_at = self.now

    def _report(self) -> list[dict[str, LaneReport]]:
        return [
            {LANE: each.order.report(each.slots, has_room=each.free > 0)} for each in self.workers
        ]

    def step(self) -> None:
        """Time passes, what is done is done, and free slots are filled."""
        self.now = round(self.now + self.step_sec, 6)
        self._commit()
        for worker in self.workers:
            while worker.busy and worker.busy[0] <= self.now:
                heapq.heappop(worker.busy)
        for worker in self.workers:
            self._claim(worker)
        self._reports.append((self.now, self._report()))
        if self.now - self._refreshed_at >= 1.0:
            self.refresh()

    def run(self, seconds: float, each_step: Callable[[], object] | None = None) -> None:
        until = self.now + seconds
        while self.now < until - 1e-9:
            if each_step is not None:
                each_step()
            self.step()

    def _claim(self, worker: SimulatedWorker) -> None:
        limit = worker.free
        if limit <= 0:
            return
        used, looked_at = worker.floors.each(), limit * 2 + 16
        seen: list[tuple[float, Band, Run]] = []
        for span in used:
            ranks = self.ready[span.band]
            start = bisect_left(ranks, span.floor, key=lambda run: run.rank)
            self.overlooked += start
            seen += [
                (worker.order.key(run.rank, run.priority, self.clock), span.band, run)
                for run in ranks[start : start + looked_at]
            ]
        seen = heapq.nsmallest(looked_at, seen)
        lowest: dict[Band, datetime] = {}
        left: dict[Band, datetime] = {}
        for place, (_, band, run) in enumerate(seen):
            lowest[band] = min(run.rank, lowest.get(band, run.rank))
            if place < limit:
                self._start(worker, band, run)
            else:
                left[band] = min(run.rank, left.get(band, run.rank))
        everything = len(seen) < looked_at
        highest = max((run.rank for _, _, run in seen[:limit]), default=None)
        worker.order.claimed(left, self.clock, everything=everything, highest=highest)
        worker.floors.claimed(
            used, lowest, self.clock, everything=everything, tags=worker.order.start
        )

    def _start(self, worker: SimulatedWorker, band: Band, run: Run) -> None:
        self.ready[band].remove(run) if self.ready[band][0] is not run else self.ready[band].pop(0)
        run.started = self.now
        self.started.append(run)
        heapq.heappush(worker.busy, self.now + run.took)

    def shares(self, since: float, *tenants: int) -> dict[int, float]:
        """Worker-seconds of what was started since then, by tenant."""
        found: Counter[int] = Counter()
        for run in self.started:
            if run.started >= since:
                found[run.tenant] += run.took  # type: ignore[assignment]
        return {each: float(found[each]) for each in tenants or sorted(found)}
