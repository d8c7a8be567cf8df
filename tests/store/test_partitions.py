"""Partitions are made and taken away without anybody waiting, and without a hole."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from noonday.store import Store, audit, partitions
from noonday.store.partitions import existing
from noonday.store.ranges import Range, Step
from tests.support import upkeep
from tests.support.upkeep import NOW, Died

DAY = timedelta(days=1)
YESTERDAY = Range("timers", Step.DAY, datetime(2027, 3, 13, tzinfo=UTC))
FEBRUARY = Range("occurrences", Step.MONTH, datetime(2027, 2, 1, tzinfo=UTC))


@pytest.fixture(scope="module")
def database_template(postgres_url: str, database_template: str) -> Iterator[str]:
    with upkeep.template_at(postgres_url, database_template) as name:
        yield name


@pytest.fixture(autouse=True)
def _at_noon(store: Store) -> None:
    store.now = NOW


async def make_missing(store: Store, now: datetime) -> list[str]:
    store.now = now
    async with store.transaction() as tx:
        parts = await partitions.missing(tx, now)
    for part in parts:
        async with store.direct() as connection:
            assert await partitions.make(connection, part)
    return [part.name for part in parts]


# --- making -----------------------------------------------------------------------------------


async def test_a_new_database_has_all_that_the_first_jobs_need(store: Store) -> None:
    async with store.transaction() as tx:
        timers = await upkeep.covered(tx, "timers")
        assert timers.starts_at <= NOW
        assert timers.ends_at == datetime(2200, 1, 1, tzinfo=UTC)
        assert (await upkeep.covered(tx, "occurrences")).starts_at == FEBRUARY.starts_at
        assert await tx.value(partitions.LEDGER_START) == FEBRUARY.starts_at
        for table in ("occurrences", "executions", "audit_log"):
            covered = await upkeep.covered(tx, table)
            assert covered.starts_at <= NOW < NOW + 7 * DAY < covered.ends_at
        assert await partitions.indexed_until(tx) == datetime(2027, 3, 17, tzinfo=UTC)


async def test_what_is_missing_is_made_once(store: Store) -> None:
    assert await make_missing(store, NOW) == []
    made = await make_missing(store, NOW + 30 * DAY)
    assert made[0] == "occurrences_m202706"
    assert made[-1] == "audit_log_m202706"
    assert len([name for name in made if name.startswith("executions_d")]) == 10
    assert await make_missing(store, NOW + 30 * DAY) == []


async def test_after_a_long_outage_the_ledger_has_no_hole(store: Store) -> None:
    await make_missing(store, NOW + 300 * DAY)
    async with store.transaction() as tx:
        covered = await upkeep.covered(tx, "occurrences")
    assert covered.starts_at == FEBRUARY.starts_at
    assert covered.ends_at > NOW + 330 * DAY


async def test_a_clock_that_was_set_back_finds_room_for_timers(store: Store) -> None:
    assert await make_missing(store, NOW - 4 * DAY) == [
        "timers_d20270310", "timers_d20270311", "timers_d20270312",
        "executions_d20270309", "executions_d20270310", "executions_d20270311",
        "executions_d20270312",
    ]  # fmt: skip
    async with store.transaction() as tx:
        assert (await upkeep.covered(tx, "timers")).starts_at == NOW.replace(day=10, hour=0)
        # They are in the past or soon will be: no tick passes them before they have an index.
        assert await partitions.indexed_until(tx) == NOW.replace(day=10, hour=0)


async def test_the_ledger_never_grows_backwards(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.execute(partitions.RAISE_LEDGER_START, datetime(2027, 3, 1, tzinfo=UTC))
    async with store.direct() as connection:
        assert await partitions.detach(connection, FEBRUARY)
        assert await partitions.drop(connection, FEBRUARY)
    assert await make_missing(store, NOW) == []
    async with store.transaction() as tx:
        await tx.execute(partitions.RAISE_LEDGER_START, FEBRUARY.starts_at)
        assert await tx.value(partitions.LEDGER_START) == datetime(2027, 3, 1, tzinfo=UTC)
        await partitions.create_first(tx)
        assert (await existing(tx, "occurrences"))[0].name == "occurrences_m202703"


async def test_rows_find_their_way_into_new_partitions(store: Store) -> None:
    later = NOW + 100 * DAY
    await make_missing(store, later)
    async with store.transaction() as tx:
        entry = audit.Entry(1, "a key", "job.cancel", "job", "1", None, None, "1")
        await audit.write(tx, [entry])
        assert await tx.value("SELECT count(*) FROM audit_log_m202706") == 1


@pytest.mark.parametrize("dies_at", range(4))
async def test_a_partition_is_made_whole_or_not_at_all(store: Store, dies_at: int) -> None:
    april = Range("audit_log", Step.MONTH, datetime(2027, 7, 1, tzinfo=UTC))
    with pytest.raises(Died):
        async with upkeep.mortal(store, dies_at) as connection:
            await partitions.make(connection, april)
    assert await upkeep.tables(store, april.name) == []
    async with store.direct() as connection:
        assert await partitions.make(connection, april)


async def test_a_new_partition_does_not_wait_for_an_open_reader(store: Store) -> None:
    async with upkeep.a_reader(store, "occurrences", "audit_log", for_long=False):
        assert len(await make_missing(store, NOW + 30 * DAY)) == 12


# --- taking away ------------------------------------------------------------------------------


async def test_a_partition_goes_once_it_is_detached(store: Store) -> None:
    async with store.direct() as connection:
        assert not await partitions.drop(connection, YESTERDAY)
        assert await partitions.detach(connection, YESTERDAY)
        assert not await partitions.is_attached(connection, YESTERDAY)
        assert await partitions.detach(connection, YESTERDAY)
        assert await partitions.drop(connection, YESTERDAY)
    assert await upkeep.tables(store, YESTERDAY.name) == []


async def test_only_an_empty_partition_is_dropped_where_that_is_asked_for(store: Store) -> None:
    await upkeep.arm(store, [YESTERDAY.starts_at])
    async with store.direct() as connection:
        await partitions.detach(connection, YESTERDAY)
        assert not await partitions.drop(connection, YESTERDAY, only_empty=True)
        await connection.execute(f"DELETE FROM {YESTERDAY.name}")
        assert await partitions.drop(connection, YESTERDAY, only_empty=True)


async def test_detaching_is_not_tried_while_a_dump_is_open(store: Store) -> None:
    async with upkeep.a_reader(store, "timers"), store.direct() as connection:
        assert not await partitions.detach(connection, YESTERDAY)
        assert await connection.value(partitions.LEAVING, "timers") is None


async def test_detaching_that_was_left_half_done_is_finished(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "DETACH_TRIES", 2)
    async with store.direct() as connection:
        # Too young to be told from a transaction of ours.
        async with upkeep.a_reader(store, "timers", for_long=False):
            assert not await partitions.detach(connection, YESTERDAY)
            assert await connection.value(partitions.LEAVING, "timers") == YESTERDAY.name
            with pytest.raises(asyncpg.LockNotAvailableError):
                await partitions.drop(connection, YESTERDAY)
            today = Range("timers", Step.DAY, YESTERDAY.ends_at)
            assert not await partitions.detach(connection, today)
        assert await partitions.detach(connection, today)
        assert not await partitions.is_attached(connection, YESTERDAY)
        assert not await partitions.is_attached(connection, today)


async def test_a_lock_is_not_waited_for(store: Store) -> None:
    async with store.direct() as other, other.transaction() as tx:
        await tx.execute("LOCK TABLE audit_log IN EXCLUSIVE MODE")
        async with store.direct() as connection:
            with pytest.raises(asyncpg.LockNotAvailableError):
                await partitions.make(connection, Range("audit_log", Step.MONTH, NOW.replace(2028)))
