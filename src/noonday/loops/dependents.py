"""Dependents: jobs that wait for others are told of each end of those, some at a time.

An end was noted in the transaction that made it. It stays noted until every child has been told:
who waits for nothing more gets its timer; who will not run ends in the ledger, and so do its own
children in turn. What nobody noted (a process of an earlier release) is looked for now and then.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

from noonday.domain.dependencies import Fate, Told, fate, gravest
from noonday.domain.model import Kind, LedgerOutcome, RunKey
from noonday.store import Row, Store, Tx, dependencies
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


class Dependents:
    """Safe to run in any number of processes: each takes ends that the others have not."""

    def __init__(self, store: Store, metrics: Metrics, wakeups: Wakeups) -> None:
        self._store = store
        self._metrics = metrics
        self._wakeups = wakeups
        self._after = NOBODY

    async def tick(self) -> int:
        """Tell children of ends, about ``CHILDREN`` of them; how many edges that were, or ends."""
        async with self._store.transaction() as tx:
            ends = await dependencies.take(tx, ENDS)
            told, soon, count = await self._tell(tx, ends) if ends else (Counter(), False, 0)
        for result, number in told.items():
            self._metrics.dependents(result, number)
        if soon:
            self._wakeups.timers()
        return count

    async def _tell(self, tx: Tx, ends: Sequence[Row]) -> tuple[Counter[str], bool, int]:
        """What became of the children, whether a timer is due soon, and how much was done."""
        parents = {row["parent_id"]: row for row in ends}
        edges = await dependencies.edges(tx, list(parents), max(CHILDREN // len(parents), 1))
        waiting = await dependencies.lock(tx, list({child for _, child in edges}))
        told: dict[UUID, list[Told]] = defaultdict(list)
        for parent, child in edges:
            if (row := waiting.get(child)) is not None:
                outcome = LedgerOutcome(parents[parent]["outcome"])
                follows = fate(row["runs_on"], row["cascade_cancel"], outcome)
                told[child].append(Told(follows, parent, outcome))
        now = await tx.moment()
        await dependencies.drop_edges(tx, edges)
        ended = [
            _ending(child, worst, parents[worst.parent])
            for child, those in told.items()
            if (worst := gravest(those)).fate is not Fate.GO_ON
        ]
        gone = {ending.job_id for ending in ended}
        going_on = {child: len(those) for child, those in told.items() if child not in gone}
        free = await dependencies.count_down(tx, going_on)
        armed = await dependencies.release(tx, free, now) if free else {}
        ended += [
            Ending(child, "CANCELLED", "before_ledger", None)
            for child in free
            if child not in armed
        ]
        await dependencies.end(tx, ended, now)
        finished = await dependencies.finish(tx, [row["id"] for row in ends])
        counts = Counter(ending.outcome.lower() for ending in ended)
        counts["released"] = len(armed)
        soon = any(due_at <= now + SOON for due_at in armed.values())
        return counts, soon, len(edges) + finished

    async def look(self) -> int:
        """Look whether parents have ended without a word, some at each pass."""
        async with self._store.transaction() as tx:
            found = await dependencies.parents(tx, self._after, LOOK)
            missed = await dependencies.note_missed(tx, found)
        self._after = found[-1]["id"] if len(found) == LOOK else NOBODY
        if missed:
            self._metrics.straggler("dependencies", missed)
        return 0


def _ending(child: UUID, told: Told, parent: Row) -> Ending:
    outcome = "CANCELLED" if told.fate is Fate.CANCEL else "SKIPPED"
    run = RunKey(told.parent, Kind.SCHEDULE, parent["occurrence_at"])
    return Ending(child, outcome, told.reason, str(run))
