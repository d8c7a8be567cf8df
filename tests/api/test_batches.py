"""A batch of jobs: each result in its order, and with ``atomic`` all of them or none."""

from __future__ import annotations

import asyncio
from typing import Any

from noonday.domain.roles import Role
from tests.support.database_locks import locked, until_blocked, value
from tests.support.servers import Api, a_job

COUNT = "SELECT count(*)::int FROM jobs"


def batch(*jobs: Any, atomic: bool = False) -> dict[str, Any]:
    items = [job if "job" in job else {"job": job} for job in jobs]
    return {"atomic": atomic, "jobs": items}


def keyed(key: str, **changes: Any) -> dict[str, Any]:
    return {"idempotency_key": key, "job": a_job(**changes)}


async def test_each_job_has_its_own_result_in_the_order_of_the_request(api: Api) -> None:
    jobs = [a_job(name=f"n{n}", **({"priority": 99} if n % 3 == 1 else {})) for n in range(600)]
    answer = await api.admin.post("/v1/jobs:batch", batch(*jobs))
    assert answer.status == 202
    results = answer.body["results"]
    assert [result["index"] for result in results] == list(range(600))
    for n, result in enumerate(results):
        if n % 3 == 1:
            assert (result["status"], result["problem"]["code"]) == (422, "invalid")
            assert result["problem"]["errors"][0]["pointer"] == "/priority"
        else:
            assert (result["status"], result["job"]["name"]) == (202, f"n{n}")
            assert result["location"] == f"/v1/jobs/{result['job']['id']}"
    assert (answer.body["created"], answer.body["failed"]) == (400, 200)
    assert await value(api.store, COUNT) == 400


async def test_a_batch_that_is_sent_again_replays_what_has_a_key(api: Api) -> None:
    body = batch(keyed("a"), keyed("b"), a_job(), keyed("a"), keyed("a", priority=1))
    first = (await api.admin.post("/v1/jobs:batch", body)).body
    assert [result["status"] for result in first["results"]] == [202, 202, 202, 202, 409]
    assert first["results"][3]["job"] == first["results"][0]["job"]
    assert first["results"][3]["replayed"] is True
    assert first["results"][4]["problem"]["code"] == "idempotency_conflict"
    assert (first["created"], first["replayed"], first["failed"]) == (3, 1, 1)
    again = (await api.admin.post("/v1/jobs:batch", body)).body
    assert (again["created"], again["replayed"], again["failed"]) == (1, 3, 1)
    assert again["results"][0]["job"] == first["results"][0]["job"]
    assert await value(api.store, COUNT) == 4


async def test_an_atomic_batch_is_one_transaction(api: Api) -> None:
    answer = await api.admin.post("/v1/jobs:batch", batch(*[a_job()] * 700, atomic=True))
    assert (answer.status, answer.body["created"]) == (202, 700)
    assert await value(api.store, "SELECT count(DISTINCT xmin::text) FROM jobs") == 1


async def test_an_atomic_batch_with_a_fault_creates_nothing(api: Api) -> None:
    old = {"type": "once", "run_at": "1999-01-01T00:00:00Z"}
    answer = await api.admin.post(
        "/v1/jobs:batch", batch(a_job(), a_job(priority=99), a_job(name=1), atomic=True)
    )
    assert (answer.status, answer.code) == (422, "invalid")
    pointers = [error["pointer"] for error in answer.body["errors"]]
    assert pointers == ["/jobs/1/job/priority", "/jobs/2/job/name"]
    late = await api.admin.post("/v1/jobs:batch", batch(a_job(), a_job(schedule=old), atomic=True))
    assert late.status == 422
    assert late.body["errors"][0]["pointer"] == "/jobs/1/job/schedule/run_at"
    async with api.store.transaction() as tx:
        await tx.execute("ALTER TABLE jobs ADD CONSTRAINT picky CHECK (name <> 'bad')")
    refused = await api.admin.post("/v1/jobs:batch", batch(a_job(), a_job(name="bad"), atomic=True))
    assert (refused.status, refused.code) == (422, "refused")
    assert await value(api.store, COUNT) == 0


async def test_an_atomic_batch_with_a_conflict_creates_nothing_and_burns_no_key(api: Api) -> None:
    await api.admin.post("/v1/jobs:batch", batch(keyed("taken")))
    conflict = await api.admin.post(
        "/v1/jobs:batch", batch(keyed("new"), keyed("taken", priority=1), atomic=True)
    )
    assert (conflict.status, conflict.code) == (409, "idempotency_conflict")
    assert conflict.body["errors"][0]["pointer"] == "/jobs/1"
    assert await value(api.store, COUNT) == 1
    later = await api.admin.post("/v1/jobs:batch", batch(keyed("new"), keyed("taken"), atomic=True))
    assert ["replayed" in result for result in later.body["results"]] == [False, True]


async def test_an_atomic_batch_waits_for_a_key_that_is_in_flight(api: Api) -> None:
    body = batch(keyed("k"), a_job(), atomic=True)
    await api.admin.get("/v1/jobs")
    async with locked(api.store, "jobs"):
        first = asyncio.create_task(api.admin.post("/v1/jobs:batch", body))
        await until_blocked(api.store)
        second = asyncio.create_task(api.admin.post("/v1/jobs:batch", body))
    answers = [(await call).body for call in (first, second)]
    assert sorted(answer["created"] for answer in answers) == [1, 2]
    assert await value(api.store, COUNT) == 3


async def test_two_bodies_of_one_key_in_an_atomic_batch_are_a_conflict(api: Api) -> None:
    answer = await api.admin.post(
        "/v1/jobs:batch", batch(keyed("k"), keyed("k", priority=1), atomic=True)
    )
    assert (answer.status, answer.code) == (409, "idempotency_conflict")
    assert await value(api.store, COUNT) == 0


async def test_a_batch_is_one_to_a_thousand_jobs(api: Api) -> None:
    bodies: list[Any] = [{"jobs": []}, batch(*[a_job()] * 1001), {}, {"jobs": 1}]
    for body in bodies:
        answer = await api.admin.post("/v1/jobs:batch", body)
        assert answer.status == 422
        assert answer.body["errors"][0]["pointer"] == "/jobs"


async def test_keys_of_a_batch_are_the_tenants_own(api: Api) -> None:
    stranger = await api.client(Role.SUBMITTER, "beta")
    await api.admin.post("/v1/jobs:batch", batch(keyed("k")))
    answer = await stranger.post("/v1/jobs:batch", batch(keyed("k", priority=1)))
    assert answer.body["created"] == 1
