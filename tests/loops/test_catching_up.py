"""After an outage: fresh work goes on, what is late has its share, and nothing is lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from noonday.domain.catch_up import LATE, Pace
from noonday.domain.model import Interval, Once
from noonday.loops.gauges import Gauges
from noonday.loops.scheduler import BATCH, Scheduler
from noonday.store import Store, timers, workers
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics
from tests.support import seeds
from tests.support.counting import CountingStore
from tests.support.driving import arm
from tests.support.invariants import broken
from tests.support.ledgers import lines
from tests.support.scripted import Parts, counted

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
MIDNIGHT = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
T = MIDNIGHT + 15 * HOUR
"""When it goes on again."""
OFF = T - 6 * HOUR
HOURLY = Interval(3_600, OFF, overlap="allow")
RESERVED = BATCH // 2
TIES = 50


async def overdue(store: Store, count: int, *, since: datetime = OFF) -> list[UUID]:
    """One-off jobs, fifty due at ``since`` and fifty more each second later, oldest first."""
    made: list[UUID] = []
    for n in range(0, count, TIES):
        at = since + n // TIES * SECOND
        made += await arm(store, Once(at), at, count=min(TIES, count - n))
    return made


async def oldest_fired(store: Store, late: Sequence[UUID]) -> int:
    """How many were fired, the oldest of them; of those of one instant it may be any."""
    found = await fired(store, late)
    whole = len(found) // TIES * TIES
    assert set(late[:whole]) <= found <= set(late[: whole + TIES])
    return len(found)


async def fired(store: Store, jobs: Sequence[UUID]) -> set[UUID]:
    async with store.transaction() as tx:
        rows = await tx.rows(
            "SELECT DISTINCT job_id FROM occurrences WHERE job_id = ANY($1::uuid[])", jobs
        )
    return {row["job_id"] for row in rows}


async def number(store: Store, statement: str, *args: Any) -> int:
    async with store.transaction() as tx:
        return int(await tx.value(statement, *args))


async def at_work(parts: Parts, store: Store, now: datetime = T) -> Scheduler:
    store.now = now
    scheduler = parts.scheduler()
    await scheduler.keep_shards()
    return scheduler


# --- fresh work -------------------------------------------------------------------------------


async def test_fresh_work_is_fired_in_the_second_tick_and_the_late_go_on_oldest_first(
    store: Store, parts: Parts
) -> None:
    store.now = OFF
    late = await overdue(store, 2_500)
    fresh = await arm(store, Once(T - SECOND), T - SECOND, count=30)
    scheduler = await at_work(parts, store)
    for ticks in range(1, 5):
        newer = await arm(store, Once(store.now), store.now, count=10)
        assert await scheduler.tick() == BATCH
        if ticks > 1:
            assert await fired(store, fresh) == set(fresh)
            assert await fired(store, newer) == set(newer)
        assert await oldest_fired(store, late) == BATCH * ticks - (ticks > 1) * (30 + 10 * ticks)
        store.now += SECOND
    assert counted(scheduler, "late_timers_fired") == 4 * BATCH - 70
    while await scheduler.tick():
        pass
    assert await number(store, "SELECT count(*) FROM timers") == 0
    assert not await broken(store)


async def test_a_flood_of_fresh_work_leaves_the_late_their_share(
    store: Store, parts: Parts
) -> None:
    store.now = OFF
    late = await overdue(store, 1_500)
    fresh = await arm(store, Once(T - SECOND), T - SECOND, count=1_200)
    scheduler = await at_work(parts, store)
    for ticks in range(3):
        assert await scheduler.tick() == BATCH
        assert await oldest_fired(store, late) == BATCH + ticks * RESERVED
        assert len(await fired(store, fresh)) == ticks * (BATCH - RESERVED)


async def test_what_is_due_within_a_minute_is_not_late(store: Store, parts: Parts) -> None:
    store.now = T - LATE
    made = await arm(store, Once(T - LATE), T - LATE, count=BATCH)
    scheduler = await at_work(parts, store)
    assert await scheduler.tick() == BATCH
    assert await fired(store, made) == set(made)
    assert counted(scheduler, "late_timers_fired") == 0


async def test_a_tick_with_nothing_late_asks_no_more_than_one_thing(
    store: Store, parts: Parts
) -> None:
    store.now = T
    counting = CountingStore(store)
    scheduler = parts.scheduler(store=counting)
    await scheduler.keep_shards()
    await scheduler.tick()
    counting.statements.clear()
    assert await scheduler.tick() == 0
    assert counting.statements == [timers.DUE, timers.NEXT_DUE]


# --- nothing is lost --------------------------------------------------------------------------


async def test_every_nominal_time_of_an_outage_is_in_the_ledger_once(
    store: Store, parts: Parts
) -> None:
    store.now = OFF
    hourly = await arm(store, HOURLY, OFF, count=300)
    every = await arm(store, Interval(3_600, OFF, overlap="allow", misfire="all"), OFF, count=100)
    once = await overdue(store, 400)
    scheduler = await at_work(parts, store)
    for _ in range(40):
        while await scheduler.tick():
            pass
        store.now += SECOND
    due = {OFF + n * HOUR for n in range(7)}
    ledger = await lines(store)
    found = Counter((line.job_id, line.at) for line in ledger)
    assert set(found.values()) == {1}
    assert {job for job, _ in found} == {*hourly, *every, *once}
    for job in (*hourly, *every):
        assert {at for each, at in found if each == job} == due
    missed = Counter(line.job_id for line in ledger if line.outcome == "MISSED")
    assert missed == dict.fromkeys(hourly, 6)
    assert not await broken(store)


async def test_a_restart_in_the_middle_goes_on_with_the_oldest(store: Store, parts: Parts) -> None:
    store.now = OFF
    late = await overdue(store, 2_500)
    first = await at_work(parts, store)
    for _ in range(2):
        await first.tick()
    assert await oldest_fired(store, late) == 2 * BATCH
    # It is killed: another one takes over when its lease has run out.
    fresh = await arm(store, Once(T + 20 * SECOND), T + 20 * SECOND)
    second = await at_work(parts, store, T + 20 * SECOND)
    await second.tick()
    assert await oldest_fired(store, late) == 3 * BATCH
    await second.tick()
    assert await fired(store, fresh) == set(fresh)
    while await second.tick():
        pass
    assert await fired(store, late) == set(late)
    assert not await broken(store)


async def test_shards_that_come_while_it_catches_up_bring_what_is_older(
    store: Store, parts: Parts
) -> None:
    store.now = OFF
    late = await overdue(store, 1_200, since=OFF + HOUR)
    oldest = await overdue(store, 1_200)
    first = await at_work(parts, store)
    await first.release(range(32, 64))
    await first.tick()
    await first.tick()
    second = await at_work(parts, store)
    assert len(first.epochs) == len(second.epochs) == 32
    await first.leave()
    await second.tick()  # has begun with its own
    await second.keep_shards()
    assert len(second.epochs) == 64
    while await second.tick():
        pass
    assert await fired(store, [*late, *oldest]) == {*late, *oldest}
    await second.sweep()
    assert counted(second, "floor_stragglers") == 0


async def test_a_late_timer_that_is_committed_below_all_others_is_found_by_the_sweep(
    store: Store, parts: Parts
) -> None:
    store.now = OFF
    late = await overdue(store, 1_000, since=OFF + HOUR)
    scheduler = await at_work(parts, store)
    await scheduler.tick()
    async with store.transaction() as tx:
        tx.now = OFF
        straggler = await seeds.armed(tx, Once(OFF), OFF)
    await scheduler.tick()
    assert not await fired(store, straggler)
    await scheduler.sweep()
    assert counted(scheduler, "floor_stragglers") == 1
    await scheduler.tick()
    assert await fired(store, straggler) == set(straggler)
    while await scheduler.tick():
        pass
    assert await fired(store, late) == set(late)
    await scheduler.sweep()
    assert counted(scheduler, "floor_stragglers") == 1


# --- what has more to catch up on -------------------------------------------------------------


async def test_jobs_with_much_to_catch_up_on_have_their_turns_spread(
    store: Store, parts: Parts
) -> None:
    store.now = OFF
    schedule = Interval(60, OFF, overlap="allow", misfire="all")
    jobs = await arm(store, schedule, OFF, count=400)
    scheduler = await at_work(parts, store)
    scheduler._late.pace = Pace(0.02)
    while await scheduler.tick():
        pass
    async with store.transaction() as tx:
        rows = await tx.rows(
            "SELECT job_id, due_at FROM timers WHERE job_id = ANY($1::uuid[]) ORDER BY due_at", jobs
        )
    dues = [row["due_at"] for row in rows]
    assert len(dues) == 400
    assert dues[0] == T + SECOND
    assert len(set(dues)) > 100, "not all at one instant"
    fresh = await arm(store, Once(dues[-1]), dues[-1])
    store.now = dues[-1]
    await scheduler.keep_shards()
    for _ in range(2):
        await scheduler.tick()
    assert await fired(store, fresh) == set(fresh)


# --- lanes that have enough to do -------------------------------------------------------------


async def waiting(store: Store, scheduler: Scheduler, waited_sec: float) -> None:
    """Have the oldest run of the lane wait for so long, and the scheduler hear of it."""
    async with store.transaction() as tx:
        await tx.execute(
            "UPDATE runs SET ready_at = $1 WHERE lane = 'default'",
            (store.now or T) - timedelta(seconds=waited_sec),
        )
    gauges = Gauges(
        store, Metrics(), Wakeups(store),
        objective=lambda _: 60.0, leads=lambda: False, told=scheduler._late.lanes_stand_at,
    )  # fmt: skip
    await gauges.tick()


async def test_late_recurring_jobs_wait_while_runs_of_their_lane_do_and_are_fired_then(
    store: Store, parts: Parts
) -> None:
    store.now = OFF
    recurring = await arm(store, HOURLY, OFF, count=BATCH + 350)
    once = await overdue(store, 300, since=OFF)
    store.now = T
    async with store.transaction() as tx:
        await seeds.ready(tx)
    scheduler = await at_work(parts, store)
    with capture_logs() as logs:
        await scheduler.tick()
        already = await fired(store, recurring)
        await waiting(store, scheduler, 100.0)
        await caught_up(scheduler, store)
    assert await fired(store, recurring) == already, "they wait ..."
    assert await fired(store, once) == set(once), "... and nothing waits behind them"
    assert {log["event"] for log in logs} >= {"catch_up.began", "catch_up.delayed"}
    await scheduler.keep_shards()
    (report,) = await reports(store)
    assert report.passed_over == len(recurring) - len(already)
    assert report.delays["default"].priority == 0
    assert report.delays["default"].since == T
    assert "noonday_late_timers_delayed 0" not in scheduler._metrics.render().decode()

    fresh = await arm(store, HOURLY, T, count=5)
    await scheduler.tick()
    assert await fired(store, fresh) == set(fresh), "what is due now is not held up"

    await waiting(store, scheduler, 10.0)
    await caught_up(scheduler, store)
    assert await fired(store, recurring) == set(recurring)
    assert not await broken(store)
    await scheduler.keep_shards()
    (report,) = await reports(store)
    assert (report.delays, report.passed_over) == ({}, 0)
    assert "noonday_catching_up 0" in scheduler._metrics.render().decode()


async def caught_up(scheduler: Scheduler, store: Store) -> None:
    """Tick until nothing is left that may be fired: a page of those that wait fires nothing."""
    for _ in range(30):
        await scheduler.tick()


async def reports(store: Store) -> list[Any]:
    async with store.transaction() as tx:
        return await workers.catch_ups(tx)


async def test_the_least_urgent_wait_first(store: Store, parts: Parts) -> None:
    store.now = OFF
    made: dict[int, list[UUID]] = {}
    for priority in (0, 5, 9):
        made[priority] = await arm(store, HOURLY, OFF, count=3)
        async with store.transaction() as tx:
            await tx.execute(
                "UPDATE jobs SET priority = $1 WHERE id = ANY($2::uuid[])", priority, made[priority]
            )
    store.now = T
    async with store.transaction() as tx:
        await seeds.ready(tx)
    scheduler = await at_work(parts, store)
    for waited_sec, goes_on in ((61.0, []), (46.0, [0]), (40.0, [0, 5]), (29.0, [0, 5, 9])):
        await waiting(store, scheduler, waited_sec)
        await caught_up(scheduler, store)
        found = [each for each in made if await fired(store, made[each])]
        assert found == goes_on, waited_sec


async def test_while_something_waits_all_of_it_is_looked_through_only_now_and_then(
    store: Store, parts: Parts
) -> None:
    store.now = OFF
    await arm(store, HOURLY, OFF, count=10)
    store.now = T
    async with store.transaction() as tx:
        await seeds.ready(tx)
    scheduler = await at_work(parts, store)
    await waiting(store, scheduler, 100.0)
    await scheduler.tick()
    await scheduler.tick()
    assert scheduler.sleep_for() == pytest.approx(5, abs=0.5)
    once = await arm(store, Once(OFF), OFF + 6 * HOUR - 2 * MINUTE)
    store.now = T + SECOND
    await scheduler.tick()
    assert not await fired(store, once)
    store.now = T + 6 * SECOND
    await scheduler.tick()
    assert await fired(store, once) == set(once)


# --- any order --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_in_whatever_order_nothing_is_lost_or_fired_twice(
    store: Store, parts: Parts, seed: int
) -> None:
    chance = random.Random(seed)
    store.now = OFF
    once: list[UUID] = []
    for _ in range(12):
        at = OFF + chance.random() * 6 * HOUR
        once += await arm(store, Once(at), at, count=chance.randint(1, 120))
    recurring = await arm(store, HOURLY, OFF, count=chance.randint(50, 300))
    store.now = T
    async with store.transaction() as tx:
        await seeds.ready(tx)
    schedulers = [await at_work(parts, store)]
    for _ in range(60):
        scheduler = chance.choice(schedulers)
        match chance.randrange(9):
            case 0:
                await waiting(store, scheduler, chance.choice([10.0, 40.0, 100.0]))
            case 1 if len(schedulers) < 3:
                schedulers.append(await at_work(parts, store, store.now or T))
            case 2 if len(schedulers) > 1:
                schedulers.remove(scheduler)
                await scheduler.leave()
            case 3:
                store.now = (store.now or T) + chance.choice([SECOND / 4, SECOND, 5 * SECOND])
                for each in schedulers:
                    await each.keep_shards()
            case 4:
                await scheduler.sweep()
            case 5:
                once += await arm(store, Once(store.now or T), store.now or T, count=3)
            case _:
                await scheduler.tick()
    made = {*once, *recurring}
    for _ in range(3):
        store.now = (store.now or T) + 6 * SECOND
        for each in schedulers:
            await each.keep_shards()
            await waiting(store, each, 1.0)
            await caught_up(each, store)
    found = [(line.job_id, line.at) for line in await lines(store) if line.job_id in made]
    assert len(found) == len(set(found)) == len(once) + 7 * len(recurring)
    assert {job for job, _ in found} == made
    assert sum(counted(each, "floor_stragglers") for each in schedulers) == 0
    assert not await broken(store)
