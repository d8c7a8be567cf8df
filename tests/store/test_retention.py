"""What has been kept long enough goes, nothing else does, and no crash changes that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import UUID

import pytest

from noonday.domain.errors import StoreUnavailable
from noonday.domain.model import Cron, Kind, Once, Schedule, shard_of
from noonday.domain.replay import Terms
from noonday.store import (
    Store,
    Tx,
    changes,
    jobs,
    letters,
    locks,
    occurrence_ranges,
    occurrences,
    partitions,
    replays,
    retention,
    timers,
)
from noonday.store.occurrence_ranges import OccurrenceRange
from noonday.store.occurrences import Opening
from noonday.store.ranges import Range, Step
from noonday.store.timers import Timer
from tests.support import seeds, upkeep
from tests.support.letters import lie_there
from tests.support.upkeep import NOW, Died

DAY = timedelta(days=1)
FIRST_DAY = datetime(2027, 1, 1, tzinfo=UTC)
FEBRUARY = Range("occurrences", Step.MONTH, datetime(2027, 2, 1, tzinfo=UTC))
MARCH = Range("occurrences", Step.MONTH, datetime(2027, 3, 1, tzinfo=UTC))


@pytest.fixture(scope="module")
def database_template(postgres_url: str, database_template: str) -> Iterator[str]:
    with upkeep.template_at(postgres_url, database_template) as name:
        yield name


@pytest.fixture(autouse=True)
def _at_noon(store: Store) -> None:
    store.now = NOW


# --- executions -------------------------------------------------------------------------------

ATTEMPTS = """
INSERT INTO executions (job_id, occurrence_at, kind, tenant_id, attempt, lease_version, worker_id,
                        status, leased_at, locked_until, finished_at, unknown)
SELECT gen_random_uuid(), $1, 0, 1, n, n, gen_random_uuid(),
       (ARRAY['SUCCESS', 'FAILED', 'LEASE_EXPIRED', 'INTERRUPTED', 'CANCELLED'])[n],
       $1, $1, $1, false
FROM generate_series(1, 5) AS n
"""
KEPT = ["CANCELLED", "FAILED", "INTERRUPTED", "LEASE_EXPIRED"]


async def a_day(store: Store, number: int) -> Range:
    """A day of January with one attempt of each kind."""
    day = Range("executions", Step.DAY, FIRST_DAY + number * DAY)
    async with store.transaction() as tx:
        await partitions.attach_new(tx, day)
        await tx.execute(ATTEMPTS, day.starts_at + timedelta(hours=23))
    return day


async def statuses(store: Store, day: Range, table: str = "executions") -> list[str]:
    async with store.transaction() as tx:
        rows = await tx.rows(
            f"SELECT status FROM {table} WHERE finished_at >= $1 AND finished_at < $2 ORDER BY 1",
            day.starts_at, day.ends_at,
        )  # fmt: skip
    return [row["status"] for row in rows]


async def compact(store: Store, day: Range) -> bool:
    async with store.direct() as connection:
        return await retention.compact(connection, day)


async def test_of_an_old_day_only_what_did_not_succeed_is_kept(store: Store) -> None:
    days = [await a_day(store, number) for number in range(3)]
    async with store.transaction() as tx:
        assert await retention.succeeded(tx, days[1].ends_at, days[0].ends_at) == [days[1]]
    assert await compact(store, days[1])
    assert await statuses(store, days[0]) == [*KEPT, "SUCCESS"]
    assert await statuses(store, days[1]) == KEPT
    assert await upkeep.tables(store, "executions_.20270102") == ["executions_f20270102"]
    async with store.transaction() as tx:
        assert await retention.succeeded(tx, days[1].ends_at, days[0].ends_at) == []


async def test_wherever_it_dies_the_next_pass_leaves_the_same(store: Store) -> None:
    for dies_at in count():
        day = await a_day(store, dies_at)
        try:
            async with upkeep.mortal(store, dies_at) as connection:
                assert await retention.compact(connection, day)
            break
        except Died:
            # At any moment one table or the other has what is to be kept.
            tables = await upkeep.tables(store, f"executions_.{day.name[-8:]}")
            assert KEPT in [(await statuses(store, day, table))[:4] for table in tables]
            async with store.transaction() as tx:
                assert await retention.succeeded(tx, day.ends_at, day.starts_at) == [day]
            assert await compact(store, day)
        assert await statuses(store, day) == KEPT
        assert await upkeep.tables(store, day.name) == []
    assert dies_at > 15


async def test_a_dump_puts_it_off_and_sees_all_meanwhile(store: Store) -> None:
    day = await a_day(store, 0)
    async with upkeep.a_reader(store, "executions"):
        assert not await compact(store, day)
        assert await statuses(store, day) == [*KEPT, "SUCCESS"]
    assert await compact(store, day)
    assert await statuses(store, day) == KEPT


async def test_two_at_once_keep_nothing_twice(store: Store) -> None:
    days = [await a_day(store, number) for number in range(4)]
    for day in days:
        await asyncio.gather(*(compact(store, day) for _ in range(3)), return_exceptions=True)
        if await upkeep.tables(store, day.name):
            assert await compact(store, day)
        assert await statuses(store, day) == KEPT


async def test_in_the_end_failures_go_as_well(store: Store) -> None:
    days = [await a_day(store, number) for number in range(3)]
    await compact(store, days[0])
    with pytest.raises(Died):
        async with upkeep.mortal(store, 12) as connection:
            await retention.compact(connection, days[1])
    async with store.transaction() as tx:
        parts = await retention.expired(tx, days[1].ends_at)
    for part in parts:
        async with store.direct() as connection:
            assert await retention.remove(connection, part)
    assert await upkeep.tables(store, "executions_.202701.*") == [days[2].name]


# --- the ledger -------------------------------------------------------------------------------


async def drop_ledger(store: Store, before: datetime, dies_at: int = 99) -> None:
    async with store.transaction() as tx:
        await retention.raise_ledger_start(tx, before)
    async with store.transaction() as tx:
        parts = await retention.closed(tx)
    for part in parts:
        async with upkeep.mortal(store, dies_at) as connection:
            assert await retention.remove(connection, part)


async def ledger_start(store: Store) -> datetime:
    async with store.transaction() as tx:
        found: datetime = await tx.value(partitions.LEDGER_START)
    return found


OLDEST = """
SELECT (SELECT array_agg(to_at ORDER BY to_at) FROM occurrence_ranges) AS ranges,
       (SELECT array_agg(until_at ORDER BY until_at) FROM schedule_versions) AS schedules
