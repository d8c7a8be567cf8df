"""Loops of the product, put together for a test that ticks them by hand.

What is scripted is the executor, which is a seam: all else is the product on a real Postgres.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from uuid import UUID, uuid4

from noonday.domain.breaker import pauses
from noonday.domain.fair import Ranker
from noonday.domain.model import Attempt, HttpTarget, Outcome, OutcomeKind
from noonday.domain.pools import Pool
from noonday.domain.ranking import Ranks, by_time
from noonday.executors import Sent
from noonday.loops.admission import Admission
from noonday.loops.admitting import Admitting
from noonday.loops.dependents import Dependents
from noonday.loops.fairness import Fairness
from noonday.loops.janitor import Janitor
from noonday.loops.pacing import Pacing
from noonday.loops.reaper import Reaper
from noonday.loops.retries import Retries
from noonday.loops.scheduler import Scheduler
from noonday.loops.worker import Worker
from noonday.settings import Retention
from noonday.store import Store
from noonday.store.backlogs import Backlogs
from noonday.store.blobs import LocalBlobs
from noonday.store.secretbox import SecretBox
from noonday.store.signing import SigningKeys
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics

Script = Callable[[Attempt], Awaitable[Outcome]]
SUCCESS = Outcome(OutcomeKind.SUCCESS, http_status=200)


class Scripted:
    """An executor that answers as it was told, and remembers what it was asked."""

    def __init__(self, *outcomes: Outcome, sends: bool = True) -> None:
        self.outcomes = list(outcomes)
        """Given out in turn, the last one for good; without any, all succeed."""
        self.sends = sends
        self.attempts: list[Attempt] = []
        self.cancelled: list[Attempt] = []
        self.told: list[tuple[Attempt, str, str]] = []
        """The cancellations that were passed on, each with its URL."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def execute(self, attempt: Attempt, sent: Sent) -> Outcome:
        self.attempts.append(attempt)
        sent.maybe = self.sends
        try:
            return await self.answer(attempt)
        except asyncio.CancelledError:
            self.cancelled.append(attempt)
            raise

    async def cancel(self, attempt: Attempt, url: str, reason: str = "") -> Outcome:
        self.told.append((attempt, url, reason))
        return SUCCESS

    async def answer(self, attempt: Attempt) -> Outcome:
        if len(self.outcomes) > 1:
            return self.outcomes.pop(0)
        return self.outcomes[0] if self.outcomes else SUCCESS


class Hanging(Scripted):
    """Answers when it is let go."""

    def __init__(self, *outcomes: Outcome, sends: bool = True) -> None:
        super().__init__(*outcomes, sends=sends)
        self.free = asyncio.Event()

    async def answer(self, attempt: Attempt) -> Outcome:
        await self.free.wait()
        return await super().answer(attempt)


class Parts:
    """Makes loops over one database; each has its own metrics, as each process has."""

    def __init__(self, store: Store, folder: Path, backlogs: Backlogs | None = None) -> None:
        self._store = store
        self._backlogs = backlogs
        self._blobs = LocalBlobs(folder)

    def close(self) -> None:
        self._blobs.close()

    def worker(
        self,
        executor: Scripted,
        *,
        store: Store | None = None,
        beats: Store | None = None,
        slots: int = 64,
        long_slots: int = 0,
        plan: Sequence[Pool] | None = None,
        ranker: Ranker | None = None,
    ) -> Worker:
        store = store or self._store
        return Worker(
            store,
            beats or store,
            uuid4(),
            "worker",
            executors={HttpTarget: executor},
            blobs=self._blobs,
            keys=SigningKeys(self._store, SecretBox([bytes(32)])),
            metrics=Metrics(),
            plan=plan or [Pool(("default",), slots), Pool(("long",), long_slots)],
            ranker=ranker,
            backlogs=self._backlogs,
        )

    def scheduler(self, *, store: Store | None = None, id: UUID | None = None) -> Scheduler:
        store = store or self._store
        return Scheduler(
            store, id or uuid4(), "scheduler", Metrics(), Wakeups(store), backlogs=self._backlogs
        )

    def reaper(self) -> Reaper:
        return Reaper(self._store, Metrics(), Wakeups(self._store), self._backlogs)

    def admission(self, *, store: Store | None = None) -> Admission:
        store = store or self._store
        return Admission(store, Metrics(), Wakeups(store), pauses())

    def pacing(self, *, store: Store | None = None) -> Pacing:
        store = store or self._store
        return Pacing(store, Metrics(), Wakeups(store))

    def admitting(self, *, store: Store | None = None) -> Admitting:
        store = store or self._store
        return Admitting(store, Metrics(), Wakeups(store))

    def janitor(self) -> Janitor:
        return Janitor(self._store, self._blobs, Retention(), leads=lambda: True)

    def dependents(self) -> Dependents:
        return Dependents(self._store, Metrics(), Wakeups(self._store), self._backlogs)

    def retries(self, ranks: Ranks = by_time) -> Retries:
        return Retries(self._store, Wakeups(self._store), ranks)

    def fairness(self, ranker: Ranker) -> Fairness:
        return Fairness(self._store, uuid4(), ranker)


async def landed(worker: Worker) -> None:
    """Until every attempt under way has come to its outcome."""
    flights = [flight.task for flight in worker._flights.values() if flight.task is not None]
    await asyncio.gather(*flights, return_exceptions=True)


async def carry_out(worker: Worker) -> int:
    """Claim what there is, carry it out, and settle it; how many were settled."""
    await worker.tick()
    await landed(worker)
    return await worker.settling.tick()


def counted(
    part: Worker | Scheduler | Reaper | Admission | Admitting | Dependents, name: str
) -> float:
    """The sum over all labels of a counter, ``noonday_<name>_total``."""
    text = part._metrics.render().decode()
    found = re.findall(rf"^noonday_{name}_total(?:{{.*}})? (.*)$", text, re.MULTILINE)
    assert found or f"# TYPE noonday_{name}_total" in text or f"noonday_{name}" in text, name
    return sum(map(float, found))
