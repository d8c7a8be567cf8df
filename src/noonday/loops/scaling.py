"""Scaling: says how many slots each lane needs, for whoever starts and stops workers.

One process does it at a time, the one that owns shard 0. Whoever takes over goes on from the rows:
it holds for a while what was wanted, and measures anew.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import structlog

from noonday.domain.flow import Flow, Outlook, Tally, Work
from noonday.domain.lanes import Lane
from noonday.domain.scaling import HORIZON_SEC, NOTHING, Load, Need, Wanted, need
from noonday.store import Row, Store, Tx, gauges, lanes, scaling

HORIZON: Final = timedelta(seconds=HORIZON_SEC)

log = structlog.get_logger()


class _Lane:
    """``before`` is what was wanted by whoever led before."""

    def __init__(self, before: Row | None, now: float, keep_sec: float) -> None:
        if before is None:
            self.flow, self.wanted = Flow(), Wanted(*NOTHING, now, keep_sec)
        else:
            self.flow = Flow(before["service_sec"])
            self.wanted = Wanted(before["slots"], before["reason"], now, keep_sec)

    def found(self, name: str) -> scaling.Wanted:
        return scaling.Wanted(name, self.wanted.slots, self.wanted.why, self.flow.service_sec)


class _Term:
    """What is remembered while this process leads."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.outlook = Outlook()
        self.lanes: dict[str, _Lane] = {}


class Scaling:
    """Keeps ``wanted_slots``. ``leads`` says whether this process is the one to do it."""

    def __init__(
        self,
        store: Store,
        *,
        objective: Callable[[str], float],
        ahead_sec: float,
        keep_sec: float,
        leads: Callable[[], bool],
    ) -> None:
        """``ahead_sec``: how long before a known peak its slots are wanted; ``keep_sec``: how long
        slots are wanted on without need."""
        self._store = store
        self._objective = objective
        self._ahead_sec = ahead_sec
        self._keep_sec = keep_sec
        self._leads = leads
        self._term: _Term | None = None

    async def tick(self) -> int:
        """Look at every lane once."""
        if not self._leads():
            self._term = None
            return 0
        async with self._store.in_turn() as tx:
            changed = await self._look(tx)
        for each in changed:
            log.info("lane.wants_slots", lane=each.lane, wanted=each.slots, reason=each.reason)
        return 0

    async def _look(self, tx: Tx) -> list[scaling.Wanted]:
        clock = await tx.clock()
        now = clock.timestamp()
        standing = await scaling.every(tx)
        term = self._term = self._term or _Term()
        term.tally.note(await scaling.works(tx))
        due = await scaling.due(tx, clock, clock + HORIZON)
        term.outlook.note(now, now + HORIZON_SEC, due.runs, exact=due.exact)
        rows = {row["lane"]: row for row in await gauges.lanes(tx)}
        changed = []
        for lane in await lanes.every(tx):
            name, before = lane.name, standing.get(lane.name)
            own = term.lanes.get(name)
            if own is None:
                own = term.lanes[name] = _Lane(before, now, self._keep_sec)
            own.wanted.follow(now, *self._needs(lane, self._load(term, lane, now, rows[name])))
            if before is None or before["slots"] != own.wanted.slots:
                changed.append(own.found(name))
        if changed:
            await scaling.note(tx, changed)
        return changed

    def _load(self, term: _Term, lane: Lane, now: float, row: Row) -> Load:
        work = term.tally.total.get(lane.name, Work())
        flow = term.lanes[lane.name].flow
        flow.note(now, row["ready"], row["running"], work)
        return Load(
            row["ready"],
            row["oldest_age_sec"],
            row["running"],
            work.slots,
            work.free,
            flow.arrivals_per_sec,
            term.outlook.lately_per_sec(lane.name),
            flow.service_sec,
            term.outlook.due(lane.name),
            lane.objective_sec or self._objective(lane.name),
        )

    def _needs(self, lane: Lane, load: Load) -> tuple[Need, Need]:
        """What it takes soon, and up to the horizon."""
        if lane.paused_at is not None:
            # Nothing of it is claimed: only what runs keeps its slots.
            paused = Need(load.running, "the lane is paused")
            return paused, paused
        soon, coming = need(load, self._ahead_sec), need(load, HORIZON_SEC)
        return soon.up_to(lane.max_running), coming.up_to(lane.max_running)
