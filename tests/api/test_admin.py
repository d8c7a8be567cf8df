"""Tenants and keys: made, rotated and revoked, each change in the audit log."""

from __future__ import annotations

import base64
from typing import Any
from uuid import uuid4

import pytest

from noonday.domain.roles import Role
from noonday.store import tenants, workers
from noonday.store.secretbox import SIGNING
from tests.support.database_locks import value
from tests.support.servers import Api, a_job


async def test_a_tenant_is_made_with_a_secret_that_is_shown_once(api: Api) -> None:
    made = await api.admin.post("/v1/tenants", {"name": "payments", "max_payload_bytes": 100})
    assert (made.status, made.headers["location"]) == (201, "/v1/tenants/payments")
    assert made.headers["cache-control"] == "no-store"
    shown = await api.admin.get("/v1/tenants/payments")
    assert shown.body == {**made.body, "signing_secret": None}
    secret = base64.b64decode(made.body["signing_secret"].removeprefix("whsec_"), validate=True)
    assert len(secret) == 32
    async with api.store.transaction() as tx:
        (sealed,) = (await tenants.signing_keys(tx, [made.body["id"]]))[made.body["id"]]
    assert secret not in sealed
    assert api.context.secretbox.open(sealed, made.body["id"], SIGNING) == secret


async def test_a_tenants_name_is_its_own(api: Api) -> None:
    again = await api.admin.post("/v1/tenants", {"name": "alpha"})
    assert (again.status, again.code) == (409, "already_exists")
    assert await value(api.store, "SELECT count(*) FROM tenants") == 1


async def test_how_fast_a_tenant_sends_is_set_shown_audited_and_taken_away(api: Api) -> None:
    made = await api.admin.post("/v1/tenants", {"name": "fast", "deliveries_per_sec": 12.5})
    assert made.body["deliveries_per_sec"] == 12.5
    path = "/v1/tenants/fast"
    await api.admin.patch(path, {"keep_responses": False})
    assert (await api.admin.get(path)).body["deliveries_per_sec"] == 12.5, "what is not given stays"
    for per_sec in (0.01, None):
        await api.admin.patch(path, {"deliveries_per_sec": per_sec})
        assert (await api.admin.get(path)).body["deliveries_per_sec"] == per_sec
    changes = (await api.admin.get("/v1/audit")).body["data"]
    assert [one["after"]["deliveries_per_sec"] for one in changes[:4]] == [None, 0.01, 12.5, 12.5]


@pytest.mark.parametrize("bad", [0, -1, 100_001, "5", True, [1]])
async def test_a_rate_that_is_none_is_refused(api: Api, bad: object) -> None:
    for answer in (
        await api.admin.post("/v1/tenants", {"name": "t", "deliveries_per_sec": bad}),
        await api.admin.patch("/v1/tenants/alpha", {"deliveries_per_sec": bad}),
    ):
        assert answer.status == 422
        assert [fault["pointer"] for fault in answer.body["errors"]] == ["/deliveries_per_sec"]


async def test_a_tenants_limit_of_payloads_holds(api: Api) -> None:
    await api.admin.post("/v1/tenants", {"name": "small", "max_payload_bytes": 10})
    client = await api.client(Role.SUBMITTER, "small")
    assert (await client.post("/v1/jobs", a_job(payload="12345678"))).status == 202
    refused = await client.post("/v1/jobs", a_job(payload="123456789"))
    assert (refused.status, refused.code) == (413, "too_large")
    assert "10 bytes" in refused.body["detail"]


