"""Ticks of the scheduler: what fires, what is missed and why, and whose shards they are."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

import pytest

from noonday.domain.cron import Fold
from noonday.domain.errors import CommitUnknown, FenceLost, StoreUnavailable
from noonday.domain.model import (
    EPOCH,
    SHARDS,
    Cron,
    Interval,
    Kind,
    Once,
    Overlap,
    RunKey,
    Schedule,
)
from noonday.loops.scheduler import Scheduler
from noonday.store import Store, jobs, occurrences
from noonday.store.occurrences import Opening
from tests.support import seeds
from tests.support.driving import arm, drive, ledger, next_of
from tests.support.holds import blocked
from tests.support.invariants import broken
from tests.support.links import Link
from tests.support.scripted import Parts, Scripted, carry_out, counted

SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3_600, 86_400))
MIDNIGHT = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
T = MIDNIGHT + 9 * HOUR
EVERY_MINUTE = Cron("* * * * *", overlap="allow")


async def state_of(store: Store, job: UUID) -> tuple[str, str]:
    async with store.transaction() as tx:
        row = await tx.one("SELECT state, state_reason FROM jobs WHERE id = $1", job)
    return row["state"], row["state_reason"]


# --- down for a while (DUP-05) ----------------------------------------------------------------


@pytest.mark.parametrize("down", [130 * SECOND, 3 * HOUR, 3 * DAY])
async def test_after_any_time_down_each_nominal_time_is_in_the_ledger_once_and_the_latest_ran(
    store: Store, parts: Parts, down: timedelta
) -> None:
    store.now = stopped = T - 10 * SECOND
    (minutely,) = await arm(store, EVERY_MINUTE, T - MINUTE)
    (daily,) = await arm(store, Cron("0 9 * * *"), T)
    scheduler, executor = parts.scheduler(), Scripted()
    worker = parts.worker(executor)
    await drive(scheduler, store, stopped)
    await carry_out(worker)
    executor.attempts.clear()

    returned = stopped + down
    await drive(scheduler, store, returned)
    # No timer is read before its partition has a due index, nor passed over for that.
    await parts.janitor().tick()
    await drive(scheduler, store, returned)
    assert counted(scheduler, "floor_stragglers") == 0
    await carry_out(worker)
    ran = {attempt.run: attempt for attempt in executor.attempts}
    last_minute = returned.replace(second=0)
    last_nine = T + down // DAY * DAY - (DAY if down >= DAY else timedelta(0))
    assert ran.keys() == {
        RunKey(minutely, Kind.SCHEDULE, last_minute),
        RunKey(daily, Kind.SCHEDULE, last_nine),
    }
    assert await ledger(store, minutely) == [
        (T - MINUTE, "COMPLETE", None),
        *[(at, "MISSED", "superseded") for at in every(MINUTE, T, last_minute)],
        (last_minute, "COMPLETE", None),
    ]
    assert await ledger(store, daily) == [
        *[(at, "MISSED", "superseded") for at in every(DAY, T, last_nine)],
        (last_nine, "COMPLETE", None),
    ]
    entries = [*await ledger(store, minutely), *await ledger(store, daily)]
    missed = [outcome for _, outcome, _ in entries if outcome == "MISSED"]
    assert counted(scheduler, "occurrences_missed") == len(missed)

    await drive(scheduler, store, last_minute + MINUTE)
    assert (await ledger(store, minutely))[-1] == (last_minute + MINUTE, None, None)
    assert not await broken(store)


@pytest.mark.parametrize("down", [130 * SECOND, 3 * HOUR, 3 * DAY])
async def test_where_misfires_are_skipped_none_of_an_outage_runs_and_each_is_on_record(
    store: Store, parts: Parts, down: timedelta
) -> None:
    """One that is merely late, with no later one due yet, is no outage and runs."""
    store.now = stopped = T - 10 * SECOND
    (minutely,) = await arm(store, Cron("* * * * *", overlap="allow", misfire="skip"), T)
    (daily,) = await arm(store, Cron("0 9 * * *", misfire="skip"), T)
    scheduler, executor = parts.scheduler(), Scripted()
    worker = parts.worker(executor)
    await drive(scheduler, store, stopped)
    returned = stopped + down
    await drive(scheduler, store, returned)
    await parts.janitor().tick()
    await drive(scheduler, store, returned)
    await carry_out(worker)
    next_minute = returned.replace(second=0) + MINUTE
    assert await ledger(store, minutely) == [
        (at, "MISSED", "misfire") for at in every(MINUTE, T, next_minute)
    ]
    nines = every(DAY, T, returned + DAY)
    assert await ledger(store, daily) == (
        [(T, "COMPLETE", None)] if down < DAY else [(at, "MISSED", "misfire") for at in nines]
    )
    assert await next_of(store, minutely) == next_minute
    assert await next_of(store, daily) == T + len(nines) * DAY

    await drive(scheduler, store, next_minute)
    await carry_out(worker)
    assert (await ledger(store, minutely))[-1] == (next_minute, "COMPLETE", None)
    ran = {attempt.run.occurrence_at for attempt in executor.attempts}
    assert ran == ({T, next_minute} if down < DAY else {next_minute})
    assert not await broken(store)


def every(step: timedelta, start: datetime, end: datetime) -> list[datetime]:
    """An independent calendar: from ``start`` up to before ``end``."""
    return [start + n * step for n in range((end - start) // step)]


async def test_what_is_due_in_a_partition_without_a_due_index_waits_for_it_and_no_longer(
    store: Store, parts: Parts
) -> None:
    store.now = T
    (job,) = await arm(store, Once(T + 3 * DAY), T + 3 * DAY)
    scheduler = parts.scheduler()
    await drive(scheduler, store, T + 3 * DAY + MINUTE)
    assert await ledger(store, job) == [], "a scan of all of it would take too long"
    await parts.janitor().tick()
    await drive(scheduler, store, T + 3 * DAY + MINUTE)
    assert await ledger(store, job) == [(T + 3 * DAY, None, None)]


async def test_after_a_long_time_down_a_tick_stays_small_and_lets_every_job_have_its_turn(
    store: Store, parts: Parts
) -> None:
    store.now = T - DAY
    many = await arm(store, EVERY_MINUTE, T - DAY, count=300)
    (fresh,) = await arm(store, Once(T), T)
    scheduler = parts.scheduler()
    store.now = T
    await scheduler.keep_shards()
    assert await scheduler.tick() == 301
    assert await ledger(store, fresh) == [(T, None, None)]
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT count, outcome, reason FROM occurrence_ranges")
    assert [tuple(row.values()) for row in rows] == [(83, "MISSED", "superseded")] * len(many)
    assert await scheduler.tick() > 200, "the others have their next turns a little later"


# --- overlap ----------------------------------------------------------------------------------


async def test_an_occurrence_is_skipped_while_a_run_of_its_job_is_unfinished_and_says_which(
    store: Store, parts: Parts
) -> None:
    store.now = T
    (job,) = await arm(store, Cron("* * * * *", overlap="skip"), T)
    scheduler = parts.scheduler()
    await drive(scheduler, store, T)
    await drive(scheduler, store, T + MINUTE)
    assert await ledger(store, job) == [(T, None, None), (T + MINUTE, "SKIPPED", "overlap")]
    assert await blocking(store, T + MINUTE) == str(RunKey(job, Kind.SCHEDULE, T))
    assert counted(scheduler, "occurrences_skipped") == 1
    await carry_out(parts.worker(Scripted()))
    await drive(scheduler, store, T + 2 * MINUTE)
    assert (await ledger(store, job))[-1] == (T + 2 * MINUTE, None, None)
    assert not await broken(store)


@pytest.mark.parametrize("kind", Kind)
async def test_a_run_of_any_kind_and_any_instant_is_named_as_it_is_everywhere(
    store: Store, parts: Parts, kind: Kind
) -> None:
    store.now = T
    (job,) = await arm(store, Cron("* * * * *", overlap="skip"), T)
    at = T - 59 * SECOND - timedelta(microseconds=999_999)
    opening = Opening(job, at, kind, seeds.TENANT, at, 1, "default", 5)
    async with store.transaction() as tx:
        assert await occurrences.open_now(tx, [opening], T) == 1
    await drive(parts.scheduler(), store, T)
    assert await blocking(store, T) == str(RunKey(job, kind, at))


async def blocking(store: Store, at: datetime) -> str | None:
    async with store.transaction() as tx:
        name: str | None = await tx.value(
            "SELECT blocking_run FROM occurrences WHERE occurrence_at = $1", at
        )
    return name


async def test_jobs_that_may_overlap_do(store: Store, parts: Parts) -> None:
    store.now = T
    (job,) = await arm(store, EVERY_MINUTE, T)
    scheduler = parts.scheduler()
    for n in range(3):
        await drive(scheduler, store, T + n * MINUTE)
    assert [outcome for _, outcome, _ in await ledger(store, job)] == [None] * 3


# --- grace, grid, jitter ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "rearmed"),
    [
        (Once(T, grace_sec=60), None),
        (Interval(86_400, T, grace_sec=60), T + DAY),
    ],
)
async def test_what_is_later_than_its_grace_is_missed_with_that_reason(
    store: Store, parts: Parts, schedule: Schedule, rearmed: datetime | None
) -> None:
    store.now = T
    (in_time,) = await arm(store, schedule, T)
    scheduler = parts.scheduler()
    await drive(scheduler, store, T + 60 * SECOND)
    assert await ledger(store, in_time) == [(T, None, None)]
    await scheduler.leave()
    (late,) = await arm(store, schedule, T)
    await drive(parts.scheduler(), store, T + 61 * SECOND)
    assert await ledger(store, late) == [(T, "MISSED", "grace")]
    assert await next_of(store, late) == rearmed
    assert not await broken(store)


@pytest.mark.parametrize(
    ("gap", "fold", "wanted"),
    [
        ("run", "first", [("03-14T07:00", None), ("03-15T06:30", None)]),
        ("skip", "first", [("03-14T07:00", "dst_gap"), ("03-15T06:30", None)]),
        ("run", "second", [("11-07T07:30", None), ("11-08T07:30", None)]),
        ("run", "both", [("11-07T06:30", None), ("11-07T07:30", None), ("11-08T07:30", None)]),
    ],
)
async def test_where_clocks_are_changed_the_ledger_says_what_the_schedule_asks_for(
    store: Store,
    parts: Parts,
    gap: Literal["run", "skip"],
    fold: Fold,
    wanted: list[tuple[str, str | None]],
) -> None:
    """A scheduler that is started anew each hour, over two nights."""
    in_spring = wanted[0][0].startswith("03")
    zone, text = (
        ("America/New_York", "30 2 * * *") if in_spring else ("America/Chicago", "30 1 * * *")
    )
    schedule = Cron(text, zone, overlap="allow", dst_gap=gap, dst_fold=fold)
    first = datetime.fromisoformat(f"2027-{wanted[0][0]}Z")
    store.now = first - 12 * HOUR
    await parts.janitor().tick()
    (job,) = await arm(store, schedule, first)
    while store.now < first + 36 * HOUR:
        scheduler = parts.scheduler()
        await drive(scheduler, store, store.now + HOUR)
        await scheduler.leave()
    found = [(f"{at:%m-%dT%H:%M}", why) for at, _, why in await ledger(store, job)]
    assert found[: len(wanted)] == wanted
    assert not await broken(store)


async def test_a_job_without_grace_runs_however_late(store: Store, parts: Parts) -> None:
    store.now = T
    (job,) = await arm(store, Once(T), T)
    await drive(parts.scheduler(), store, T + 3 * DAY)
    assert await ledger(store, job) == [(T, None, None)]
    assert await next_of(store, job) is None


async def test_an_interval_keeps_its_grid_however_late_its_ticks_are(
    store: Store, parts: Parts
) -> None:
    anchor = T - 17 * SECOND
    store.now = anchor
    (job,) = await arm(store, Interval(90, anchor, overlap="allow"), anchor)
    for late in (3.3, 91.7, 200.1, 260.0, 1_000.4):
        # Each time another process, as after a restart.
        await drive(parts.scheduler(), store, anchor + late * SECOND + DAY)
        store.now = None
    grid = [at for at, _, _ in await ledger(store, job)]
    assert grid == [anchor + n * 90 * SECOND for n in range(len(grid))]
    assert await next_of(store, job) == anchor + len(grid) * 90 * SECOND


async def test_jitter_delays_what_is_due_and_leaves_what_is_nominal(
    store: Store, parts: Parts
) -> None:
    store.now = T
    jobs_made = await arm(store, Interval(3_600, T, jitter_sec=600), T, count=8)
    scheduler = parts.scheduler()
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT job_id, due_at FROM timers")
    due = {row["job_id"]: row["due_at"] for row in rows}
    assert len({at - T for at in due.values()}) == 8
    for job in jobs_made:
        await drive(scheduler, store, due[job] - timedelta(microseconds=1))
        if max(due.values()) == due[job]:
            assert await ledger(store, job) == []
    await drive(scheduler, store, max(due.values()))
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT job_id, occurrence_at, due_at FROM occurrences")
        again = await tx.rows("SELECT job_id, occurrence_at, due_at FROM timers")
    assert {row["job_id"]: (row["occurrence_at"], row["due_at"]) for row in rows} == {
        job: (T, at) for job, at in due.items()
    }
    assert {row["job_id"]: (row["occurrence_at"], row["due_at"]) for row in again} == {
        job: (T + HOUR, at + HOUR) for job, at in due.items()
    }


# --- jobs that cannot be computed (CRN-11) ----------------------------------------------------

UNREADABLE = {
    "an unknown zone": '{"type": "cron", "cron": "* * * * *", "timezone": "Mars/Phobos"}',
    "no expression": '{"type": "cron", "cron": ""}',
    "a minute 61": '{"type": "cron", "cron": "61 * * * *"}',
    "a NUL in its expression": '{"type": "cron", "cron": "\\u0000 * * * *"}',
    "a NUL in its zone": '{"type": "cron", "cron": "* * * * *", "timezone": "\\u0000"}',
    "half a character": '{"type": "cron", "cron": "\\ud800 * * * *"}',
    "an interval of nothing":
        '{"type": "interval", "interval_sec": 0, "starts_at": "2026-01-01T00:00:00Z"}',
    "another kind": '{"type": "sun\\u0000dial"}',
    "no type": "{}",
}  # fmt: skip


async def test_jobs_that_cannot_be_computed_are_suspended_and_stop_nobody(
    store: Store, parts: Parts, subtests: pytest.Subtests
) -> None:
    """Fifty healthy ones for five minutes, with a restart in between."""
    store.now = T
    healthy = await arm(store, EVERY_MINUTE, T, count=50)
    bad = {}
    for what, schedule in UNREADABLE.items():
        text = f'{{"schedule": {schedule}, "target": {{"type": "http", "url": "http://x/"}}}}'
        (bad[what],) = await arm(store, EVERY_MINUTE, T, text=text)
    scheduler, restarted = parts.scheduler(), parts.scheduler()
    for n in range(5):
        if n == 3:
            await scheduler.leave()
        await drive(scheduler if n < 3 else restarted, store, T + n * MINUTE)
    for job in healthy:
        assert [at for at, _, _ in await ledger(store, job)] == every(MINUTE, T, T + 5 * MINUTE)
    for what, job in bad.items():
        with subtests.test(what):
            state, reason = await state_of(store, job)
            assert state == "SUSPENDED"
            assert reason.startswith("the schedule cannot be computed: ")
            assert await next_of(store, job) is None
            assert await ledger(store, job) == []
    assert counted(scheduler, "jobs_suspended") == len(bad)
    assert counted(restarted, "jobs_suspended") == 0, "none is tried again"
    assert not await broken(store)


async def test_a_row_that_the_database_refuses_is_found_among_its_batch(
    store: Store, parts: Parts
) -> None:
    store.now = T
    made = await arm(store, EVERY_MINUTE, T, count=40)
    refused = made[17]
    async with store.transaction() as tx:
        await tx.execute(f"ALTER TABLE runs ADD CHECK (job_id <> '{refused}')")
    scheduler = parts.scheduler()
    await drive(scheduler, store, T)
    for job in made:
        expected = [] if job == refused else [(T, None, None)]
        assert await ledger(store, job) == expected
    state, reason = await state_of(store, refused)
    assert state == "SUSPENDED"
    assert reason.startswith("refused by the database: ")
    assert counted(scheduler, "jobs_suspended") == 1
    assert not await broken(store)


async def test_a_partition_that_is_missing_suspends_nobody(store: Store, parts: Parts) -> None:
    store.now = T
    jobs_made = await arm(store, EVERY_MINUTE, T, count=5)
    month = f"occurrences_m{T:%Y%m}"
    async with store.transaction() as tx:
        bounds = await tx.value(
            "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = $1", month
        )
        await tx.execute(f"ALTER TABLE occurrences DETACH PARTITION {month}")
    scheduler = parts.scheduler()
    with pytest.raises(StoreUnavailable, match="partition"):
        await drive(scheduler, store, T)
    async with store.transaction() as tx:
        await tx.execute(f"ALTER TABLE occurrences ATTACH PARTITION {month} {bounds}")
    await drive(scheduler, store, T)
    for job in jobs_made:
        assert await ledger(store, job) == [(T, None, None)]


# --- timers that nothing stands behind --------------------------------------------------------


async def test_a_timer_that_its_job_does_not_stand_behind_fires_nothing_and_is_dropped(
    store: Store, parts: Parts
) -> None:
    store.now = T
    cancelled, changed, gone, healthy = await arm(store, EVERY_MINUTE, T, count=4)
    async with store.transaction() as tx:
        assert await jobs.cancel(tx, cancelled, "without disarming")
        await tx.execute("UPDATE jobs SET schedule_version = 2 WHERE id = $1", changed)
        await tx.execute("DELETE FROM jobs WHERE id = $1", gone)
    await drive(parts.scheduler(), store, T)
    assert await ledger(store, healthy) == [(T, None, None)]
    for job in (cancelled, changed, gone):
        assert await ledger(store, job) == []
        assert await next_of(store, job) is None


async def test_a_job_that_changes_between_reading_and_writing_fires_by_its_new_version(
    store: Store, parts: Parts
) -> None:
    store.now = T
    (job,) = await arm(store, EVERY_MINUTE, T)
    scheduler = parts.scheduler()
    await scheduler.keep_shards()
    now, due = await scheduler._read(sorted(scheduler.epochs))
    async with store.transaction() as tx:
        await tx.execute("UPDATE jobs SET schedule_version = 2")
        await tx.execute("UPDATE timers SET schedule_version = 2")
    await scheduler._fire(due, scheduler.epochs, now)
    assert await ledger(store, job) == []
    await drive(scheduler, store, T)
    assert await ledger(store, job) == [(T, None, None)]


# --- the start of the ledger ------------------------------------------------------------------


async def test_nothing_below_the_start_of_the_ledger_is_materialized(
    store: Store, parts: Parts
) -> None:
    store.now = T
    (recurring,) = await arm(store, EVERY_MINUTE, T - 3 * MINUTE)
    (once,) = await arm(store, Once(T - 2 * MINUTE), T - 2 * MINUTE)
    async with store.transaction() as tx:
        await tx.execute("UPDATE ledger_start SET starts_at = $1", T - MINUTE)
    scheduler = parts.scheduler()
    await drive(scheduler, store, T)
    assert await ledger(store, recurring) == [
        *[(at, "MISSED", "superseded") for at in every(MINUTE, T - 3 * MINUTE, T)],
        (T, None, None),
    ], "what was not decided before cannot have run"
    assert await ledger(store, once) == []
    assert await next_of(store, once) is None, "its timer goes on, or would be read for ever"
    (below,) = await arm(store, EVERY_MINUTE, T - 5 * MINUTE)
    async with store.transaction() as tx:
        await tx.execute("UPDATE ledger_start SET starts_at = $1", T)
    await scheduler.leave()
    scheduler = parts.scheduler()
    await drive(scheduler, store, T)
    assert await ledger(store, below) == [(T, None, None)]
    assert counted(scheduler, "occurrences_missed") == 0


# --- shares of shards -------------------------------------------------------------------------


async def test_schedulers_share_the_shards_evenly_and_give_them_up_when_they_leave(
    store: Store, parts: Parts
) -> None:
    store.now = T
    all_three = [parts.scheduler() for _ in range(3)]
    for count in (1, 2, 3):
        alive = all_three[:count]
        await settle_shares(alive)
        assert_shared(alive)
    await all_three[1].leave()
    left = [all_three[0], all_three[2]]
    await settle_shares(left)
    assert_shared(left)
    await left[0].leave()
    await settle_shares(left[1:])
    assert len(left[1].epochs) == SHARDS


async def settle_shares(alive: list[Scheduler]) -> None:
    for _ in range(3):
        for scheduler in alive:
            await scheduler.keep_shards()


def assert_shared(alive: list[Scheduler]) -> None:
    owned = Counter(shard for scheduler in alive for shard in scheduler.epochs)
    assert owned == Counter(range(SHARDS)), "each has one owner"
    share = -(-SHARDS // len(alive))
    assert all(len(scheduler.epochs) <= share for scheduler in alive)


async def test_the_shards_of_one_that_died_are_taken_over_and_what_was_due_fires(
    store: Store, parts: Parts
) -> None:
    store.now = T
    dead, heir = parts.scheduler(), parts.scheduler()
    await settle_shares([dead, heir])
    made = await arm(store, EVERY_MINUTE, T + 5 * SECOND, count=SHARDS)
    for seconds in (4, 8, 12):
        await drive(heir, store, T + seconds * SECOND)
    assert len(heir.epochs) == SHARDS, "within its lease and five seconds"
    for job in made:
        assert len(await ledger(store, job)) == 1
    await arm(store, EVERY_MINUTE, T + 11 * SECOND, count=SHARDS)
    with pytest.raises(FenceLost):
        await dead.tick()
    assert not await broken(store)


async def test_leadership_that_goes_to_and_fro_fires_each_minute_once(
    store: Store, parts: Parts
) -> None:
    store.now = T
    made = await arm(store, EVERY_MINUTE, T, count=20)
    one, other = parts.scheduler(), parts.scheduler()
    for n in range(6):
        leader = (one, other)[n % 2]
        async with store.transaction() as tx:
            await tx.execute("UPDATE shards SET owner_id = NULL, leased_until = NULL")
            await tx.execute("DELETE FROM workers")
        await drive(leader, store, T + n * MINUTE)
    for job in made:
        assert [at for at, _, _ in await ledger(store, job)] == every(MINUTE, T, T + 6 * MINUTE)
    async with store.transaction() as tx:
        epochs = await tx.rows(
            "SELECT occurrence_at, min(shard_epoch) AS epoch, max(shard_epoch) AS last "
            "FROM occurrences GROUP BY occurrence_at ORDER BY occurrence_at"
        )
    assert [(row["epoch"], row["last"]) for row in epochs] == [(n, n) for n in range(1, 7)]
    assert not await broken(store)


async def test_a_scheduler_that_could_not_renew_in_time_does_not_even_try_to_write(
    store: Store, parts: Parts
) -> None:
    store.now = T
    (job,) = await arm(store, EVERY_MINUTE, T)
    scheduler = parts.scheduler()
    await scheduler.keep_shards()
    scheduler._trusted_until = 0.0
    assert await scheduler.tick() == 0
    assert await ledger(store, job) == []


async def test_what_is_overdue_in_shards_taken_over_during_a_tick_fires_without_a_sweep(
    store: Store, parts: Parts
) -> None:
    store.now = T - MINUTE
    gone, heir = parts.scheduler(), parts.scheduler()
    await settle_shares([gone, heir])
    (job,) = await arm(store, EVERY_MINUTE, T, shard=min(gone.epochs))
    store.now = T + 20 * SECOND
    async with store.transaction() as tx:
        await tx.execute("UPDATE shards SET leased_until = $1", T + MINUTE)
        await tx.execute("UPDATE workers SET seen_at = $1", T + MINUTE)
    await gone.leave()
    async with store.transaction() as tx:
        await tx.execute("LOCK TABLE timers IN ACCESS EXCLUSIVE MODE")
        ticking = asyncio.create_task(heir.tick())
        await blocked(store, "FROM timers")
        await heir.keep_shards()
        assert len(heir.epochs) == SHARDS
    await ticking
    await heir.tick()
    assert await ledger(store, job) == [(T, None, None)]


async def test_a_straggler_found_during_a_tick_fires_at_the_next_one(
    store: Store, parts: Parts
) -> None:
    store.now = T
    scheduler = parts.scheduler()
    await drive(scheduler, store, T)
    (job,) = await arm(store, EVERY_MINUTE, T - MINUTE)
    async with store.transaction() as tx:
        # A tick reads jobs beside timers, a sweep timers alone.
        await tx.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        ticking = asyncio.create_task(scheduler.tick())
        await blocked(store, "FROM timers")
        await scheduler.sweep()
        assert counted(scheduler, "floor_stragglers") == 1
    await ticking
    await scheduler.tick()
    assert (await ledger(store, job))[0][0] == T - MINUTE


# --- other ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["before commit", "after commit"])
async def test_a_tick_whose_answer_is_lost_fires_once(
    store: Store, parts: Parts, linked: Store, link: Link, fault: str
) -> None:
    store.now = linked.now = T
    (job,) = await arm(store, EVERY_MINUTE, T)
    scheduler = parts.scheduler(store=linked)
    await scheduler.keep_shards()
    now, due = await scheduler._read(sorted(scheduler.epochs))
    link.fault = fault  # type: ignore[assignment]
    with pytest.raises(CommitUnknown):
        await scheduler._fire(due, scheduler.epochs, now)
    while await scheduler.tick():
        pass
    assert await ledger(store, job) == [(T, None, None)]
    assert await next_of(store, job) == T + MINUTE
    assert not await broken(store)


async def test_more_than_a_batch_is_fired_oldest_first_by_several_ticks(
    store: Store, parts: Parts
) -> None:
    store.now = T
    for n in range(3):
        await arm(store, Once(T - n * SECOND), T - n * SECOND, count=200)
    scheduler = parts.scheduler()
    await scheduler.keep_shards()
    assert [await scheduler.tick(), await scheduler.tick(), await scheduler.tick()] == [500, 100, 0]
    async with store.transaction() as tx:
        assert await tx.value("SELECT count(*) FROM runs") == 600


async def test_a_tick_with_nothing_due_says_when_the_next_timer_is(
    store: Store, parts: Parts
) -> None:
    store.now = T
    await arm(store, Once(T + SECOND / 4), T + SECOND / 4)
    scheduler = parts.scheduler()
    await drive(scheduler, store, T)
    assert scheduler.sleep_for() == 0.25
    await drive(scheduler, store, T + SECOND)
    assert scheduler.sleep_for() is None
    assert scheduler._floor > EPOCH


# --- the end of a recurring job ---------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [
        Cron("* * * * *", overlap="allow", max_occurrences=3),
        Cron("* * * * *", overlap="allow", ends_at=T + 2 * MINUTE),
        Interval(60, T, overlap="allow", max_occurrences=3, ends_at=T + DAY),
    ],
)
@pytest.mark.parametrize("step", [MINUTE, 10 * MINUTE])
async def test_a_job_that_has_had_its_last_occurrence_has_ended(
    store: Store, parts: Parts, schedule: Cron | Interval, step: timedelta
) -> None:
    store.now = T
    async with store.transaction() as tx:
        (job,) = await seeds.armed(tx, schedule, T)
        await tx.execute("UPDATE timers SET seq = 1")
    scheduler = parts.scheduler()
    await drive(scheduler, store, T)
    assert (await state_of(store, job))[0] == "ACTIVE"
    await drive(scheduler, store, T + step)
    if step == MINUTE:
        assert await next_of(store, job) == T + 2 * MINUTE
        await drive(scheduler, store, T + 2 * MINUTE)
    assert [at for at, *_ in await ledger(store, job)] == [T, T + MINUTE, T + 2 * MINUTE]
    assert await next_of(store, job) is None
    assert (await state_of(store, job))[0] == "ENDED"
    assert not await broken(store)


# --- all of an outage -------------------------------------------------------------------------


async def test_all_of_an_outage_run_a_few_at_a_time_and_a_restart_goes_on(
    store: Store, parts: Parts
) -> None:
    store.now = T
    (job,) = await arm(store, Cron("* * * * *", overlap="allow", misfire="all"), T)
    back = T + 24 * MINUTE
    ran = []
    for second in range(4):
        # Another process each time: what is caught up on stands in the timer.
        scheduler = parts.scheduler()
        await drive(scheduler, store, back + second * SECOND)
        ran.append(len(await ledger(store, job)))
        await scheduler.leave()
    assert ran == [10, 20, 25, 25]
    expected = every(MINUTE, T, back + MINUTE)
    assert await ledger(store, job) == [(at, None, None) for at in expected]
    assert await next_of(store, job) == back + MINUTE
    assert not await broken(store)


@pytest.mark.parametrize("overlap", ["skip", "queue"])
async def test_where_they_may_not_overlap_they_come_one_at_a_time(
    store: Store, parts: Parts, overlap: Overlap
) -> None:
    store.now = T
    (job,) = await arm(store, Cron("* * * * *", overlap=overlap, misfire="all"), T)
    back, worker = T + 2 * MINUTE, parts.worker(Scripted())
    admitting = parts.admitting()
    scheduler = parts.scheduler()
    for second in range(3):
        await drive(scheduler, store, back + second * SECOND)
        await admitting.tick()
        await carry_out(worker)
        assert len(await ledger(store, job)) == second + 1
    assert [outcome for _, outcome, _ in await ledger(store, job)] == ["COMPLETE"] * 3
