"""Replays: dead letters are reopened a few at a time, and watched, as their gate allows.

Safe to run in any number of processes. A step is two transactions that have the replay's row: one
counts what came of the runs so far and judges, the other releases some more. (Together they could
wait for somebody who waits for them: who cancels a job has its shard, and may want its letters.)
The pace is kept in the row, in the database's time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import structlog

from noonday.domain import replay as gate
from noonday.domain.model import Kind, shard_of
from noonday.domain.ranking import Ranks, by_time
from noonday.domain.replay import ReplayState
from noonday.store import Row, Store, Tx, dead_letters, letters, locks, pending, replays
from noonday.store.backlogs import Backlogs
from noonday.store.replays import Replay
from noonday.store.runs import key_of, work_of
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics

BATCH: Final = 100
"""Replays that one tick looks at."""
LEAST_WALK: Final = 50
"""Letters that are read at a time at least: many may have to be passed over."""
LOOK_SEC: Final = 0.05
"""How soon a replay is looked at again when something has moved; else the pause doubles."""
WATCH_SEC: Final = 1.0
"""How soon at the latest, when nothing has moved for a while."""
AGAIN: Final = timedelta(seconds=1)
"""Before letters that could not be reopened are tried again, when nothing else has moved."""

log = structlog.get_logger()


@dataclass
class Step:
    """What one step did, to be told of once it is committed."""

    replay: Replay
    wait_sec: float = WATCH_SEC
    """Until when it need not be looked at, whether or not something moves."""
    due: bool = False
    """Whether more may be released now."""
    outcomes: Counter[str] = field(default_factory=Counter)
    released: int = 0
    stopped: str | None = None
    """The kind of reason for which it has just stopped."""
    reopened: list[UUID] = field(default_factory=list)
    """The jobs of which the run of a nominal time was released."""

    @property
    def moved(self) -> bool:
        """Whether anything came of it."""
        return bool(self.outcomes or self.released)


class Replays:
    """Moves every replay on that is RUNNING, and watches the runs of all."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        wakeups: Wakeups,
        ranks: Ranks = by_time,
        backlogs: Backlogs | None = None,
    ) -> None:
        self._backlogs = backlogs
        self._store = store
        self._metrics = metrics
        self._wakeups = wakeups
        self._ranks = ranks
        self._after = UUID(int=0)
        self._sleep_sec: float | None = None
        self._look_at: dict[UUID, datetime] = {}
        self._pauses: dict[UUID, float] = {}

    def sleep_for(self) -> float | None:
        """Seconds until a replay has to be looked at, when there is one."""
        return self._sleep_sec

    async def tick(self) -> int:
        """One step with each replay that it is time for; how many runs were released.

        One that fails does not keep the others from being moved on.
        """
        async with self._store.transaction() as tx:
            now = await tx.clock()
            found = await replays.active(tx, self._after, BATCH)
        self._after = found[-1] if len(found) == BATCH else UUID(int=0)
        due = [each for each in found if self._look_at.get(each, now) <= now]
        released, failed = 0, None
        for replay_id in due:
            step = None
            try:
                step = await self._step(replay_id)
            except Exception as error:
                failed = error
            released += step.released if step is not None else 0
            self._look_at[replay_id] = now + timedelta(seconds=self._wait_sec(replay_id, step))
        self._look_at = {each: self._look_at[each] for each in found}
        self._pauses = {each: self._pauses.get(each, LOOK_SEC) for each in found}
        next_look = min(self._look_at.values(), default=None)
        self._sleep_sec = (next_look - now).total_seconds() if next_look is not None else None
        if released:
            self._wakeups.runs()
        if failed is not None:
            raise failed
        return released

    def _wait_sec(self, replay_id: UUID, step: Step | None) -> float:
        pause = self._pauses.get(replay_id, LOOK_SEC)
        still = step is None or not step.moved
        self._pauses[replay_id] = min(pause * 2, WATCH_SEC) if still else LOOK_SEC
        return min(pause if still else LOOK_SEC, WATCH_SEC if step is None else step.wait_sec)

    async def _step(self, replay_id: UUID) -> Step | None:
        async with self._store.transaction() as tx:
            replay = await replays.take(tx, replay_id)
            if replay is None:
                return None
            step = await watch(tx, replay)
            await replays.save(tx, replay)
        self._tell_watched(step)
        if not step.due:
            return step
        seen = step.outcomes
        async with self._store.transaction() as tx:
            replay = await replays.take(tx, replay_id)
            if replay is None or replay.state is not ReplayState.RUNNING:
                return step  # paused meanwhile, or another process was quicker
            step = await release(tx, replay, self._ranks)
            await replays.save(tx, replay)
            came, at = await self._came(tx, step), await tx.clock()
        if self._backlogs is not None:
            self._backlogs.note(replay.tenant_id, at, came=came)
        step.outcomes = seen
        self._tell_released(step)
        return step

    async def _came(self, tx: Tx, step: Step) -> int:
        """How many jobs that had ended have not any more; 0 where that is not counted."""
        watched = self._backlogs is not None and self._backlogs.watches(step.replay.tenant_id)
        return await pending.one_off(tx, step.reopened) if watched and step.reopened else 0

    def _tell_watched(self, step: Step) -> None:
        for outcome, count in step.outcomes.items():
            self._metrics.replayed(outcome.lower(), count)
        self._tell_stopped(step)

    def _tell_released(self, step: Step) -> None:
        self._metrics.replayed("reopened", step.released)
        self._tell_stopped(step)
        if step.replay.state is ReplayState.DONE:
            log.info("replay.done", replay_id=str(step.replay.id), count=step.replay.replayed)

    def _tell_stopped(self, step: Step) -> None:
        if step.stopped is not None:
            self._metrics.replay_stopped(step.stopped)
            why = step.replay.state_reason
            log.warning("replay.stopped", replay_id=str(step.replay.id), reason=why)


