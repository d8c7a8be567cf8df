"""Backfills: past occurrences are opened a few at a time, each operation at its own rate.

Safe to run in any number of processes. A step is one transaction that has the operation's row and
the shard of its job: it opens some of the next nominal times, and moves past them. The pace is kept
in the row, in the database's time. Runs of a job that does not overlap itself are opened one by
one, each when nothing of the job is unfinished, so that none is lost.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import structlog

from noonday.domain import backfill
from noonday.domain.backfill import Nominal
from noonday.domain.errors import ScheduleError
from noonday.domain.model import EPOCH, MICROSECOND, JobSpec, shard_of
from noonday.domain.ranking import Ranks, by_time
from noonday.domain.replay import pace
from noonday.domain.schedule import overlap_of
from noonday.store import Row, Store, Tx, backfills, jobs, locks, operations, runs
from noonday.store.backfills import Backfill
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics

BATCH: Final = 100
"""Backfills that one tick looks at."""
LOOK: Final = 100
"""Nominal times that a step looks at, at most: more than it opens, for many may have to be passed
over."""
LOOK_SEC: Final = 0.05
"""How soon one that waits for a run, or for another process, is looked at again. The pause
doubles ..."""
WATCH_SEC: Final = 1.0
"""... up to this."""
CANCELLED: Final = "The job was cancelled."
MOST_ERROR: Final = 500
"""Characters kept of why a backfill failed."""

log = structlog.get_logger()
_request = msgspec.json.Decoder(Backfill)
_spec = msgspec.json.Decoder(JobSpec)


@dataclass
class Step:
    """What one step did, to be told of once it is committed."""

    looked_at: int = 0
    opened: int = 0
    next_at: datetime | None = None
    """Before which it need not be looked at; None: after a pause."""
    state: str = "RUNNING"
    error: str | None = None


class _Look(NamedTuple):
    """When a backfill is to be looked at again, and how long the pause is after that."""

    at: datetime
    pause_sec: float = LOOK_SEC


_NEW: Final = _Look(EPOCH)


class Backfills:
    """Moves every backfill on that is RUNNING."""

    def __init__(
        self, store: Store, metrics: Metrics, wakeups: Wakeups, ranks: Ranks = by_time
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._wakeups = wakeups
        self._ranks = ranks
        self._after = UUID(int=0)
        self._looks: dict[UUID, _Look] = {}
        self._decided: dict[UUID, datetime] = {}
        """Up to where the scheduler has decided what becomes of nominal times: that only rises."""
        self._sleep_sec: float | None = None

    def sleep_for(self) -> float | None:
        """Seconds until a backfill has to be looked at, when there is one."""
        return self._sleep_sec

    async def tick(self) -> int:
        """One step with each backfill that it is time for; how many nominal times were looked at.

        One that fails does not keep the others from being moved on.
        """
        async with self._store.in_turn() as tx:
            now = await tx.clock()
            found = await backfills.running(tx, self._after, BATCH)
        self._after = found[-1]["id"] if len(found) == BATCH else UUID(int=0)
        looks = {row["id"]: self._looks.get(row["id"], _NEW) for row in found}
        self._decided = {each: self._decided[each] for each in looks if each in self._decided}
        due = {row["id"]: max(looks[row["id"]].at, row["next_at"] or EPOCH) for row in found}
        looked_at, failed = 0, None
        for each in [each for each, at in due.items() if at <= now]:
            step = Step()
            try:
                step = await self._step(each)
            except Exception as error:
                failed = error
            looked_at += step.looked_at
            looks[each] = _next(looks[each], step, now)
            due[each] = looks[each].at
        self._looks = looks
        soonest = min(due.values(), default=None)
        self._sleep_sec = None if soonest is None else (soonest - now).total_seconds()
        if failed is not None:
            raise failed
        return looked_at

    async def _step(self, operation_id: UUID) -> Step:
        async with self._store.transaction() as tx:
            operation = await backfills.take(tx, operation_id)
            if operation is None:
                return Step()
            step = await self._go_on(tx, operation)
            if step.state != "RUNNING":
                await operations.end(tx, operation_id, step.state, step.error)
        if step.opened:
            self._metrics.materialized(step.opened)
            self._wakeups.runs()
        if step.error is not None:
            log.warning("backfill.failed", operation=str(operation_id), error=step.error)
        elif step.state == "DONE":
            log.info("backfill.done", operation=str(operation_id))
        return step

    async def _go_on(self, tx: Tx, operation: Row) -> Step:
        wanted = _request.decode(operation["request"])
        await locks.own_shard(tx, shard_of(wanted.job_id))
        job = await jobs.one(tx, wanted.job_id, operation["tenant_id"])
        if job is None or job["state"] == "CANCELLED":
            return Step(state="FAILED", error=CANCELLED)
        after = operation["position_at"] or EPOCH - MICROSECOND
        try:
            spec = _spec.decode(job["spec"])
            found = list(islice(backfill.times(wanted.spans, wanted.job_id, after), LOOK + 1))
        except (msgspec.MsgspecError, ScheduleError) as error:
            return Step(state="FAILED", error=_uncomputable(error))
        if not found:
            return Step(state="DONE")
        alone = overlap_of(spec.schedule) != "allow"
        if alone and await runs.of_job(tx, wanted.job_id, 1):
            return Step()
        rate, is_rest = pace(wanted.rate_per_sec), len(found) <= LOOK
        found = found[:LOOK]
        ran = await backfills.ran(tx, wanted.job_id, [each.at for each in found])
        until = await self._decided_up_to(tx, operation["id"], job, spec, found[-1].at)
        chosen, passed = _choose(found, ran, until, 1 if alone else rate.batch)
        opened = await backfills.open_them(tx, job, spec, wanted, chosen, self._ranks)
        next_at = await tx.moment()
        if opened:
            next_at += rate.spacing
        position_at = found[passed - 1].at
        await backfills.move(tx, operation["id"], position_at, passed, opened, next_at)
        ended = is_rest and passed == len(found)
        return Step(passed, opened, next_at, "DONE" if ended else "RUNNING")

    async def _decided_up_to(
        self, tx: Tx, operation_id: UUID, job: Row, spec: JobSpec, at: datetime
    ) -> datetime:
        """Looked up only where what is known does not reach so far: that costs milliseconds."""
        known = self._decided.get(operation_id)
        if known is None or known <= at:
            place = await backfills.armed(tx, job["id"])
            known = await backfills.undecided_from(tx, job["id"], spec.schedule, place)
            self._decided[operation_id] = known
        return known


def _choose(
    found: Sequence[Nominal], ran: Set[datetime], until: datetime, limit: int
) -> tuple[list[datetime], int]:
    """Up to ``limit`` of what is to run, and how many were passed over to come to that."""
    chosen: list[datetime] = []
    for passed, each in enumerate(found):
        if backfill.is_open(each, ran, until):
            if len(chosen) == limit:
                return chosen, passed
            chosen.append(each.at)
    return chosen, len(found)


def _next(look: _Look, step: Step, now: datetime) -> _Look:
    if step.next_at is not None:
        return _Look(step.next_at)
    pause = timedelta(seconds=look.pause_sec)
    return _Look(now + pause, min(look.pause_sec * 2, WATCH_SEC))


def _uncomputable(error: Exception) -> str:
    """It may quote the job: what cannot be stored of that is shown escaped."""
    text = f"The schedule cannot be computed: {error}"[:MOST_ERROR]
    return text.encode("unicode_escape").decode("ascii")
