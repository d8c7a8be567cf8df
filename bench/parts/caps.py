"""What caps cost: serialising one key, and the next start where very many wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from bench import harness
from bench.figures import Figures, Rows, per_job, spread
from bench.harness import Service
from bench.options import Options
from noonday.domain.caps import key_cap, tenant_cap
from noonday.domain.lane_clock import LaneClock
from noonday.domain.model import Attempt, HttpTarget, Outcome, OutcomeKind
from noonday.domain.pools import Pool
from noonday.domain.ranking import Floors
from noonday.executors import Sent
from noonday.loops import Loop
from noonday.loops.admitting import Admitting
from noonday.loops.worker import Worker
from noonday.store import Store, caps, limits, locks, runs
from noonday.store.blobs import LocalBlobs
from noonday.store.limits import Limit
from noonday.store.secretbox import read_key_file
from noonday.store.signing import SigningKeys
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics

TENANT = 1
OTHER_TENANT = 2
WAITING = 1_000_000
AT_ONCE = 25_000
"""Runs that are made by one statement, so that it stays within its time."""
SUCCESS = Outcome(OutcomeKind.SUCCESS, http_status=200)

# One job, and a run of it for each microsecond.
JOB = """
INSERT INTO jobs (id, tenant_id, created_at, created_by, schedule_type, first_at, name, lane,
                  priority, lease_sec, target_host, labels, spec, payload, payload_bytes,
                  content_type, concurrency_key)
VALUES ($1, $3, now(), 'bench', 'once', now(), 'bench', 'default', 5, 60, '127.0.0.1', '{}',
        '{"schedule":{"type":"once","run_at":"2026-01-01T00:00:00Z"},
          "target":{"type":"http","url":"http://127.0.0.1:1/"}}', '', 0, 'text/plain', $2)
"""
RUNS = """
WITH ledger AS (
    INSERT INTO occurrences (job_id, occurrence_at, kind, tenant_id, due_at, materialized_at,
                             attempts)
    SELECT $1, now() + n * interval '1 microsecond', 1, $4, now(), now(), 0
    FROM generate_series(1, $2) AS n
    RETURNING job_id, occurrence_at
)
INSERT INTO runs (job_id, occurrence_at, kind, tenant_id, payload_version, lane, priority, rank,
                  state, claimable, due_at, ready_at, hold, hold_key, key_cap, tenant_cap)
SELECT job_id, occurrence_at, 1, $4, 1, 'default', 5, now(), 'READY', false, now(), now(), 'cap',
       $3, CASE WHEN starts_with($3, 'key') THEN $3 END,
       CASE WHEN starts_with($3, 'tenant') THEN $3 END
FROM ledger
"""


class Working:
    """An executor whose attempts take a while."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def cancel(self, attempt: Attempt, url: str, reason: str = "") -> Outcome:
        return SUCCESS

    async def execute(self, attempt: Attempt, sent: Sent) -> Outcome:
        sent.maybe = True
        if self._seconds:
            await asyncio.sleep(self._seconds)
        return SUCCESS


@asynccontextmanager
async def _worker(running: Service, store: Store, seconds: float) -> AsyncIterator[None]:
    metrics = Metrics()
    worker = Worker(
        store, store, uuid4(), "bench", executors={HttpTarget: Working(seconds)},
        blobs=LocalBlobs(running.settings.blobs_folder),
        keys=SigningKeys(store, read_key_file(running.settings.secret_key_path)),
        metrics=metrics, plan=[Pool(("default",), 64)],
    )  # fmt: skip
    admitting = Admitting(store, metrics, Wakeups(store))
    loops = [
        Loop("claim", worker.tick, metrics),
        Loop("settle", worker.settling.tick, metrics),
        Loop("caps", admitting.tick, metrics),
    ]
    worker.wake_claim, worker.settling.wake = lambda _: loops[0].wake(), loops[1].wake
    admitting.wake, admitting.admitted = loops[2].wake, loops[0].wake
    for loop in loops:
        loop.start()
    yield
    for loop in loops:
        await loop.finish()


