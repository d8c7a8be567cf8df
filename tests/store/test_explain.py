"""Every statement fits the migrated schema; those on the way of each run use their index."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import md5
from uuid import UUID

import msgspec
import pytest

import noonday.store
from noonday.domain.lifecycle import Event, Transition
from noonday.domain.model import (
    EPOCH,
    SHARDS,
    ExecutionStatus,
    Interval,
    Kind,
    Reason,
    RunKey,
    shard_of,
)
from noonday.domain.ranking import Floors, by_time
from noonday.domain.replay import Letters, Terms
from noonday.loops.dependents import tell
from noonday.store import (
    Copy,
    Row,
    Store,
    Tx,
    alerts,
    backfills,
    cancels,
    caps,
    changes,
    dead_letters,
    dependencies,
    executions,
    forecasts,
    holds,
    jobs,
    lanes,
    late,
    letters,
    occurrence_ranges,
    occurrences,
    operations,
    overlaps,
    pauses,
    pending,
    rates,
    replays,
    runs,
    scaling,
    signs,
    targets,
    timers,
    watch,
)
from noonday.store.backfills import Backfill
from noonday.store.cancels import Which
from noonday.store.letters import LetterFilter, LetterPosition
from noonday.store.occurrence_ranges import OccurrenceRange
from noonday.store.runs import Ended
from noonday.store.settlements import Settlement
from noonday.store.timers import Place, Timer
from tests.support import families, seeds
from tests.support.backfills import recurring
from tests.support.letters import lie_there
from tests.support.plans import ExplainingTx, Plan, compared, pages

NOW = datetime.now(UTC)
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|MERGE|VALUES)\b")
OTHER = re.compile(r"\s*(SET|CREATE|ALTER|DROP|LOCK|TRUNCATE|NOTIFY|LISTEN)\b")


def constants() -> dict[str, str]:
    """The constants in capitals of every module of the store, as ``module.NAME``."""
    modules = [module.name for module in pkgutil.iter_modules(noonday.store.__path__)]
    return {
        f"{module}.{name}": text
        for module in modules
        if module != "migrations"
        for name, text in vars(importlib.import_module(f"noonday.store.{module}")).items()
        if re.fullmatch(r"[A-Z][A-Z0-9_]*", name) and isinstance(text, str)
    }


STATEMENTS = {name: text for name, text in constants().items() if STATEMENT.match(text)}
OTHERS = {name for name, text in constants().items() if OTHER.match(text)}


# --- every statement --------------------------------------------------------------------------


def test_what_has_no_plan_is_known() -> None:
    assert {"forecasts.SNAPSHOT", "migrate.HISTORY", "partitions.SHORT_LOCKS_OUTSIDE"} == OTHERS
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


async def test_what_is_copied_fits_the_migrated_schema(store: Store) -> None:
    modules = [module.name for module in pkgutil.iter_modules(noonday.store.__path__)]
    found = {
        value
        for module in modules
        if module != "migrations"
        for value in vars(importlib.import_module(f"noonday.store.{module}")).values()
        if isinstance(value, Copy)
    }
    assert {copy.table for copy in found} == {
        "jobs", "timers", "audit_log", "forecast_minutes", "forecast_parts",
    }  # fmt: skip
    async with store.transaction() as tx:
        for copy in found:
            assert await tx.value(
                "SELECT array_agg(attname::text) @> $2 FROM pg_attribute "
                "WHERE attrelid = $1::text::regclass",
                copy.table,
                list(copy.columns),
            )


# --- those that must be cheap -----------------------------------------------------------------

# What stands around the few rows that are worked on: of other jobs, due today or in years.
OTHER_TIMERS = """
INSERT INTO timers
SELECT gen_random_uuid(), due_at, due_at, 1, 0, n % 64
FROM generate_series(1, 20000) AS n, LATERAL (SELECT $1::timestamptz
    + n % 1000 * interval '1 millisecond'
    + CASE WHEN n % 10 = 0 THEN n * interval '2 hours' ELSE interval '0' END AS due_at) AS at
"""
OTHER_JOBS = """
INSERT INTO jobs SELECT other.*
FROM (SELECT to_jsonb(j) AS columns FROM jobs AS j LIMIT 1) AS one, generate_series(1, 10000) AS n,
     LATERAL jsonb_populate_record(
         NULL::jobs, columns || jsonb_build_object('id', md5(n::text)::uuid)) AS other
"""
OTHER_RUNS = """
INSERT INTO runs (job_id, occurrence_at, kind, tenant_id, payload_version, lane, priority, rank,
                  claimable, state, due_at, ready_at)
SELECT gen_random_uuid(), $1, 0, 1, 1, 'default', n % 10, $1::timestamptz + n * interval '1 ms',
       true, 'READY', $1, $1
FROM generate_series(1, 20000) AS n
"""
# Some of them have a slot each; behind each of those wait as many.
OTHER_WAITING = """
INSERT INTO runs (job_id, occurrence_at, kind, tenant_id, payload_version, lane, priority, rank,
                  claimable, state, hold, hold_key, key_cap, key_slot, due_at, ready_at)
SELECT gen_random_uuid(), $1, 0, 1, 1, 'default', 5, $1, n <= 100 AND n <> 9, 'READY',
       CASE WHEN n > 100 OR n = 9 THEN 'cap' END,
       CASE WHEN n > 100 OR n = 9 THEN 'key:1:' || n % 100 END, 'key:1:' || n % 100,
       n <= 100 AND n <> 9, $1, $1
FROM generate_series(1, 20000) AS n
"""
OTHER_OCCURRENCES = """
INSERT INTO occurrences (job_id, occurrence_at, kind, tenant_id, due_at, materialized_at)
SELECT job_id, occurrence_at, kind, tenant_id, due_at, due_at FROM runs ON CONFLICT DO NOTHING
"""

# Of one tenant; most of them were dealt with, and one in a hundred is of a rare kind.
OTHER_LETTERS = """
INSERT INTO dead_letters (job_id, occurrence_at, kind, tenant_id, reason, fingerprint, attempts,
                          lease_version, payload_version, target_host, dead_at, state, replayed_at,
                          replay_id, replay_outcome)
