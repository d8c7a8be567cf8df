"""One pass of the janitor does all there is to do, and stands in nobody's way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from noonday.domain.errors import BlobMissing
from noonday.domain.model import Interval, Once, shard_of
from noonday.loops.janitor import Janitor
from noonday.loops.scheduler import Scheduler
from noonday.settings import Retention
from noonday.store import Store, Tx, idempotency, jobs, occurrences, timers, workers
from noonday.store.blobs import LocalBlobs
from noonday.store.idempotency import KeyId, Stored
from noonday.store.occurrences import Opening
from noonday.store.ranges import END_OF_TIME
from noonday.store.timers import Timer
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics
from tests.support import seeds, upkeep
from tests.support.letters import lie_there
from tests.support.upkeep import NOW

DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def database_template(postgres_url: str, database_template: str) -> Iterator[str]:
    with upkeep.template_at(postgres_url, database_template) as name:
        yield name


@pytest.fixture(autouse=True)
def _at_noon(store: Store) -> None:
    store.now = NOW


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[LocalBlobs]:
    opened = LocalBlobs(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def janitor(store: Store, blobs: LocalBlobs, metrics: Metrics) -> Janitor:
    return Janitor(store, blobs, Retention(), metrics, leads=lambda: True)


async def pass_at(janitor: Janitor, store: Store, now: datetime) -> int:
    store.now = now
    with capture_logs() as lines:
        done = await janitor.tick()
    assert warnings_of(lines) == []
    return done


def warnings_of(lines: Sequence[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    return [line for line in lines if line["log_level"] not in ("debug", "info")]


async def check_coverage(store: Store, now: datetime) -> None:
    """All that may be written from ``now`` on has its partition; the ledger has no hole."""
    async with store.transaction() as tx:
        timers = await upkeep.covered(tx, "timers", now)
        assert timers.starts_at <= now
        assert timers.ends_at == END_OF_TIME
        start = await tx.value("SELECT starts_at FROM ledger_start")
        assert (await upkeep.covered(tx, "occurrences")).starts_at == start
        for table in ("occurrences", "audit_log"):
            assert (await upkeep.covered(tx, table, now)).ends_at > now + 60 * DAY


async def test_years_go_by_and_every_date_stays_covered(janitor: Janitor, store: Store) -> None:
    far = [NOW + days * DAY for days in (45, 400, 1_300, 1_800, 9_000)]
    await upkeep.arm(store, far)
    now = NOW
    for days in (31, 400, 700):
        now += days * DAY
        await pass_at(janitor, store, now)
        await check_coverage(store, now)
        assert await upkeep.dues(store) == far
        async with store.transaction() as tx:
            await tx.execute("DELETE FROM timers WHERE due_at < $1", now)
        far = [due for due in far if due >= now]


async def test_timers_fire_on_time_from_one_partition_to_the_next(
    janitor: Janitor, store: Store, metrics: Metrics
) -> None:
    scheduler = Scheduler(store, uuid4(), "one", metrics, Wakeups(store))
    async with store.transaction() as tx:
        await seeds.armed(tx, Interval(21_600, NOW, overlap="allow"), NOW, count=3)
    hours = range(0, 6 * 24 + 1, 6)
    for hour in hours:
        store.now = NOW + timedelta(hours=hour)
        await scheduler.keep_shards()
        while await scheduler.tick():
            pass
        if hour % 24 == 0:
            await pass_at(janitor, store, store.now)
    async with store.transaction() as tx:
        fired = await tx.rows(
            "SELECT materialized_at - occurrence_at AS late, count(*) FROM occurrences "
            "WHERE outcome IS NULL GROUP BY 1"
        )
    assert [(row["late"], row["count"]) for row in fired] == [(timedelta(), 3 * len(hours))]
    assert await upkeep.tables(store, "timers_d202703(1[34567])") == []


async def test_a_pass_with_nothing_to_do_does_nothing(janitor: Janitor, store: Store) -> None:
    await pass_at(janitor, store, NOW)
    assert await pass_at(janitor, store, NOW) == 0


async def test_only_the_process_that_leads_does_it(store: Store, blobs: LocalBlobs) -> None:
    store.now = NOW + 5 * DAY
    janitor = Janitor(store, blobs, Retention(), leads=lambda: False)
    assert await janitor.tick() == 0
    assert await upkeep.tables(store, "timers_d20270313") != []
    # It looks again soon: should it come to lead, partitions may be missing.
    assert (janitor.sleep_for() or 60) <= 2
    assert Janitor(store, blobs, Retention(), leads=lambda: True).sleep_for() is None


async def test_what_fails_is_logged_and_counted_and_stops_nothing_else(
    janitor: Janitor, store: Store, metrics: Metrics
) -> None:
    store.now = NOW + 30 * DAY
    async with store.transaction() as tx:
        await tx.execute("CREATE VIEW occurrences_m202706 AS SELECT 1")
    with capture_logs() as lines:
        await janitor.tick()
    (line,) = warnings_of(lines)
    assert line["event"] == "upkeep.failed"
    assert line["reason"] == "occurrences_m202706"
    assert 'noonday_loop_errors_total{loop="janitor"} 1.0' in metrics.render().decode()
    assert await upkeep.tables(store, "executions_d20270421") != []
    assert await upkeep.tables(store, "timers_d20270313") == []
    async with store.transaction() as tx:
        await tx.execute("DROP VIEW occurrences_m202706")
    assert await pass_at(janitor, store, NOW + 30 * DAY) > 0
    await check_coverage(store, store.now)


# --- rows -------------------------------------------------------------------------------------


async def an_ended_job(tx: Tx, reference: str) -> UUID:
    job = seeds.new_job(seeds.spec_of(Once(NOW)), NOW)
    await jobs.insert(tx, [job._replace(payload=None, payload_ref=reference)])
    await occurrences.open_now(tx, [Opening(job.id, NOW, 0, 1, NOW, 1, "default", 5)], NOW)
    await tx.execute("DELETE FROM runs")
    await tx.execute("UPDATE occurrences SET outcome = 'COMPLETE', ended_at = $1", NOW)
    return job.id


async def test_ended_jobs_go_and_then_their_blobs(
    janitor: Janitor, store: Store, blobs: LocalBlobs
) -> None:
    async with store.transaction() as tx:
        ids = [await an_ended_job(tx, reference) for reference in ("one", "two")]
    for reference in ("one", "two", "another"):
        await blobs.put(reference, b"{}")
    await pass_at(janitor, store, NOW + 6.9 * DAY)
    assert await blobs.get("one") == b"{}"
    await pass_at(janitor, store, NOW + 7.1 * DAY)
    for reference in ("one", "two"):
        with pytest.raises(BlobMissing):
            await blobs.get(reference)
    assert await blobs.get("another") == b"{}"
    async with store.transaction() as tx:
        assert await jobs.existing(tx, ids) == set()


async def test_a_blob_that_cannot_be_deleted_keeps_no_other(
    janitor: Janitor, store: Store, blobs: LocalBlobs
) -> None:
    async with store.transaction() as tx:
        for reference in ("not / a reference", "one"):
            await an_ended_job(tx, reference)
    await blobs.put("one", b"{}")
    store.now = NOW + 8 * DAY
    with capture_logs() as lines:
        await janitor.tick()
    assert [line["reason"] for line in warnings_of(lines)] == ["blob not / a reference"]
    with pytest.raises(BlobMissing):
        await blobs.get("one")


async def test_keys_and_processes_are_forgotten_when_they_are_old(
    janitor: Janitor, store: Store
) -> None:
    async with store.transaction() as tx:
        for hours in (0, 2):
            keys = [KeyId(f"{hours}-{n}", 1, "POST /v1/jobs") for n in range(40)]
            answers = [Stored(key, b"", 202, None, b"{}") for key in keys]
            await idempotency.store(tx, answers, NOW + timedelta(hours=hours))
        await workers.report(tx, uuid4(), "worker", "old")
    assert await pass_at(janitor, store, NOW + timedelta(hours=23, minutes=59)) > 0
    async with store.transaction() as tx:
        assert await tx.value("SELECT count(*) FROM idempotency_keys") == 80
    assert await pass_at(janitor, store, NOW + timedelta(hours=24, minutes=1)) == 41
    async with store.transaction() as tx:
        assert await tx.value("SELECT count(*) FROM idempotency_keys") == 40
        assert await workers.every(tx) == []


# --- beside others ----------------------------------------------------------------------------


async def write(store: Store, now: datetime) -> None:
    """What a POST and a tick write; fails when it waits for a lock for a second."""
    job = seeds.new_job(seeds.spec_of(Once(now)), now)
    async with store.transaction() as tx:
        await tx.execute("SET LOCAL lock_timeout = '1s'")
        await jobs.insert(tx, [job])
        await occurrences.open_now(tx, [Opening(job.id, now, 0, 1, now, 1, "default", 5)], now)
        dues = [now + timedelta(seconds=9), now + 10 * DAY, now + 25 * DAY, now + 400 * DAY]
        rows = [Timer(job.id, due, due, 1, n, shard_of(job.id)) for n, due in enumerate(dues)]
        await timers.arm(tx, rows, now)


@pytest.mark.parametrize("for_long", [True, False])
async def test_a_dump_that_is_open_across_a_rotation_holds_up_no_writer(
    janitor: Janitor, store: Store, for_long: bool
) -> None:
    store.now = now = NOW + 32 * DAY
    async with upkeep.a_reader(
        store, "timers", "occurrences", "executions", "jobs", "audit_log", for_long=for_long
    ):
        passing = asyncio.create_task(janitor.tick())
        written = 0
        while not passing.done() or written < 10:
            await write(store, now)
            written += 1
        # What is new is there in spite of the dump, and what is old waits for its end.
        await check_coverage(store, now)
        assert await upkeep.tables(store, "timers_d20270314") != []
    while await janitor.tick():
        pass
    assert await upkeep.tables(store, "timers_d2027031.") == []
    assert len(await upkeep.dues(store)) == 4 * written
    await check_coverage(store, now)


async def test_two_that_believe_to_lead_lose_nothing(
    janitor: Janitor, store: Store, blobs: LocalBlobs
) -> None:
    dues = [NOW + days * DAY for days in (33, 40, 50, 60, 500)]
    await upkeep.arm(store, dues)
    other = Janitor(store, blobs, Retention(), leads=lambda: True)
    store.now = NOW + 32 * DAY
    with capture_logs():
        await asyncio.gather(janitor.tick(), other.tick())
    while await janitor.tick():
        pass
    assert await upkeep.dues(store) == dues
    await check_coverage(store, store.now)
    assert await upkeep.tables(store, "timers_d2027031.") == []


async def test_letters_that_were_dealt_with_go_after_their_time_in_batches(
    store: Store, janitor: Janitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noonday.loops.janitor.BATCH", 3)
    async with store.transaction() as tx:
        await lie_there(tx, 8, before=10 * DAY, history=False)
        await tx.execute(
            "UPDATE dead_letters SET state = 'DISCARDED', discarded_at = $1", NOW - 91 * DAY
        )
        await lie_there(tx, 2, before=20 * DAY, history=False)
    await janitor.tick()
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT state FROM dead_letters")
    assert [row["state"] for row in rows] == ["DEAD", "DEAD"]
