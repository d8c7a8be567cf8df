"""The watchdog: timers that do not stand where they should are put right, the others left alone."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from noonday.domain.model import Cron, Interval, Once, Schedule
from noonday.loops import watchdog
from noonday.loops.watchdog import Watchdog
from noonday.store import Row, Store, occurrence_ranges
from noonday.store.occurrence_ranges import OccurrenceRange
from noonday.telemetry import Metrics
from tests.support import seeds
from tests.support.database_locks import value
from tests.support.driving import drive
from tests.support.holds import holding
from tests.support.invariants import broken
from tests.support.ledgers import lines
from tests.support.scripted import Parts

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
T = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
HOURLY = Cron("0 * * * *", overlap="allow")
BAD_ZONE = (
    '{"schedule": {"type": "cron", "cron": "0 * * * *", "timezone": "Mars/Base"},'
    ' "target": {"type": "http", "url": "https://example.com/", "method": "POST"}}'
)


def a_watchdog(store: Store, *, leads: bool = True) -> tuple[Watchdog, Metrics]:
    metrics = Metrics()
    return Watchdog(store, metrics, leads=lambda: leads), metrics


async def look(store: Store, dog: Watchdog) -> None:
    """A whole pass."""
    await dog.tick()
    while dog._after != watchdog._START:
        await dog.tick()


def repaired(metrics: Metrics) -> dict[str, float]:
    """How many, by what was wrong."""
    lines = metrics.render().decode().splitlines()
    found = [line for line in lines if line.startswith("noonday_jobs_repaired_total{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in found}


async def arm(store: Store, schedule: Schedule, at: datetime, count: int = 1) -> list[UUID]:
    store.now = T
    async with store.transaction() as tx:
        return await seeds.armed(tx, schedule, at, count=count)


async def timers(store: Store) -> list[Row]:
    async with store.transaction() as tx:
        return await tx.rows("SELECT * FROM timers ORDER BY job_id")


async def execute(store: Store, statement: str, *args: object) -> None:
    async with store.transaction() as tx:
        await tx.execute(statement, *args)


async def outcomes(store: Store, job: UUID) -> list[tuple[int, str | None]]:
    """Hours after ``T``, and what the ledger says of them."""
    return [(int((each.at - T) / HOUR), each.outcome) for each in await lines(store, job)]


async def test_a_job_that_nobody_arms_goes_on_and_what_it_missed_is_on_record(
    store: Store, parts: Parts
) -> None:
    scheduler, (dog, metrics) = parts.scheduler(), a_watchdog(store)
    (lost,) = await arm(store, HOURLY, T)
    healthy = await arm(store, HOURLY, T, count=50)
    await drive(scheduler, store, T)
    store.now = T
    async with store.transaction() as tx:
        for text in ('{"schedule": 5}', BAD_ZONE):
            await seeds.armed(tx, HOURLY, T + 900 * HOUR, text=text)
    await execute(store, "DELETE FROM timers WHERE job_id = $1", lost)
    await drive(scheduler, store, T + 3 * HOUR + MINUTE)
    before = [row for row in await timers(store) if row["job_id"] in healthy]
    await look(store, dog)
    assert repaired(metrics) == {"unarmed": 1}
    assert [row for row in await timers(store) if row["job_id"] in healthy] == before
    await drive(scheduler, store, T + 3 * HOUR + 2 * MINUTE)
    assert await outcomes(store, lost) == [(0, None), (1, "MISSED"), (2, "MISSED"), (3, None)]
    assert await outcomes(store, lost) == await outcomes(store, healthy[0])
    store.now = T + 3 * HOUR + 20 * MINUTE
    await look(store, dog)
    assert repaired(metrics) == {"unarmed": 1}
    assert not await broken(store)


async def test_a_timer_that_stands_too_far_on_goes_back_to_where_the_ledger_ends(
    store: Store, parts: Parts
) -> None:
    scheduler, (dog, metrics) = parts.scheduler(), a_watchdog(store)
    (job,) = await arm(store, HOURLY, T)
    await drive(scheduler, store, T)
    await execute(
        store, "UPDATE timers SET occurrence_at = $1, due_at = $1, seq = 9", T + 30 * HOUR
    )
    store.now = T + HOUR + MINUTE
    await look(store, dog)
    assert repaired(metrics) == {"ahead": 1}
    await drive(scheduler, store, T + HOUR + MINUTE)
    assert await outcomes(store, job) == [(0, None), (1, None)]
    assert not await broken(store)


@pytest.mark.parametrize(
    "schedule",
    [
        HOURLY,
        Cron("0 * * * *", jitter_sec=3_000),
        Interval(3_600, T, jitter_sec=3_000),
        Interval(90, T, misfire="all", overlap="allow"),
        Cron("30 2 * * *", "Europe/Paris", dst_gap="skip"),
    ],
)
async def test_what_is_due_or_being_caught_up_on_is_left_to_the_scheduler(
    store: Store, parts: Parts, schedule: Cron | Interval
) -> None:
    scheduler, (dog, metrics) = parts.scheduler(), a_watchdog(store)
    await arm(store, schedule, T, count=20)
    for minutes in (0, 1, 59, 61, 200):
        store.now = T + minutes * MINUTE
        await scheduler.keep_shards()
        dog._again_at = None
        await look(store, dog)
        await scheduler.tick()
        dog._again_at = None
        await look(store, dog)
    assert repaired(metrics) == {}


async def test_jobs_that_are_not_in_service_or_do_not_recur_are_none_of_its_business(
    store: Store,
) -> None:
    dog, metrics = a_watchdog(store)
    await arm(store, Once(T), T)
    await arm(store, HOURLY, T, count=3)
    await execute(store, "DELETE FROM timers")
    for n, state in enumerate(("PAUSED", "CANCELLED", "ENDED")):
        await execute(
            store,
            "UPDATE jobs SET state = $1, state_reason = 'x' WHERE id = (SELECT id FROM jobs "
            "WHERE schedule_type <> 'once' ORDER BY id OFFSET $2 LIMIT 1)",
            state,
            n,
        )
    await look(store, dog)
    assert await timers(store) == []
    assert repaired(metrics) == {}


async def test_the_end_of_a_job_holds_for_it_as_well(store: Store, parts: Parts) -> None:
    scheduler, (dog, metrics) = parts.scheduler(), a_watchdog(store)
    limited = Cron("0 * * * *", overlap="allow", max_occurrences=2)
    (over,) = await arm(store, limited, T)
    (left,) = await arm(store, limited, T)
    await execute(store, "UPDATE timers SET seq = 1")
    await drive(scheduler, store, T)
    await execute(store, "DELETE FROM timers")
    await execute(
        store,
        """INSERT INTO occurrences (job_id, occurrence_at, kind, tenant_id, due_at,
                                    materialized_at, outcome, reason, ended_at, attempts)
           VALUES ($1, $2, 0, $3, $2, $2, 'MISSED', 'superseded', $2, 0)""",
        over, T + HOUR, seeds.TENANT,
    )  # fmt: skip
    store.now = T + 2 * HOUR
    await look(store, dog)
    assert await value(store, f"SELECT state FROM jobs WHERE id = '{over}'") == "ENDED"
    await drive(scheduler, store, T + 5 * HOUR)
    assert await outcomes(store, left) == [(0, None), (1, None)]
    assert await value(store, f"SELECT state FROM jobs WHERE id = '{left}'") == "ENDED"
    assert repaired(metrics) == {"unarmed": 2}


@pytest.mark.parametrize("lost", [True, False])
async def test_what_ran_and_was_pruned_counts_among_so_many_occurrences(
    store: Store, parts: Parts, lost: bool
) -> None:
    scheduler, (dog, metrics) = parts.scheduler(), a_watchdog(store)
    (job,) = await arm(store, Cron("0 * * * *", overlap="allow", max_occurrences=5), T)
    await execute(store, "UPDATE timers SET seq = 1")
    await execute(store, "UPDATE jobs SET first_at = $1", T)
    for n in range(3):
        await drive(scheduler, store, T + n * HOUR)
    await execute(store, "DELETE FROM runs")
    await execute(store, "UPDATE ledger_start SET starts_at = $1", T + 2 * HOUR - MINUTE)
    await execute(store, "DELETE FROM occurrences WHERE occurrence_at < $1", T + 2 * HOUR)
    await execute(
        store,
        "DELETE FROM timers" if lost else "UPDATE timers SET due_at = $1, occurrence_at = $1",
        *([] if lost else [T + 30 * HOUR]),
    )
    await look(store, dog)
    assert repaired(metrics) == {"unarmed" if lost else "ahead": 1}
    await drive(scheduler, store, T + 3 * HOUR)
    await drive(scheduler, store, T + 9 * HOUR)
    assert await outcomes(store, job) == [(2, None), (3, None), (4, None)]
    assert await value(store, "SELECT state FROM jobs") == "ENDED"


@pytest.mark.parametrize("shift", [-HOUR, -MINUTE, MINUTE, HOUR, 11 * HOUR])
@pytest.mark.parametrize("looked_after", [MINUTE, 12 * HOUR, 23 * HOUR - 2 * MINUTE])
async def test_what_has_run_by_older_data_of_its_zone_does_not_run_again_by_the_new(
    store: Store, parts: Parts, shift: timedelta, looked_after: timedelta
) -> None:
    """A daily job at ``T``; by the new data its time was, or is, ``shift`` later."""
    scheduler, (dog, metrics) = parts.scheduler(), a_watchdog(store)
    new = T + shift
    (job,) = await arm(store, Cron(f"{new.minute} {new.hour} * * *", overlap="allow"), T)
    await drive(scheduler, store, T)
    await execute(store, "UPDATE timers SET occurrence_at = $1, due_at = $1", T + 24 * HOUR)
    store.now = T + looked_after
    await look(store, dog)
    assert repaired(metrics) == {"beside": 1}
    await drive(scheduler, store, T + looked_after)
    store.now = new + 24 * HOUR
    await parts.janitor().tick()
    await drive(scheduler, store, new + 24 * HOUR)
    ran = [(T, None), (new + 24 * HOUR, None)]
    passed_over = [(new, "SKIPPED")] if new > T else []
    found = [(line.at, line.outcome) for line in await lines(store, job)]
    assert found == sorted([*ran, *passed_over])
    assert not await broken(store)


async def test_what_was_not_counted_of_a_pause_counts_as_it_did_when_it_ended(
    store: Store,
) -> None:
    dog, _ = a_watchdog(store)
    (job,) = await arm(store, Cron("* * * * * *", max_occurrences=20_000), T)
    await execute(store, "DELETE FROM timers")
    await execute(store, "UPDATE jobs SET first_at = $1", T)
    end = T + 5 * HOUR
    async with store.transaction() as tx:
        skipped = OccurrenceRange(job, T, end, None, "SKIPPED", "paused")
        await occurrence_ranges.write(tx, [skipped], "me", end)
    store.now = end + MINUTE / 60
    await look(store, dog)
    (timer,) = await timers(store)
    assert (timer["occurrence_at"], timer["seq"]) == (end + MINUTE / 60, 10_001)


async def test_what_was_decided_by_a_clock_that_was_ahead_is_left_as_it_is(
    store: Store, parts: Parts
) -> None:
    scheduler, (dog, metrics) = parts.scheduler(), a_watchdog(store)
    (job,) = await arm(store, HOURLY, T)
    for n in range(4):
        await drive(scheduler, store, T + n * HOUR)
    store.now = T + HOUR + MINUTE
    before = await timers(store)
    await look(store, dog)
    assert await timers(store) == before
    assert repaired(metrics) == {}
    assert len(await outcomes(store, job)) == 4


async def test_many_are_repaired_a_few_at_a_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "SLICE", 10)
    monkeypatch.setattr(watchdog, "LOOKED_FOR", 3)
    dog, metrics = a_watchdog(store)
    await arm(store, HOURLY, T, count=25)
    await execute(store, "DELETE FROM timers")
    await look(store, dog)
    assert repaired(metrics) == {"unarmed": 25}
    assert len(await timers(store)) == 25


async def test_one_who_does_not_lead_looks_at_nothing(store: Store) -> None:
    dog, metrics = a_watchdog(store, leads=False)
    await arm(store, HOURLY, T)
    await execute(store, "DELETE FROM timers")
    assert await dog.tick() == 0
    assert repaired(metrics) == {}


async def test_a_job_that_is_changed_meanwhile_is_looked_at_again_under_its_lock(
    store: Store, database_url: str
) -> None:
    dog, metrics = a_watchdog(store)
    (job,) = await arm(store, HOURLY, T)
    await execute(store, "DELETE FROM timers")
    lock = "SELECT pg_advisory_xact_lock(1, $1::int)"
    async with holding(database_url, lock, job.int % 64):
        looking = asyncio.create_task(look(store, dog))
        await execute(store, "UPDATE jobs SET state = 'PAUSED', state_reason = 'x'")
        assert not looking.done()
    await looking
    assert await timers(store) == []
    assert repaired(metrics) == {}