SELECT md5('letter' || n)::uuid, $1, 0, 1, 'transient',
       CASE WHEN n % 100 = 0 THEN 'rare' ELSE 'f' END, 1, 1, 1, 'a.b',
       $1::timestamptz - n * interval '1 s', CASE WHEN n % 5 = 0 THEN 'DEAD' ELSE 'REPLAYED' END,
       CASE WHEN n % 5 > 0 THEN $1::timestamptz END, md5((n % 50)::text)::uuid,
       CASE WHEN n % 7 > 0 THEN 'SUCCEEDED' END
FROM generate_series(1, 20000) AS n
"""
OTHER_EXECUTIONS = """
INSERT INTO executions (job_id, occurrence_at, kind, tenant_id, attempt, lease_version, worker_id,
                        status, leased_at, locked_until, finished_at, unknown)
SELECT job_id, occurrence_at, kind, tenant_id, 1, 1, job_id, 'SUCCESS', $1, $1, $1::timestamptz,
       false
FROM runs
"""

OTHER_TARGETS = """
INSERT INTO targets (hold_key, tenant_id, host, port, state, reason, since, probe_at, released_at)
SELECT 'target:' || n % 100 || ':' || n, n % 100, n::text, 80, state, '', $1,
       CASE WHEN state = 'OPEN' THEN $1::timestamptz END, $1
FROM generate_series(1, 20000) AS n,
     LATERAL (SELECT CASE WHEN n % 100 = 0 THEN 'OPEN' ELSE 'CLOSED' END AS state) AS s
"""

OTHER_DEPENDENTS = """
INSERT INTO dependents (job_id, tenant_id, occurrence_at, due_at, shard, runs_on, cascade_cancel,
                        open)
SELECT md5('child' || n)::uuid, 1, $1, $1, n % 64, 'success', false, 1
FROM generate_series(1, 20000) AS n
"""
OTHER_DEPENDENCIES = """
INSERT INTO dependencies SELECT md5('parent' || $1::timestamptz || n % 1000)::uuid,
       md5('child' || n)::uuid
FROM generate_series(1, 20000) AS n
"""
OTHER_LIMITS = """
INSERT INTO limits (key, tenant_id, kind, name, rate_per_sec, max_running, changed_at)
SELECT kind || ':' || n % 100 || ':' || n, n % 100, kind, n::text,
       CASE WHEN kind = 'host' THEN 1 END, 1, $1
FROM generate_series(1, 20000) AS n,
     LATERAL (SELECT CASE WHEN n % 100 = 0 THEN 'host' ELSE 'key' END AS kind) AS k
"""
OTHER_RATES = """
INSERT INTO rates (key, next_at) SELECT 'host:1:' || n, $1 FROM generate_series(1, 20000) AS n
"""

OTHERS_OF_NOW = (
    OTHER_TIMERS, OTHER_RUNS, OTHER_EXECUTIONS, OTHER_TARGETS, OTHER_LETTERS, OTHER_DEPENDENTS,
    OTHER_DEPENDENCIES, OTHER_LIMITS, OTHER_RATES,
)  # fmt: skip


def days(table: str, *moments: datetime) -> set[str]:
    return {f"{table}_d{each:%Y%m%d}" for each in moments}


LEDGER = f"occurrences_m{NOW:%Y%m}"
LEDGER_BEFORE = f"occurrences_m{NOW.replace(day=1) - DAY:%Y%m}"
HISTORY = days("executions", NOW)
TODAY = days("timers", NOW)
UP_TO_TODAY = days("timers", NOW - DAY, NOW)
ANALYZED = [
    "runs", "jobs", "targets", "dead_letters", "dependents", "dependencies", "limits", "rates",
    LEDGER, *HISTORY, *UP_TO_TODAY,
]  # fmt: skip
OWNED = list(range(SHARDS))


class Explained:
    """Tables that look used, and the plans of what is done to a few rows of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._leases: list[runs.Held] = []
        self.due: list[Row] = []

    @property
    def store(self) -> Store:
        return self._store

    async def fill(self) -> None:
        async with self._store.transaction() as tx:
            await seeds.ready(tx, count=500)
            await seeds.armed(tx, seeds.every(60, NOW), NOW, count=500)
        async with self._store.transaction() as tx:
            self._leases = [runs.held_key(row) for row in await seeds.claim(tx, limit=400)]
            await seeds.settle(tx, *[seeds.retried(each) for each in self.leases(100)])
            await seeds.settle(tx, *[seeds.completed(each) for each in self.leases(100)])
            for others in OTHERS_OF_NOW:
                await tx.execute(others, NOW)
            await tx.execute(OTHER_JOBS)
            await tx.execute(OTHER_OCCURRENCES)
        async with self._store.direct() as connection:
            await connection.execute(f"VACUUM ANALYZE {', '.join(ANALYZED)}")

    def leases(self, count: int = 20) -> list[runs.Held]:
        taken, self._leases = self._leases[:count], self._leases[count:]
        assert len(taken) == count
        return taken

    async def plan(self, statement: str, call: Callable[[Tx], Awaitable[object]]) -> Plan:
        """The plan of ``statement`` as ``call`` runs it."""
        async with self._store.transaction() as tx:
            explaining = ExplainingTx(tx)
            await call(explaining)
            return explaining.plans[statement]


async def check_claim(made: Explained) -> None:
    plan = await made.plan(
        runs.CLAIM,
        lambda tx: runs.claim(tx, "default", seeds.ranges(), 64, seeds.WORKER),
    )
    assert plan.indexes == {"runs_claim", "jobs_pkey", "payload_versions_pkey"}
    assert not plan.scans