"""


async def test_ranges_and_schedules_go_when_the_ledger_begins_after_them(store: Store) -> None:
    job = seeds.new_job(seeds.spec_of(seeds.every(60, NOW)), NOW)
    start = await ledger_start(store) + 2 * DAY
    ends = [start - DAY, start - timedelta(microseconds=1), start, start + DAY]
    async with store.transaction() as tx:
        await jobs.insert(tx, [job])
        for n, end in enumerate(ends):
            skipped = OccurrenceRange(job.id, end - DAY / 2, end, None, "SKIPPED", "paused")
            await occurrence_ranges.write(tx, [skipped], "me", NOW)
            await tx.execute(
                "INSERT INTO schedule_versions VALUES ($1, $2, '{}', $3, $4)",
                job.id, n, end - DAY, end,
            )  # fmt: skip
    async with store.transaction() as tx:
        await tx.execute("UPDATE ledger_start SET starts_at = $1", start)
        assert await occurrence_ranges.forget(tx, 1) == 1
        assert await occurrence_ranges.forget(tx, 100) == 1
        assert await changes.forget_schedules(tx, 100) == 2
        kept = await tx.one(OLDEST)
    assert kept["ranges"] == kept["schedules"] == ends[2:], "one that reaches over the start stays"


async def test_a_month_of_the_ledger_goes_when_all_of_it_is_old(store: Store) -> None:
    await drop_ledger(store, FEBRUARY.ends_at - timedelta(seconds=1))
    assert await ledger_start(store) == FEBRUARY.starts_at
    await drop_ledger(store, FEBRUARY.ends_at)
    assert await ledger_start(store) == MARCH.starts_at
    assert await upkeep.tables(store, FEBRUARY.name) == []


async def test_what_comes_late_for_a_dropped_month_is_not_materialized(store: Store) -> None:
    at = FEBRUARY.starts_at + DAY
    async with store.transaction() as tx:
        late = Case("late", goes=False, first_at=at, timer=True)
        job, other = [await lay_out(tx, late) for _ in range(2)]
    # The month is closed before it is dropped: also while it can still be written.
    async with store.transaction() as tx:
        await retention.raise_ledger_start(tx, FEBRUARY.ends_at)
    assert await materialize(store, job, at) == 0
    await drop_ledger(store, FEBRUARY.ends_at)
    assert await materialize(store, other, at) == 0
    async with store.transaction() as tx:
        assert await tx.value("SELECT count(*) FROM runs") == 0
        assert await tx.value("SELECT count(*) FROM timers") == 0


async def materialize(store: Store, job: UUID, occurrence_at: datetime) -> int:
    fired = seeds.fired(job, NOW)
    async with store.transaction() as tx:
        entries = [seeds.open_entry(job, occurrence_at)]
        written = await occurrences.materialize(tx, [fired], entries, [], NOW)
    assert written.fired == 1
    return written.ready


async def test_a_month_that_was_closed_and_not_dropped_goes_at_the_next_pass(store: Store) -> None:
    for dies_at in count():
        try:
            await drop_ledger(store, FEBRUARY.ends_at, dies_at)
            break
        except Died:
            assert await ledger_start(store) == MARCH.starts_at
            assert await upkeep.tables(store, FEBRUARY.name) == [FEBRUARY.name]
            async with store.transaction() as tx:
                assert await partitions.missing(tx, NOW) == []
    assert dies_at > 3
    assert await upkeep.tables(store, FEBRUARY.name) == []


# --- one-off jobs -----------------------------------------------------------------------------

SUCCESS_BEFORE = NOW - 7 * DAY
FAILURE_BEFORE = NOW - 20 * DAY
OLD = NOW - 30 * DAY
ONCE = Once(OLD)
DAILY = Cron("0 0 * * *")
START = UUID(int=0)
END = """
UPDATE occurrences SET outcome = $2, ended_at = $3, attempts = $4, reason = 'so'
WHERE job_id = $1 AND kind = 0
"""
DEAD_LETTER = """
INSERT INTO dead_letters (job_id, occurrence_at, kind, tenant_id, reason, attempts, lease_version,
                          payload_version, target_host, dead_at)
