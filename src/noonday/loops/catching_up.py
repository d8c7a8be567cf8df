"""What is late, as one scheduler catches up on it: what is taken next, and what has to wait.

Nothing is written down of where it stands: what is late stays in ``timers`` until it is fired, and
a process that comes anew begins with the oldest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import structlog

from noonday.domain.catch_up import (
    LATE,
    LIMIT_SEC,
    SHARE,
    Budget,
    Delay,
    LaneWaits,
    Pace,
    Rate,
    Report,
    delays,
    lets_go,
)
from noonday.store import Row, Tx, timers
from noonday.store.timers import Place
from noonday.telemetry import Metrics

AGAIN: Final = timedelta(seconds=5)
"""After a look through all that is late, in which something had to wait, the next one begins so
much later, or as much as it took; at once, if a lane lets go."""
FRESH: Final = timedelta(seconds=2)
"""So long after the last timer that was fired in time late ones have no more than their share."""
JUST_BEFORE: Final = timedelta(microseconds=1)

log = structlog.get_logger()


class CatchingUp:
    """``share`` is what it gets at most beside fresh work; ``limit_sec`` how long runs of a lane
    may have waited for recurring timers of it to be taken; ``batch`` how many a tick fires."""

    def __init__(
        self, metrics: Metrics, batch: int, share: float = SHARE, limit_sec: float = LIMIT_SEC
    ) -> None:
        self._metrics = metrics
        self._share = share
        self._limit_sec = limit_sec
        self._reserved = max(int(batch * share), 1)
        self.floor: datetime | None = None
        """Nothing late lies below it; None: nothing is late at all."""
        self.pace = Pace(share)
        self._budget = Budget(share)
        self._fresh_at: datetime | None = None
        self._rate = Rate()
        self._delays: dict[str, Delay] = {}
        self._told: set[str] = set()
        """Lanes of which a timer was found to wait."""
        # A look through all that is late, while something of it has to wait:
        self._place: Place | None = None
        self._begun_at: datetime | None = None
        self._passed_over = 0
        self._again_at: datetime | None = None
        self._found_to_wait = 0
        self._passed_now = 0

    # --- what is taken --------------------------------------------------------------------

    def begin(self, read: list[Row], now: datetime) -> list[Row]:
        """Take note that the oldest of these timers are late; which of all of them to fire."""
        if not read or read[0]["due_at"] >= now - LATE:
            return read
        self.lower(read[0]["due_at"])
        log.info("catch_up.began", late_sec=(now - read[0]["due_at"]).total_seconds())
        return [row for row in read if row["due_at"] >= now - LATE or not self._waits(row)]

    def reserves(self, tx: Tx, at: datetime) -> int:
        """How many timers of this tick are for what is late, at least: none while it rests."""
        self._passed_now = 0
        return 0 if self.floor is None or self._is_resting(tx, at) else self._reserved

    def lower(self, floor: datetime) -> None:
        """Look from there on again."""
        self.floor = floor if self.floor is None else min(self.floor, floor)
        self._start_over()

    def reset(self) -> None:
        """Forget all: whatever is late will be met."""
        self.floor = None
        self._start_over()

    async def read(
        self,
        tx: Tx,
        until: datetime,
        shards: Sequence[int],
        limit: int,
        at: datetime,
        still: Callable[[], bool],
    ) -> list[Row]:
        """Up to ``limit`` late timers to fire now, oldest first: those before ``until`` that
        nothing delays. ``still`` says, once it has read, whether no other shards are owned."""
        floor, place, delays = self.floor, self._place, self._delays
        if floor is None:
            return []
        until -= JUST_BEFORE
        if not delays:
            _, found = await timers.due(tx, floor, until, shards, limit)
        else:
            start = place or Place(floor, -1, UUID(int=0))
            found = await timers.beyond(tx, start, until, shards, limit)
        taken = [row for row in found if not self._waits(row)]
        self._passed_now = len(found) - len(taken)
        if self._passed_now:
            self._tell({row["lane"] for row in found if self._waits(row)})
        if (place, floor, delays) == (self._place, self.floor, self._delays) and still():
            self._looked(found, at, whole=len(found) < limit)
        return taken

    def _looked(self, found: Sequence[Row], at: datetime, *, whole: bool) -> None:
        if self._place is None:
            self._begun_at = at
            self.floor = found[0]["due_at"] if found else None
            if self.floor is None:
                log.info("catch_up.ended")
        self._passed_over += self._passed_now
        if self._passed_over and not whole:
            last = found[-1]
            self._place = Place(last["due_at"], last["shard"], last["job_id"])
            return
        if whole:
            self._found_to_wait = self._passed_over
            took = at - (self._begun_at or at)
            self._again_at = at + max(AGAIN, took) if self._passed_over else None
        self._place, self._passed_over = None, 0

    def _tell(self, waiting: set[str]) -> None:
        for lane in sorted(waiting - self._told):
            log.warning("catch_up.delayed", lane=lane, wait_sec=self._delays[lane].waited_sec)
        self._told |= waiting

    def _waits(self, row: Row) -> bool:
        """Whether a late timer is not to be fired yet: it recurs, and its lane has enough to do."""
        delay = self._delays.get(row["lane"]) if row["current"] and row["recurs"] else None
        return delay is not None and row["priority"] >= delay.priority

    def _is_resting(self, tx: Tx, at: datetime) -> bool:
        if self._again_at is not None and at < self._again_at:
            return True
        # (Time that is set by hand does not pass while anybody rests.)
        return tx.now is None and self._rest(at) > timedelta(0)

    def saw_fresh(self, at: datetime) -> None:
        """There was something to fire that is not late."""
        self._fresh_at = at

    def _rest(self, at: datetime) -> timedelta:
        """How long nothing late is taken. While nothing else is to be fired there is nobody to rest
        for: what comes waits for the batch that is under way."""
        if self._fresh_at is None or at - self._fresh_at > FRESH:
            return timedelta(0)
        return self._budget.rest(at)

    def wait_sec(self, at: datetime) -> float | None:
        """Seconds until there is something to take; None when nothing is late."""
        if self.floor is None:
            return None
        again = max(self._again_at or at, at) - at
        return max(again, self._rest(at)).total_seconds()

    # --- what became of it ----------------------------------------------------------------

    def spent(self, at: datetime, took_sec: float, late: int, fired: int) -> None:
        """A tick ended, in which so many timers were fired and ``late`` of them were."""
        self.pace.fired(fired, took_sec)
        for_late = late + self._passed_now
        if for_late:
            self._budget.spend(at, took_sec, for_late / (fired + self._passed_now))
            self._rate.note(at, late)
            self._metrics.caught_up(late)
        self._passed_now = 0

    def lanes_stand_at(self, rows: Sequence[Row]) -> None:
        """How the lanes stood when they were counted."""
        if not rows:
            return
        now = rows[0]["counted_at"]
        standing = [LaneWaits(row["lane"], row["oldest_age_sec"]) for row in rows]
        before, self._delays = self._delays, delays(self._delays, standing, self._limit_sec, now)
        if lets_go(before, self._delays):
            self._start_over()
        for lane in sorted(self._told - self._delays.keys()):
            self._told.discard(lane)
            log.info("catch_up.let_go", lane=lane)

    def _start_over(self) -> None:
        self._place, self._passed_over, self._again_at = None, 0, None

    def report(self, now: datetime) -> Report:
        """How it stands, for those who ask."""
        active = self.floor is not None
        waiting = self._found_to_wait if active and self._delays else 0
        report = Report(
            self._share,
            self._limit_sec,
            round(self._rate.per_sec(now), 3),
            waiting,
            round(self.pace.left(now).total_seconds(), 3),
            self._delays if active else {},
        )
        self._metrics.catch_up_stands_at(active, waiting)
        return report