async def check_look_below_the_floors(made: Explained) -> None:
    plan = await made.plan(runs.LOOK, lambda tx: runs.look(tx, {"default": Floors().each()}))
    assert (plan.indexes, plan.tables) == ({"runs_claim"}, {"runs"})


async def check_look_at_lanes(made: Explained) -> None:
    spans = {lane: Floors().each() for lane in ("default", "batch")}
    plan = await made.plan(runs.LOOK, lambda tx: runs.look(tx, spans))
    assert (plan.indexes, plan.tables) == ({"runs_claim"}, {"runs"})


async def check_claim_of_a_capped_lane(made: Explained) -> None:
    async with made.store.transaction() as tx:
        lane = await lanes.one(tx, "default")
        assert lane is not None
        await lanes.own(tx, "default")
        await lanes.change(tx, lane, lane._replace(max_running=100))
    plan = await made.plan(lanes.COUNT, lambda tx: lanes.enter(tx, "default", 10))
    assert "runs_claim" in plan.indexes
    assert plan.scans <= {"lane_spans"}, "a row for each priority"
    async with made.store.transaction() as tx:
        await lanes.change(tx, lane._replace(max_running=100), lane)


async def check_heartbeat(made: Explained) -> None:
    beat = [(lease, 60) for lease in made.leases()]
    plan = await made.plan(runs.HEARTBEAT, lambda tx: runs.heartbeat(tx, beat))
    assert (plan.indexes, plan.tables, plan.scans) == ({"runs_pkey"}, {"runs"}, set())


async def check_hand_back(made: Explained) -> None:
    leases = made.leases()
    plan = await made.plan(runs.HAND_BACK, lambda tx: runs.hand_back(tx, leases))
    assert (plan.indexes, plan.tables, plan.scans) == ({"runs_pkey"}, {"runs"}, set())


async def check_hold(made: Explained) -> None:
    leases = [(lease, "breaker", "target:1:x") for lease in made.leases()]
    plan = await made.plan(holds.HOLD, lambda tx: holds.hold(tx, leases))
    assert (plan.indexes, plan.tables, plan.scans) == ({"runs_pkey"}, {"runs"}, set())
    plan = await made.plan(holds.ADMIT, lambda tx: holds.admit(tx, "target:1:x", 10))
    assert (plan.indexes, plan.scans) == (set(), set()), "by its place"
    plan = await made.plan(holds.CANDIDATES, lambda tx: holds.admit(tx, "target:1:x", 10))
    assert (plan.indexes, plan.scans) == ({"runs_hold_key", "jobs_pkey"}, set())
    plan = await made.plan(holds.KEYS, lambda tx: holds.keys(tx, "target:"))
    assert (plan.indexes, plan.scans) == ({"runs_hold_key"}, set())


async def check_targets(made: Explained) -> None:
    keys = [f"target:{n}:{n}" for n in range(1, 50)]
    for statement, call in {
        targets.PERMIT: lambda tx: targets.permit(tx, dict.fromkeys(keys, 1)),
        targets.TO_DO: lambda tx: targets.to_do(tx, keys),
        targets.NOT_CLOSED: targets.not_closed,
        targets.PAGE: lambda tx: targets.page(tx, 1, targets.TargetPosition(), None, 50),
        targets.RESUME: lambda tx: targets.resume(tx, 1, "1", "by hand"),
        targets.PROBE_SUCCEEDED: lambda tx: targets.probe_succeeded(tx, keys[0], 1),
        targets.PROBE_FAILED: lambda tx: targets.probe_failed(tx, keys[0], 1, "", [SECOND]),
    }.items():
        plan = await made.plan(statement, call)
        assert not plan.scans, statement


async def check_pending(made: Explained) -> None:
    after, job_ids = UUID(int=0), [row["job_id"] for row in made.due[:20]]
    for statement, call, tables in (
        (pending.SLICE, lambda tx: pending.count(tx, 1, after, NOW, 1_000), {"jobs_tenant"}),
        (pending.STILL, lambda tx: pending.still(tx, job_ids), {"jobs_pkey"}),
        (pending.ONE_OFF, lambda tx: pending.one_off(tx, job_ids), {"jobs_pkey"}),
    ):
        plan = await made.plan(statement, call)
        assert plan.indexes >= tables, statement
        assert plan.scans <= {"ledger_start"}, statement


async def check_rates(made: Explained) -> None:
    keys = [f"host:1:{n}" for n in range(1, 100)]
    wait = rates.LetGo(keys[0], NOW, NOW)
    for statement, call in {
        rates.LOCK: lambda tx: rates.lock(tx, keys),
        rates.MOVE: lambda tx: rates.move(tx, dict.fromkeys(keys, NOW)),
        rates.STAND: lambda tx: rates.stand(tx, keys),
        rates.LET_GO: lambda tx: rates.let_go(tx, [wait]),
        rates.SLOW: lambda tx: rates.slow(tx, keys[0], SECOND, 0.1, SECOND),
        rates.LIMITED: rates.limited,
        rates.LIMITS_OF: lambda tx: rates.limits_of(tx, [*keys, "tenant:1"]),
    }.items():
        plan = await made.plan(statement, call)
        assert plan.scans <= {"tenants"}, statement


async def check_settle(
    made: Explained, statement: str, transition: Transition, tables: set[str]
) -> None:
    items = [Settlement(lease, transition, seeds.FAILURE) for lease in made.leases()]
    plan = await made.plan(statement, lambda tx: seeds.settle(tx, *items))
    assert not plan.scans
    assert "runs_pkey" in plan.indexes
    assert plan.tables == tables | {"runs", "executions"}


async def check_complete(made: Explained) -> None:
    transition = Transition(Event.COMPLETE, ExecutionStatus.SUCCESS)
    await check_settle(made, runs.COMPLETE, transition, {"occurrences", LEDGER})


