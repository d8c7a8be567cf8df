"""Timer partitions are cut, indexed in time and dropped; no timer is lost, no date uncovered."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count

import asyncpg
import pytest

from noonday.store import Store, partitions, timer_upkeep
from noonday.store.ranges import END_OF_TIME, Range, Step
from tests.support import upkeep
from tests.support.upkeep import NOW, Died

DAY = timedelta(days=1)
YESTERDAY = Range("timers", Step.DAY, datetime(2027, 3, 13, tzinfo=UTC))
MAY = Range("timers", Step.MONTH, datetime(2027, 5, 1, tzinfo=UTC))
BEFORE_MAY = MAY.starts_at - 30 * DAY
IN_MAY = [MAY.starts_at, MAY.starts_at + 3 * DAY, MAY.ends_at - timedelta(microseconds=1)]


@pytest.fixture(scope="module")
def database_template(postgres_url: str, database_template: str) -> Iterator[str]:
    with upkeep.template_at(postgres_url, database_template) as name:
        yield name


@pytest.fixture(autouse=True)
def _at_noon(store: Store) -> None:
    store.now = NOW


async def indexed_until(store: Store) -> datetime:
    async with store.transaction() as tx:
        return await partitions.indexed_until(tx)


async def index_near(store: Store, now: datetime) -> list[str]:
    """Index what should be by ``now``; what was."""
    async with store.transaction() as tx:
        parts = await timer_upkeep.unindexed(tx, now)
    done = []
    for part in parts:
        async with store.direct() as connection:
            if await timer_upkeep.index(connection, part, now):
                done.append(part.name)
    return done


async def covers_all(store: Store, now: datetime) -> bool:
    async with store.transaction() as tx:
        covered = await upkeep.covered(tx, "timers")
    return covered.starts_at <= now and covered.ends_at == END_OF_TIME


# --- coarse ranges ----------------------------------------------------------------------------


async def test_a_coarse_range_is_cut_and_its_timers_move_with_it(store: Store) -> None:
    await upkeep.arm(store, IN_MAY)
    async with store.transaction() as tx:
        assert await timer_upkeep.coarse(tx, MAY.starts_at - 41 * DAY) == []
        assert await timer_upkeep.coarse(tx, BEFORE_MAY) == [MAY]
    async with store.direct() as connection:
        assert await timer_upkeep.split(connection, MAY, BEFORE_MAY)
    assert len(await upkeep.tables(store, r"timers_d202705\d\d")) == 31
    assert await upkeep.tables(store, MAY.name) == []
    assert await upkeep.dues(store) == IN_MAY
    assert await covers_all(store, NOW)
    assert await indexed_until(store) == datetime(2027, 3, 17, tzinfo=UTC)
    async with store.transaction() as tx:
        assert await tx.value("SELECT count(*) FROM timers_d20270531") == 1


@pytest.mark.parametrize(
    ("step", "year", "pieces"), [(Step.YEAR, 2030, 12), (Step.DECADE, 2040, 10)]
)
async def test_years_and_decades_are_cut_as_well(
    store: Store, step: Step, year: int, pieces: int
) -> None:
    part = Range("timers", step, datetime(year, 1, 1, tzinfo=UTC))
    now = part.starts_at - 300 * DAY
    async with store.direct() as connection:
        assert await timer_upkeep.split(connection, part, now)
    assert await covers_all(store, NOW)
    async with store.transaction() as tx:
        have = await partitions.existing(tx, "timers")
    within = [one for one in have if part.starts_at <= one.starts_at < part.ends_at]
    assert len(within) == pieces


async def test_a_range_that_holds_too_much_stays_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_upkeep, "SPLIT_ROWS", 2)
    await upkeep.arm(store, IN_MAY)
    async with store.direct() as connection:
        assert not await timer_upkeep.split(connection, MAY, BEFORE_MAY)
    assert await upkeep.tables(store, r"timers_.20270?5.*") == [MAY.name]
    # It gets its index when it comes near, as any other, and is then left as it is.
    near = MAY.starts_at - DAY
    assert (await index_near(store, near))[-1] == MAY.name
    assert await indexed_until(store) == MAY.ends_at
    async with store.transaction() as tx:
        assert MAY not in await timer_upkeep.coarse(tx, near)


async def test_a_cut_is_made_whole_or_not_at_all(store: Store) -> None:
    await upkeep.arm(store, IN_MAY)
    for dies_at in (0, 1, 2, 3, 20, 33, 34, 35, 36):
        with pytest.raises(Died):
            async with upkeep.mortal(store, dies_at) as connection:
                await timer_upkeep.split(connection, MAY, BEFORE_MAY)
        assert await upkeep.tables(store, r"timers_.20270?5.*") == [MAY.name]
    async with upkeep.mortal(store, 37) as connection:
        assert await timer_upkeep.split(connection, MAY, BEFORE_MAY)
    assert await upkeep.dues(store) == IN_MAY


async def test_a_cut_is_not_tried_while_a_dump_is_open(store: Store) -> None:
    async with upkeep.a_reader(store, "timers"), store.direct() as connection:
        assert not await timer_upkeep.split(connection, MAY, BEFORE_MAY)
    assert await upkeep.tables(store, r"timers_.20270?5.*") == [MAY.name]


async def test_a_cut_gives_way_to_who_is_at_work_in_the_range(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.execute(f"LOCK TABLE {MAY.name} IN ROW EXCLUSIVE MODE")
        async with store.direct() as connection:
            with pytest.raises(asyncpg.LockNotAvailableError):
                await timer_upkeep.split(connection, MAY, BEFORE_MAY)
    assert await upkeep.tables(store, r"timers_.20270?5.*") == [MAY.name]


# --- due indexes ------------------------------------------------------------------------------


async def test_indexes_are_built_two_days_ahead(store: Store) -> None:
    assert await index_near(store, NOW) == []
    assert await index_near(store, NOW + DAY) == ["timers_d20270317"]
    assert await index_near(store, NOW + DAY) == []
    assert await indexed_until(store) == datetime(2027, 3, 18, tzinfo=UTC)


async def test_an_index_that_was_left_half_built_is_built_anew(store: Store) -> None:
    part = Range("timers", Step.DAY, datetime(2027, 3, 17, tzinfo=UTC))
    async with store.direct() as connection:
        # What a process leaves that dies, or gives up, between the phases.
        async with upkeep.a_reader(store, "timers", for_long=False):
            with pytest.raises(asyncpg.LockNotAvailableError):
                await timer_upkeep.index(connection, part, NOW + DAY)
        assert (
            await connection.value(
                f"SELECT indisvalid FROM pg_index WHERE indexrelid = '{part.name}_due'::regclass"
            )
            is False
        )
    assert await indexed_until(store) == part.starts_at
    assert await index_near(store, NOW + DAY) == [part.name]
    assert await indexed_until(store) == part.ends_at
    async with store.transaction() as tx:
        assert [found.broken for found in await partitions.due_indexes(tx) if found.broken] == []


async def test_an_index_waits_for_a_dump_as_long_as_it_can_and_no_longer(store: Store) -> None:
    last = datetime(2027, 3, 17, tzinfo=UTC)
    async with upkeep.a_reader(store, "timers"):
        assert await index_near(store, last - 1.1 * DAY) == []
        assert await index_near(store, last - DAY) == ["timers_d20270317"]
        assert await indexed_until(store) == last + DAY


async def test_after_a_long_outage_even_a_coarse_range_is_indexed(store: Store) -> None:
    now = datetime(2031, 7, 5, tzinfo=UTC)
    year = Range("timers", Step.YEAR, datetime(2031, 1, 1, tzinfo=UTC))
    async with store.transaction() as tx:
        assert (await timer_upkeep.unindexed(tx, now))[-1] == year
        assert year not in await timer_upkeep.coarse(tx, now)
    async with store.direct() as connection:
        assert await timer_upkeep.index(connection, year, now)
    async with store.transaction() as tx:
        assert (await timer_upkeep.unindexed(tx, now))[-1] != year


async def test_no_tick_passes_a_range_without_its_index(store: Store) -> None:
    async with store.direct() as connection:
        await connection.execute("DROP INDEX timers_d20270315_due_at_shard_idx")
    assert await indexed_until(store) == datetime(2027, 3, 15, tzinfo=UTC)


# --- what is over -----------------------------------------------------------------------------


async def over(store: Store, now: datetime) -> list[Range]:
    async with store.transaction() as tx:
        return await timer_upkeep.over(tx, now)


async def test_a_range_is_over_an_hour_after_its_end(store: Store) -> None:
    end = YESTERDAY.ends_at
    assert await over(store, end + timedelta(hours=1)) == []
    assert await over(store, end + timedelta(hours=1, seconds=1)) == [YESTERDAY]
    async with store.direct() as connection:
        assert await timer_upkeep.retire(connection, YESTERDAY, end + DAY)
    assert await upkeep.tables(store, YESTERDAY.name) == []
    assert await covers_all(store, end)


async def test_what_has_not_fired_yet_is_left_to_the_scheduler(store: Store) -> None:
    await upkeep.arm(store, [YESTERDAY.starts_at])
    async with store.direct() as connection:
        assert not await timer_upkeep.retire(connection, YESTERDAY, NOW)
        assert await partitions.is_attached(connection, YESTERDAY)


ALL_BUT_DUE = "SELECT (to_jsonb(t) - 'due_at')::text FROM timers AS t ORDER BY job_id"


async def test_timers_left_in_a_range_that_is_off_fire_now(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_upkeep, "LEFT_OVER_BATCH", 2)
    ids = await upkeep.arm(store, [YESTERDAY.starts_at] * 5)
    async with store.transaction() as tx:
        await tx.execute("UPDATE timers SET awaited = true, catch_up_to = $1, seq = 7", NOW)
        before = await tx.rows(ALL_BUT_DUE)
    for dies_at in count():
        try:
            async with upkeep.mortal(store, dies_at) as connection:
                await partitions.detach(connection, YESTERDAY)
                assert await over(store, NOW) == [YESTERDAY]
                assert await timer_upkeep.retire(connection, YESTERDAY, NOW)
            break
        except Died:
            assert await upkeep.tables(store, YESTERDAY.name) == [YESTERDAY.name]
    assert dies_at > 5
    assert await upkeep.tables(store, YESTERDAY.name) == []
    assert await upkeep.dues(store) == [NOW] * 5
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT job_id FROM timers ORDER BY job_id")
        after = await tx.rows(ALL_BUT_DUE)
    assert [row["job_id"] for row in rows] == ids
    assert after == before