# --- watch ------------------------------------------------------------------------------------


async def watch(tx: Tx, replay: Replay) -> Step:
    """Count what came of its runs, and judge."""
    now, step = await tx.clock(), Step(replay)
    broken: dict[str, str] = {}
    if replay.unfinished:
        urls = await replays.unfinished_urls(tx, replay.id)
        broken = await replays.broken(tx, replay.tenant_id, urls)
        _count(step, await replays.observe(tx, replay.id))
    if replay.state is not ReplayState.RUNNING:
        return step
    if broken:
        _stop(step, "breaker", f"breaker open: {min(broken.values())}", now)
    elif why := gate.must_stop(replay.terms, replay.recent, in_canary=replay.in_canary):
        _stop(step, "canary" if replay.in_canary else "failures", why, now)
    else:
        _pass_canary(replay, now)
        step.due = now >= replay.next_at and _room(replay) > 0
        if now < replay.next_at:
            step.wait_sec = (replay.next_at - now).total_seconds()
    return step


def _count(step: Step, outcomes: Sequence[str]) -> None:
    replay, counts = step.replay, Counter(outcomes)
    step.outcomes = counts
    replay.succeeded += counts["SUCCEEDED"]
    replay.failed += counts["FAILED"]
    replay.cancelled += counts["CANCELLED"]
    told = [outcome == "SUCCEEDED" for outcome in outcomes if outcome != "CANCELLED"]
    replay.recent = gate.keep(replay.terms, replay.recent, told)


def _pass_canary(replay: Replay, now: datetime) -> None:
    """What the canary came to is no part of what the ratio is taken of."""
    if replay.in_canary and gate.has_passed(replay.terms, replay.recent):
        replay.canary_passed_at = replay.ramp_from = now
        replay.recent = []


def _room(replay: Replay) -> int:
    return gate.room(replay.terms, replay.recent, replay.unfinished, in_canary=replay.in_canary)


def _stop(step: Step, kind: str, why: str, now: datetime) -> None:
    step.replay.turn(ReplayState.STOPPED, why, now)
    step.stopped = kind


# --- release ----------------------------------------------------------------------------------