async def check_retry(made: Explained) -> None:
    transition = Transition(Event.RETRY, ExecutionStatus.FAILED, delay=10 * SECOND)
    await check_settle(made, runs.RETRY, transition, set())


async def check_release(made: Explained) -> None:
    transition = Transition(Event.INTERRUPT, ExecutionStatus.INTERRUPTED)
    await check_settle(made, runs.RELEASE, transition, set())


async def check_dead_letter(made: Explained) -> None:
    transition = Transition(Event.DEAD_LETTER, ExecutionStatus.FAILED, reason=Reason.TIMEOUT)
    tables = {"occurrences", LEDGER, "dead_letters", "jobs"}
    await check_settle(made, runs.DEAD_LETTER, transition, tables)


async def check_due_retries(made: Explained) -> None:
    async with made.store.transaction() as tx:
        explaining = ExplainingTx(tx, datetime.now(UTC) + 60 * SECOND)
        assert await runs.retry_due(explaining, 50)
    plan = explaining.plans[runs.RETRIES_DUE]
    assert (plan.indexes, plan.scans) == ({"runs_retry_due", "jobs_pkey"}, set())
    plan = explaining.plans[runs.RETRY_DUE]
    assert (plan.indexes, plan.scans) == (set(), set()), "by their places"
    plan = await made.plan(runs.NEXT_RETRY, runs.next_retry)
    assert (plan.indexes, plan.scans) == ({"runs_retry_due"}, set())


async def check_expired(made: Explained) -> None:
    plan = await made.plan(
        runs.EXPIRED, lambda tx: runs.expired(tx, "default", seeds.span(), NOW + SECOND, 500)
    )
    assert plan.indexes >= {"runs_claim"}
    assert "runs" not in plan.scans


async def check_cancel(made: Explained) -> None:
    run = made.leases(1)[0]
    plan = await made.plan(
        cancels.CANCEL, lambda tx: cancels.cancel(tx, Which(run.job_id), "deleted")
    )
    assert "runs_pkey" in plan.indexes
    assert "runs" not in plan.scans


async def check_close(made: Explained) -> None:
    job: Row = {"id": made.due[0]["job_id"], "tenant_id": 1, "schedule_version": 2}
    closed = [(NOW - SECOND, "MISSED", "superseded"), (NOW, "CANCELLED", "not needed")]
    plan = await made.plan(
        occurrences.CLOSE, lambda tx: occurrences.close(tx, job, SECOND, closed, NOW)
    )
    assert plan.scans <= {"ledger_start"}


async def check_ranges(made: Explained) -> None:
    ranges = [
        OccurrenceRange(row["job_id"], NOW - DAY, NOW, 9, "MISSED", "superseded")
        for row in made.due[:200]
    ]
    plan = await made.plan(
        occurrence_ranges.WRITE, lambda tx: occurrence_ranges.write(tx, ranges, "me", NOW)
    )
    assert (plan.indexes, plan.scans) == ({"jobs_pkey"}, {"ledger_start"})


async def check_unknown_settle(made: Explained) -> None:
    leases = made.leases(5)
    plan = await made.plan(executions.WRITTEN, lambda tx: executions.written(tx, leases))
    assert not plan.scans & HISTORY


async def check_lists_of_letters(made: Explained) -> None:
    for by, index in (
        (LetterFilter(), "dead_letters_tenant"),
        (LetterFilter(reason="timeout", target_host="x"), "dead_letters_tenant"),
        (LetterFilter(state="REPLAYED"), "dead_letters_tenant"),
        (LetterFilter(state="DEAD"), "dead_letters_dead"),
        (LetterFilter(fingerprint="rare"), "dead_letters_fingerprint"),
    ):
        async with made.store.transaction() as tx:
            explaining = ExplainingTx(tx)
            await letters.dead_letters(explaining, 1, LetterPosition(), by, 5_000)
        for plan in explaining.plans.values():
            assert (plan.indexes, plan.scans) == ({index}, set()), by
        assert explaining.plans.keys() == {letters.DEAD_LETTERS, letters.SCAN_ENDS}


async def check_groups_of_letters(made: Explained) -> None:
    plan = await made.plan(
        letters.GROUPS,
        lambda tx: letters.groups(
            tx, 1, LetterFilter(state="DEAD"), reason=True, fingerprint=True, counted=1_000
        ),
    )
    assert plan.indexes == {"dead_letters_dead", "dead_letters_tenant"}
    assert not plan.scans


async def check_a_step_of_a_replay(made: Explained) -> None:
    terms = Terms(filter=Letters(reason="transient"))
    async with made.store.transaction() as tx:
        found = await replays.count(tx, 1, terms)
        asked = await replays.create(tx, 1, terms, "", "key", found)
    async with made.store.transaction() as tx:
        explaining = ExplainingTx(tx)
        replay = await replays.take(explaining, asked)
        assert replay is not None
        replay.created_at = NOW
        await replays.walk(explaining, replay, 200)
        await replays.observe(explaining, UUID(md5(b"7").hexdigest()))
        await replays.unfinished_urls(explaining, UUID(md5(b"7").hexdigest()))
        await replays.broken(explaining, 1, ["https://a.b/hook"])
        await replays.count(explaining, 1, terms, 1_000)
        (run,) = await lie_there(explaining)
        await dead_letters.replay(explaining, [run], 1, asked)
        await dead_letters.why_not(explaining, [run], 1)
        await letters.forget(explaining, NOW - DAY, 100)
        plans = explaining.plans
    few = {"replays", "tenants", "limits"}
    assert plans[replays.WALK].indexes >= {"dead_letters_dead", "jobs_pkey"}
    assert plans[replays.COUNT].indexes == {"dead_letters_dead", "jobs_pkey"}
    assert plans[replays.OBSERVE].indexes >= {"dead_letters_replaying", "runs_pkey"}
    assert plans[replays.UNFINISHED].indexes == {"dead_letters_replaying", "jobs_pkey"}
    assert plans[replays.BROKEN].indexes <= {"targets_pkey", "targets_not_closed"}
    assert plans[dead_letters.REPLAY].indexes >= {"dead_letters_pkey", "jobs_pkey", "runs_pkey"}
    assert plans[letters.FORGET].indexes >= {"dead_letters_settled"}
    for statement in (
        replays.WALK,
        replays.COUNT,
        replays.OBSERVE,
        replays.UNFINISHED,
        replays.BROKEN,
        dead_letters.REPLAY,
        dead_letters.WHY,
        letters.FORGET,
    ):
        assert not plans[statement].scans - few, statement


