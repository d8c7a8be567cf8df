"""A 202 means that the job is in the database, and only what is there is answered with 202."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from noonday.api.app import create_app
from noonday.api.commits import MOST, MOST_OPEN, TRANSACTIONS
from noonday.domain.roles import Role
from noonday.listening import bind, serving
from noonday.store import Store
from tests.support.database_locks import locked, until, until_blocked, value
from tests.support.links import Fault, Link
from tests.support.servers import (
    EVERY_HOUR,
    NIGHTLY,
    NOW,
    Api,
    Client,
    a_context,
    a_job,
    new_key,
    running_api,
)

COUNT = "SELECT count(*)::int FROM jobs"


async def test_many_posts_share_few_transactions(api: Api) -> None:
    answers = await asyncio.gather(*(api.admin.post("/v1/jobs", a_job()) for _ in range(200)))
    assert {answer.status for answer in answers} == {202}
    ids = {answer.body["id"] for answer in answers}
    assert len(ids) == await value(api.store, COUNT) == 200
    transactions = await value(api.store, "SELECT count(DISTINCT xmin::text) FROM jobs")
    assert transactions <= 60


async def test_a_batch_of_one_tenant_holds_up_no_job_of_another(api: Api) -> None:
    other = await api.client(Role.SUBMITTER, "beta")
    batch = {"atomic": False, "jobs": [{"job": a_job()}] * 1_000}
    async with locked(api.store, "jobs"):
        flood = [asyncio.create_task(api.admin.post("/v1/jobs:batch", batch)) for _ in range(4)]
        await until_blocked(api.store, TRANSACTIONS)
        payment = asyncio.create_task(other.create())
        for _ in range(3):  # answered after the payment was taken in
            await other.get("/v1/jobs")
    await asyncio.gather(*flood)
    later = """SELECT count(*) FROM jobs AS a JOIN jobs AS b ON b.id = $1::text::uuid
               WHERE a.xmin::text::bigint > b.xmin::text::bigint"""
    async with api.store.transaction() as tx:
        # Ahead of it is at most what was under way when it came, and what began beside it.
        assert await tx.value(later, await payment) >= 4_000 - 3 * TRANSACTIONS * MOST


async def test_a_job_comes_with_its_timer_or_its_run(api: Api) -> None:
    later, recurring, now = [
        await api.admin.create(schedule=schedule)
        for schedule in ({"type": "once", "delay": "PT1H"}, NIGHTLY, NOW)
    ]
    timers = "SELECT array_agg(job_id::text ORDER BY job_id) FROM timers"
    assert await value(api.store, timers) == sorted((later, recurring))
    assert await value(api.store, "SELECT array_agg(job_id::text) FROM runs") == [now]
    opened = "SELECT array_agg(job_id::text) FROM occurrences WHERE outcome IS NULL AND kind = 0"
    assert await value(api.store, opened) == [now]


async def test_a_recurring_job_that_is_due_now_runs_and_is_armed_for_the_next_time(
    api: Api,
) -> None:
    job_id = await api.admin.create(schedule=EVERY_HOUR)
    async with api.store.transaction() as tx:
        run = await tx.one("SELECT occurrence_at FROM runs WHERE job_id = $1::text::uuid", job_id)
        timer = await tx.one("SELECT * FROM timers WHERE job_id = $1::text::uuid", job_id)
    assert (timer["occurrence_at"] - run["occurrence_at"]).total_seconds() == 3600
    assert timer["seq"] == 2


async def test_a_job_that_is_out_of_its_grace_is_left_to_the_scheduler(api: Api) -> None:
    run_at = await value(api.store, "SELECT to_json(now() - interval '1 hour') #>> '{}'")
    await api.admin.create(schedule={"type": "once", "run_at": run_at, "grace_sec": 60})
    await api.admin.create(schedule={"type": "once", "run_at": run_at})
    assert await value(api.store, "SELECT count(*) FROM timers WHERE due_at <= now()") == 1
    assert await value(api.store, "SELECT count(*) FROM runs") == 1


async def test_what_the_ledger_does_not_reach_back_to_is_refused(api: Api) -> None:
    answer = await api.admin.post(
        "/v1/jobs", a_job(schedule={"type": "once", "run_at": "1999-01-01T00:00:00Z"})
    )
    assert answer.status == 422
    (error,) = answer.body["errors"]
    assert (error["pointer"], error["code"]) == ("/schedule/run_at", "before_ledger")
    assert await value(api.store, COUNT) == 0


async def test_a_job_that_the_database_refuses_fails_alone(api: Api) -> None:
    async with api.store.transaction() as tx:
        await tx.execute("ALTER TABLE jobs ADD CONSTRAINT picky CHECK (name <> 'bad')")
    names = ["good"] * 30 + ["bad"] + ["good"] * 30
    answers = await asyncio.gather(*(api.admin.post("/v1/jobs", a_job(name=n)) for n in names))
    assert [answer.status for answer in answers] == [202] * 30 + [422] + [202] * 30
    assert answers[30].code == "refused"
    assert await value(api.store, COUNT) == 60


@pytest.mark.parametrize(
    ("fault", "status", "jobs"), [("after commit", 202, 20), ("before commit", 503, 0)]
)
async def test_when_the_answer_to_a_commit_is_lost_the_database_is_asked(
    database_url: str, store: Store, tmp_path: Path, fault: Fault, status: int, jobs: int
) -> None:
    async with Link(database_url).open() as link:
        over_link = await Store.open(link.url, size=4)
        async with running_api(a_context(over_link, tmp_path)) as api:
            await api.admin.get("/v1/jobs")
            link.fault = fault
            batch = {"atomic": True, "jobs": [{"job": a_job()}] * 20}
            answer = await api.admin.post("/v1/jobs:batch", batch)
            assert (answer.status, link.cuts) == (status, 1)
            if status == 503:
                assert answer.headers["retry-after"] == "1"
            assert await value(store, COUNT) == jobs
            link.fault = fault
            answer = await api.admin.post("/v1/jobs", a_job(), idempotency_key="k")
            assert (answer.status, link.cuts) == (status, 2)
            again = await api.admin.post("/v1/jobs", a_job(), idempotency_key="k")
            assert again.status == 202
            assert ("idempotent-replayed" in again.headers) == (status == 202)
            assert await value(store, COUNT) == jobs + 1
        await over_link.close()


async def test_without_a_database_nothing_is_promised(database_url: str, tmp_path: Path) -> None:
    async with Link(database_url).open() as link:
        over_link = await Store.open(link.url, size=4)
        async with running_api(a_context(over_link, tmp_path)) as api:
            await api.admin.create()
            link.fault = "down"
            answer = await api.admin.post("/v1/jobs", a_job())
            assert (answer.status, answer.code) == (503, "unavailable")
            assert answer.headers["retry-after"] == "1"
            batch = await api.admin.post("/v1/jobs:batch", {"jobs": [{"job": a_job()}] * 3})
            assert (batch.status, batch.code) == (503, "unavailable")
            assert (await api.anonymous().get("/healthz")).status == 200
            link.fault = "none"
            await api.admin.create()
        await over_link.close()


async def test_a_queue_that_is_full_turns_requests_away_and_keeps_what_it_took(
    store: Store, tmp_path: Path
) -> None:
    async with running_api(a_context(store, tmp_path)) as api:
        batch = {"jobs": [{"job": a_job()}] * 1000}
        async with locked(store, "jobs"):
            calls = [
                asyncio.create_task(api.admin.post("/v1/jobs:batch", batch))
                for _ in range(MOST_OPEN // 1000 + 1)
            ]
            await until_blocked(store)
            # All batches are in when the last of them has been turned away in part.
            single = await api.admin.post("/v1/jobs", a_job())
            while single.status == 202:
                single = await api.admin.post("/v1/jobs", a_job())
        assert (single.status, single.code) == (503, "overloaded")
        results = [item for call in calls for item in (await call).body["results"]]
        taken = [item for item in results if item["status"] == 202]
        assert {item["status"] for item in results} == {202, 503}
        assert len(taken) == await value(store, COUNT) == MOST_OPEN


async def test_a_server_that_stops_finishes_what_it_took(store: Store, tmp_path: Path) -> None:
    context = a_context(store, tmp_path)
    token = await new_key(context, Role.ADMIN)
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    async with AsyncExitStack() as lock, aiohttp.ClientSession() as session:
        async with serving(create_app(context), listener) as address:
            client = Client(session, address, token)
            await client.get("/v1/jobs")
            await lock.enter_async_context(locked(store, "jobs"))
            call = asyncio.create_task(client.post("/v1/jobs", a_job()))
            await until_blocked(store)

            async def unlock_when_it_stops() -> None:
                await until(lambda: refused(port))
                await lock.aclose()

            unlocking = asyncio.create_task(unlock_when_it_stops())
        await unlocking
        assert (await call).status == 202
    assert await value(store, COUNT) == 1


async def refused(port: int) -> bool:
    """Whether nobody listens."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return True
    writer.close()
    return False
