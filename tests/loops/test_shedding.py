"""Lanes that wait while others miss their objective: seen, said, and let go again."""

from __future__ import annotations

from structlog.testing import capture_logs

from noonday.domain.lane_clock import LaneReport
from noonday.domain.lanes import CALM
from noonday.domain.pools import Pool
from noonday.loops.gauges import Gauges
from noonday.store import Store, lanes, workers
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics
from tests.support import seeds
from tests.support.scripted import Parts, Scripted, carry_out, landed

SHARED = [Pool(("default", "*"), 10)]


def gauges_of(store: Store, *, leads: bool = True) -> Gauges:
    return Gauges(
        store, Metrics(), Wakeups(store), objective=lambda _: 60.0, leads=lambda: leads
    )  # fmt: skip


async def ready(store: Store, lane: str, *, age_sec: float = 0, count: int = 1) -> None:
    async with store.transaction() as tx:
        for run in await seeds.ready(tx, lane=lane, count=count):
            await tx.execute(
                "UPDATE runs SET ready_at = now() - $2 * interval '1 s', rank = now() - "
                "$2 * interval '1 s' WHERE job_id = $1", run.job_id, age_sec,
            )  # fmt: skip


async def serving(store: Store, *names: str) -> None:
    async with store.transaction() as tx:
        reports = {name: LaneReport(1) for name in names}
        await workers.report(tx, seeds.OTHER_WORKER, "worker", "other", slots=1, lanes=reports)


async def state(store: Store, name: str = "batch") -> tuple[bool, str | None]:
    async with store.transaction() as tx:
        lane = await lanes.one(tx, name)
    assert lane is not None
    return lane.closed, lane.shed_reason


async def test_a_lane_that_may_wait_does_while_another_is_late_and_loses_nothing(
    store: Store, parts: Parts
) -> None:
    await serving(store, "default", "batch")
    await ready(store, "default", age_sec=75)
    await ready(store, "batch", count=3)
    counts = gauges_of(store)
    with capture_logs() as lines:
        await counts.tick()
    reason = "runs of the lane default wait 75 s, and its objective is 60 s"
    assert await state(store) == (True, reason)
    assert [(line["event"], line["lane"], line["reason"]) for line in lines] == [
        ("lane.shed", "batch", reason)
    ]
    worker = parts.worker(Scripted(), slots=4, plan=SHARED)
    assert await carry_out(worker) == 1, "what is late runs"
    await counts.tick()
    assert 'noonday_lane_shed{lane="batch"} 1.0' in counts._metrics.render().decode()
    assert (await state(store))[0], "not at the first sign that it is over"
    assert counts._calm_since is not None
    counts._calm_since -= CALM
    await counts.tick()
    assert await state(store) == (False, None)
    worker._lanes.forget()
    assert await carry_out(worker) == 3


async def test_only_the_leader_sheds_and_two_of_them_agree(store: Store) -> None:
    await serving(store, "default")
    await ready(store, "default", age_sec=75)
    await gauges_of(store, leads=False).tick()
    assert await state(store) == (False, None)
    first, second = gauges_of(store), gauges_of(store)
    with capture_logs() as lines:
        await first.tick()
        await second.tick()
    assert len(lines) == 1
    async with store.transaction() as tx:
        await tx.execute("DELETE FROM runs")
        since = await tx.value("SELECT shed_at FROM lanes WHERE name = 'batch'")
        assert since is not None
        assert await lanes.release(tx, [("batch", since)]) == ["batch"]
        assert await lanes.release(tx, [("batch", since)]) == []
        await lanes.shed(tx, ["batch", "default"], "another time")
        assert await lanes.release(tx, [("batch", since)]) == [], "of before"
    assert (await state(store, "default"))[0] is False, "may not wait"


async def test_what_the_leader_counts_is_there_for_those_who_ask(store: Store) -> None:
    await ready(store, "default", count=2)
    await gauges_of(store).tick()
    async with store.transaction() as tx:
        counted = await lanes.counted(tx)
    assert set(counted) == {"batch", "critical", "default", "long"}
    assert (counted["default"]["ready"], counted["default"]["running"]) == (2, 0)
    assert counted["batch"]["objective_sec"] == 60.0


async def test_a_lane_goes_by_its_own_objective(store: Store) -> None:
    await serving(store, "default")
    async with store.transaction() as tx:
        await tx.execute("UPDATE lanes SET objective_sec = 100 WHERE name = 'default'")
    await ready(store, "default", age_sec=75)
    counts = gauges_of(store)
    await counts.tick()
    assert await state(store) == (False, None)
    text = counts._metrics.render().decode()
    assert 'noonday_lane_objective_seconds{lane="default"} 100.0' in text


async def test_a_worker_says_which_lanes_it_serves(store: Store, parts: Parts) -> None:
    worker = parts.worker(Scripted(), plan=SHARED)
    await worker.tick()
    await worker.beats.tick()
    async with store.transaction() as tx:
        assert await workers.served(tx) == {"default", "batch", "critical", "long"}
    await landed(worker)