async def check_a_step_of_a_backfill(made: Explained) -> None:
    async with made.store.transaction() as tx:
        wanted = Interval(3_600, NOW - 90 * DAY, overlap="queue")
        job_id = await recurring(tx, wanted, NOW - 90 * DAY)
        job = await jobs.one(tx, job_id, 1)
        assert job is not None
        asked = Backfill(job_id, (), "batch", None, 10.0, "")
        text = msgspec.json.encode(asked).decode()
        for n in range(1, 4):
            await operations.create(tx, UUID(int=n), 1, "backfill", text, "key", 1)
        explaining = ExplainingTx(tx)
        await backfills.running(explaining, UUID(int=0), 100)
        assert await backfills.take(explaining, UUID(int=2)) is not None
        await backfills.versions(explaining, job, wanted)
        moments = [NOW - n * DAY / 24 for n in range(100, 0, -1)]
        await backfills.ran(explaining, job_id, moments)
        await backfills.armed(explaining, job_id)
        spec = seeds.spec_of(wanted)
        assert await backfills.open_them(explaining, job, spec, asked, moments[:1], by_time) == 1
        await backfills.move(explaining, UUID(int=2), moments[0], 1, 1, NOW)
        plans = explaining.plans
    assert plans[backfills.RAN].indexes <= {f"{part}_pkey" for part in plans[backfills.RAN].tables}
    assert plans[backfills.RAN].tables <= {LEDGER, LEDGER_BEFORE, "ledger_start"}
    assert not plans[backfills.RAN].scans - {"ledger_start"}
    assert plans[backfills.VERSIONS].tables == {"schedule_versions"}
    assert plans[overlaps.TELL].indexes == {"runs_pkey"}
    for statement in (overlaps.TELL, occurrences.OPEN):
        assert not plans[statement].scans - {"tenants", "limits"}, statement


async def check_children_are_told(made: Explained) -> None:
    async with made.store.transaction() as tx:
        runs_of = await seeds.ready(tx, count=20)
        parents = [run.job_id for run in runs_of]
        explaining = ExplainingTx(tx)
        await dependencies.announce(explaining, families.parents_of(*parents))
        await families.add(explaining, parents, count=40)
        await families.add(explaining, parents[:1], count=20, on="any")
        ends = [(run.job_id, NOW, "COMPLETE") for run in runs_of[:19]]
        await dependencies.note(explaining, [*ends, (parents[19], NOW, "FAILED")])
        await tell(explaining, await dependencies.take(explaining, 100), 10_000)
        await dependencies.stop_waiting(explaining, parents[0])
        await dependencies.open_parents(explaining, parents, 20)
        await dependencies.parents(explaining, UUID(int=0), 500)
    used = {name for name, text in constants().items() if text in explaining.plans}
    assert used >= {
        f"dependencies.{name}"
        for name in (
            "STANDING", "FLAG_RUNS", "NOTE", "TAKE", "EDGES", "LOCK", "DROP_EDGES", "COUNT_DOWN",
            "RELEASE", "END", "FINISH", "STOP_WAITING", "OPEN_PARENTS", "PARENTS",
        )
    }  # fmt: skip
    for statement, plan in explaining.plans.items():
        assert not plan.scans - {"endings", "ledger_start"}, statement


async def check_due(made: Explained) -> None:
    plan = await made.plan(timers.DUE, lambda tx: timers.due(tx, NOW - SECOND, NOW, OWNED, 20))
    assert any(name.startswith(f"{table}_due") for table in TODAY for name in plan.indexes)
    assert plan.tables - {"jobs"} == TODAY
    assert not plan.scans
    plan = await made.plan(timers.DUE, lambda tx: timers.due(tx, EPOCH, NOW, OWNED, 20))
    assert plan.tables - {"jobs"} == UP_TO_TODAY, "what is to come is not planned"


async def check_late(made: Explained) -> None:
    place = Place(NOW, 5, UUID(int=0))
    plan = await made.plan(
        timers.BEYOND, lambda tx: timers.beyond(tx, place, NOW + SECOND, OWNED, 20)
    )
    assert any(name.startswith(f"{table}_due") for table in TODAY for name in plan.indexes)
    assert plan.tables - {"jobs"} == TODAY
    assert not plan.scans
    plan = await made.plan(late.COUNT, lambda tx: late.count(tx, NOW + SECOND / 2))
    assert any(name.startswith(f"{table}_due") for table in TODAY for name in plan.indexes)
    assert plan.tables <= UP_TO_TODAY, "what is to come is not counted"
    assert not plan.scans


async def check_next_due(made: Explained) -> None:
    plan = await made.plan(
        timers.NEXT_DUE, lambda tx: timers.next_due(tx, NOW, NOW + SECOND, OWNED)
    )
    assert (plan.tables, plan.scans) == (TODAY, set())


async def check_one_timer(made: Explained) -> None:
    job = made.due[0]["job_id"]
    plan = await made.plan(timers.OF_JOB, lambda tx: timers.of_job(tx, job, NOW))
    assert (plan.tables, plan.scans) == (TODAY, set())


