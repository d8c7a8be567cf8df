"""Claims against claims, and against a cancel: a run has one holder, or none."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from noonday.domain.model import RunKey
from noonday.domain.ranking import AGEING_SEC, Floors
from noonday.store import Store, Tx, cancels, runs
from noonday.store.cancels import Which
from noonday.store.runs import Claimed, key_of
from tests.races.conftest import EveryOrder
from tests.support import seeds
from tests.support.seeds import OTHER_WORKER, WORKER
from tests.support.stepping import Plan, Stage, Step, rollback

NOW = datetime.now(UTC)
MINUTE = timedelta(minutes=1)


def claiming(limit: int, worker: object = WORKER) -> Step:
    async def step(tx: Tx) -> Claimed:
        return await runs.claim(tx, "default", seeds.ranges(), limit, worker)  # type: ignore[arg-type]

    return step


def keys(claimed: Claimed) -> set[RunKey]:
    return {key_of(row) for row in claimed.rows}


async def seed(store: Store, count: int, **how: object) -> list[RunKey]:
    async with store.transaction() as tx:
        return await seeds.ready(tx, count=count, **how)  # type: ignore[arg-type]


async def test_two_claims_share_no_run_and_leave_none(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        await seed(store, 4)
        return {"a": [claiming(2)], "b": [claiming(3, OTHER_WORKER)]}

    async for played in every_order(prepare):
        (one,), (other,) = played.results["a"], played.results["b"]
        assert not keys(one) & keys(other), played
        assert len(one.rows) + len(other.rows) == 4, played
        assert not played.waited, "a claim never waits for another"


async def test_a_claim_that_is_given_up_leaves_its_runs_as_they_were(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        await seed(store, 2)
        return {"a": [claiming(2), rollback], "b": [claiming(2, OTHER_WORKER)]}

    async for played in every_order(prepare):
        async with store.transaction() as tx:
            again = await seeds.claim(tx)
        taken = played.results["b"][0].rows
        assert len(taken) + len(again) == 2, played
        assert {(row["attempt"], row["lease_version"]) for row in [*taken, *again]} == {(1, 1)}


async def test_a_claim_that_meets_only_what_others_are_taking_knows_that_more_may_wait(
    store: Store, stage: Stage
) -> None:
    await seed(store, 60)
    played = await stage.play(
        {"a": [claiming(20)], "b": [claiming(1)], "c": [claiming(60)]},
        ["a", "b", "c", "a", "b", "c"],
    )
    assert not played.results["b"][0].rows
    assert not played.results["b"][0].drained
    assert len(played.results["c"][0].rows) == 40
    assert not played.results["c"][0].drained, "what the first claim has may come back"


async def test_a_claim_knows_whether_more_wait(store: Store) -> None:
    await seed(store, 4)
    for expected in (False, True):
        async with store.transaction() as tx:
            assert (await claiming(3)(tx)).drained is expected  # type: ignore[attr-defined]
    async with store.transaction() as tx:
        claimed = await claiming(3)(tx)
        assert isinstance(claimed, Claimed)
        assert claimed == Claimed(
            [], claimed.clock, claimed.leased_at, {}, {}, {}, saw_all=True, drained=True
        )
        assert claimed.highest is None


async def test_a_floor_does_not_pass_what_another_claim_held_and_gave_up(
    store: Store, stage: Stage
) -> None:
    await seed(store, 100)
    played = await stage.play(
        {"a": [claiming(50), rollback], "b": [claiming(50)]}, ["a", "b", "b", "a", "a"]
    )
    claimed = played.results["b"][0]
    assert len(claimed.rows) == 50
    floors = Floors()
    used = floors.each()
    floors.claimed(used, claimed.lowest, datetime.now(UTC) + MINUTE, everything=claimed.saw_all)
    async with store.transaction() as tx:
        again = await runs.claim(tx, "default", seeds.ranges(floors), 50, WORKER)
    assert len(again.rows) == 50


async def test_a_cancelled_run_is_not_claimed_and_a_claimed_one_not_cancelled(
    store: Store, every_order: EveryOrder
) -> None:
    async def prepare() -> Plan:
        (run,) = await seed(store, 1)

        async def cancel(tx: Tx) -> int:
            return await cancels.cancel(tx, Which(run.job_id), "deleted")

        return {"claim": [claiming(1)], "cancel": [cancel]}

    async for played in every_order(prepare):
        claimed, cancelled = len(played.results["claim"][0].rows), played.results["cancel"][0]
        assert claimed + cancelled == 1, played
        async with store.transaction() as tx:
            left = await tx.value("SELECT count(*) FROM runs WHERE state = 'RUNNING'")
        assert left == claimed, played


def effective(rank: datetime, priority: int) -> datetime:
    return rank + timedelta(seconds=priority * AGEING_SEC)


LOOKED_AT = """
EXPLAIN (ANALYZE, FORMAT JSON) SELECT rank FROM runs
WHERE lane = 'default' AND priority = $1 AND claimable AND rank >= $2 AND rank < $3
  AND state = 'READY'
ORDER BY rank LIMIT 10
"""


async def test_ten_priorities_are_claimed_by_age_and_urgency_past_thousands_in_flight(
    store: Store,
) -> None:
    stands: dict[UUID, datetime] = {}
    for step in range(100):
        store.now = NOW + timedelta(seconds=step)
        async with store.transaction() as tx:
            runs_made = await seeds.ready(tx, count=100, priority=(step * 7) % 10)
        stands |= {run.job_id: effective(store.now, (step * 7) % 10) for run in runs_made}
    store.now = NOW + timedelta(seconds=120)
    floors = Floors()
    taken: list[datetime] = []
    while len(taken) < 10_000:
        async with store.transaction() as tx:
            used = floors.each()
            claimed = await runs.claim(tx, "default", seeds.ranges(floors), 700, WORKER)
        assert claimed.rows
        floors.claimed(used, claimed.lowest, store.now, everything=claimed.saw_all)
        taken += sorted(stands[row["job_id"]] for row in claimed.rows)
    assert taken == sorted(stands.values())
    assert await _looked_at(store, floors) < 2_500, "the floors keep what is in flight out of sight"
    assert await _looked_at(store, Floors()) == 10_000


async def _looked_at(store: Store, floors: Floors) -> int:
    """Entries of the claim index that a claim from these floors looks at in vain."""
    async with store.transaction() as tx:
        plans = [json.loads(await tx.value(LOOKED_AT, *span)) for span in floors.each()]
    return sum(_removed(plan[0]["Plan"]) for plan in plans)


def _removed(node: dict[str, Any]) -> int:
    return int(node.get("Rows Removed by Filter", 0)) + sum(map(_removed, node.get("Plans", [])))
