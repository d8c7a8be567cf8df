"""How many slots are wanted is told by one process, from what the database says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from noonday.domain.flow import SLICE_SEC, Work
from noonday.domain.vitals import Vitals
from noonday.loops.scaling import Scaling
from noonday.loops.vitals import Reporter
from noonday.store import Store, jobs, scaling, timers, workers
from noonday.store.timers import Timer
from noonday.telemetry import Metrics
from tests.support import seeds

# Of an hour in which nothing is near a change of the day.
START = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) + timedelta(days=1)
SECOND = timedelta(seconds=1)
OBJECTIVE = 60.0
KEEP_SEC = 300.0
OTHER_TIMERS = """
INSERT INTO timers
SELECT (SELECT id FROM jobs WHERE lane = CASE WHEN n % 4 = 0 THEN 'batch' ELSE 'default' END),
       $1, $1, 1, 0, n % 64
FROM generate_series(1, $2::int) AS n
"""


def scaling_of(store: Store, leads: Callable[[], bool] = lambda: True) -> Scaling:
    """What one scheduler process tells it with."""
    return Scaling(
        store, objective=lambda _: OBJECTIVE, ahead_sec=120.0, keep_sec=KEEP_SEC, leads=leads
    )


async def look(one: Scaling, store: Store, after: timedelta) -> None:
    store.now = START + after
    await one.tick()


async def wanted(store: Store) -> dict[str, int]:
    async with store.transaction() as tx:
        return {lane: row["slots"] for lane, row in (await scaling.every(tx)).items()}


async def arm(store: Store, due_at: datetime, count: int, lane: str = "default") -> None:
    async with store.transaction() as tx:
        spec = seeds.spec_of(seeds.every(3_600, due_at))
        made = [seeds.new_job(spec, START, lane=lane) for _ in range(count)]
        await jobs.insert(tx, made)
        await timers.arm(tx, [Timer(job.id, due_at, due_at, 1, 0, 0) for job in made], START)


async def work(store: Store, worker: UUID, **works: Work) -> None:
    async with store.transaction() as tx:
        await workers.report(tx, worker, "worker", "a worker")
        await workers.note_vitals(tx, worker, Vitals(works=works))


async def test_at_first_each_lane_is_told_to_need_nothing(store: Store) -> None:
    await look(scaling_of(store), store, timedelta())
    assert await wanted(store) == {"batch": 0, "critical": 0, "default": 0, "long": 0}


async def test_only_the_leader_tells(store: Store) -> None:
    await look(scaling_of(store, leads=lambda: False), store, timedelta())
    assert await wanted(store) == {}


async def test_what_waits_needs_slots_and_nothing_is_written_while_that_stays_so(
    store: Store,
) -> None:
    one = scaling_of(store)
    store.now = START
    async with store.transaction() as tx:
        await seeds.ready(tx, count=90, lane="batch")
    await look(one, store, SECOND)
    assert (await wanted(store))["batch"] == 4, "90 s of work within half a minute"
    before = await stamps(store)
    await look(one, store, SECOND)
    assert await stamps(store) == before


async def stamps(store: Store) -> list[str]:
    async with store.transaction() as tx:
        return [
            row["stamp"] for row in await tx.rows("SELECT xmin::text AS stamp FROM wanted_slots")
        ]


async def test_slots_are_wanted_before_timers_are_due_and_are_given_up_in_steps_after_it(
    store: Store,
) -> None:
    one, peak = scaling_of(store), timedelta(minutes=9)
    await arm(store, START + peak, 600, "batch")
    await look(one, store, timedelta())
    assert (await wanted(store))["batch"] == 0, "that is a while yet"
    await look(one, store, peak - timedelta(seconds=119))
    assert (await wanted(store))["batch"] == 20
    async with store.transaction() as tx:
        await tx.execute("DELETE FROM timers")
    seen = []
    for sec in range(0, 1_200, 20):
        await look(one, store, peak + sec * SECOND)
        seen.append((await wanted(store))["batch"])
    assert seen[:9] == [20] * 9
    assert sorted(set(seen), reverse=True) == [20, 10, 5, 2, 1, 0]
    assert seen == sorted(seen, reverse=True)


async def test_whoever_takes_over_goes_on_from_what_was_wanted(store: Store) -> None:
    await arm(store, START + 60 * SECOND, 600)
    await look(scaling_of(store), store, timedelta())
    async with store.transaction() as tx:
        await tx.execute("DELETE FROM timers")
    after = scaling_of(store)
    await look(after, store, 70 * SECOND)
    assert (await wanted(store))["default"] == 20


async def test_two_leaders_for_a_moment_do_no_harm(store: Store) -> None:
    one, other = scaling_of(store), scaling_of(store)
    await arm(store, START + 60 * SECOND, 600)
    for n in range(3):
        await look(one, store, n * SECOND)
        await look(other, store, n * SECOND)
    assert (await wanted(store))["default"] == 20


async def test_how_long_runs_take_is_learnt_from_what_workers_say_of_themselves(
    store: Store,
) -> None:
    one = scaling_of(store)
    await look(one, store, timedelta())
    await work(store, seeds.WORKER, default=Work(64, 64, 400, 400, 100.0))
    await arm(store, START + 120 * SECOND, 600)
    await look(one, store, 5 * SECOND)
    assert (await wanted(store))["default"] == 5, "600 of a quarter of a second in half a minute"


async def test_a_capped_lane_wants_no_more_than_may_run(store: Store) -> None:
    one = scaling_of(store)
    await arm(store, START + 60 * SECOND, 600)
    async with store.transaction() as tx:
        await tx.execute("UPDATE lanes SET max_running = 8 WHERE name = 'default'")
    await look(one, store, timedelta())
    assert (await wanted(store))["default"] == 8


async def test_of_a_paused_lane_only_what_runs_needs_slots(store: Store) -> None:
    one = scaling_of(store)
    store.now = START
    async with store.transaction() as tx:
        await seeds.ready(tx, count=90)
        await seeds.claim(tx, limit=3)
        await tx.execute(
            "UPDATE lanes SET paused_at = now(), pause_reason = 'x' WHERE name = 'default'"
        )
    await look(one, store, SECOND)
    assert (await wanted(store))["default"] == 3


async def test_an_objective_of_the_lane_itself_counts_before_the_settings(store: Store) -> None:
    one = scaling_of(store)
    await arm(store, START + 60 * SECOND, 600)
    async with store.transaction() as tx:
        await tx.execute("UPDATE lanes SET objective_sec = 600 WHERE name = 'default'")
    await look(one, store, timedelta())
    assert (await wanted(store))["default"] == 2


# --- what is due ------------------------------------------------------------------------------


async def test_few_timers_are_told_exactly_by_lane_and_time(store: Store) -> None:
    await arm(store, START + 30 * SECOND, 3)
    await arm(store, START + 31 * SECOND, 2, "batch")
    await arm(store, START + timedelta(minutes=10), 5)
    async with store.transaction() as tx:
        found = await scaling.due(tx, START, START + timedelta(minutes=10))
    slice = int(START.timestamp()) // SLICE_SEC + 3
    assert found == ({slice: {"default": 3.0, "batch": 2.0}}, True)


@pytest.mark.parametrize("count", [900, 30_000])
async def test_many_timers_are_estimated_and_the_estimates_are_right_on_average(
    store: Store, count: int
) -> None:
    async with store.transaction() as tx:
        spec = seeds.spec_of(seeds.every(3_600, START))
        await jobs.insert(
            tx, [seeds.new_job(spec, START, lane=lane) for lane in ("batch", "default")]
        )
        await tx.execute(OTHER_TIMERS, START + 30 * SECOND, count)
        looks = [await scaling.due(tx, START, START + 60 * SECOND) for _ in range(40)]
    slice = int(START.timestamp()) // SLICE_SEC + 3
    for lane, part in (("batch", 0.25), ("default", 0.75)):
        mean = sum(look.runs[slice].get(lane, 0) for look in looks) / len(looks)
        assert mean == pytest.approx(part * count, rel=0.3)
    assert not any(look.exact for look in looks)


# --- what a worker says of itself -------------------------------------------------------------


async def test_a_worker_says_what_it_did_in_each_lane(store: Store) -> None:
    metrics = Metrics()
    metrics.serves("default", 64, 62)
    for _ in range(3):
        metrics.began("default")
    metrics.landed("default")
    async with store.transaction() as tx:
        await workers.report(tx, seeds.WORKER, "worker", "a worker")
    await Reporter(store, seeds.WORKER, metrics, list).tick()
    async with store.transaction() as tx:
        said = (await scaling.works(tx))[seeds.WORKER]["default"]
    assert (said.slots, said.free, said.started, said.ended) == (64, 62, 3, 1)
    assert said.busy_sec > 0
