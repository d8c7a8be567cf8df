"""A key makes at most one job, whatever happens on the way, and its answer never changes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from noonday.domain.roles import Role
from noonday.store import Store
from tests.support.database import open_store
from tests.support.database_locks import locked, until_blocked, value
from tests.support.servers import (
    EVERY_HOUR,
    Answered,
    Api,
    Client,
    a_context,
    a_job,
    new_key,
    running_api,
)

COUNT = "SELECT count(*)::int FROM jobs"


async def post(client: Client, key: str, **changes: Any) -> Answered:
    return await client.post("/v1/jobs", a_job(**changes), idempotency_key=key)


async def test_fifty_equal_posts_of_each_key_make_one_job_each(api: Api) -> None:
    keys = [f"key-{n}" for n in range(8)]
    answers = await asyncio.gather(*(post(api.admin, key) for key in keys for _ in range(50)))
    assert {answer.status for answer in answers} == {202}
    assert await value(api.store, COUNT) == len(keys)
    for n in range(len(keys)):
        of_key = answers[n * 50 : (n + 1) * 50]
        assert len({(answer.raw, answer.headers["location"]) for answer in of_key}) == 1
        replayed = [answer for answer in of_key if "idempotent-replayed" in answer.headers]
        assert len(replayed) == 49


async def test_two_processes_make_one_job_of_a_key(
    store: Store, database_url: str, tmp_path: Path
) -> None:
    async with running_api(a_context(store, tmp_path)) as one:
        other_store = await open_store(database_url)
        async with running_api(replace(one.context, store=other_store)) as other:
            clients = (one.admin, replace(other.admin, token=one.admin.token))
            answers = await asyncio.gather(
                *(post(client, f"k{n}") for n in range(10) for client in clients for _ in range(5))
            )
        await other_store.close()
    assert {answer.status for answer in answers} == {202}
    assert await value(store, COUNT) == 10


async def test_a_replay_is_the_first_answer_to_the_byte(api: Api) -> None:
    first = await post(api.admin, "k", schedule=EVERY_HOUR)
    again = await post(api.admin, '"k"', schedule=EVERY_HOUR)
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    for part in ("status", "raw"):
        assert getattr(first, part) == getattr(again, part)
    for name in ("location", "content-type"):
        assert first.headers[name] == again.headers[name]


async def test_a_key_with_another_request_is_a_conflict(api: Api) -> None:
    assert (await post(api.admin, "k")).status == 202
    changed = [
        await post(api.admin, "k", priority=1),
        await api.admin.call("POST", "/v1/jobs", data=b" " + RAW, idempotency_key="k"),
        await api.admin.post(
            "/v1/jobs", a_job(), idempotency_key="k", content_type="application/json;charset=utf-8"
        ),
    ]
    assert [(answer.status, answer.code) for answer in changed] == [
        (409, "idempotency_conflict")
    ] * 3
    assert await value(api.store, COUNT) == 1


RAW = b'{"schedule":{"type":"once"},"target":{"type":"http","url":"https://receiver.example/run"}}'


async def test_different_bodies_at_the_same_moment_make_one_job_and_conflicts(api: Api) -> None:
    answers = await asyncio.gather(*(post(api.admin, "k", priority=n % 2) for n in range(40)))
    made = {answer.body["id"] for answer in answers if answer.status == 202}
    refused = [answer for answer in answers if answer.status != 202]
    assert len(made) == await value(api.store, COUNT) == 1
    assert len(refused) == 20
    assert {answer.code for answer in refused} == {"idempotency_conflict"}


async def test_while_the_first_is_in_flight_others_wait_and_then_hear_which_it_is(
    api: Api,
) -> None:
    await api.admin.get("/v1/jobs")
    async with locked(api.store, "jobs"):
        first = asyncio.create_task(post(api.admin, "k"))
        await until_blocked(api.store)
        same, other = await asyncio.gather(post(api.admin, "k"), post(api.admin, "k", priority=0))
    assert (same.status, same.code) == (409, "idempotency_in_flight")
    assert same.headers["retry-after"] == "1"
    assert (other.status, other.code) == (409, "idempotency_conflict")
    assert (await first).status == 202
    assert (await post(api.admin, "k")).raw == (await first).raw


async def test_who_waits_is_answered_as_soon_as_the_first_is(api: Api) -> None:
    async with locked(api.store, "jobs"):
        first = asyncio.create_task(post(api.admin, "k"))
        await until_blocked(api.store)
        second = asyncio.create_task(post(api.admin, "k"))
    assert (await second).raw == (await first).raw
    assert await value(api.store, COUNT) == 1


async def test_a_key_is_the_tenants_own(api: Api) -> None:
    beta = await api.client(Role.SUBMITTER, "beta")
    mine, theirs = await post(api.admin, "k"), await post(beta, "k", priority=1)
    assert (mine.status, theirs.status) == (202, 202)
    assert "idempotent-replayed" not in theirs.headers
    assert await value(api.store, COUNT) == 2


async def test_a_refused_request_does_not_burn_its_key(api: Api) -> None:
    viewer = await api.client(Role.VIEWER)
    too_large = {"payload": "x" * 1_100_000}
    refusals = [
        await post(api.admin, "k", priority=99),
        await post(api.admin, "k", **too_large),
        await post(viewer, "k"),
        await post(api.anonymous(), "k"),
    ]
    assert [answer.status for answer in refusals] == [422, 413, 403, 401]
    assert (await post(api.admin, "k")).status == 202


async def test_a_client_that_hangs_up_gets_its_answer_later(api: Api) -> None:
    await api.admin.get("/v1/jobs")
    async with locked(api.store, "jobs"):
        call = asyncio.create_task(post(api.admin, "k"))
        await until_blocked(api.store)
        call.cancel()
    answer = await post(api.admin, "k")
    assert answer.status == 202
    assert answer.headers["idempotent-replayed"] == "true"
    assert await value(api.store, COUNT) == 1


async def test_after_a_kill_between_key_and_commit_the_same_request_creates_the_job(
    api: Api, database_url: str
) -> None:
    token = await new_key(api.context, Role.SUBMITTER)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.servers", database_url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    victim = replace(api.admin, address=address, token=token)
    # The key's row is written last; its job is there by then, but not committed.
    async with locked(api.store, "idempotency_keys"):
        call = asyncio.create_task(post(victim, "k"))
        await until_blocked(api.store)
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        with pytest.raises(aiohttp.ClientError):
            await call
    survivor = replace(api.admin, token=token)
    answer = await post(survivor, "k")
    while answer.status == 409:
        assert answer.code == "idempotency_in_flight"
        answer = await post(survivor, "k")
    assert answer.status == 202
    assert "idempotent-replayed" not in answer.headers
    assert await value(api.store, COUNT) == 1


@pytest.mark.parametrize("key", ["", '""', "a b", "x" * 256, "é", '"open'])
async def test_what_cannot_be_a_key_is_refused(api: Api, key: str) -> None:
    answer = await post(api.admin, key)
    assert (answer.status, answer.code) == (400, "idempotency_key_invalid")
    assert await value(api.store, COUNT) == 0


async def test_a_call_that_takes_no_key_refuses_one(api: Api) -> None:
    for path in (
        "/v1/jobs:batch",
        "/v1/tenants",
        "/v1/api-keys",
        "/v1/tenants/alpha/signing-secret",
    ):
        answer = await api.admin.post(path, {}, idempotency_key="k")
        assert (answer.status, answer.code) == (422, "not_supported"), path


async def test_a_trigger_with_a_key_runs_once(api: Api) -> None:
    path = f"/v1/jobs/{await api.admin.create()}/trigger"
    answers = await asyncio.gather(
        *(api.admin.post(path, {}, idempotency_key="k") for _ in range(10))
    )
    assert {answer.status for answer in answers} == {202}
    assert len({answer.raw for answer in answers}) == 1
    assert await value(api.store, "SELECT count(*) FROM runs") == 1
    other = f"/v1/jobs/{await api.admin.create()}/trigger"
    conflict = await api.admin.post(other, {}, idempotency_key="k")
    assert (conflict.status, conflict.code) == (409, "idempotency_conflict")
