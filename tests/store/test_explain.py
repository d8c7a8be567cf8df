"""Every statement fits the migrated schema; those on the way of each run use their index."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import noonday.store
import pytest
from noonday.domain.lifecycle import Event, Transition
from noonday.domain.model import EPOCH, SHARDS, ExecutionStatus, Once, Reason
from noonday.domain.ranking import AGEING_STEP, Floors
from noonday.store import Store, Tx, executions, jobs, occurrences, runs, shards, timers
from noonday.store.settlements import Settlement
from noonday.store.timers import Timer
from tests.support import seeds
from tests.support.plans import ExplainingTx, Plan

NOW = datetime.now(UTC)
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|MERGE|VALUES)\b")
OTHER = re.compile(r"\s*(SET|CREATE|ALTER|DROP|LOCK|TRUNCATE|NOTIFY|LISTEN)\b")


def constants() -> dict[str, str]:
    """The constants in capitals of every module of the store, as ``module.NAME``."""
    found = {}
    for module in pkgutil.iter_modules(noonday.store.__path__):
        if not module.ispkg:
            names = vars(importlib.import_module(f"noonday.store.{module.name}"))
            found |= {f"{module.name}.{name}": text for name, text in names.items()
                      if re.fullmatch(r"[A-Z][A-Z0-9_]*", name) and isinstance(text, str)}  # fmt: skip
    return found


STATEMENTS = {name: text for name, text in constants().items() if STATEMENT.match(text)}
OTHERS = {name for name, text in constants().items() if OTHER.match(text)}


# --- every statement --------------------------------------------------------------------------


def test_what_has_no_plan_is_known() -> None:
    assert OTHERS == {"migrate.HISTORY", "partitions.SHORT_LOCKS_OUTSIDE"}
    assert len(STATEMENTS) > 60


async def test_every_statement_fits_the_migrated_schema(
    store: Store, subtests: pytest.Subtests
) -> None:
    for name, statement in STATEMENTS.items():
        with subtests.test(name):
            async with store.transaction() as tx:
                await tx.execute(f"PREPARE probe AS {statement}")
                types: list[str] = await tx.value(
                    "SELECT parameter_types::text[] FROM pg_prepared_statements "
                    "WHERE name = 'probe'"
                )
                values = ", ".join(f"NULL::{each}" for each in types)
                await tx.rows(f"EXPLAIN EXECUTE probe{f'({values})' if values else ''}")
                await tx.execute("DEALLOCATE probe")


# --- those that must be cheap -----------------------------------------------------------------


class Database:
    """Tables that look used, and the plans of what is done to them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.running: list[runs.Held] = []

    async def fill(self) -> None:
        async with self._store.transaction() as tx:
            await seeds.ready(tx, count=4_000)
            for days in (10, 30, 300, 3_000):
                await seeds.armed(tx, seeds.every(60, NOW), NOW + days * DAY, count=500)
            await seeds.armed(tx, seeds.every(60, NOW), NOW, count=2_000)
        async with self._store.transaction() as tx:
            claimed = await seeds.claim(tx, limit=2_000)
        self.running = [runs.held_key(row) for row in claimed]
        async with self._store.transaction() as tx:
            await seeds.settle(tx, *[seeds.retried(self._take()) for _ in range(500)])
            await seeds.settle(tx, *[seeds.completed(self._take()) for _ in range(500)])
        async with self._store.direct() as connection:
            await connection.execute("VACUUM ANALYZE")

    def _take(self) -> runs.Held:
        return self.running.pop()

    def leases(self, count: int = 20) -> list[runs.Held]:
        return [self._take() for _ in range(count)]

    async def plan(self, statement: str, call: Callable[[Tx], Awaitable[object]]) -> Plan:
        """The plan of ``statement`` as ``call`` runs it."""
        async with self._store.transaction() as tx:
            explaining = ExplainingTx(tx)
            await call(explaining)
            return explaining.plans[statement]


@pytest.fixture
async def database(store: Store) -> Database:
    filled = Database(store)
    await filled.fill()
    return filled


def days(table: str, *moments: datetime) -> set[str]:
    return {f"{table}_d{each:%Y%m%d}" for each in moments}


LEDGER = {f"occurrences_m{NOW:%Y%m}"}
HISTORY = days("executions", NOW)
TODAY = days("timers", NOW)
UP_TO_TODAY = days("timers", NOW - DAY, NOW)
DUE = {f"{table}_due" for table in TODAY}


