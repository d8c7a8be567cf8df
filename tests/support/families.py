"""Jobs that wait for others, made by the statements of the product itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from noonday.domain.model import Kind, Once, RunKey, shard_of
from noonday.loops.dependents import tell
from noonday.store import Store, Tx, dependencies, jobs, runs
from noonday.store.dependencies import Dependent, Parent
from tests.support import seeds


def parents_of(*ids: UUID) -> list[Parent]:
    return [Parent(id, seeds.TENANT) for id in ids]


async def announce(tx: Tx, *parents: UUID) -> None:
    await dependencies.announce(tx, parents_of(*parents))


async def add(
    tx: Tx,
    parents: Sequence[UUID],
    *,
    on: str = "success",
    cascade: bool = False,
    count: int = 1,
    due_at: datetime | None = None,
    ids: Sequence[UUID] = (),
) -> list[UUID]:
    """Children that wait for what is open of ``parents``; none while one of those is moving, or if
    none is open."""
    now = await tx.clock()
    at = due_at or now
    await dependencies.share_families(tx, parents)
    stands = await dependencies.standing(tx, parents_of(*parents))
    is_open = [parent.id for parent, stand in stands.items() if stand.open]
    moving = any(stand.outcome is None and not stand.open for stand in stands.values())
    if moving or not is_open:
        return []
    made = [seeds.new_job(seeds.spec_of(Once(at)), at, id=id) for id in ids] or [
        seeds.new_job(seeds.spec_of(Once(at)), at) for _ in range(count)
    ]
    await insert(tx, made, is_open, at, on, cascade)
    return [job.id for job in made]


async def insert(
    tx: Tx,
    made: Sequence[jobs.NewJob],
    parents: Sequence[UUID],
    at: datetime,
    on: str = "success",
    cascade: bool = False,
) -> None:
    await jobs.insert(tx, made)
    children = [
        Dependent(job.id, seeds.TENANT, at, at, shard_of(job.id), on, cascade, len(parents))
        for job in made
    ]
    edges = [(parent, job.id) for job in made for parent in parents]
    await dependencies.insert(tx, children, edges)


async def child_of(
    store: Store, *parents: UUID, on: str = "success", cascade: bool = False, count: int = 1
) -> list[UUID]:
    """Children of open parents, as the API makes them."""
    async with store.transaction() as tx:
        await announce(tx, *parents)
    async with store.transaction() as tx:
        children = await add(tx, parents, on=on, cascade=cascade, count=count)
    assert len(children) == count, "a parent has ended, or is moving"
    return children


async def told(store: Store) -> None:
    """Until every child has been told of every end."""
    count = 1
    while count:
        async with store.transaction() as tx:
            ends = await dependencies.take(tx, 100)
            count = (await tell(tx, ends)).handled if ends else 0


async def fate_of(store: Store, child: UUID) -> tuple[str | None, str | None, str | None]:
    """``waits``, ``armed``, ``run``, or the ledger's outcome; its reason; the blocking run."""
    async with store.transaction() as tx:
        if await tx.row("SELECT 1 FROM dependents WHERE job_id = $1", child):
            return "waits", None, None
        if await tx.row("SELECT 1 FROM timers WHERE job_id = $1", child):
            return "armed", None, None
        if await runs.of_job(tx, child):
            return "run", None, None
        row = await tx.one(
            "SELECT outcome, reason, blocking_run FROM occurrences WHERE job_id = $1", child
        )
        return row["outcome"], row["reason"], row["blocking_run"]


def run_of(job: UUID, at: datetime) -> RunKey:
    return RunKey(job, Kind.SCHEDULE, at)
