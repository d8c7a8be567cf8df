"""Limits of hosts and concurrency keys, and a tenant's own, as the API takes and shows them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from noonday.domain.roles import Role
from noonday.loops.admitting import Admitting
from tests.api.test_lists import walk
from tests.support.database_locks import value
from tests.support.servers import NOW, Api

HOSTS, KEYS = "/v1/limits/hosts", "/v1/limits/keys"
NOBODY: dict[str, Any] = {"used": 0, "waiting": 0}


def limit(kind: str, name: str, most: int | None, rate: float | None = None) -> dict[str, Any]:
    return {"kind": kind, "name": name, "max_running": most, "rate_per_sec": rate, **NOBODY}


async def test_limits_are_set_listed_and_taken_away(api: Api) -> None:
    admin = api.admin
    host = await admin.call("PUT", f"{HOSTS}/Shop.example", {"max_running": 3, "rate_per_sec": 2.5})
    assert (host.status, host.body) == (200, limit("host", "shop.example", 3, 2.5))
    key = await admin.call("PUT", f"{KEYS}/invoices", {"max_running": 5})
    assert (key.status, key.body) == (200, limit("key", "invoices", 5))
    mine = limit("tenant", "alpha", None)
    listed = (await admin.get("/v1/limits")).body["data"]
    assert listed == [mine, host.body, key.body]
    assert await walk(admin, "/v1/limits", limit=1) == listed
    gone = await admin.delete(f"{HOSTS}/shop.example")
    assert (gone.status, gone.body) == (200, limit("host", "shop.example", None))
    gone = await admin.delete(f"{KEYS}/invoices")
    assert (gone.status, gone.body) == (200, limit("key", "invoices", 1)), "one at a time again"
    assert (await admin.delete(f"{KEYS}/invoices")).status == 404
    assert (await admin.get("/v1/limits")).body["data"] == [mine]
    log = (await admin.get("/v1/audit")).body["data"]
    assert [(one["action"], one["object_type"], one["object_id"]) for one in log[:4]] == [
        ("limit.clear", "key", "invoices"),
        ("limit.clear", "host", "shop.example"),
        ("limit.set", "key", "invoices"),
        ("limit.set", "host", "shop.example"),
    ]
    assert log[0]["before"] == {"max_running": 5, "rate_per_sec": None}


@pytest.mark.parametrize("key", ["a b", "a/b", "/", "ü", "100%", "k?x=1#y", "key:1:k", "k" * 200])
async def test_a_key_may_be_any_printable_text(api: Api, key: str) -> None:
    path = f"{KEYS}/{quote(key, safe='')}"
    assert (await api.admin.call("PUT", path, {"max_running": 2})).body == limit("key", key, 2)
    made = await api.admin.create(concurrency_key=key, schedule=NOW)
    assert (await api.admin.get(f"/v1/jobs/{made}")).body["concurrency_key"] == key
    assert await value(api.store, "SELECT hold_key FROM runs") == f"key:1:{key}"
    assert (await api.admin.delete(path)).status == 200


@pytest.mark.parametrize("key", ["%00", "a%0A", "k" * 201, "%C2%85"])
async def test_what_no_key_can_be_is_not_there(api: Api, key: str) -> None:
    answer = await api.admin.call("PUT", f"{KEYS}/{key}", {"max_running": 2})
    assert (answer.status, answer.code) == (404, "not_found")


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        *((f"{HOSTS}/a.b", {"max_running": bad}, "/max_running") for bad in (-1, 1.5, "3", True)),
        *((f"{HOSTS}/a.b", {"rate_per_sec": bad}, "/rate_per_sec") for bad in (0, -1, "x")),
        (f"{KEYS}/k", {}, "/max_running"),
        (f"{KEYS}/k", {"max_running": -1}, "/max_running"),
        (f"{KEYS}/k", {"max_running": 1, "rate_per_sec": 1}, "/rate_per_sec"),
    ],
)
async def test_bad_limits_are_refused_by_name(
    api: Api, path: str, body: dict[str, Any], pointer: str
) -> None:
    answer = await api.admin.call("PUT", path, body)
    assert (answer.status, [error["pointer"] for error in answer.body["errors"]]) == (
        422,
        [pointer],
    )
    assert await value(api.store, "SELECT count(*) FROM limits") == 0


async def test_limits_are_the_tenants_own(api: Api) -> None:
    stranger = await api.client(Role.OPERATOR, "beta")
    await api.admin.call("PUT", f"{KEYS}/k", {"max_running": 5})
    assert (await stranger.delete(f"{KEYS}/k")).status == 404
    await stranger.call("PUT", f"{KEYS}/k", {"max_running": 7})
    mine = (await api.admin.get("/v1/limits")).body["data"]
    assert [one["max_running"] for one in mine] == [None, 5]


async def test_a_tenants_cap_and_weight_are_set_changed_and_taken_away(api: Api) -> None:
    made = await api.admin.post("/v1/tenants", {"name": "shop", "max_running": 8, "weight": 2})
    assert (made.body["max_running"], made.body["weight"]) == (8, 2)
    path = "/v1/tenants/shop"
    for change, expected in (
        ({"weight": 0.5}, (8, 0.5)),
        ({"max_running": 0}, (0, 0.5)),
        ({"max_running": None}, (None, 0.5)),
        ({"keep_responses": False}, (None, 0.5)),
    ):
        changed = await api.admin.call("PATCH", path, change)
        assert (changed.body["max_running"], changed.body["weight"]) == expected
    (log, *_) = (await api.admin.get("/v1/audit")).body["data"]
    assert (log["action"], log["after"]["max_running"]) == ("tenant.change", None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("weight", bad) for bad in (0, -1, "1", True)),
        *(("max_running", bad) for bad in (-1, 1.5, "8")),
    ],
)
async def test_bad_settings_of_a_tenant_are_refused_by_name(
    api: Api, field: str, value: Any
) -> None:
    body = {field: value}
    for method, path, rest in (
        ("POST", "/v1/tenants", {"name": "shop"}),
        ("PATCH", "/v1/tenants/alpha", {}),
    ):
        answer = await api.admin.call(method, path, {**rest, **body})
        assert (answer.status, answer.body["errors"][0]["pointer"]) == (422, f"/{field}")


async def test_a_run_says_which_slot_it_waits_for_and_a_limit_who_has_one(api: Api) -> None:
    context = api.context
    admitting = Admitting(api.store, context.metrics, context.wakeups)
    await api.admin.call("PUT", f"{KEYS}/k", {"max_running": 1})
    first, second = [await api.admin.create(concurrency_key="k", schedule=NOW) for _ in range(2)]
    assert await admitting.tick() == 1
    shown = []
    for job in (first, second):
        (line,) = (await api.admin.get(f"/v1/jobs/{job}/occurrences")).body["data"]
        run = (await api.admin.get(f"/v1/runs/{line['run_id']}")).body
        shown.append((run["state"], run["hold"], run["hold_reason"]))
    assert shown == [
        ("READY", None, None),
        ("READY", "cap", "waits for a slot of the concurrency key k"),
    ]
    (_, limit) = (await api.admin.get("/v1/limits")).body["data"]
    assert (limit["used"], limit["waiting"]) == (1, 1)
    assert (await api.admin.delete(f"/v1/jobs/{first}")).status == 200
    assert await admitting.tick() == 1, "the one that was cancelled has freed its slot"


async def test_what_a_lower_limit_leaves_no_room_for_waits_again_at_once(api: Api) -> None:
    context = api.context
    admitting = Admitting(api.store, context.metrics, context.wakeups)
    await api.admin.call("PUT", f"{KEYS}/k", {"max_running": 3})
    for _ in range(4):
        await api.admin.create(concurrency_key="k", schedule=NOW)
    assert await admitting.tick() == 3
    claimable = "SELECT count(*) FROM runs WHERE claimable"
    await api.admin.delete(f"{KEYS}/k")
    assert await value(api.store, claimable) == 1
    await api.admin.call("PUT", f"{KEYS}/k", {"max_running": None})
    while await admitting.tick():
        pass
    assert await value(api.store, claimable) == 4