VALUES ($1, $2, 0, 1, 'transient', 1, 1, 1, 'x', $2)
"""


@dataclass(frozen=True)
class Case:
    """A job, what is left of it, and whether it goes."""

    name: str
    goes: bool
    outcome: str | None = None
    days_ago: float = 21
    attempts: int = 1
    state: str = "ACTIVE"
    schedule: Schedule = ONCE
    run: bool = False
    trigger_days_ago: float | None = None
    dead_letter: bool = False
    timer: bool = False
    first_at: datetime = OLD


CASES = (
    Case("completed a week ago", True, "COMPLETE", 7.1),
    Case("completed lately", False, "COMPLETE", 6.9),
    Case("completed, then cancelled", True, "COMPLETE", 7.1, state="CANCELLED"),
    Case("failed long ago and discarded", True, "FAILED"),
    Case("failed less long ago", False, "FAILED", 19.9),
    Case("failed and dead-lettered", False, "FAILED", 29, dead_letter=True),
    Case("skipped long ago", True, "SKIPPED", attempts=0),
    Case("missed long ago", True, "MISSED", attempts=0),
    Case("missed less long ago", False, "MISSED", 19.9, attempts=0),
    Case("cancelled before it was tried", True, "CANCELLED", 7.1, attempts=0, state="CANCELLED"),
    Case("cancelled after a failure", False, "CANCELLED", 7.1, state="CANCELLED"),
    Case("cancelled before its time", True, None, 7.1, state="CANCELLED"),
    Case("cancelled before its time, lately", False, None, 6.9, state="CANCELLED"),
    Case("unfinished", False, run=True),
    Case("not due yet", False, timer=True),
    Case("suspended", False, None, state="SUSPENDED"),
    Case("completed, runs by a trigger", False, "COMPLETE", run=True, trigger_days_ago=21),
    Case("completed, triggered lately", False, "COMPLETE", trigger_days_ago=3),
    Case("completed, triggered long ago", True, "COMPLETE", trigger_days_ago=21),
    Case("ledger gone", True, None, first_at=FEBRUARY.starts_at - DAY),
    Case("ledger gone, still armed", False, None, first_at=FEBRUARY.starts_at - DAY, timer=True),
    Case("recurring", False, "COMPLETE", schedule=DAILY),
    Case("recurring, cancelled", False, "COMPLETE", schedule=DAILY, state="CANCELLED"),
)  # fmt: skip


async def lay_out(tx: Tx, case: Case, **payload: object) -> UUID:
    """Write what a case says."""
    ended_at = NOW - case.days_ago * DAY
    job = seeds.new_job(seeds.spec_of(case.schedule), case.first_at)._replace(**payload)  # type: ignore[arg-type]
    await jobs.insert(tx, [job])
    await tx.execute(
        "UPDATE jobs SET state = $2, state_changed_at = $3 WHERE id = $1",
        job.id, case.state, ended_at,
    )  # fmt: skip
    if case.outcome or (case.run and case.trigger_days_ago is None):
        await open_run(tx, job.id, Kind.SCHEDULE, case.first_at)
        await tx.execute(END, job.id, case.outcome, case.outcome and ended_at, case.attempts)
    if case.trigger_days_ago is not None:
        await open_run(tx, job.id, Kind.TRIGGER, NOW - case.trigger_days_ago * DAY)
    if not case.run:
        await tx.execute("DELETE FROM runs WHERE job_id = $1", job.id)
    if case.dead_letter:
        await tx.execute(DEAD_LETTER, job.id, ended_at)
    if case.timer:
        await timers.arm(tx, [Timer(job.id, NOW, NOW, 1, 0, shard_of(job.id))], NOW)
    return job.id


async def open_run(tx: Tx, job_id: UUID, kind: Kind, at: datetime) -> None:
    await occurrences.open_now(tx, [Opening(job_id, at, kind, 1, at, 1, "default", 5)], at)


async def delete(tx: Tx, limit: int = 100, after: UUID = START) -> retention.Deleted:
    return await retention.delete_ended(tx, after, SUCCESS_BEFORE, FAILURE_BEFORE, limit)


async def test_jobs_go_when_they_ended_long_enough_ago_and_nothing_needs_them(
    store: Store,
) -> None:
    async with store.transaction() as tx:
        ids = {await lay_out(tx, case): case for case in CASES}
        deleted = await delete(tx)
        left = await jobs.existing(tx, list(ids))
    wrong = {case.name for id, case in ids.items() if (id in left) == case.goes}
    assert wrong == set()
    assert deleted == (len(ids) - len(left), [], None)


async def test_batches_go_along_the_key_and_begin_again_at_the_young_ones(store: Store) -> None:
    goes, stays = CASES[0], CASES[5]
    async with store.transaction() as tx:
        ids = [await lay_out(tx, case) for case in (goes, stays, goes, goes)]
        young = seeds.new_job(seeds.spec_of(Once(NOW)), SUCCESS_BEFORE)
        younger = seeds.new_job(seeds.spec_of(Once(NOW)), NOW)
        await jobs.insert(tx, [young, younger])
        first = await delete(tx, 3)
        assert (first.jobs, first.cursor) == (2, ids[2])
        assert await delete(tx, 2, first.cursor or START) == (1, [], None)
        assert await jobs.existing(tx, ids) == {ids[1]}


async def test_payloads_go_with_their_job_and_blobs_are_named_for_later(store: Store) -> None:
    async with store.transaction() as tx:
        job = await lay_out(tx, CASES[0], payload=None, payload_ref="new")
        other = await lay_out(tx, CASES[1], payload=None, payload_ref="kept")
        for id, version, ref in ((job, 1, "old"), (job, 2, None), (other, 1, "kept too")):
            await tx.execute(
                "INSERT INTO payload_versions VALUES ($1, $2, $3, $4, 2, 'text/plain')",
                id, version, None if ref else b"{}", ref,
            )  # fmt: skip
        deleted = await delete(tx)
        assert deleted.jobs == 1
        assert sorted(deleted.blobs) == ["new", "old"]
        assert await tx.value("SELECT count(*) FROM payload_versions") == 1


async def delete_soon(store: Store) -> None:
    async with store.transaction() as tx:
        await retention.shorten_locks(tx)
        await delete(tx)


async def test_a_job_that_is_being_triggered_is_not_deleted(store: Store) -> None:
    async with store.transaction() as tx:
        job = await lay_out(tx, CASES[0])
    async with store.transaction() as other:
        await locks.own_shard(other, shard_of(job))
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            await delete_soon(store)
        await open_run(other, job, Kind.TRIGGER, NOW)
    async with store.transaction() as tx:
        assert (await delete(tx)).jobs == 0
        assert await jobs.existing(tx, [job]) == {job}


async def test_a_look_at_jobs_goes_by_indexes_and_prunes_the_ledger(store: Store) -> None:
    async with store.transaction() as tx:
        for case in CASES:
            await lay_out(tx, case)
        await tx.execute("SET LOCAL enable_seqscan = off")
        await tx.execute("SET LOCAL plan_cache_mode = force_custom_plan")
        plan = await tx.rows(
            f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {retention.ENDED}",
            START, SUCCESS_BEFORE, FAILURE_BEFORE, NOW, 100,
        )  # fmt: skip
    text = "\n".join(row[0] for row in plan)
    assert text.count("Seq Scan on") == text.count("Seq Scan on ledger_start")
    assert "Hash" not in text
    assert "occurrences_m202705 o_8 (never executed)" in text


# --- dead letters -----------------------------------------------------------------------------

DEALT_WITH = """
UPDATE dead_letters SET state = $2, discarded_at = $3, replayed_at = $4, replay_outcome = $5
WHERE job_id = $1
"""
LONG_AGO, LATELY = NOW - 21 * DAY, NOW - 19 * DAY


async def test_only_letters_that_were_dealt_with_long_ago_and_whose_run_has_ended_go(
    store: Store,
) -> None:
    cases = {
        "lies there": (False, ("DEAD", None, None, None)),
        "lies there again": (False, ("DEAD", None, LONG_AGO, "FAILED")),
        "discarded long ago": (True, ("DISCARDED", LONG_AGO, None, None)),
        "discarded lately": (False, ("DISCARDED", LATELY, LONG_AGO, "FAILED")),
        "replayed long ago": (True, ("REPLAYED", None, LONG_AGO, "SUCCEEDED")),
        "failed once, then completed": (True, ("REPLAYED", None, LONG_AGO, "FAILED")),
        "replayed lately": (False, ("REPLAYED", None, LATELY, "SUCCEEDED")),
        "not counted yet": (False, ("REPLAYED", None, LONG_AGO, None)),
        "unfinished": (False, ("REPLAYED", None, LONG_AGO, "FAILED")),
    }
    made = {}
    async with store.transaction() as tx:
        for name, (_, dealt) in cases.items():
            (run,) = await lie_there(tx, before=25 * DAY, history=False)
            await tx.execute(DEALT_WITH, run.job_id, *dealt)
            made[run.job_id] = name
        (unfinished,) = [job for job, name in made.items() if name == "unfinished"]
        await tx.execute(
            """INSERT INTO runs (job_id, occurrence_at, kind, tenant_id, payload_version, lane,
                                 priority, rank, claimable, state, due_at, ready_at)
               SELECT job_id, occurrence_at, 0, 1, 1, 'default', 5, $2, true, 'READY', $2, $2
               FROM dead_letters WHERE job_id = $1""",
            unfinished,
            NOW,
        )
    async with store.transaction() as tx:
        assert await letters.forget(tx, NOW - 20 * DAY, 1) == 1, "as many as were asked for"
        await letters.forget(tx, NOW - 20 * DAY, 100)
        left = {row["job_id"] for row in await tx.rows("SELECT job_id FROM dead_letters")}
    gone = {name for job, name in made.items() if job not in left}
    assert gone == {name for name, (goes, _) in cases.items() if goes}


async def test_only_replays_that_are_over_go(store: Store) -> None:
    async with store.transaction() as tx:
        for number, state in enumerate(("RUNNING", "PAUSED", "STOPPED", "ABORTED", "DONE")):
            found = await replays.count(tx, 1, Terms())
            made = await replays.create(tx, 1, Terms(), "", "key", found)
            await tx.execute(
                "UPDATE replays SET state = $2, active = $3, changed_at = $4 WHERE id = $1",
                made, state, number == 0, LONG_AGO,
            )  # fmt: skip
        made = await replays.create(tx, 1, Terms(), "", "key", found)
        await tx.execute("UPDATE replays SET state = 'DONE' WHERE id = $1", made)
    async with store.transaction() as tx:
        assert await replays.forget(tx, NOW - 20 * DAY, 100) == 2