async def check_materialize(made: Explained) -> None:
    due = [row for row in made.due if row["current"]][:20]
    fired = [seeds.fired(row["job_id"], row["due_at"]) for row in due]
    entries = [seeds.open_entry(row["job_id"], NOW, overlap="skip") for row in due]
    rearm = [Timer(row["job_id"], NOW + DAY, NOW + DAY, 1, 1, row["shard"]) for row in due]
    plan = await made.plan(
        occurrences.MATERIALIZE, lambda tx: occurrences.materialize(tx, fired, entries, rearm, NOW)
    )
    few = {"tenants", "limits"}
    assert plan.tables - few == {"timers", "jobs", "runs", "occurrences", "ledger_start"} | TODAY
    assert plan.scans - few == {"ledger_start"}
    assert plan.indexes >= {"jobs_pkey", "runs_pkey"}


async def check_outlook(made: Explained) -> None:
    start, end = NOW, NOW + 10 * SECOND
    async with made.store.transaction() as tx:
        explaining = ExplainingTx(tx)
        assert not (await scaling.due(explaining, start, end)).exact
        await scaling.due(explaining, end, end + SECOND)
        plans = explaining.plans
    ahead = days("timers", start, end)
    for statement in (scaling.COUNT_FEW, scaling.PAGES, scaling.DUE, scaling.SAMPLED):
        assert plans[statement].tables - {"jobs"} <= ahead, "what is later is not planned"
        assert not plans[statement].scans
    assert "jobs_pkey" in plans[scaling.SAMPLED].indexes


async def check_forecast(made: Explained) -> None:
    after, end = UUID(int=0), NOW + timedelta(hours=1)
    plan = await made.plan(forecasts.GROUPS, lambda tx: forecasts.groups(tx, after, 1_000))
    assert (plan.indexes, plan.scans) == ({"jobs_recurring"}, set())
    for span in [forecasts.Span(name, NOW, end) for name in TODAY]:
        plan = await made.plan(forecasts.ONE_OFF, partial(forecasts.one_off, span=span))
        assert (plan.indexes, plan.scans) == ({"jobs_pkey"}, set())
        assert plan.tables - {"jobs"} <= days("timers", NOW, end), "what is farther is not read"


async def check_watchdog(made: Explained) -> None:
    expected = [(row["job_id"], row["due_at"]) for row in made.due[:200]]
    job_ids = [job_id for job_id, _ in expected]
    for statement, call in {
        watch.SLICE: lambda tx: watch.active(tx, UUID(int=0), 1_000),
        watch.ARMED: lambda tx: watch.armed(tx, expected),
        watch.OVERDUE: lambda tx: watch.overdue(tx, job_ids, NOW),
        occurrences.ACCOUNTED: lambda tx: occurrences.accounted(tx, job_ids[0]),
        watch.COUNT: lambda tx: watch.count(tx, job_ids[0], NOW - DAY, 100, 1),
    }.items():
        plan = await made.plan(statement, call)
        assert plan.scans <= days("timers", NOW - DAY) | {"ledger_start"}, "which is empty"


CHECKS = [check for name, check in list(globals().items()) if name.startswith("check_")]


async def test_what_is_on_the_way_of_every_run_uses_its_index_and_its_partition(
    store: Store, subtests: pytest.Subtests
) -> None:
    made = Explained(store)
    await made.fill()
    async with store.transaction() as tx:
        _, made.due = await timers.due(tx, NOW - SECOND, NOW, OWNED, 1_000)
    for check in CHECKS:
        if check is not check_settle:
            with subtests.test(check.__name__):
                await check(made)


async def test_whoever_gives_slots_looks_only_at_who_gets_one(store: Store) -> None:
    made, few = Explained(store), {"tenants", "limits"}
    await made.fill()
    async with store.transaction() as tx:
        await tx.execute(OTHER_WAITING, NOW)
        explaining = ExplainingTx(tx)
        found = await caps.waiting(explaining, 1, ["host:1:9", "key:1:9", "tenant:1"], 100)
        assert {row["hold_key"] for row in found.rows} == {"key:1:9"}
        await caps.admit(explaining, found.rows)
        await caps.rekey(explaining, [(row, "host:1:9") for row in found.rows])
        for cap in ("host:1:9", "key:1:9", "tenant:1"):
            await caps.put_back(explaining, 1, cap)
        part = await caps.slice_after(explaining, RunKey(UUID(int=0), Kind.SCHEDULE, NOW), 50)
        await caps.unmarked(explaining, part, [1])
        await caps.mark(explaining, part, 1)
        plans = explaining.plans
    assert len(plans) >= 9
    for statement, plan in plans.items():
        assert not plan.scans - few, statement
    assert plans[caps.WAITING].indexes >= {"runs_hold_key", "runs_key_cap", "jobs_pkey"}
    assert plans[caps.MARK].indexes >= {"runs_pkey", "jobs_pkey"}


WAITING_FOR_EACH_OTHER = """
UPDATE runs SET hold = 'overlap', claimable = false,
       hold_key = 'job:1:' || left(replace(job_id::text, '-', ''), 1)
WHERE ctid = ANY (ARRAY(SELECT ctid FROM runs WHERE state = 'READY' AND hold IS NULL LIMIT 60))
"""


async def test_whoever_lets_the_next_run_of_a_job_go_looks_only_at_its_runs(store: Store) -> None:
    made = Explained(store)
    await made.fill()
    keys = [f"job:1:{digit:x}" for digit in range(16)]
    async with store.transaction() as tx:
        await tx.execute(WAITING_FOR_EACH_OTHER)
        explaining = ExplainingTx(tx)
        assert await overlaps.to_do(explaining, keys)
        await overlaps.supersede(explaining, keys)
        await overlaps.replace(explaining, keys)
        await overlaps.follow(explaining, keys)
        plans = explaining.plans
    assert len(plans) >= 5
    for statement, plan in plans.items():
        assert not plan.scans, statement
    assert plans[overlaps.NEXT].indexes >= {"runs_hold_key", "runs_pkey", "jobs_pkey"}


