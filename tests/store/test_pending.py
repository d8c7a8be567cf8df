"""Pending jobs are counted rightly, whatever happens while they are, and whoever dies."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import aiohttp
import pytest

from noonday.domain.model import Outcome, OutcomeKind
from noonday.loops import pending as recounts
from noonday.loops.operations import Operations
from noonday.loops.pending import Recount
from noonday.loops.replays import Replays
from noonday.store import Store, Tx, pending
from noonday.store.backlogs import Backlogs
from noonday.store.pending import Standing
from noonday.store.secretbox import SecretBox
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics
from tests.support.database_locks import value
from tests.support.scripted import Parts, Scripted, carry_out
from tests.support.servers import EVERY_HOUR, NOW, Api, Client, a_context, a_job, running_api

SECOND = timedelta(seconds=1)
FAILURE = Outcome(OutcomeKind.PERMANENT, http_status=400)
TENANT = "SELECT id FROM tenants WHERE name = 'alpha'"


class Counted:
    """A tenant with a quota of pending jobs, and processes that note what becomes of them."""

    def __init__(self, api: Api, parts: Parts, start: datetime, tenant: int) -> None:
        self.api = api
        self.parts = parts
        self.start = start
        self.tenant = tenant
        self.backlogs = api.context.backlogs
        self.recounts = Recount(api.store, Metrics(), leads=lambda: True)

    def at(self, seconds: float) -> None:
        """Let it be so late."""
        self.api.store.now = self.start + seconds * SECOND

    async def pending(self) -> int | None:
        """What a process knows that has nothing but what was written."""
        await self.backlogs.tick()
        found = await Backlogs(self.api.store, uuid4()).standing(self.tenant)
        return None if found is None else found.pending

    async def recount(self) -> None:
        """Until the next recount that is due has come to its end."""
        while await self.recounts.tick():
            pass


@pytest.fixture
async def api(store: Store, tmp_path: Path) -> AsyncIterator[Api]:
    """With the key that workers open secrets with."""
    context = a_context(store, tmp_path / "blobs", secretbox=SecretBox([bytes(32)]))
    async with running_api(context) as running:
        yield running


@pytest.fixture
async def counted(api: Api, store: Store, tmp_path: Path) -> AsyncIterator[Counted]:
    """At 0 s the quota is set; what is there by 60 s has been counted, and the clock shows 80 s."""
    start = pending.bucket_of(await value(store, "SELECT now()"))
    tenant = await value(store, TENANT)
    parts = Parts(store, tmp_path / "of workers", api.context.backlogs)
    made = Counted(api, parts, start, tenant)
    made.at(0)
    answer = await api.admin.call("PATCH", "/v1/tenants/alpha", {"max_pending_jobs": 1_000})
    assert answer.status == 200
    made.at(80)
    await made.recount()
    assert await made.pending() == 0
    yield made
    parts.close()


async def test_what_is_noted_is_what_a_recount_finds(counted: Counted) -> None:
    api = counted.api
    once = [await api.admin.create() for _ in range(4)]
    hourly = [await api.admin.create(schedule=EVERY_HOUR) for _ in range(3)]
    await api.admin.post("/v1/jobs:batch", {"jobs": [{"job": a_job()}] * 5})
    assert await counted.pending() == 12
    await api.admin.delete(f"/v1/jobs/{once[0]}")
    await api.admin.delete(f"/v1/jobs/{once[0]}")
    await api.admin.delete(f"/v1/jobs/{hourly[0]}")
    assert await counted.pending() == 10
    counted.at(500)
    await counted.recount()
    assert await counted.pending() == 10
    assert await value(api.store, "SELECT jobs FROM pending_bases") == 10


async def test_a_one_off_job_ends_with_its_run_and_a_recurring_one_does_not(
    counted: Counted,
) -> None:
    api = counted.api
    for schedule in (NOW, NOW, EVERY_HOUR):
        job = await api.admin.create(schedule=schedule)
    await api.admin.post(f"/v1/jobs/{job}/trigger")
    assert await counted.pending() == 3
    worker = counted.parts.worker(Scripted())
    assert await carry_out(worker) == 3
    assert await counted.pending() == 1
    counted.at(500)
    await counted.recount()
    assert await counted.pending() == 1


async def test_a_job_that_fails_for_good_has_ended_until_it_is_replayed(counted: Counted) -> None:
    api, store = counted.api, counted.api.store
    await api.admin.create(schedule=NOW)
    worker = counted.parts.worker(Scripted(FAILURE))
    assert await carry_out(worker) == 1
    assert await counted.pending() == 0
    counted.at(90)
    assert (await api.admin.post("/v1/dlq/replays", {"filter": {}})).status == 202
    replays = Replays(store, Metrics(), Wakeups(store), backlogs=counted.backlogs)
    assert await replays.tick() == 1
    assert await counted.pending() == 1
    counted.at(500)
    await counted.recount()
    assert await counted.pending() == 1


async def test_a_lease_that_runs_out_for_the_last_time_ends_its_job(counted: Counted) -> None:
    policy = {"max_attempts": 1}
    await counted.api.admin.create(schedule=NOW, retry_policy=policy)
    worker = counted.parts.worker(Scripted())
    await worker.tick()
    counted.at(300)
    assert await counted.parts.reaper().tick() == 1
    assert await counted.pending() == 0
    counted.at(600)
    await counted.recount()
    assert await counted.pending() == 0


async def test_a_cancelled_job_whose_attempt_runs_is_pending_until_that_ends(
    counted: Counted,
) -> None:
    job = await counted.api.admin.create(schedule=NOW)
    worker = counted.parts.worker(Scripted(Outcome(OutcomeKind.TRANSIENT, http_status=503)))
    await worker.tick()
    await counted.api.admin.delete(f"/v1/jobs/{job}")
    assert await counted.pending() == 1
    await carry_out(worker)  # it would be tried again, had it not been cancelled
    assert await counted.pending() == 0


async def test_a_run_that_is_cancelled_ends_its_job(counted: Counted) -> None:
    job = await counted.api.admin.create(schedule=NOW)
    (run,) = (await counted.api.admin.get(f"/v1/jobs/{job}/occurrences")).body["data"]
    assert (await counted.api.admin.post(f"/v1/runs/{run['run_id']}/cancel")).status == 200
    assert await counted.pending() == 0


async def test_a_job_that_waited_in_vain_has_ended(counted: Counted) -> None:
    create = counted.api.admin.create
    parent = await create(schedule=NOW)
    for on in ("success", "any"):
        await create(schedule=NOW, after={"jobs": [parent], "on": on})
    assert await counted.pending() == 3
    worker = counted.parts.worker(Scripted(FAILURE))
    assert await carry_out(worker) == 1
    assert await counted.parts.dependents().tick() > 0
    assert await counted.pending() == 1
    await create(schedule=NOW, after={"jobs": [parent], "on": "success"})
    await counted.parts.dependents().tick()
    assert await counted.pending() == 1
    counted.at(500)
    await counted.recount()
    assert await counted.pending() == 1


async def test_jobs_that_are_cancelled_by_a_filter_have_ended(counted: Counted) -> None:
    for n in range(3):
        await counted.api.admin.create(name=f"old-{n}")
    await counted.api.admin.create(name="new")
    body = {"filter": {"name_prefix": "old-"}}
    assert (await counted.api.admin.post("/v1/jobs:cancel", body)).status == 202
    await Operations(counted.api.store, counted.backlogs).tick()
    assert await counted.pending() == 1


async def test_a_job_that_comes_too_late_has_ended(counted: Counted) -> None:
    run_at = (counted.start + 100 * SECOND).isoformat()
    schedule = {"type": "once", "run_at": run_at, "grace_sec": 1}
    await counted.api.admin.create(schedule=schedule)
    assert await counted.pending() == 1
    counted.at(200)
    scheduler = counted.parts.scheduler()
    await scheduler.keep_shards()
    assert await scheduler.tick() == 1
    assert await counted.pending() == 0


async def test_a_job_that_cannot_be_computed_has_ended(counted: Counted) -> None:
    schedule = {"type": "once", "delay": "PT10S"}
    job = await counted.api.admin.create(schedule=schedule)
    async with counted.api.store.transaction() as tx:
        await tx.execute("UPDATE jobs SET spec = '{}' WHERE id = $1", UUID(job))
    counted.at(100)
    scheduler = counted.parts.scheduler()
    await scheduler.keep_shards()
    await scheduler.tick()
    assert await value(counted.api.store, "SELECT state FROM jobs") == "SUSPENDED"
    assert await counted.pending() == 0


async def test_what_happens_while_it_is_counted_is_counted_once(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recounts, "SLICE", 4)
    monkeypatch.setattr(recounts, "SLICES", 1)
    api = counted.api
    jobs = [await api.admin.create() for _ in range(20)]
    counted.at(500)
    assert await counted.recounts.tick() == 1, "the first four have been looked at"
    for job in (*jobs[:3], *jobs[8:12]):  # before and after where it is
        await api.admin.delete(f"/v1/jobs/{job}")
    await api.admin.create()
    await counted.recount()
    assert await value(api.store, "SELECT jobs FROM pending_bases") == 20, "as of when it began"
    assert await counted.pending() == 14
    counted.at(900)
    await counted.recount()
    assert await value(api.store, "SELECT jobs FROM pending_bases") == 14


async def test_a_quota_that_is_set_later_begins_with_all_that_is_there(
    api: Api, store: Store
) -> None:
    start = pending.bucket_of(await value(store, "SELECT now()"))
    store.now = start
    jobs = [await api.admin.create() for _ in range(3)]
    await api.admin.delete(f"/v1/jobs/{jobs[0]}")
    await api.admin.call("PATCH", "/v1/tenants/alpha", {"max_pending_jobs": 3})
    recount = Recount(store, Metrics(), leads=lambda: True)
    store.now = start + 15 * SECOND
    assert await recount.tick() == 0, "some process may not note them yet"
    await api.context.backlogs.tick()
    store.now = start + 21 * SECOND
    await api.admin.create()
    store.now = start + 40 * SECOND
    assert await recount.tick() == 1
    await api.context.backlogs.tick()
    refused = await api.admin.post("/v1/jobs", a_job())
    assert (refused.status, refused.code) == (429, "pending_jobs_exceeded")
    await api.admin.call("PATCH", "/v1/tenants/alpha", {"max_pending_jobs": None})
    assert (await api.admin.post("/v1/jobs", a_job())).status == 202
    assert await value(store, "SELECT count(*) FROM pending_bases") == 0


async def test_what_a_killed_process_had_not_written_is_found_by_the_recount(
    counted: Counted, database_url: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.servers", database_url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    async with aiohttp.ClientSession() as session:
        other = Client(session, address, counted.api.admin.token)
        for _ in range(5):
            await other.create()
    process.kill()
    await process.wait()
    assert await counted.pending() == 0, "it had noted them, and died"
    counted.at(600)
    await counted.recount()
    assert await counted.pending() == 5


async def test_only_who_leads_counts(counted: Counted) -> None:
    counted.at(600)
    assert await Recount(counted.api.store, Metrics(), leads=lambda: False).tick() == 0


async def test_what_was_counted_in_is_let_go_of(counted: Counted) -> None:
    await counted.api.admin.create()
    assert await counted.pending() == 1
    rows = "SELECT count(*) FROM pending_counts"
    assert await value(counted.api.store, rows) == 1
    for seconds in (600, 1_200):
        counted.at(seconds)
        await counted.recount()
    assert await value(counted.api.store, rows) == 0
    assert await counted.pending() == 1


async def test_a_process_that_writes_twice_counts_once(counted: Counted, tmp_path: Path) -> None:
    store = counted.api.store
    context = a_context(store, tmp_path / "another")
    async with running_api(context) as other:
        await other.admin.create()
        await context.backlogs.tick()
        context.backlogs._unwritten = set(context.backlogs._noted)  # as if the answer was lost
        await context.backlogs.tick()
    assert await counted.pending() == 1


async def test_tenants_without_the_quota_leave_no_trace(api: Api) -> None:
    await api.context.backlogs.tick()
    job = await api.admin.create()
    await api.admin.delete(f"/v1/jobs/{job}")
    await api.context.backlogs.tick()
    assert await value(api.store, "SELECT count(*) FROM pending_counts") == 0


async def test_many_who_ask_first_at_the_same_time_look_once(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = [], pending.standing

    async def counting(tx: Tx, tenants: Sequence[int]) -> dict[int, Standing]:
        looks.append(list(tenants))
        return await look(tx, tenants)

    monkeypatch.setattr(pending, "standing", counting)
    backlogs = Backlogs(counted.api.store, uuid4())
    found = await asyncio.gather(*(backlogs.standing(counted.tenant) for _ in range(50)))
    assert looks == [[counted.tenant]]
    assert len(set(found)) == 1
