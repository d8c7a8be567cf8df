"""Targets that are left alone, as the API shows and resumes them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from noonday.domain.breaker import Target, pauses, target_of
from noonday.domain.model import parse_run_id
from noonday.domain.roles import Role
from noonday.store import Store, targets
from tests.api.test_lists import walk
from tests.support.database_locks import value
from tests.support.servers import NOW, Api, Client

NOTHING = timedelta(0)


async def tenant_of(api: Api, name: str = "alpha") -> int:
    return int(await value(api.store, f"SELECT id FROM tenants WHERE name = '{name}'"))


def target(tenant: int, url: str = "https://receiver.example/run?s=secret") -> Target:
    found = target_of(tenant, url)
    assert found is not None
    return found


async def opened(store: Store, tenant: int, *urls: str) -> None:
    async with store.transaction() as tx:
        for url in urls:
            await targets.open(tx, tenant, target(tenant, url), "answered 503", NOTHING, pauses())


async def suspended(store: Store, tenant: int, url: str) -> None:
    async with store.transaction() as tx:
        assert await targets.suspend(tx, tenant, target(tenant, url), "answered 410", NOTHING)


async def listed(client: Client, query: str = "") -> list[Any]:
    answer = await client.get(f"/v1/targets{query}")
    assert answer.status == 200, answer
    return list(answer.body["data"])


async def test_what_is_left_alone_is_listed_with_why_since_when_and_until_when(api: Api) -> None:
    tenant = await tenant_of(api)
    assert await listed(api.admin) == []
    await opened(api.store, tenant, "https://receiver.example/")
    await suspended(api.store, tenant, "https://receiver.example:8443/gone?s=secret")
    for _ in range(3):
        await api.admin.create(schedule=NOW)
    async with api.store.transaction() as tx:
        await tx.execute(
            "UPDATE runs SET hold = 'breaker', hold_key = $1, claimable = false",
            target(tenant).key,
        )
    host, url = await listed(api.admin)
    assert host == {
        "host": "receiver.example", "port": 443, "url": None, "state": "OPEN",
        "reason": "answered 503", "since": host["since"], "trips": 1,
        "next_try_at": host["next_try_at"], "held": 3, "rate_per_sec": None, "slowed": None,
        "waiting_for_rate": None,
    }  # fmt: skip
    assert host["next_try_at"] > host["since"]
    assert (url["url"], url["port"], url["state"], url["next_try_at"], url["held"]) == (
        "https://receiver.example:8443/gone", 8443, "SUSPENDED", None, 0,
    )  # fmt: skip


async def test_a_held_run_says_why_and_since_when(api: Api) -> None:
    tenant = await tenant_of(api)
    job = await api.admin.create(schedule=NOW)
    run = (await api.admin.get(f"/v1/jobs/{job}/occurrences")).body["data"][0]["run_id"]
    assert parse_run_id(run) is not None
    free = (await api.admin.get(f"/v1/runs/{run}")).body
    assert (free["hold"], free["hold_reason"], free["hold_since"]) == (None, None, None)
    await opened(api.store, tenant, "https://receiver.example/")
    async with api.store.transaction() as tx:
        await tx.execute(
            "UPDATE runs SET hold = 'breaker', hold_key = $1, claimable = false",
            target(tenant).key,
        )
    held = (await api.admin.get(f"/v1/runs/{run}")).body
    (shown,) = await listed(api.admin)
    assert (held["state"], held["hold"], held["hold_reason"], held["hold_since"]) == (
        "READY", "breaker", "answered 503", shown["since"],
    )  # fmt: skip


async def test_a_host_with_a_rate_is_listed_with_how_far_it_is_slowed_and_what_waits(
    api: Api,
) -> None:
    tenant = await tenant_of(api)
    await opened(api.store, tenant, "https://b.example/", "https://b.example:8443/")
    for _ in range(3):
        await api.admin.create(schedule=NOW)
    async with api.store.transaction() as tx:
        for host in ("a.example", "b.example", "c.example"):
            await tx.execute(
                "INSERT INTO limits (key, tenant_id, kind, name, rate_per_sec, changed_at) "
                "VALUES ($1, $2, 'host', $3, $4, now())",
                f"host:{tenant}:{host}", tenant, host, 2.5 if host < "c" else None,
            )  # fmt: skip
        await tx.execute(
            "INSERT INTO rates (key, next_at, slowed, slowed_at) VALUES ($1, now(), 0.5, now())",
            f"host:{tenant}:a.example",
        )
        await tx.execute(
            "UPDATE runs SET hold = 'rate', hold_key = $1, claimable = false",
            f"rate:host:{tenant}:a.example",
        )
    shown = await walk(api.admin, "/v1/targets", 2)
    names = ("host", "port", "state", "rate_per_sec", "slowed")
    assert [tuple(one[name] for name in names) for one in shown] == [
        ("a.example", None, "CLOSED", 2.5, 0.5),
        ("b.example", 443, "OPEN", 2.5, 1.0),
        ("b.example", 8443, "OPEN", 2.5, 1.0),
    ]
    assert [one["waiting_for_rate"] for one in shown] == [3, 0, 0]
    assert [one["host"] for one in await listed(api.admin, "?state=CLOSED")] == ["a.example"]
    assert await listed(await api.client(Role.VIEWER, "beta")) == []


async def test_targets_are_listed_once_each_and_by_state(api: Api) -> None:
    tenant = await tenant_of(api)
    hosts = [f"h{n:02}.example" for n in range(25)]
    await opened(api.store, tenant, *(f"https://{host}/" for host in hosts))
    await suspended(api.store, tenant, "https://h03.example/gone")
    pages = await walk(api.admin, "/v1/targets", 7)
    assert [(one["host"], one["state"]) for one in pages] == sorted(
        [*((host, "OPEN") for host in hosts), ("h03.example", "SUSPENDED")]
    )
    assert len(await walk(api.admin, "/v1/targets?state=SUSPENDED", 7)) == 1
    assert (await api.admin.get("/v1/targets?state=BROKEN")).status == 422


async def test_an_operator_resumes_a_host_with_all_its_ports_and_urls_and_that_is_audited(
    api: Api,
) -> None:
    tenant = await tenant_of(api)
    await opened(api.store, tenant, "https://a.example/", "http://a.example:8080/")
    await opened(api.store, tenant, "https://b.example/")
    await suspended(api.store, tenant, "https://a.example/gone")
    operator = await api.client(Role.OPERATOR)
    answer = await operator.post("/v1/targets/A.example/resume")
    assert answer.status == 200
    assert [(one["port"], one["url"], one["state"]) for one in answer.body["resumed"]] == [
        (443, None, "CLOSED"),
        (443, "https://a.example/gone", "CLOSED"),
        (8080, None, "CLOSED"),
    ]
    assert {one["reason"] for one in answer.body["resumed"]} == {f"resumed by {operator.key_id}"}
    states = {(one["host"], one["state"]) for one in await listed(api.admin)}
    assert states == {("a.example", "CLOSED"), ("b.example", "OPEN")}
    (entry,) = [
        entry
        for entry in (await api.admin.get("/v1/audit")).body["data"]
        if entry["action"] == "target.resume"
    ]
    assert (entry["actor"], entry["object_id"], len(entry["after"])) == (
        operator.key_id, "a.example", 3,
    )  # fmt: skip
    again = await operator.post("/v1/targets/a.example/resume")
    assert (again.status, again.code) == (409, "not_held_back")


@pytest.mark.parametrize("host", ["nobody.example", "b.example", "%00", "a%20b"])
async def test_a_host_that_was_never_left_alone_is_not_found(api: Api, host: str) -> None:
    await api.client(Role.VIEWER, "beta")
    await opened(api.store, await tenant_of(api, "beta"), "https://b.example/")
    answer = await api.admin.post(f"/v1/targets/{host}/resume")
    assert (answer.status, answer.code) == (404, "not_found")
    assert await listed(api.admin) == [], "of another tenant"
    assert await value(api.store, "SELECT state FROM targets") == "OPEN"


async def test_a_host_that_is_an_address_can_be_resumed(api: Api) -> None:
    await opened(api.store, await tenant_of(api), "http://[::1]:8080/x", "http://10.0.0.1/")
    for host in ("::1", "%3A%3A1", "10.0.0.1"):
        answer = await api.admin.post(f"/v1/targets/{host}/resume")
        assert answer.status == (409 if host == "%3A%3A1" else 200)