async def test_after_rotations_the_secrets_before_sign_for_a_day_up_to_five(api: Api) -> None:
    path = "/v1/tenants/alpha/signing-secret"
    answers = [await api.admin.post(path) for _ in range(6)]
    assert {answer.status for answer in answers} == {200}
    secrets = [
        base64.b64decode(answer.body["signing_secret"].removeprefix("whsec_")) for answer in answers
    ]
    assert len(set(secrets)) == 6
    tenant_id = answers[0].body["id"]

    async def signed_with() -> list[bytes]:
        async with api.store.transaction() as tx:
            sealed = (await tenants.signing_keys(tx, [tenant_id]))[tenant_id]
        return [api.context.secretbox.open(one, tenant_id, SIGNING) for one in sealed]

    assert await signed_with() == secrets[:0:-1]
    api.store.now = await value(api.store, "SELECT now() + interval '23 hours 59 minutes'")
    assert await signed_with() == secrets[:0:-1]
    api.store.now = await value(api.store, "SELECT now() + interval '24 hours 1 minute'")
    assert await signed_with() == [secrets[5]]
    newest = (await api.admin.post(path)).body["signing_secret"]
    assert [tenants.written(one) for one in await signed_with()] == [
        newest, tenants.written(secrets[5]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "pointer"),
    [({"tenant": "nobody", "role": "viewer"}, "/tenant"),
     ({"tenant": "alpha", "role": "root"}, "/role"),
     ({"tenant": "alpha"}, "/role"),
     ({"tenant": "alpha", "role": "viewer", "scope": "all"}, "/scope")],
)  # fmt: skip
async def test_a_key_that_cannot_be_made_is_refused_by_field(
    api: Api, body: Any, pointer: str
) -> None:
    answer = await api.admin.post("/v1/api-keys", body)
    assert answer.status == 422
    assert [error["pointer"] for error in answer.body["errors"]] == [pointer]


async def test_every_change_is_in_the_audit_log_with_who_and_what(api: Api) -> None:
    job = (await api.admin.post("/v1/jobs", a_job(), x_request_id="one")).body["id"]
    await api.admin.post("/v1/jobs:batch", {"jobs": [{"job": a_job()}]}, x_request_id="two")
    await api.admin.post(f"/v1/jobs/{job}/trigger", x_request_id="three")
    await api.admin.call("DELETE", f"/v1/jobs/{job}", x_request_id="four")
    await api.admin.post("/v1/tenants", {"name": "t"}, x_request_id="five")
    await api.admin.post("/v1/tenants/t/signing-secret", x_request_id="six")
    key = (await api.admin.post("/v1/api-keys", {"tenant": "t", "role": "viewer"})).body["id"]
    await api.admin.delete(f"/v1/api-keys/{key}")
    log = (await api.admin.get("/v1/audit")).body["data"][::-1]
    assert {entry["actor"] for entry in log} == {api.admin.key_id}
    assert [(entry["action"], entry["object_type"]) for entry in log] == [
        ("job.create", "job"), ("job.create", "job"), ("job.trigger", "job"),
        ("job.cancel", "job"), ("tenant.create", "tenant"),
        ("tenant.rotate_signing_secret", "tenant"), ("api_key.create", "api_key"),
        ("api_key.revoke", "api_key"),
    ]  # fmt: skip
    assert [entry["request_id"] for entry in log[:6]] == [
        "one", "two", "three", "four", "five", "six",
    ]  # fmt: skip
    assert log[3]["before"] == {"state": "ACTIVE"}
    assert log[3]["after"] == {"state": "CANCELLED", "stop": False}
    assert log[0]["object_id"] == job


async def test_processes_are_listed_with_whether_they_are_alive(api: Api) -> None:
    alive, gone = uuid4(), uuid4()
    async with api.store.transaction() as tx:
        await workers.report(tx, alive, "worker", "one", slots=4)
        await workers.report(tx, gone, "scheduler", "two")
        await tx.execute(
            "UPDATE workers SET seen_at = now() - interval '1 hour' WHERE id = $1", gone
        )
    listed = (await api.admin.get("/v1/workers")).body["data"]
    assert {(one["id"], one["role"], one["alive"]) for one in listed} == {
        (str(alive), "worker", True), (str(gone), "scheduler", False),
    }  # fmt: skip
