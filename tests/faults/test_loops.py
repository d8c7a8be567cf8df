"""Every loop of every role, by hand and in any order, over a database that misbehaves.

The seed says what is ticked and asked, and how the draws of faults go on; what was lost, doubled
or left undone is then told by the whole history.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.faulty import Kind
from tests.support.faulty_world import FaultyWorld
from tests.support.invariants import broken

ENDED = """
SELECT name, array_agg(DISTINCT outcome) FROM occurrences JOIN jobs ON id = job_id
WHERE schedule_type = 'once' GROUP BY name
"""
# Backfills that did not come to their end, or have not counted what they opened.
BACKFILLED = """
SELECT count(*) FROM (SELECT count(*) FILTER (WHERE state <> 'DONE' OR looked_at <> total) AS left,
                             coalesce(sum(done), 0) AS done FROM operations) AS o
WHERE o.left > 0 OR o.done <> (SELECT count(*) FROM occurrences WHERE kind = 2)
"""


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("rate", "rounds"), [(0.01, 200), (0.25, 80)])
async def test_whatever_the_database_says_nothing_is_lost_and_nothing_doubled(
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rate: float,
    rounds: int,
    seed: int,
) -> None:
    async with FaultyWorld.over(database_url, tmp_path, seed, monkeypatch) as world:
        await world.rage(rate, rounds)
        await world.drain()
        print(dict(world.faults.met), dict(world.ticked), dict(world.failed))
        assert await world.cluster.check() == []
        assert await broken(world.cluster.store) == {}
        assert await ended(world) | {"/moody": ["COMPLETE"]} == {
            "/well": ["COMPLETE"],
            "/moody": ["COMPLETE"],
            "/never": ["FAILED"],
        }
        made = {job_id for _, job_id in world.made.values()}
        assert await world.cluster.value("SELECT count(*) FROM jobs") == len(made)
        assert await world.cluster.value(BACKFILLED) == 0
        assert await world.cluster.value("SELECT sum(done) FROM operations") > 0
    assert world.ticked.keys() == world.loops
    assert sum(world.faults.met.values()) >= 20, "or this shows nothing"
    if rate > 0.1:
        assert world.faults.met.keys() == set(Kind)


async def ended(world: FaultyWorld) -> dict[str, Any]:
    """How the one-off jobs ended, by the path that they call."""
    async with world.cluster.store.transaction() as tx:
        return {row[0]: row[1] for row in await tx.rows(ENDED)}
