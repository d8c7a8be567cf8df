"""Backfills over a real database: what is opened, how fast, and what ends them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from noonday.domain.model import Cron, Interval, Kind, Overlap, RunKey
from noonday.loops import backfills
from noonday.loops.backfills import CANCELLED, Backfills
from noonday.store import Row, Store, cancels, jobs, operations, partitions
from noonday.store.runs import held_key
from tests.support import seeds
from tests.support.backfills import (
    FORMER,
    ask,
    loop_over,
    on_record,
    opened,
    pass_until_ended,
    recurring,
    shown,
)
from tests.support.holds import holding
from tests.support.invariants import broken
from tests.support.scripted import Parts, Scripted, carry_out

T = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
HOURLY = Interval(3_600, T - 100 * HOUR, overlap="allow")


@pytest.fixture(autouse=True)
def _bound_time(store: Store) -> None:
    store.now = T + 600 * SECOND


async def made(store: Store, wanted: Any = HOURLY, **fields: Any) -> UUID:
    async with store.transaction() as tx:
        return await recurring(tx, wanted, T - 100 * HOUR, **fields)


async def runs_of(store: Store, job: UUID) -> list[Row]:
    async with store.transaction() as tx:
        return await tx.rows("SELECT * FROM runs WHERE job_id = $1 ORDER BY occurrence_at", job)


async def execute(store: Store, statement: str, *args: object) -> None:
    async with store.transaction() as tx:
        await tx.execute(statement, *args)


def hours(first: int, last: int) -> list[datetime]:
    return [T + n * HOUR for n in range(first, last + 1)]


# --- what is opened ---------------------------------------------------------------------------


async def test_every_nominal_time_of_the_range_is_opened_once(store: Store) -> None:
    job = await made(store, priority=7, concurrency_key="k")
    operation = await ask(store, job, T - 5 * HOUR, T - HOUR)
    row = await pass_until_ended(store, operation, [loop_over(store)])
    counted = [row[name] for name in ("state", "total", "looked_at", "done", "error")]
    assert counted == ["DONE", 5, 5, 5, None]
    assert await opened(store, job) == hours(-5, -1)
    found = await runs_of(store, job)
    assert {(run["lane"], run["priority"], run["key_cap"]) for run in found} == {
        ("batch", 7, f"key:{seeds.TENANT}:k")
    }
    assert all(run["due_at"] >= T + 600 * SECOND for run in found), "due when it was opened"
    assert not await broken(store)


async def test_its_runs_are_carried_out_under_names_of_their_own(
    store: Store, parts: Parts
) -> None:
    job = await made(store)
    operation = await ask(store, job, T - 2 * HOUR, T, lane="default", priority=0)
    await pass_until_ended(store, operation, [loop_over(store)])
    assert {run["priority"] for run in await runs_of(store, job)} == {0}
    executor = Scripted()
    await carry_out(parts.worker(executor))
    asked = [attempt.run for attempt in executor.attempts]
    assert asked == [RunKey(job, Kind.BACKFILL, at) for at in hours(-2, 0)]
    assert {attempt.number for attempt in executor.attempts} == {1}
    assert not await broken(store)


RECORDS = [
    (0, None, False), (0, "COMPLETE", False), (0, "FAILED", False), (0, "CANCELLED", False),
    (0, "SKIPPED", True), (0, "MISSED", True),
    (1, "COMPLETE", True), (1, None, True),
    (2, None, False), (2, "COMPLETE", False), (2, "FAILED", False), (2, "CANCELLED", False),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "outcome", "again"), RECORDS)
async def test_what_the_ledger_says_has_run_or_will_is_not_run_again(
    store: Store, kind: int, outcome: str | None, again: bool
) -> None:
    job = await made(store)
    async with store.transaction() as tx:
        await on_record(tx, job, T - 2 * HOUR, outcome, kind)
    operation = await ask(store, job, T - 3 * HOUR, T - HOUR)
    row = await pass_until_ended(store, operation, [loop_over(store)])
    assert (row["looked_at"], row["done"]) == (3, 2 + again)
    assert ((T - 2 * HOUR) in await opened(store, job)) == (again or kind == 2)


async def test_the_same_again_runs_nothing_twice(store: Store) -> None:
    job = await made(store)
    for done in (4, 0):
        operation = await ask(store, job, T - 4 * HOUR, T - HOUR)
        row = await pass_until_ended(store, operation, [loop_over(store)])
        assert (row["state"], row["looked_at"], row["done"]) == ("DONE", 4, done)
    operation = await ask(store, job, T - 6 * HOUR, T - 3 * HOUR)
    row = await pass_until_ended(store, operation, [loop_over(store)])
    assert (row["looked_at"], row["done"]) == (4, 2)
    assert len(await runs_of(store, job)) == 6


async def test_two_at_the_same_time_open_each_nominal_time_once(store: Store) -> None:
    job = await made(store)
    both = [await ask(store, job, T - 20 * HOUR, T - HOUR) for _ in range(2)]
    loops = [loop_over(store), loop_over(store)]
    rows = [await pass_until_ended(store, operation, loops) for operation in both]
    assert [row["looked_at"] for row in rows] == [20, 20]
    assert sum(row["done"] for row in rows) == 20
    assert await opened(store, job) == hours(-20, -1)


async def test_what_the_timer_stands_at_is_left_to_the_scheduler(
    store: Store, parts: Parts
) -> None:
    job = await made(store, stands_at=T - 2 * HOUR)
    operation = await ask(store, job, T - 4 * HOUR, T)
    row = await pass_until_ended(store, operation, [loop_over(store)])
    assert (row["looked_at"], row["done"]) == (5, 2)
    assert await opened(store, job) == hours(-4, -3)
    scheduler = parts.scheduler()
    await scheduler.keep_shards()
    await scheduler.tick()
    kinds = [(run["occurrence_at"], run["kind"]) for run in await runs_of(store, job)]
    assert kinds == [(T - 4 * HOUR, 2), (T - 3 * HOUR, 2), (T, 0)]
    again = await ask(store, job, T - 4 * HOUR, T)
    row = await pass_until_ended(store, again, [loop_over(store)])
    assert row["done"] == 2, "it has missed two of them meanwhile"


async def test_what_a_job_without_a_timer_may_go_on_with_is_left_to_it(store: Store) -> None:
    wanted = Interval(3_600, T - 100 * HOUR, jitter_sec=3_000, overlap="allow")
    job = await made(store, wanted)
    await execute(store, "DELETE FROM timers")
    await execute(store, "UPDATE jobs SET state = 'PAUSED'")
    store.now = T
    operation = await ask(store, job, T - 2 * HOUR, T)
    row = await pass_until_ended(store, operation, [loop_over(store)])
    assert (row["state"], row["done"]) == ("DONE", 2), "one is not due yet, with its jitter"


async def test_what_the_schedule_leaves_out_stays_so(store: Store) -> None:
    march = datetime(T.year + 1, 3, 31, 12, tzinfo=UTC)
    spring = march - timedelta(days=march.isoweekday() % 7 + 1)  # the day before that Sunday
    store.now = spring + 72 * HOUR
    await with_ledger_at(store, spring)
    for gap, count in (("skip", 1), ("run", 2)):
        wanted = Cron("30 2 * * *", "Europe/Paris", overlap="allow", dst_gap=gap)  # type: ignore[arg-type]
        job = await made(store, wanted)
        operation = await ask(store, job, spring, spring + 48 * HOUR)
        row = await pass_until_ended(store, operation, [loop_over(store)])
        assert (row["looked_at"], row["done"]) == (2, count)


async def with_ledger_at(store: Store, at: datetime) -> None:
    async with store.transaction() as tx:
        for part in await partitions.missing(tx, at):
            if part.table == "occurrences":
                await partitions.attach_new(tx, part)


async def test_a_former_schedule_counts_for_its_time(store: Store) -> None:
    job = await made(store)
    former = '{"type":"interval","interval_sec":1800,"starts_at":"2026-01-01T00:00:00Z"}'
    await execute(store, FORMER, job, 1, former, T - 100 * HOUR, T - 3 * HOUR)
    operation = await ask(store, job, T - 4 * HOUR, T - 2 * HOUR)
    await pass_until_ended(store, operation, [loop_over(store)])
    assert await opened(store, job) == [T - 4 * HOUR, T - 3.5 * HOUR, *hours(-3, -2)]


async def test_nothing_is_opened_below_the_start_of_the_ledger_when_that_rises(
    store: Store,
) -> None:
    job = await made(store)
    operation = await ask(store, job, T - 5 * HOUR, T - HOUR)
    await execute(store, "UPDATE ledger_start SET starts_at = $1", T - 2 * HOUR)
    row = await pass_until_ended(store, operation, [loop_over(store)])
    assert (row["state"], row["looked_at"], row["done"]) == ("DONE", 5, 2)
    assert await opened(store, job) == hours(-2, -1)


# --- how fast ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.5, 3, 200])
async def test_no_more_are_opened_in_a_second_than_the_rate_allows(
    store: Store, rate: float
) -> None:
    job = await made(store, Interval(60, T - 100 * HOUR, overlap="allow"))
    operation = await ask(store, job, T - 5 * HOUR, T, rate_per_sec=rate)
    loops, seen, done = [loop_over(store) for _ in range(2)], [], 0
    assert store.now is not None
    begin = store.now
    for _ in range(400):
        for loop in loops:
            while await loop.tick():
                pass
        row = await shown(store, operation)
        seen += [store.now] * (row["done"] - done)
        done = row["done"]
        store.now += timedelta(milliseconds=25)
    for n, at in enumerate(seen):
        within = [other for other in seen[n:] if other < at + SECOND]
        assert len(within) <= max(rate, 1)
    expected = min(rate * (store.now - begin).total_seconds(), 301)
    assert done >= expected * 0.7 - 1


async def test_what_has_run_is_passed_over_without_waiting(store: Store) -> None:
    job = await made(store)
    async with store.transaction() as tx:
        for at in hours(-99, -1):
            await on_record(tx, job, at, "COMPLETE")
    operation = await ask(store, job, T - 99 * HOUR, T, rate_per_sec=0.001)
    loop = loop_over(store)
    while await loop.tick():
        pass
    assert (await shown(store, operation))["state"] == "DONE"
    assert await opened(store, job) == [T]


async def test_it_sleeps_until_its_rate_allows_the_next(store: Store) -> None:
    loop = loop_over(store)
    await loop.tick()
    assert loop.sleep_for() is None
    job = await made(store)
    await ask(store, job, T - 4 * HOUR, T, rate_per_sec=0.1)
    assert await loop.tick() == 1
    assert loop.sleep_for() == pytest.approx(10, abs=0.1)
    assert await loop.tick() == 0


async def test_the_pace_is_kept_when_another_process_goes_on(store: Store) -> None:
    job = await made(store)
    await ask(store, job, T - 4 * HOUR, T, rate_per_sec=1)
    for _ in range(3):
        await loop_over(store).tick()
    assert len(await opened(store, job)) == 1


# --- overlap ----------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
async def test_one_that_does_not_overlap_itself_runs_one_by_one_and_loses_none(
    store: Store, parts: Parts, overlap: Overlap
) -> None:
    job = await made(store, Interval(3_600, T - 100 * HOUR, overlap=overlap))
    operation = await ask(store, job, T - 6 * HOUR, T - HOUR, lane="default", rate_per_sec=1000)
    executor, loop = Scripted(), loop_over(store)
    worker = parts.worker(executor)
    assert store.now is not None
    for _ in range(12):
        for _ in range(3):
            await loop.tick()
            store.now += 2 * SECOND
            assert len(await runs_of(store, job)) <= 1
        await carry_out(worker)
    assert (await shown(store, operation))["state"] == "DONE"
    assert [attempt.run.occurrence_at for attempt in executor.attempts] == hours(-6, -1)
    assert not await broken(store)


@pytest.mark.parametrize("overlap", ["queue", "replace"])
async def test_the_schedule_waits_for_a_run_of_the_past_and_comes_before_the_next(
    store: Store, parts: Parts, overlap: Overlap
) -> None:
    job = await made(store, Interval(3_600, T - 100 * HOUR, overlap=overlap))
    await ask(store, job, T - 3 * HOUR, T - 2 * HOUR, lane="default")
    loop, admitting, scheduler = loop_over(store), parts.admitting(), parts.scheduler()
    await loop.tick()
    async with store.transaction() as tx:
        (lease,) = [held_key(row) for row in await seeds.claim(tx)]
    store.now = T + HOUR + SECOND
    await scheduler.keep_shards()
    await scheduler.tick()
    admitting.tell({f"job:{seeds.TENANT}:{job.hex}"})
    await admitting.tick()
    found = [(run["kind"], run["hold"], run["cancel_requested_at"]) for run in
             await runs_of(store, job)]  # fmt: skip
    assert found == [(2, None, None), (0, "overlap", None)], "it is not asked to stop"
    async with store.transaction() as tx:
        tx_caps = tx.caps
        assert await seeds.settle(tx, seeds.completed(lease)) == {lease}
    assert tx_caps == {f"job:{seeds.TENANT}:{job.hex}"}, "its end is told"
    admitting.tell(tx_caps)
    await admitting.tick()
    await loop.tick()
    assert [(run["kind"], run["hold"]) for run in await runs_of(store, job)] == [(0, None)]
    assert not await broken(store)


# --- its end ----------------------------------------------------------------------------------


async def test_an_aborted_one_opens_no_more(store: Store) -> None:
    job = await made(store)
    operation = await ask(store, job, T - 9 * HOUR, T)
    loop = loop_over(store)
    await loop.tick()
    async with store.transaction() as tx:
        assert await operations.end(tx, operation, "ABORTED")
    store.now = T + HOUR
    assert await loop.tick() == 0
    assert (len(await runs_of(store, job)), (await shown(store, operation))["state"]) == (
        1,
        "ABORTED",
    )


async def test_with_its_job_it_ends_and_says_so(store: Store) -> None:
    job = await made(store)
    operation = await ask(store, job, T - 9 * HOUR, T)
    loop = loop_over(store)
    await loop.tick()
    async with store.transaction() as tx:
        row = await jobs.one(tx, job, seeds.TENANT)
        assert row is not None
        assert await cancels.cancel_job(tx, row, "a test")
    ended = await pass_until_ended(store, operation, [loop])
    assert (ended["state"], ended["error"], ended["done"]) == ("FAILED", CANCELLED, 1)
    assert ended["ended_at"] is not None
    assert await runs_of(store, job) == []


@pytest.mark.parametrize("state", ["PAUSED", "SUSPENDED", "ENDED"])
async def test_it_goes_on_while_its_schedule_does_not(store: Store, state: str) -> None:
    job = await made(store)
    operation = await ask(store, job, T - 3 * HOUR, T - HOUR)
    await execute(store, "DELETE FROM timers")
    await execute(store, "UPDATE jobs SET state = $1", state)
    row = await pass_until_ended(store, operation, [loop_over(store)])
    assert (row["state"], row["done"]) == ("DONE", 3)


async def test_one_whose_job_cannot_be_read_fails_and_keeps_no_other_from_going_on(
    store: Store,
) -> None:
    bad, good = await made(store), await made(store)
    failing = await ask(store, bad, T - 3 * HOUR, T)
    other = await ask(store, good, T - 3 * HOUR, T)
    await execute(store, 'UPDATE jobs SET spec = \'{"schedule": "\\u00e9"}\' WHERE id = $1', bad)
    loop = loop_over(store)
    row = await pass_until_ended(store, failing, [loop])
    assert row["state"] == "FAILED"
    assert row["error"].startswith("The schedule cannot be computed")
    assert (await pass_until_ended(store, other, [loop]))["done"] == 4


async def test_an_empty_one_is_done_at_once(store: Store) -> None:
    job = await made(store)
    operation = await ask(store, job, T - HOUR + SECOND, T - SECOND)
    row = await pass_until_ended(store, operation, [loop_over(store)])
    assert (row["state"], row["total"], row["done"]) == ("DONE", 0, 0)


# --- several processes ------------------------------------------------------------------------


async def test_any_number_of_processes_open_each_once(store: Store) -> None:
    jobs_made = [await made(store) for _ in range(3)]
    asked = [await ask(store, job, T - 30 * HOUR, T, rate_per_sec=1000) for job in jobs_made]
    loops = [loop_over(store) for _ in range(4)]
    assert store.now is not None
    for _ in range(60):
        await asyncio.gather(*(loop.tick() for loop in loops))
        store.now += SECOND
    for job, operation in zip(jobs_made, asked, strict=True):
        row = await shown(store, operation)
        assert (row["state"], row["looked_at"], row["done"]) == ("DONE", 31, 31)
        assert await opened(store, job) == hours(-30, 0)
    assert not await broken(store)


async def test_who_comes_second_leaves_it_to_the_first(store: Store, database_url: str) -> None:
    job = await made(store)
    operation = await ask(store, job, T - 3 * HOUR, T)
    lock = "SELECT FROM operations WHERE id = $1 FOR UPDATE"
    async with holding(database_url, lock, operation):
        assert await loop_over(store).tick() == 0
    assert await opened(store, job) == []
    assert await loop_over(store).tick() == 1


async def test_more_than_a_tick_looks_at_all_get_their_turn(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfills, "BATCH", 2)
    jobs_made = [await made(store) for _ in range(5)]
    for job in jobs_made:
        await ask(store, job, T - HOUR, T, rate_per_sec=0.001)
    loop: Backfills = loop_over(store)
    for _ in range(3):
        await loop.tick()
    for job in jobs_made:
        assert len(await opened(store, job)) == 1