def settling(event: Event, status: ExecutionStatus, leases: list[runs.Held]) -> list[Settlement]:
    transition = Transition(
        event,
        status,
        delay=10 * SECOND if event is Event.RETRY else None,
        reason=Reason.TIMEOUT if event is Event.DEAD_LETTER else None,
    )
    return [Settlement(lease, transition, seeds.FAILURE) for lease in leases]


async def test_a_claim_reads_the_claim_index_alone(database: Database) -> None:
    plan = await database.plan(
        runs.CLAIM,
        lambda tx: runs.claim(tx, "default", Floors().each(), 64, AGEING_STEP, seeds.WORKER),
    )
    assert plan.indexes == {"runs_claim", "jobs_pkey", "payload_versions_pkey"}
    assert not plan.scans
    plan = await database.plan(
        runs.LOWEST_READY, lambda tx: runs.lowest_ready(tx, "default", Floors().each())
    )
    assert (plan.indexes, plan.scans) == ({"runs_claim"}, set())


async def test_what_a_leases_holder_writes_goes_by_the_run_s_key(database: Database) -> None:
    beat = [(lease, 60) for lease in database.leases()]
    plan = await database.plan(runs.HEARTBEAT, lambda tx: runs.heartbeat(tx, beat))
    assert (plan.indexes, plan.tables) == ({"runs_pkey"}, {"runs"})
    given_back = database.leases()
    plan = await database.plan(runs.HAND_BACK, lambda tx: runs.hand_back(tx, given_back))
    assert (plan.indexes, plan.tables) == ({"runs_pkey"}, {"runs"})


@pytest.mark.parametrize(
    ("event", "status", "statement", "tables"),
    [
        (Event.COMPLETE, ExecutionStatus.SUCCESS, runs.COMPLETE, LEDGER),
        (Event.RETRY, ExecutionStatus.FAILED, runs.RETRY, set()),
        (Event.DEAD_LETTER, ExecutionStatus.FAILED, runs.DEAD_LETTER,
         LEDGER | {"dead_letters", "jobs"}),
        (Event.INTERRUPT, ExecutionStatus.INTERRUPTED, runs.RELEASE, set()),
    ],
)  # fmt: skip
async def test_a_settle_plans_the_partition_of_its_occurrences_and_no_other(
    database: Database, event: Event, status: ExecutionStatus, statement: str, tables: set[str]
) -> None:
    items = settling(event, status, database.leases())
    plan = await database.plan(statement, lambda tx: seeds.settle(tx, *items))
    assert not plan.scans
    assert "runs_pkey" in plan.indexes
    planned = {table for table in plan.tables if "occurrences" in table}
    assert planned - {"occurrences"} == tables & LEDGER
    assert plan.tables - planned - {"executions"} == {"runs"} | (tables - LEDGER)


async def test_what_waits_and_what_has_expired_is_found_by_its_index(database: Database) -> None:
    plan = await database.plan(runs.RETRY_DUE, lambda tx: runs.retry_due(tx, 1_000))
    assert (plan.indexes, plan.scans) == ({"runs_retry_due"}, set())
    plan = await database.plan(runs.NEXT_RETRY, runs.next_retry)
    assert (plan.indexes, plan.scans) == ({"runs_retry_due"}, set())
    plan = await database.plan(
        runs.EXPIRED, lambda tx: runs.expired(tx, "default", 5, NOW + SECOND, 500)
    )
    assert (plan.indexes, plan.scans) == ({"runs_claim", "jobs_pkey"}, set())
    run = database.leases(1)[0].job_id
    plan = await database.plan(runs.CANCEL, lambda tx: runs.cancel(tx, run, "deleted"))
    assert "runs_pkey" in plan.indexes
    assert "runs" not in plan.scans


async def test_a_tick_reads_by_due_time_from_its_floor_to_now(database: Database) -> None:
    owned = list(range(SHARDS))
    plan = await database.plan(
        timers.DUE, lambda tx: timers.due(tx, NOW - SECOND, NOW, owned, 500)
    )
    assert plan.indexes >= DUE
    assert plan.tables - {"jobs"} == TODAY
    assert not plan.scans - {"jobs"}
    plan = await database.plan(timers.DUE, lambda tx: timers.due(tx, EPOCH, NOW, owned, 500))
    assert plan.tables - {"jobs"} == UP_TO_TODAY, "what is to come is not planned"
    assert not plan.scans - {"jobs"} - (UP_TO_TODAY - TODAY)
    plan = await database.plan(
        timers.NEXT_DUE, lambda tx: timers.next_due(tx, NOW, NOW + SECOND, owned)
    )
    assert (plan.indexes, plan.tables) == (DUE, TODAY)


