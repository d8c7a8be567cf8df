"""Only keys that are known and in force get in, and a revoked one stops working."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from starlette.requests import Request

from noonday.api.auth import KNOWN_SEC, Gate
from noonday.domain.roles import Role
from noonday.store import Store, api_keys
from tests.support.database_locks import until, value
from tests.support.servers import Api, a_context, a_job, running_api


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Basic bmQ6eA==", "nd_x_y", "Bearer nd_", "Bearer nd_a_b",
     f"Bearer nd_0123456789abcdef_{'x' * 43}", f"Bearer nd__{'x' * 43}", "Bearer \xe9\xe9"],
)  # fmt: skip
async def test_what_is_not_a_key_is_not_let_in(api: Api, header: str) -> None:
    answer = await api.anonymous().get("/v1/jobs", authorization=header)
    assert (answer.status, answer.code) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == 'Bearer realm="noonday"'


async def test_every_part_of_a_key_counts(api: Api) -> None:
    token = api.admin.token
    assert token is not None
    for changed in (token[:-1], token + "x", token.swapcase(), token[:-1] + "_", f"x{token}"):
        answer = await replace(api.admin, token=changed).get("/v1/jobs")
        assert answer.status == 401, changed
    lower = await api.anonymous().get("/v1/jobs", authorization=f"bearer {token}")
    assert lower.status == 200


async def test_a_key_is_kept_only_as_a_hash_and_shown_only_once(api: Api) -> None:
    made = await api.admin.post(
        "/v1/api-keys", {"tenant": "alpha", "role": "submitter", "name": "ci"}
    )
    assert (made.status, made.headers["cache-control"]) == (201, "no-store")
    token, key_id = made.body["key"], made.body["id"]
    secret = token.removeprefix(f"nd_{key_id}_")
    assert len(secret) == 43
    assert (await replace(api.admin, token=token).post("/v1/jobs", a_job())).status == 202
    listed = await api.admin.get("/v1/api-keys")
    shown = next(key for key in listed.body["data"] if key["id"] == key_id)
    assert shown == {**made.body, "key": None}
    audit = await api.admin.get("/v1/audit")
    revoked = await api.admin.delete(f"/v1/api-keys/{key_id}")
    for answer in (listed, audit, revoked):
        assert secret.encode() not in answer.raw
    stored = await value(api.store, "SELECT json_agg(k)::text FROM api_keys AS k")
    assert secret not in stored


async def test_a_revoked_key_stops_at_once_where_it_was_revoked(api: Api) -> None:
    client = await api.client(Role.VIEWER)
    assert (await client.get("/v1/jobs")).status == 200
    first = await api.admin.delete(f"/v1/api-keys/{client.key_id}")
    assert first.body["revoked_at"]
    assert (await client.get("/v1/jobs")).status == 401
    again = await api.admin.delete(f"/v1/api-keys/{client.key_id}")
    assert (again.status, again.raw) == (200, first.raw)


async def test_the_last_admin_key_cannot_be_revoked(api: Api) -> None:
    last = await api.admin.delete(f"/v1/api-keys/{api.admin.key_id}")
    assert (last.status, last.code) == (409, "last_admin_key")
    await api.admin.post("/v1/api-keys", {"tenant": "alpha", "role": "admin", "name": "spare"})
    assert (await api.admin.delete(f"/v1/api-keys/{api.admin.key_id}")).status == 200


async def test_a_key_that_was_revoked_elsewhere_stops_within_seconds(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noonday.api.auth.KNOWN_SEC", 0.2)
    assert KNOWN_SEC <= 5
    async with running_api(a_context(store, tmp_path)) as api:
        client = await api.client(Role.VIEWER)
        assert (await client.get("/v1/jobs")).status == 200
        async with store.transaction() as tx:
            await api_keys.revoke(tx, client.key_id)

        async def refused() -> bool:
            return (await client.get("/v1/jobs")).status == 401

        await until(refused, within_sec=5)


async def test_an_expired_key_does_not_work(api: Api) -> None:
    soon = (await value(api.store, "SELECT now()")) + timedelta(days=1)
    made = await api.admin.post(
        "/v1/api-keys", {"tenant": "alpha", "role": "viewer", "expires_at": soon.isoformat()}
    )
    client = replace(api.admin, token=made.body["key"])
    assert (await client.get("/v1/jobs")).status == 200
    async with api.store.transaction() as tx:
        await tx.execute("UPDATE api_keys SET expires_at = now() WHERE id = $1", client.key_id)
    await api.admin.delete(f"/v1/api-keys/{(await api.client(Role.VIEWER)).key_id}")
    assert (await client.get("/v1/jobs")).status == 401
    past = {"tenant": "alpha", "role": "viewer", "expires_at": "2020-01-01T00:00:00Z"}
    refused = await api.admin.post("/v1/api-keys", past)
    assert (refused.status, refused.body["errors"][0]["pointer"]) == (422, "/expires_at")


async def test_requests_that_come_together_look_their_key_up_once(api: Api) -> None:
    gate = Gate(api.store)
    token = f"Bearer {api.admin.token}"
    scope = {"type": "http", "headers": [(b"authorization", token.encode())]}
    callers = await asyncio.gather(*(gate.admit(Request(scope), Role.VIEWER) for _ in range(30)))
    assert len({id(caller) for caller in callers}) == 1