async def release(tx: Tx, replay: Replay, ranks: Ranks = by_time) -> Step:
    """Reopen the next letters, as many as pace and gate allow."""
    now, step = await tx.clock(), Step(replay)
    share = gate.share(replay.terms, replay.ramp_from, now)
    pace = gate.pace(replay.terms.rate_per_sec, share)
    limit = min(_room(replay), pace.batch)
    if now < replay.next_at or limit == 0:
        return step
    found = await replays.walk(tx, replay, max(limit, LEAST_WALK))
    at_end = await _reopen_next(tx, step, found, limit, now, ranks)
    if step.released:
        # From here on, not from when this began: to have been slow is no licence to catch up.
        replay.next_at = await tx.moment() + pace.spacing
        step.wait_sec = pace.spacing.total_seconds()
    elif not at_end:
        step.wait_sec = 0.0
    if at_end and replay.state is ReplayState.RUNNING:
        _end_pass(replay, now)
    return step


async def _reopen_next(
    tx: Tx, step: Step, found: replays.Walk, limit: int, now: datetime, ranks: Ranks
) -> bool:
    """Reopen up to ``limit`` of what was found; whether that was the last of this pass."""
    replay, passed = step.replay, 0
    broken = await replays.broken(tx, replay.tenant_id, {row["url"] for row in found.rows})
    chosen: list[Row] = []
    for row in found.rows:
        if row["replayed_at"] is not None and not replay.terms.again:
            _skip(replay, "replayed_before")
        elif row["url"] in broken:
            _stop(step, "breaker", f"breaker open: {broken[row['url']]}", now)
            break
        elif len(chosen) == limit:
            break
        else:
            chosen.append(row)
        passed += 1
        replay.position = letters.position_of(row)
    await _reopen(tx, step, chosen, ranks)
    if passed < len(found.rows):
        return False
    replay.position = found.ends_at or replay.position
    return found.ends_at is None


async def _reopen(tx: Tx, step: Step, rows: Sequence[Row], ranks: Ranks) -> None:
    replay, keys = step.replay, [key_of(row) for row in rows]
    # Whoever starts a run of a job that does not overlap itself has its shard.
    for shard in sorted({shard_of(row["job_id"]) for row in rows if not row["overlaps"]}):
        await locks.own_shard(tx, shard)
    reopened = await dead_letters.replay(
        tx,
        keys,
        replay.tenant_id,
        replay.id,
        again=replay.terms.again,
        ranks=ranks([work_of(row) for row in rows], await tx.clock()),
    )
    step.released = len(reopened)
    step.reopened = [key.job_id for key in reopened if key.kind is Kind.SCHEDULE]
    replay.replayed += len(reopened)
    replay.reopened += len(reopened)
    missed = [key for key in keys if key not in reopened]
    why_not = await dead_letters.why_not(tx, missed, replay.tenant_id, again=replay.terms.again)
    for why, count in why_not.items():
        if why is None:
            replay.deferred += count
        elif why != "not_dead":  # they are what is missing at the end
            _skip(replay, why, count)


def _skip(replay: Replay, why: str, count: int = 1) -> None:
    replay.skipped[why] = replay.skipped.get(why, 0) + count


def _end_pass(replay: Replay, now: datetime) -> None:
    """Everything was looked at: begin again for what was deferred, or come to the end."""
    if replay.deferred and (replay.reopened or replay.unfinished):
        if not replay.reopened:
            replay.next_at = max(replay.next_at, now + AGAIN)
        # What still lies there is met, and counted, once more.
        replay.skipped = {why: n for why, n in replay.skipped.items() if why == "not_found"}
        replay.position, replay.deferred, replay.reopened = None, 0, 0
    elif not replay.unfinished:
        if replay.deferred:
            _skip(replay, "busy", replay.deferred)
        gone = replay.matched - replay.replayed - sum(replay.skipped.values())
        gone += replay.skipped.get("not_found", 0)
        if replay.matched_all and gone > 0:
            _skip(replay, "not_dead", gone)
        replay.turn(ReplayState.DONE, None, now)
