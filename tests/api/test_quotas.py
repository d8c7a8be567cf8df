"""Quotas: never more than they allow by more than what is published, and said in plain headers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from noonday.domain.quotas import Rate
from noonday.domain.roles import Role
from tests.support.database_locks import value
from tests.support.quotas import Processes, processes
from tests.support.servers import Answered, Api, Client, a_job

TYPE = "https://iana.org/assignments/http-problem-types#quota-exceeded"


@pytest.fixture
async def three(database_url: str, tmp_path: Path) -> AsyncIterator[Processes]:
    async with processes(database_url, tmp_path, 3) as made:
        yield made


async def post(client: Client, payload: Any = None, **headers: str) -> Answered:
    return await client.post("/v1/jobs", a_job(payload=payload), **headers)


async def statuses(client: Client, count: int) -> list[int]:
    answers = await asyncio.gather(*(post(client) for _ in range(count)))
    return sorted(answer.status for answer in answers)


def batch(count: int, *, atomic: bool = False, keys: str = "", payload: Any = 1) -> dict[str, Any]:
    jobs: list[dict[str, Any]] = [{"job": a_job(payload=payload)} for _ in range(count)]
    if keys:
        jobs = [{**job, "idempotency_key": f"{keys}{n}"} for n, job in enumerate(jobs)]
    return {"jobs": jobs, "atomic": atomic}


# --- structured fields (RFC 9651): a list of strings with parameters ---------------------------

ITEM = re.compile(
    r'"((?:[ !#-\[\]-~]|\\["\\])*)"((?:;[a-z*][a-z0-9_.*-]*=(?:\d{1,15}|"[^"\\]*"))*)'
)


def fields(text: str) -> dict[str, dict[str, Any]]:
    """The items of a list by name; fails on whatever the standard does not allow."""
    found: dict[str, dict[str, Any]] = {}
    for item in text.split(", "):
        match = ITEM.fullmatch(item)
        assert match, item
        parameters = [part.partition("=")[::2] for part in match[2].split(";")[1:]]
        found[match[1]] = {
            name: word.strip('"') if word.startswith('"') else int(word)
            for name, word in parameters
        }
    return found


# --- rates ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("per_sec", "burst"), [(10, 5), (100, 20), (200, 1)])
async def test_processes_together_never_exceed_rate_and_burst_by_more_than_their_blocks(
    three: Processes, per_sec: int, burst: int
) -> None:
    await three.set(creates_per_sec=per_sec, creates_burst=burst)
    made: list[tuple[float, int]] = []
    for _ in range(12):
        found = await asyncio.gather(*(statuses(client, 6) for client in three.clients))
        assert {status for each in found for status in each} <= {202, 429}
        made.append((three.seconds, sum(each.count(202) for each in found)))
        three.forward(0.05)
    error = len(three.clients) * Rate("creates", per_sec, burst).block
    for first in range(len(made)):
        for last in range(first, len(made)):
            count = sum(number for _, number in made[first : last + 1])
            span = made[last][0] - made[first][0]
            assert count <= per_sec * span + burst + error, made[first : last + 1]
    count, span = sum(number for _, number in made), made[-1][0]
    assert count <= per_sec * span + burst, "what was taken since the beginning"
    assert count >= min(per_sec * span * 0.7, 12 * burst), "what there is, is given out"
    assert await value(three.stores[0], "SELECT count(*) FROM jobs") == count


async def test_a_rate_says_how_it_stands_and_when_to_come_back(three: Processes) -> None:
    client = three.clients[0]
    assert "ratelimit" not in (await post(client)).headers, "no quota, nothing said of it"
    await three.set(creates_per_sec=0.5, creates_burst=2)
    first = await post(client)
    assert fields(first.headers["ratelimit-policy"]) == {"creates": {"q": 2, "w": 4}}
    assert fields(first.headers["ratelimit"]) == {"creates": {"r": 1, "t": 2}}
    assert (await post(client)).status == 202
    refused = await post(client)
    assert (refused.status, refused.code) == (429, "create_rate_exceeded")
    assert refused.body["type"] == TYPE
    assert refused.body["violated-policies"] == ["creates"]
    standing = fields(refused.headers["ratelimit"])["creates"]
    assert standing == {"r": 0, "t": 2}
    assert int(refused.headers["retry-after"]) >= standing["t"]
    assert refused.body["retry_after_sec"] == int(refused.headers["retry-after"])
    three.forward(standing["t"])
    assert (await post(client)).status == 202, "it fits when it was said to"


async def test_answers_do_not_send_everybody_back_in_the_same_second(three: Processes) -> None:
    await three.set(creates_per_sec=0.01, creates_burst=1)
    assert (await post(three.clients[0])).status == 202
    waits = {int((await post(three.clients[0])).headers["retry-after"]) for _ in range(30)}
    assert len(waits) > 1
    assert min(waits) >= 100


async def test_bytes_of_payload_are_a_quota_of_their_own(three: Processes) -> None:
    await three.set(create_bytes_per_sec=100, max_payload_bytes=1_000)
    client = three.clients[0]
    first = await post(client, "x" * 598)
    assert first.status == 202
    assert fields(first.headers["ratelimit-policy"]) == {
        "bytes": {"q": 1_000, "w": 10, "qu": "content-bytes"}
    }
    refused = await post(client, "x" * 498)
    assert (refused.status, refused.code) == (429, "create_bytes_exceeded")
    assert refused.body["violated-policies"] == ["bytes"]
    assert fields(refused.headers["ratelimit"])["bytes"]["t"] == 1
    assert (await post(client, "x" * 398)).status == 202, "what is smaller fits"
    three.forward(5)
    assert (await post(client, "x" * 498)).status == 202
    assert (await post(client, "x" * 999)).status == 413, "no waiting makes that fit"


async def test_a_larger_quota_does_not_wait_for_the_smaller_one(three: Processes) -> None:
    await three.set(creates_per_sec=0.001)
    assert await statuses(three.clients[0], 2) == [202, 429]
    await three.set(creates_per_sec=100)
    assert await statuses(three.clients[0], 1) == [202]
    await three.set(creates_per_sec=None)
    assert await statuses(three.clients[0], 200) == [202] * 200


async def test_what_was_done_before_costs_nothing_even_when_nothing_is_left(
    three: Processes,
) -> None:
    await three.set(creates_per_sec=0.01, creates_burst=3)
    client = three.clients[0]
    first = await post(client, idempotency_key="one")
    for _ in range(5):
        again = await post(client, idempotency_key="one")
        assert (again.status, again.body) == (202, first.body)
        assert again.headers["idempotent-replayed"] == "true"
    assert (await post(client, 2, idempotency_key="one")).status == 409, "nor does a conflict"
    assert (await client.post("/v1/jobs", {"name": 1})).status == 422, "nor what is at fault"
    assert await statuses(client, 3) == [202, 202, 429]
    assert (await post(client, idempotency_key="one")).body == first.body
    assert (await post(client, idempotency_key="two")).status == 429
    three.forward(100)
    assert (await post(client, idempotency_key="two")).status == 202, "a refusal is not kept"


async def test_a_trigger_counts_as_a_job(three: Processes) -> None:
    client = three.clients[0]
    job = (await post(client)).body["id"]
    await three.set(creates_per_sec=0.01, creates_burst=2)
    path = f"/v1/jobs/{job}/trigger"
    first = await client.post(path, idempotency_key="one")
    assert (first.status, fields(first.headers["ratelimit"])["creates"]["r"]) == (202, 1)
    assert (
        await client.post("/v1/jobs/0192b5a0-0000-7000-8000-000000000000/trigger")
    ).status == 404
    assert (await client.post(path)).status == 202
    refused = await client.post(path)
    assert (refused.status, refused.code) == (429, "create_rate_exceeded")
    assert (await client.post(path, idempotency_key="one")).body == first.body


# --- batches ----------------------------------------------------------------------------------


async def test_of_a_batch_the_first_jobs_that_fit_are_made(three: Processes) -> None:
    await three.set(creates_per_sec=0.01, creates_burst=5)
    wanted = batch(8)
    wanted["jobs"][1]["job"]["priority"] = 10
    answer = await three.clients[0].post("/v1/jobs:batch", wanted)
    results = answer.body["results"]
    assert [one["status"] for one in results] == [202, 422, 202, 202, 202, 202, 429, 429]
    assert fields(answer.headers["ratelimit"])["creates"]["r"] == 0
    problem = results[-1]["problem"]
    assert (problem["type"], problem["code"]) == (TYPE, "create_rate_exceeded")
    assert problem["violated-policies"] == ["creates"]
    assert problem["retry_after_sec"] >= 100


async def test_an_atomic_batch_takes_all_that_it_needs_or_nothing(three: Processes) -> None:
    await three.set(creates_per_sec=1, creates_burst=10)
    client = three.clients[0]
    assert (await client.post("/v1/jobs:batch", batch(6, atomic=True))).status == 202
    refused = await client.post("/v1/jobs:batch", batch(6, atomic=True))
    assert (refused.status, refused.code) == (429, "create_rate_exceeded")
    assert fields(refused.headers["ratelimit"])["creates"] == {"r": 4, "t": 2}
    assert await statuses(client, 4) == [202] * 4, "it has taken nothing away"
    three.forward(6)
    assert (await client.post("/v1/jobs:batch", batch(6, atomic=True))).status == 202
    never = await client.post("/v1/jobs:batch", batch(11, atomic=True))
    assert (never.status, never.code) == (422, "batch_exceeds_quota")


async def test_an_atomic_batch_that_was_made_before_is_answered_again(three: Processes) -> None:
    await three.set(creates_per_sec=0.01, creates_burst=3)
    client = three.clients[0]
    first = await client.post("/v1/jobs:batch", batch(3, atomic=True, keys="k"))
    assert (first.status, first.body["created"]) == (202, 3)
    again = await client.post("/v1/jobs:batch", batch(3, atomic=True, keys="k"))
    assert (again.status, again.body["replayed"]) == (202, 3)
    refused = await client.post("/v1/jobs:batch", batch(3, atomic=True, keys="other"))
    assert (refused.status, refused.code) == (429, "create_rate_exceeded")
    assert "retry-after" in refused.headers


# --- pending jobs -----------------------------------------------------------------------------


async def counted(api: Api, **settings: Any) -> None:
    """The tenant has a quota, and its pending jobs have been counted a while ago."""
    answer = await api.admin.call("PATCH", "/v1/tenants/alpha", settings)
    assert answer.status == 200, answer
    async with api.store.transaction() as tx:
        await tx.execute("UPDATE pending_bases SET counted_at = now() - interval '1 minute'")
    await api.context.backlogs.tick()


async def test_with_as_many_pending_jobs_as_allowed_none_is_created(api: Api) -> None:
    await counted(api, max_pending_jobs=3)
    first = await post(api.admin)
    assert fields(first.headers["ratelimit-policy"]) == {"pending": {"q": 3}}
    assert fields(first.headers["ratelimit"]) == {"pending": {"r": 2}}
    assert await statuses(api.admin, 10) == [202] * 2 + [429] * 8
    refused = await post(api.admin)
    assert (refused.status, refused.code) == (429, "pending_jobs_exceeded")
    assert refused.body["violated-policies"] == ["pending"]
    assert refused.body["type"] == TYPE
    assert "drain_sec" not in refused.body, "nothing has ended yet"
    assert 60 <= int(refused.headers["retry-after"]) <= 300
    assert (await api.admin.delete(f"/v1/jobs/{first.body['id']}")).status == 200
    assert await statuses(api.admin, 2) == [202, 429]


async def test_of_a_batch_as_many_jobs_are_made_as_may_be_pending(api: Api) -> None:
    await counted(api, max_pending_jobs=4)
    never = await api.admin.post("/v1/jobs:batch", batch(5, atomic=True))
    assert (never.status, never.code) == (422, "batch_exceeds_quota")
    answer = await api.admin.post("/v1/jobs:batch", batch(3))
    assert answer.body["created"] == 3
    refused = await api.admin.post("/v1/jobs:batch", batch(2, atomic=True))
    assert (refused.status, refused.code) == (429, "pending_jobs_exceeded")
    answer = await api.admin.post("/v1/jobs:batch", batch(2))
    assert [one["status"] for one in answer.body["results"]] == [202, 429]


async def test_a_full_backlog_says_when_there_will_be_room(api: Api) -> None:
    await counted(api, max_pending_jobs=10)
    assert (await api.admin.post("/v1/jobs:batch", batch(10))).body["created"] == 10
    # Beside these, workers have ended five over the last half minute.
    async with api.store.transaction() as tx:
        await tx.execute("UPDATE pending_bases SET jobs = 5")
        await tx.execute(
            """INSERT INTO pending_counts (tenant_id, process_id, since, delta, ended)
               SELECT tenant_id, gen_random_uuid(), now() - interval '30 seconds', -5, 5
               FROM pending_bases"""
        )
    await api.context.backlogs.tick()
    refused = await post(api.admin)
    assert (refused.status, refused.code) == (429, "pending_jobs_exceeded")
    assert refused.body["drain_sec"] == pytest.approx(6, abs=0.5), "one of them, at 5 in 30 s"
    standing = fields(refused.headers["ratelimit"])["pending"]
    assert standing["r"] == 0
    assert refused.body["drain_sec"] <= standing["t"] <= int(refused.headers["retry-after"])
    assert "all would have ended in 60 s" in refused.body["detail"]
    refused = await api.admin.post("/v1/jobs:batch", batch(10, atomic=True))
    assert refused.body["drain_sec"] == pytest.approx(60, abs=5)


async def test_a_quota_that_is_lowered_lets_what_is_there_end(api: Api) -> None:
    await counted(api, max_pending_jobs=5)
    jobs = [(await post(api.admin)).body["id"] for _ in range(5)]
    await counted(api, max_pending_jobs=2)
    assert (await post(api.admin)).status == 429
    for job in jobs[:4]:
        await api.admin.delete(f"/v1/jobs/{job}")
    assert await statuses(api.admin, 2) == [202, 429]
    await counted(api, max_pending_jobs=0)
    assert (await post(api.admin)).status == 429


async def test_as_long_as_nothing_is_counted_nothing_is_refused(api: Api) -> None:
    await api.admin.call("PATCH", "/v1/tenants/alpha", {"max_pending_jobs": 1})
    assert await statuses(api.admin, 3) == [202] * 3


# --- settings ---------------------------------------------------------------------------------

BAD = [
    ("creates_per_sec", 0), ("creates_per_sec", -1), ("creates_per_sec", "10"),
    ("creates_per_sec", 1e300), ("creates_per_sec", True), ("creates_per_sec", 1_000_001),
    ("creates_burst", 0), ("creates_burst", 1.5), ("creates_burst", -3), ("creates_burst", "3"),
    ("create_bytes_per_sec", 0), ("create_bytes_per_sec", 0.5), ("create_bytes_per_sec", 10**12),
    ("max_pending_jobs", -1), ("max_pending_jobs", 1.5), ("max_pending_jobs", "many"),
    ("max_pending_jobs", [1]), ("max_payload_bytes", 0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "bad"), BAD)
async def test_a_quota_that_makes_no_sense_is_refused_by_name(
    api: Api, name: str, bad: Any
) -> None:
    body: dict[str, Any] = {name: bad}
    if name == "creates_burst":
        body["creates_per_sec"] = 1
    for answer in (
        await api.admin.post("/v1/tenants", {"name": "new", **body}),
        await api.admin.call("PATCH", "/v1/tenants/alpha", body),
    ):
        assert answer.status == 422, answer
        assert [error["pointer"] for error in answer.body["errors"]] == [f"/{name}"]
    assert (await api.admin.get("/v1/tenants/new")).status == 404


async def test_a_burst_without_a_rate_is_refused_and_goes_with_it(api: Api) -> None:
    path = "/v1/tenants/alpha"
    refused = await api.admin.call("PATCH", path, {"creates_burst": 3})
    assert (refused.status, refused.body["errors"][0]["pointer"]) == (422, "/creates_burst")
    await api.admin.call("PATCH", path, {"creates_per_sec": 2, "creates_burst": 3})
    changed = await api.admin.call("PATCH", path, {"creates_per_sec": 4})
    assert changed.body["creates_burst"] == 3, "what is not given stays"
    changed = await api.admin.call("PATCH", path, {"creates_per_sec": None})
    assert (changed.body["creates_per_sec"], changed.body["creates_burst"]) == (None, None)


async def test_quotas_are_shown_and_their_changes_are_in_the_audit_log(api: Api) -> None:
    quotas = {
        "creates_per_sec": 2.5, "creates_burst": 10, "create_bytes_per_sec": 1_000,
        "max_pending_jobs": 7,
    }  # fmt: skip
    made = await api.admin.post("/v1/tenants", {"name": "t", **quotas})
    assert made.body.items() >= quotas.items()
    none = dict.fromkeys(quotas)
    changed = await api.admin.call("PATCH", "/v1/tenants/t", none)
    assert changed.body.items() >= none.items()
    assert (await api.admin.get("/v1/tenants/t")).body == changed.body
    entry = (await api.admin.get("/v1/audit")).body["data"][0]
    assert entry["before"].items() >= quotas.items()
    assert entry["after"].items() >= none.items()


@pytest.mark.parametrize("role", [Role.VIEWER, Role.SUBMITTER, Role.OPERATOR])
async def test_only_an_admin_sets_quotas(api: Api, role: Role) -> None:
    client = await api.client(role)
    answer = await client.call("PATCH", "/v1/tenants/alpha", {"creates_per_sec": 1_000})
    assert (answer.status, answer.code) == (403, "forbidden")


async def test_a_quota_is_its_tenants_own(three: Processes) -> None:
    await three.set(creates_per_sec=0.01)
    made = await three.admin.post("/v1/tenants", {"name": "beta"})
    assert made.status == 201
    key = await three.admin.post("/v1/api-keys", {"tenant": "beta", "role": "submitter"})
    other = Client(three.admin.session, three.admin.address, key.body["key"])
    assert await statuses(three.clients[0], 2) == [202, 429]
    assert await statuses(other, 20) == [202] * 20
    assert timedelta(seconds=three.seconds) == timedelta()
