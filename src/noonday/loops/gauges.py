"""How much there is, counted every few seconds.

For the metrics of each scheduler; and by the one that leads, for those who ask, and to see whether
lanes have to wait for others.

Should two lead for a moment, the second writes the same, and finds nothing to shed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import structlog

from noonday.domain import flow
from noonday.domain.lanes import Standing, judge
from noonday.store import Row, Store, Tx, gauges, lanes, scaling, workers
from noonday.store.lanes import Gauge
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Depth, Metrics

log = structlog.get_logger()


class Gauges:
    """Counts. ``leads`` says whether this process is the one that sheds lanes; ``objective`` how
    many seconds runs of a lane without an objective of its own may wait. ``told`` hears how the
    lanes stand."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        wakeups: Wakeups,
        *,
        objective: Callable[[str], float],
        leads: Callable[[], bool],
        told: Callable[[Sequence[Row]], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._wakeups = wakeups
        self._objective = objective
        self._leads = leads
        self._told = told
        self._calm_since: datetime | None = None

    async def tick(self) -> int:
        """Count once."""
        async with self._store.in_turn() as tx:
            rows, held = await gauges.lanes(tx), await gauges.held(tx)
            horizon, slowed = await gauges.horizon(tx), await gauges.slowed(tx)
            wanted, works = await scaling.every(tx), await scaling.works(tx)
        self._metrics.wanted_stand_at(
            {lane: row["slots"] for lane, row in wanted.items()}, flow.slots(works.values())
        )
        self._metrics.held_stand_at(held)
        self._metrics.slowed_stand_at(slowed)
        self._metrics.horizon_stands_at(horizon["age_sec"], horizon["transactions"])
        self._metrics.lanes_stand_at({row["lane"]: self._depth(row) for row in rows})
        self._told(rows)
        if self._leads():
            await self._keep(rows)
        else:
            self._calm_since = None
        return 0

    def _depth(self, row: Row) -> Depth:
        return Depth(
            row["ready"],
            row["oldest_age_sec"],
            row["running"],
            row["past_lease"],
            row["past_lease_sec"],
            self._objective_of(row),
            row["paused"],
            row["shed"],
        )

    def _objective_of(self, row: Row) -> float:
        return float(row["objective_sec"] or self._objective(row["lane"]))

    async def _keep(self, rows: Sequence[Row]) -> None:
        counted = [
            Gauge(
                row["lane"],
                row["ready"],
                row["oldest_age_sec"],
                row["running"],
                self._objective_of(row),
            )
            for row in rows
        ]
        async with self._store.transaction() as tx:
            await lanes.note(tx, counted)
            standing = await _standing(tx, counted)
            verdict = judge(standing, self._calm_since, await tx.clock())
            shed = await lanes.shed(tx, verdict.shed, verdict.reason) if verdict.shed else []
            since = {each.lane.name: each.lane.shed_at for each in standing}
            over = [(name, at) for name in verdict.released if (at := since[name]) is not None]
            released = await lanes.release(tx, over) if over else []
        self._calm_since = verdict.calm_since
        for name in shed:
            log.warning("lane.shed", lane=name, reason=verdict.reason)
        for name in released:
            log.info("lane.released", lane=name)
        if released:
            self._wakeups.runs()


async def _standing(tx: Tx, counted: Sequence[Gauge]) -> list[Standing]:
    served = await workers.served(tx)
    known = {lane.name: lane for lane in await lanes.every(tx)}
    return [
        Standing(
            known[each.lane], each.oldest_age_sec, each.objective_sec, each.running,
            each.lane in served,
        )
        for each in counted
        if each.lane in known
    ]  # fmt: skip