OLD_LETTERS = """
INSERT INTO dead_letters (job_id, occurrence_at, kind, tenant_id, reason, attempts, lease_version,
                          payload_version, target_host, dead_at)
SELECT gen_random_uuid(), $1, 0, t.id, 'timeout', 1, 1, 1, 'a.example',
       $1::timestamptz - n * interval '1 minute'
FROM tenants AS t, generate_series(1, 5000) AS n
"""
TENANTS = """
INSERT INTO tenants (name, signing_secrets, secrets_rotated_at, created_at)
SELECT n::text, '{}', $1, $1 FROM generate_series(1, 4) AS n
"""


async def test_counting_the_dead_letters_of_now_does_not_read_those_of_long_ago(
    store: Store,
) -> None:
    async with store.transaction() as tx:
        await tx.execute(TENANTS, NOW)
        await tx.execute(OLD_LETTERS, NOW)
    async with store.direct() as connection:
        await connection.execute("VACUUM ANALYZE dead_letters, tenants")
    async with store.transaction() as tx:
        explaining = ExplainingTx(tx, NOW)
        (found,) = await alerts.letters(explaining)
    plan = explaining.plans[alerts.LETTERS]
    assert found == ("timeout", 4 * 9, [])
    assert "dead_letters" not in plan.scans
    assert plan.indexes == {"dead_letters_tenant"}


OTHER_CHANGES = (
    """INSERT INTO pauses SELECT md5(n::text)::uuid, $1, 1, false,
              $1::timestamptz + n * interval '1 minute', 'me'
       FROM generate_series(1, 20000) AS n""",
    """INSERT INTO occurrence_ranges
       SELECT md5((n % 1000)::text)::uuid, at, at, 1, 1, 'SKIPPED', 'paused', 1, at, 'me'
       FROM generate_series(1, 20000) AS n,
            LATERAL (SELECT $1::timestamptz + n * interval '1 minute' AS at) AS a""",
    """INSERT INTO payload_versions SELECT md5(n::text)::uuid, 1, ''::bytea, NULL, 0, 'a/b'
       FROM generate_series(1, 20000) AS n WHERE $1::timestamptz IS NOT NULL""",
    """INSERT INTO schedule_versions
       SELECT md5(n::text)::uuid, 1, '{}', $1, $1::timestamptz + n * interval '1 minute'
       FROM generate_series(1, 20000) AS n""",
)


async def test_what_was_changed_of_other_jobs_costs_a_job_nothing(store: Store) -> None:
    made = Explained(store)
    await made.fill()
    async with store.transaction() as tx:
        for others in OTHER_CHANGES:
            await tx.execute(others, NOW)
        job = await tx.value("SELECT md5('77')::uuid")
    async with store.direct() as connection:
        await connection.execute(
            "VACUUM ANALYZE pauses, occurrence_ranges, payload_versions, schedule_versions"
        )
    async with store.transaction() as tx:
        explaining = ExplainingTx(tx, NOW)
        assert await pauses.one(explaining, job)
        assert not await pauses.due(explaining, 100)
        assert "pauses" not in await signs.look(explaining)
        assert len(await occurrence_ranges.ledger(explaining, job, 1, NOW + 400 * DAY, 0, 50)) == 20
        assert await changes.forget_schedules(explaining, 100) == 0
        assert await occurrence_ranges.forget(explaining, 100) == 0
        forgotten = await changes.forget_payloads(explaining, (UUID(int=0), 0), 500)
        assert (forgotten.rows, forgotten.cursor is None) == (500, False)
        plans = explaining.plans
    few = {"ledger_start", "tenants", "pending_bases", "operations", "replays", "endings"}
    for statement, plan in plans.items():
        assert not plan.scans - few, statement
    assert "pauses_until" in plans[pauses.DUE].indexes
    assert plans[changes.PAYLOADS].indexes >= {"payload_versions_pkey", "runs_pkey"}


# --- where statistics are behind, and where they are not ---------------------------------------


@pytest.mark.parametrize("known", [False, True])
async def test_after_a_burst_nothing_reads_all_runs_whether_statistics_know_of_it_or_not(
    store: Store, subtests: pytest.Subtests, known: bool
) -> None:
    async with store.transaction() as tx:
        await tx.execute(OTHER_RUNS, NOW)
        await seeds.ready(tx)
    async with store.direct() as connection:
        await connection.execute("DELETE FROM runs WHERE ctid < (SELECT max(ctid) FROM runs)")
        await connection.execute("VACUUM ANALYZE runs")  # a long file with one row in it
    async with store.transaction() as tx:
        await seeds.ready(tx, count=500)
        held = [runs.held_key(row) for row in await seeds.claim(tx, limit=500)]
        # (Known, of one priority: so many are expected that reading all is the cheaper join.)
        burst = OTHER_RUNS.replace("n % 10", "5") if known else OTHER_RUNS
        await tx.execute(burst, NOW + SECOND)
        if known:
            await tx.execute("ANALYZE runs")
    ended = [Ended(*each, "FAILED", 500, None, False, None, None) for each in held]
    floors = Floors().each()
    calls: dict[str, Callable[[Tx], Awaitable[object]]] = {
        runs.CLAIM: lambda tx: runs.claim(tx, "default", seeds.ranges(), 500, seeds.WORKER),
        runs.HEARTBEAT: lambda tx: runs.heartbeat(tx, [(each, 60) for each in held]),
        runs.COMPLETE: lambda tx: runs.complete(tx, ended[:100]),
        runs.RETRY: lambda tx: runs.retry(tx, [(each, SECOND) for each in ended[100:200]]),
        runs.DEAD_LETTER: lambda tx: runs.dead_letter(
            tx, [(each, "transient", "f") for each in ended[200:300]]
        ),
        runs.RELEASE: lambda tx: runs.release(tx, ended[300:400]),
        runs.HAND_BACK: lambda tx: runs.hand_back(tx, held[400:430]),
        runs.STOP: lambda tx: runs.stop(tx, ended[430:460]),
        holds.HOLD: lambda tx: holds.hold(tx, [(each, "breaker", "k") for each in held[460:480]]),
        cancels.END: lambda tx: cancels.end(tx, held[400:]),
        runs.HELD_SINCE: lambda tx: runs.held_since(tx, "default", floors, seeds.WORKER, NOW),
    }
    for statement, call in calls.items():
        with subtests.test(statement):
            async with store.transaction() as tx:
                explaining = ExplainingTx(tx)
                await call(explaining)
            plan = explaining.plans[statement]
            assert "runs" not in plan.scans
            assert plan.uses.count("runs_claim") <= 1


