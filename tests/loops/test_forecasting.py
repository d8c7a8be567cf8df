"""The forecast is made by one process, in steps, and takes the place of the one before."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from noonday.domain import schedule
from noonday.domain.errors import StoreUnavailable
from noonday.domain.forecast import HOURS, MINUTE
from noonday.domain.model import Cron, Interval, Once, Schedule
from noonday.loops import forecasting
from noonday.loops.forecasting import Forecasting
from noonday.store import Store, forecasts, jobs, timers
from noonday.store.forecasts import Made, Which
from noonday.store.timers import Timer
from tests.support import seeds

START = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) + timedelta(days=1)
EVERY_SEC = 300.0
HOURLY = Cron("0 * * * *")
EVERYTHING = (START, START + timedelta(hours=HOURS))


def forecasting_of(store: Store, leads: Callable[[], bool] = lambda: True) -> Forecasting:
    return Forecasting(store, every_sec=EVERY_SEC, leads=leads)


async def make(one: Forecasting, store: Store, at: datetime = START + timedelta(seconds=20)) -> int:
    """Tick until there is nothing more to do; how many steps that took."""
    store.now, steps = at, 0
    while await one.tick():
        steps += 1
    return steps


async def add(
    store: Store, wanted: Schedule, count: int = 1, *, host: str = "a.example", **how: Any
) -> None:
    """Jobs, those that fire once with their timers."""
    made = [
        seeds.new_job(seeds.spec_of(wanted), START, **how)._replace(target_host=host)
        for _ in range(count)
    ]
    async with store.transaction() as tx:
        await jobs.insert(tx, made)
        if isinstance(wanted, Once):
            due_at = wanted.run_at
            await timers.arm(tx, [Timer(job.id, due_at, due_at, 1, 1, 0) for job in made], START)


async def totals(store: Store) -> dict[int, tuple[float, bool]]:
    """What is due, by the minute from the start on, and whether that is hot."""
    async with store.transaction() as tx:
        rows = await forecasts.totals(tx, *EVERYTHING)
    return {(row["at"] - START) // MINUTE: (row["occurrences"], row["hot"]) for row in rows}


async def parts(store: Store, minute: int) -> set[tuple[int, str, str, float, float]]:
    async with store.transaction() as tx:
        rows = await tx.rows(
            "SELECT tenant_id, lane, target_host, occurrences, unspread FROM forecast_parts "
            "WHERE at = $1", START + minute * MINUTE,
        )  # fmt: skip
    return {tuple(row.values()) for row in rows}


async def made(store: Store) -> Made | None:
    async with store.transaction() as tx:
        return await forecasts.made(tx)


async def test_recurring_jobs_and_timers_are_counted_by_minute_and_stream(store: Store) -> None:
    await add(store, HOURLY, 90)
    await add(store, HOURLY, 4, lane="batch", tenant=2)
    await add(store, Cron("0 13 * * *", jitter_sec=120), 10, host="b.example")
    await add(store, Interval(86_400, START - timedelta(days=2, minutes=-5)), 3)
    await add(store, Once(START + timedelta(minutes=60, seconds=59)), 6, host="b.example")
    await add(store, Once(START + timedelta(hours=80)), 6)
    assert await make(forecasting_of(store), store) > 0
    found = await totals(store)
    assert found[0] == (94, True)
    assert found[5] == (3, False)
    assert found[60] == (105, True)
    assert found[61] == (5, False)
    assert len(found) == 72 + 3 + 3, "each hour; jitter; the interval"
    assert await parts(store, 60) == {
        (1, "default", "a.example", 90, 90),
        (2, "batch", "a.example", 4, 4),
        (1, "default", "b.example", 11, 0),
    }
    last = await made(store)
    assert last is not None
    assert (last.computed_at, last.starts_at) == (START + timedelta(seconds=20), START)
    assert (last.jobs, last.estimated) == (107, False)
    assert last.ends_at == START + timedelta(hours=HOURS)


async def test_what_is_not_to_run_is_not_counted(store: Store) -> None:
    await add(store, HOURLY, 3)
    async with store.transaction() as tx:
        await tx.execute(
            "UPDATE jobs SET state = 'PAUSED' WHERE id = (SELECT id FROM jobs LIMIT 1)"
        )
    await make(forecasting_of(store), store)
    assert (await totals(store))[0][0] == 2


@pytest.mark.parametrize(
    ("wanted", "each_hour"),
    [
        (HOURLY, 1),
        (Cron("0 * * * *", jitter_sec=30), 1),
        (Cron("H * * * *"), 1),
        (Cron("*/30 * * * * *"), 120),
        (Interval(1_200, START), 3),
        (Interval(20, START), 180),
    ],
)
async def test_a_job_counts_as_often_as_it_still_runs(
    store: Store, wanted: Cron | Interval, each_hour: int
) -> None:
    """One has four hours of its occurrences left, one more than the forecast has."""
    now = START + timedelta(seconds=20)
    for hours in (4, HOURS + 9):
        limited = msgspec.structs.replace(wanted, max_occurrences=7 + hours * each_hour)
        await armed(store, limited, now, seq=8)
    await make(forecasting_of(store), store, now)
    found = await totals(store)
    few = 3 + each_hour // 60  # at the ends, where not all of a minute or of a draw belongs to it
    total = sum(number for number, _ in found.values())
    assert total == pytest.approx((4 + HOURS) * each_hour, abs=few)
    later = sum(number for minute, (number, _) in found.items() if minute > 60 * 5)
    assert later == pytest.approx((HOURS - 5) * each_hour, abs=few)


async def test_of_a_job_whose_timer_is_late_it_is_not_known_how_much_is_left(store: Store) -> None:
    now = START + timedelta(seconds=20)
    limited = msgspec.structs.replace(HOURLY, max_occurrences=3)
    await armed(store, limited, now, 2)
    async with store.transaction() as tx:
        await tx.execute("UPDATE timers SET due_at = due_at - interval '1 day'")
    await make(forecasting_of(store), store, now)
    assert len(await totals(store)) == HOURS


async def armed(store: Store, wanted: Cron | Interval, now: datetime, seq: int) -> None:
    """A job whose timer stands at its next occurrence, of this number."""
    job = seeds.new_job(seeds.spec_of(wanted), START)
    delay = schedule.jitter(job.id, wanted.jitter_sec)
    at = schedule.next_after(wanted, now - delay, job.id)
    assert at is not None
    async with store.transaction() as tx:
        await jobs.insert(tx, [job])
        await timers.arm(tx, [Timer(job.id, at, at + delay, 1, seq, 0)], now)


async def test_a_draw_is_that_of_each_job(store: Store) -> None:
    await add(store, Cron("H * * * *"), 40)
    await make(forecasting_of(store), store)
    found = await totals(store)
    assert sum(number for number, _ in found.values()) == 40 * HOURS
    assert len({minute % 60 for minute in found}) > 10
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT id FROM jobs")
    for row in rows:
        at = schedule.next_after(Cron("H * * * *"), START, row["id"])
        assert at is not None
        assert (at - START) // MINUTE in found


async def test_jobs_are_counted_in_slices(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasting, "SLICE", 10)
    await add(store, HOURLY, 45)
    assert await make(forecasting_of(store), store) > 5
    assert (await totals(store))[0][0] == 45


async def test_it_is_made_anew_when_it_is_time_and_not_before(store: Store) -> None:
    one = forecasting_of(store)
    await make(one, store)
    await add(store, HOURLY, 2)
    assert await make(one, store, START + timedelta(seconds=300)) == 0
    assert await make(forecasting_of(store), store, START + timedelta(seconds=300)) == 0
    assert await totals(store) == {}
    assert await make(one, store, START + timedelta(seconds=321)) > 0
    assert (await totals(store))[60][0] == 2


async def test_one_that_takes_long_is_made_less_often(store: Store) -> None:
    async with store.transaction() as tx:
        begun = START - timedelta(seconds=400)
        await forecasts.put(tx, Made(begun, 100.0, *EVERYTHING, 0, False, 60.0), [])
    assert await make(forecasting_of(store), store) == 0
    assert await make(forecasting_of(store), store, START + timedelta(seconds=2_000)) > 0


async def test_only_the_leader_makes_it_and_a_new_one_begins_anew(store: Store) -> None:
    leads = True
    one = forecasting_of(store, lambda: leads)
    await add(store, HOURLY, 2)
    store.now = START
    assert await one.tick() == 1
    leads = False
    assert await make(one, store) == 0
    assert await made(store) is None
    await add(store, HOURLY, 1)
    leads = True
    await make(one, store)
    assert (await totals(store))[0][0] == 3


async def test_the_one_that_was_begun_later_stays(store: Store) -> None:
    async with store.transaction() as tx:
        minute = forecasts.Minute(START, [], 5.0, False)
        later = Made(START, 1.0, *EVERYTHING, 0, False, 60.0)
        assert await forecasts.put(tx, later, [minute])
        earlier = later._replace(computed_at=START - timedelta(seconds=1))
        assert not await forecasts.put(tx, earlier, [])
    assert await totals(store) == {0: (5.0, False)}


async def test_of_many_timers_some_are_looked_at(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasts, "LOOKED_UP", 100)
    await add(store, Once(START + timedelta(minutes=7)), 900, tenant=1)
    await add(store, Once(START + timedelta(minutes=7)), 300, tenant=2)
    await add(store, Once(START + timedelta(minutes=9)), 2)
    await make(forecasting_of(store), store)
    last = await made(store)
    assert last is not None
    assert last.estimated
    found = await totals(store)
    assert found[7][0] == pytest.approx(1_200), "how many there are is counted"
    assert found[9][0] == pytest.approx(2), "few are all looked at"
    async with store.transaction() as tx:
        (row,) = [
            row
            for row in await forecasts.chosen(tx, *EVERYTHING, Which(tenant_id=1))
            if row["at"] == START + timedelta(minutes=7)
        ]
    assert 700 < row["occurrences"] < 1_100


async def test_timers_of_recurring_jobs_are_not_counted_again(store: Store) -> None:
    async with store.transaction() as tx:
        await seeds.armed(tx, Interval(3_600, START), START + timedelta(hours=1), count=5)
    await make(forecasting_of(store), store)
    assert {number for number, _ in (await totals(store)).values()} == {5}


async def test_of_a_big_partition_some_pages_are_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasts, "PAGES", 20)
    await add(store, Once(START + timedelta(minutes=7)), 20_000)
    await make(forecasting_of(store), store)
    last = await made(store)
    assert last is not None
    assert last.estimated
    assert 4_000 < (await totals(store))[7][0] < 60_000


async def test_a_job_that_cannot_be_read_stops_no_other(store: Store) -> None:
    await add(store, HOURLY, 2)
    bad = seeds.new_job(seeds.spec_of(HOURLY), START)
    for text in ('{"type":"cron","cron":"61 * * * *"}', '{"type":"never"}'):
        spec = msgspec.json.decode(bad.spec, type=dict[str, msgspec.Raw])
        spec["schedule"] = msgspec.Raw(text.encode())
        async with store.transaction() as tx:
            encoded = msgspec.json.encode(spec).decode()
            await jobs.insert(tx, [bad._replace(id=seeds.job_id(), spec=encoded)])
    await make(forecasting_of(store), store)
    assert (await totals(store))[0][0] == 2


async def test_after_a_step_that_fails_it_begins_anew_a_while_later(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(store, HOURLY, 2)
    one = forecasting_of(store)
    store.now = START
    assert await one.tick() == 1

    async def failing(*_: object) -> None:
        raise TimeoutError

    with monkeypatch.context() as patched:
        patched.setattr(forecasts, "one_off", failing)
        with pytest.raises(StoreUnavailable):
            await make(one, store, START)
    assert await made(store) is None
    assert await make(one, store) == 0
    await make(one, store, START + timedelta(seconds=EVERY_SEC))
    assert (await totals(store))[60][0] == 2