async def one_key(options: Options) -> Rows:
    """Runs of one concurrency key, limited to 1 and to 5, in one worker process."""
    found: Rows = {}
    async with harness.service(options) as running:
        store = await running.store(6)
        for most in (1, 5):
            for seconds in (0.0, 0.05):
                full = 1_000 if not seconds else 200 * most
                count = options.pick(full, 100)
                cap = key_cap(TENANT, f"{most} {seconds}")
                job = uuid4()
                async with store.transaction() as tx:
                    await limits.put(tx, TENANT, "key", cap.split(":", 2)[2], Limit(most))
                    await tx.execute(JOB, job, cap.split(":", 2)[2], TENANT)
                    await tx.execute(RUNS, job, count, cap, TENANT)
                before, used = await running.usage(store), time.process_time()
                began = time.perf_counter()
                async with _worker(running, store, seconds):
                    store.caps_moved({cap})
                    await _until(store, "SELECT NOT EXISTS (SELECT FROM runs)")
                    taken = time.perf_counter() - began
                rows = per_job(count, taken, before, await running.usage(store))
                rows["noonday_us"] = (time.process_time() - used) / count * 1e6
                rows["generator_us"] = 0.0
                if seconds:
                    rows["of_possible"] = count * seconds / most / taken
                found[f"key of {most}, runs of {seconds * 1e3:.0f} ms"] = rows
        await store.close()
    return found


async def many_waiting(options: Options) -> Rows:
    """The next start of a tenant with a cap of 1 while a million of its runs wait."""
    count, took = options.pick(200, 20), list[float]()
    waiting = options.pick(WAITING, WAITING // 20)
    claims: dict[str, list[float]] = {"before": [], "beside": []}
    async with harness.service(options) as running:
        store = await running.store(2)
        cap, job = tenant_cap(TENANT), uuid4()
        async with store.transaction() as tx:
            await tx.execute(JOB, job, None, TENANT)
            await limits.put_own(tx, TENANT, 1)
        await _claims(store, claims["before"])
        for start in range(0, waiting, AT_ONCE):
            async with store.transaction() as tx:
                await tx.execute(RUNS, job, min(AT_ONCE, waiting - start), cap, TENANT)
        for _ in range(count):
            began = time.perf_counter()
            async with store.transaction() as tx:
                await locks.own_tenant(tx, TENANT, to_give=True)
                found = await caps.waiting(tx, TENANT, [cap], 200)
                if await caps.admit(tx, found.rows) != 1:
                    raise RuntimeError("nobody was let go")
            took.append(time.perf_counter() - began)
            async with store.transaction() as tx:
                await tx.execute("DELETE FROM runs WHERE claimable")
        await _claims(store, claims["beside"])
        await store.close()
    return {
        f"next start, {waiting:,} wait": _timed(took),
        **{f"another's claim, {when} them": _timed(each) for when, each in claims.items()},
    }


def _timed(took: list[float]) -> Figures:
    return {"count": len(took), "per_sec": len(took) / sum(took)} | spread(took)


async def _claims(store: Store, took: list[float]) -> None:
    """How long claims of another tenant take, one run each."""
    job = uuid4()
    async with store.transaction() as tx:
        await tx.execute(JOB, job, None, OTHER_TENANT)
        await tx.execute(RUNS, job, 100, "nothing", OTHER_TENANT)
        await tx.execute(
            "UPDATE runs SET hold = NULL, hold_key = NULL, claimable = true WHERE tenant_id = 2"
        )
    for _ in range(100):
        began = time.perf_counter()
        async with store.transaction() as tx:
            await runs.claim(tx, "default", LaneClock().ranges(Floors().each()), 1, uuid4())
        took.append(time.perf_counter() - began)
    async with store.transaction() as tx:
        await tx.execute("DELETE FROM runs WHERE tenant_id = 2")


async def _until(store: Store, query: str) -> None:
    while True:
        async with store.transaction() as tx:
            if await tx.value(query):
                return
        await asyncio.sleep(0.02)