async def test_materializing_plans_the_partitions_of_its_due_times_alone(
    database: Database, store: Store
) -> None:
    async with store.transaction() as tx:
        due = await timers.due(tx, NOW - SECOND, NOW, list(range(SHARDS)), 20)
    fired = [seeds.fired(row["job_id"], row["due_at"]) for row in due]
    entries = [seeds.open_entry(row["job_id"], NOW, skip_overlap=True) for row in due]
    rearm = [Timer(row["job_id"], NOW + DAY, NOW + DAY, 1, 1, row["shard"]) for row in due]
    plan = await database.plan(
        occurrences.MATERIALIZE,
        lambda tx: occurrences.materialize(tx, fired, entries, rearm, NOW),
    )
    assert plan.tables == {"timers", "jobs", "runs", "occurrences", "ledger_start"} | TODAY
    assert not plan.scans - {"ledger_start"}
    assert plan.indexes >= {"jobs_pkey", "runs_pkey"}


async def test_looking_for_one_timer_looks_into_one_partition(database: Database) -> None:
    job = seeds.job_id()
    plan = await database.plan(timers.OF_JOB, lambda tx: timers.of_job(tx, job, NOW))
    assert plan.tables == TODAY
    assert not plan.scans


async def test_looking_for_what_became_of_a_settle_uses_the_index_of_each_day(
    database: Database,
) -> None:
    leases = database.leases(5)
    plan = await database.plan(
        executions.WRITTEN, lambda tx: executions.written(tx, leases)
    )
    assert not plan.scans & HISTORY


async def test_a_fence_costs_a_look_at_one_small_table(database: Database, store: Store) -> None:
    owner = uuid4()
    async with store.transaction() as tx:
        epochs = await shards.acquire(tx, owner, SHARDS)
    plan = await database.plan(shards.EPOCHS, lambda tx: shards.fence(tx, owner, epochs))
    assert plan.tables == {"shards"}


# --- in place ---------------------------------------------------------------------------------

IN_PLACE = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'runs'"
INDEXED = """
SELECT DISTINCT a.attname FROM pg_index AS x
JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = x.indexrelid
     AND d.refclassid = 'pg_class'::regclass AND d.refobjid = x.indrelid AND d.refobjsubid > 0
JOIN pg_attribute AS a ON a.attrelid = x.indrelid AND a.attnum = d.refobjsubid
WHERE x.indrelid = 'runs'::regclass
UNION
SELECT a.attname FROM pg_index AS x JOIN pg_attribute AS a
     ON a.attrelid = x.indrelid AND a.attnum = ANY (x.indkey)
WHERE x.indrelid = 'runs'::regclass
"""


async def test_what_a_claim_and_a_heartbeat_write_stands_in_no_index(store: Store) -> None:
    async with store.transaction() as tx:
        indexed = {row["attname"] for row in await tx.rows(INDEXED)}
    written = "state worker_id leased_at locked_until lease_version attempt".split()
    assert not indexed & set(written)
    assert {"lane", "priority", "rank", "claimable", "retry_at", "hold_key"} <= indexed


async def test_claims_and_heartbeats_of_whole_pages_are_hot(store: Store) -> None:
    async with store.transaction() as tx:
        await seeds.ready(tx, count=2_000)
    for _ in range(4):
        async with store.transaction() as tx:
            claimed = [runs.held_key(row) for row in await seeds.claim(tx, limit=500)]
            await check_hot(tx, 500)
        for _ in range(2):
            async with store.transaction() as tx:
                assert len(await runs.heartbeat(tx, [(lease, 60) for lease in claimed])) == 500
                await check_hot(tx, 500)


async def check_hot(tx: Tx, count: int) -> None:
    """All updates of this transaction left the indexes alone."""
    before = await tx.one(IN_PLACE)
    assert before["n_tup_upd"] >= count
    assert before["n_tup_upd"] == before["n_tup_hot_upd"]