# Of each instant and shard there are a few.
LATE_TIMERS = """
INSERT INTO timers (job_id, occurrence_at, due_at, schedule_version, seq, shard)
SELECT md5('late' || n)::uuid, at, at, 1, 1, n % 64 FROM generate_series($2::int, $3::int) AS n,
     LATERAL (SELECT $1::timestamptz + n / 256 * interval '1 ms' AS at) AS due
"""


async def test_of_what_is_late_no_more_than_a_batch_is_read_however_much_there_is(
    store: Store,
) -> None:
    since, until = NOW - SECOND, NOW
    place = Place(since, 20, UUID(int=0))
    looks: dict[str, Callable[[Tx], Awaitable[object]]] = {
        timers.DUE: lambda tx: timers.due(tx, since, until, OWNED, 250),
        timers.BEYOND: lambda tx: timers.beyond(tx, place, until, OWNED, 250),
        late.COUNT: lambda tx: tx.one(late.COUNT, until, 250),
    }
    found = []
    for start, end in ((1, 2_000), (2_001, 40_000)):
        async with store.transaction() as tx:
            await tx.execute(LATE_TIMERS, since, start, end)
        async with store.direct() as connection:
            await connection.execute("VACUUM ANALYZE timers")
        found.append({name: await pages(store, name, call) for name, call in looks.items()})
    few, many = found
    for look, read in many.items():
        assert read <= few[look] + 30, look


# --- whole batches ----------------------------------------------------------------------------


async def test_no_batch_compares_each_of_its_rows_with_each(
    store: Store, subtests: pytest.Subtests
) -> None:
    """What returns rows (a DELETE, say) is planned as if it returned one; hundreds do come."""
    async with store.transaction() as tx:
        fired_jobs = await seeds.armed(tx, seeds.every(60, NOW), NOW, count=500)
        triggered = await seeds.armed(tx, seeds.every(60, NOW), NOW + DAY, count=500)
        await seeds.ready(tx, count=500)
        held = [runs.held_key(row) for row in await seeds.claim(tx, limit=500)]
    fired = [seeds.fired(job, NOW) for job in fired_jobs]
    entries = [seeds.open_entry(job, NOW, overlap="skip") for job in fired_jobs]
    rearm = [Timer(job, NOW + DAY, NOW + DAY, 1, 1, shard_of(job)) for job in fired_jobs]
    opened = [occurrences.Opening(each, NOW, 1, 1, NOW, 1, "default", 5) for each in triggered]
    ended = [Ended(*each, "FAILED", 500, None, False, None, None) for each in held]
    calls: dict[str, Callable[[Tx], Awaitable[object]]] = {
        occurrences.MATERIALIZE: lambda tx: occurrences.materialize(tx, fired, entries, rearm, NOW),
        occurrences.OPEN: lambda tx: occurrences.open_now(tx, opened, NOW),
        runs.HEARTBEAT: lambda tx: runs.heartbeat(tx, [(each, 60) for each in held]),
        runs.COMPLETE: lambda tx: runs.complete(tx, ended),
        runs.RETRY: lambda tx: runs.retry(tx, [(each, SECOND) for each in ended]),
        runs.DEAD_LETTER: lambda tx: runs.dead_letter(
            tx, [(each, "transient", "f") for each in ended]
        ),
        runs.RELEASE: lambda tx: runs.release(tx, ended),
        runs.HAND_BACK: lambda tx: runs.hand_back(tx, held),
        runs.STOP: lambda tx: runs.stop(tx, ended),
        holds.HOLD: lambda tx: holds.hold(tx, [(each, "breaker", "k") for each in held]),
        cancels.END: lambda tx: cancels.end(tx, held),
    }
    for statement, call in calls.items():
        with subtests.test(statement):
            assert await compared(store, statement, call) <= 500


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
    written = {"state", "worker_id", "leased_at", "locked_until", "lease_version", "attempt"}
    assert not indexed & written
    assert {"lane", "priority", "rank", "claimable", "retry_at", "hold_key"} <= indexed


# An autoanalyze of what was just filled holds a snapshot, and nothing is pruned meanwhile.
NO_AUTOVACUUM = """
DO $$ BEGIN
    EXECUTE (
        SELECT string_agg(
            format('ALTER TABLE %s SET (autovacuum_enabled = off)', oid::regclass), ';')
        FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace);
END $$
"""


async def test_claims_and_heartbeats_of_whole_pages_are_hot(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.execute(NO_AUTOVACUUM)
    async with store.transaction() as tx:
        await seeds.ready(tx, count=2_000)
    for _ in range(4):
        async with store.transaction() as tx:
            claimed = [runs.held_key(row) for row in await seeds.claim(tx, limit=500)]
            await expect_hot(tx, 500)
        # While others are at work on the server, a page is not always pruned in passing.
        async with store.direct() as connection:
            await connection.execute("VACUUM runs")
        async with store.transaction() as tx:
            assert len(await runs.heartbeat(tx, [(lease, 60) for lease in claimed])) == 500
            await expect_hot(tx, 500)


async def expect_hot(tx: Tx, count: int) -> None:
    """All updates of this transaction left the indexes alone."""
    before = await tx.one(IN_PLACE)
    assert before["n_tup_upd"] >= count
    assert before["n_tup_upd"] == before["n_tup_hot_upd"]
