"""Dependents: jobs that wait for others are told of each end of those, some at a time.

An end was noted in the transaction that made it. It stays noted until every child has been told:
who waits for nothing more gets its timer; who will not run ends in the ledger, and so do its own
children in turn. What nobody noted (a process of an earlier release) is looked for now and then.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from noonday.domain.dependencies import Fate, Told, fate, gravest
from noonday.domain.model import EPOCH, Kind, LedgerOutcome, RunKey
from noonday.store import Row, Store, Tx, dependencies
from noonday.store.backlogs import Backlogs
from noonday.store.dependencies import Ending
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics

ENDS: Final = 100
"""Ends that are told of in one transaction,"""
CHILDREN: Final = 500
"""and children that are told, about."""
LOOK: Final = 500
"""Parents whose standing is looked at in one pass."""
LOOK_SEC: Final = 10.0
"""Between two passes."""
SOON: Final = timedelta(seconds=1)

NOBODY: Final = UUID(int=0)


class Done(NamedTuple):
    """What came of telling."""

    results: Counter[str]
    """What became of children."""
    timers_soon: bool = False
    handled: int = 0
    """Edges and ends that are done with."""
    ended: Counter[int] | None = None
    """Children that have ended, by tenant."""
    at: datetime = EPOCH


class Dependents:
    """Safe to run in any number of processes: each takes ends that the others have not."""

    def __init__(
        self, store: Store, metrics: Metrics, wakeups: Wakeups, backlogs: Backlogs | None = None
    ) -> None:
        self._backlogs = backlogs
        self._store = store
        self._metrics = metrics
        self._wakeups = wakeups
        self._after = NOBODY

    async def tick(self) -> int:
        """Tell children of ends, about ``CHILDREN`` of them; how many edges that were, and ends."""
        async with self._store.transaction() as tx:
            ends = await dependencies.take(tx, ENDS)
            done = await tell(tx, ends) if ends else Done(Counter())
        for result, number in done.results.items():
            self._metrics.dependents(result, number)
        if self._backlogs is not None and done.ended is not None:
            for tenant_id, number in done.ended.items():
                self._backlogs.note(tenant_id, done.at, ended=number)
        if done.timers_soon:
            self._wakeups.timers()
        return done.handled

    async def look(self) -> int:
        """Look whether parents have ended without a word, some at each pass."""
        async with self._store.transaction() as tx:
            found = await dependencies.parents(tx, self._after, LOOK)
            missed = await dependencies.note_missed(tx, found)
        self._after = found[-1]["id"] if len(found) == LOOK else NOBODY
        if missed:
            self._metrics.straggler("dependencies", missed)
        return 0


async def tell(tx: Tx, ends: Sequence[Row], most: int = CHILDREN) -> Done:
    """Tell about ``most`` children of ends that were taken; what is left keeps its end noted."""
    parents = {row["parent_id"]: row for row in ends}
    edges = await dependencies.edges(tx, list(parents), max(most // len(parents), 1))
    waiting = await dependencies.lock(tx, list({child for _, child in edges}))
    now = await tx.moment()
    told = _fates(edges, waiting, parents)
    worst = {child: gravest(those) for child, those in told.items()}
    ended = [
        _ending(child, why, parents[why.parent])
        for child, why in worst.items()
        if why.fate is not Fate.GO_ON
    ]
    await dependencies.drop_edges(tx, edges)
    going_on = {child: len(told[child]) for child, why in worst.items() if why.fate is Fate.GO_ON}
    free = await dependencies.count_down(tx, going_on)
    armed = await dependencies.release(tx, free, now) if free else {}
    ended += [
        Ending(child, "CANCELLED", "before_ledger", None) for child in free if child not in armed
    ]
    of_tenants = await dependencies.end(tx, ended, now)
    finished = await dependencies.finish(tx, [row["id"] for row in ends])
    results = Counter(ending.outcome.lower() for ending in ended)
    results["released"] = len(armed)
    soon = any(due_at <= now + SOON for due_at in armed.values())
    return Done(results, soon, len(edges) + finished, of_tenants, now)


def _fates(
    edges: Sequence[tuple[UUID, UUID]],
    waiting: Mapping[UUID, Row],
    parents: Mapping[UUID, Row],
) -> dict[UUID, list[Told]]:
    """What each child that still waits is told, by each parent."""
    told: dict[UUID, list[Told]] = defaultdict(list)
    for parent, child in edges:
        if (row := waiting.get(child)) is not None:
            outcome = LedgerOutcome(parents[parent]["outcome"])
            follows = fate(row["runs_on"], row["cascade_cancel"], outcome)
            told[child].append(Told(follows, parent, outcome))
    return told


def _ending(child: UUID, told: Told, parent: Row) -> Ending:
    outcome = "CANCELLED" if told.fate is Fate.CANCEL else "SKIPPED"
    run = RunKey(told.parent, Kind.SCHEDULE, parent["occurrence_at"])
    return Ending(child, outcome, told.reason, str(run))
