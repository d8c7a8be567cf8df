"""Every route × every role × somebody else's things: who may not, gets nothing and changes nothing.

A route without a case here fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from noonday.api.app import ROUTES
from noonday.api.routes import Route
from noonday.domain.roles import Role
from noonday.store import Store
from tests.support.database_locks import value
from tests.support.outcomes import bring
from tests.support.servers import NIGHTLY, NOW, Api, Client, a_job

MISSING_JOB = "00000000-0000-7000-8000-000000000000"
MISSING_RUN = f"{MISSING_JOB.replace('-', '')}-s1000000"


@dataclass(frozen=True)
class Things:
    """What belongs to a tenant, by the name of the path's parameter and the route's noun."""

    job: str
    run: str
    letter: str
    operation: str
    replay: str
    recurring: str


@dataclass(frozen=True)
class Case:
    """How a route is called: with a body, and on which of a tenant's things."""

    body: Any = None
    thing: str | None = None
    missing: str | None = None
    tenants: bool = True
    """False where admins see all tenants."""
    query: str = ""
    headers: dict[str, str] = field(default_factory=dict)


A_TENANT = {"name": "gamma"}
A_KEY = {"tenant": "alpha", "role": "viewer"}
JOB = Case(thing="job", missing=MISSING_JOB)
A_DAY_AGO = datetime.now(UTC) - timedelta(days=1)
YESTERDAY = {"from": A_DAY_AGO.isoformat(), "to": A_DAY_AGO.isoformat()}

CASES = {
    "create_job": Case(a_job()),
    "create_jobs": Case({"jobs": [{"job": a_job()}]}),
    "list_jobs": Case(),
    "get_job": JOB,
    "cancel_job": JOB,
    "trigger_job": Case({}, "job", MISSING_JOB),
    "backfill_job": Case(YESTERDAY, "recurring", MISSING_JOB),
    "change_job": Case({"priority": 1}, "job", MISSING_JOB, headers={"if_match": "*"}),
    "pause_job": Case({}, "job", MISSING_JOB),
    "resume_job": Case({}, "job", MISSING_JOB),
    "list_executions": JOB,
    "list_occurrences": JOB,
    "explain_job": JOB,
    "get_forecast": Case(tenants=False),
    "get_run": Case(thing="run", missing=MISSING_RUN),
    "cancel_run": Case({}, "run", MISSING_RUN),
    "cancel_jobs": Case({"filter": {"lane": "long"}}),
    "list_operations": Case(),
    "get_operation": Case(thing="operation", missing=MISSING_JOB),
    "abort_operation": Case(thing="operation", missing=MISSING_JOB),
    "list_dead_letters": Case(),
    "get_dead_letter": Case(thing="letter", missing=MISSING_RUN),
    "preview_schedule": Case({"schedule": {"type": "cron", "cron": "0 2 * * *"}}),
    "list_targets": Case(),
    "resume_target": Case(missing="nobody.example"),
    "list_limits": Case(),
    "limit_host": Case({"max_running": 3}),
    "free_host": Case(missing="nobody.example"),
    "limit_key": Case({"max_running": 3}),
    "free_key": Case(missing="nobody"),
    "discard_dead_letter": Case(thing="letter", missing=MISSING_RUN, query="?reason=x"),
    "list_replays": Case(),
    "create_replay": Case({"filter": {"reason": "killed"}}),
    "get_replay": Case(thing="replay", missing=MISSING_JOB),
    "pause_replay": Case({}, "replay", MISSING_JOB),
    "resume_replay": Case({}, "replay", MISSING_JOB),
    "abort_replay": Case({}, "replay", MISSING_JOB),
    "list_lanes": Case(),
    "put_lane": Case({"weight": 2}),
    "delete_lane": Case(missing="nothing"),
    "pause_lane": Case({}, missing="nothing"),
    "resume_lane": Case({}, missing="nothing"),
    "get_backlog": Case(),
    "list_tenants": Case(tenants=False),
    "create_tenant": Case(A_TENANT, tenants=False),
    "get_tenant": Case(missing="nobody", tenants=False),
    "change_tenant": Case({"keep_responses": False}, missing="nobody", tenants=False),
    "rotate_signing_secret": Case(missing="nobody", tenants=False),
    "list_api_keys": Case(tenants=False),
    "create_api_key": Case(A_KEY, tenants=False),
    "revoke_api_key": Case(missing="0123456789abcdef", tenants=False),
    "list_workers": Case(tenants=False),
    "list_shards": Case(tenants=False),
    "list_alerts": Case(tenants=False),
    "list_audit": Case(tenants=False),
    "healthz": Case(),
    "openapi": Case(),
    "docs": Case(),
}


def test_every_route_has_a_case() -> None:
    assert {route.name for route in ROUTES} == set(CASES)


OF_TENANTS = [route for route in ROUTES if CASES[route.name].thing]


def path_of(route: Route, things: Things) -> str:
    case = CASES[route.name]
    if case.thing:
        return route.path.replace("{id}", getattr(things, case.thing)) + case.query
    return (
        route.path.replace("{name}", "alpha")
        .replace("{id}", "0123456789abcdef")
        .replace("{host}", "x.example")
        .replace("{key}", "invoices")
    )


async def things_of(api: Api, client: Client) -> Things:
    """A tenant's job with a run, and a dead letter."""
    letter = await client.create(schedule=NOW)
    await bring(api.store, letter, "dead")
    (dead,) = (await client.get("/v1/dlq")).body["data"]
    run = (await client.get(f"/v1/jobs/{await client.create(schedule=NOW)}/occurrences")).body
    operation = (await client.post("/v1/jobs:cancel", {"filter": {"name_prefix": "none"}})).body
    replay = (await client.post("/v1/dlq/replays", {"filter": {"reason": "killed"}})).body
    names = run["data"][0]["run_id"], dead["id"], operation["id"], replay["id"]
    return Things(await client.create(), *names, await client.create(schedule=NIGHTLY))


async def state_of(store: Store) -> Any:
    """All that a call could change, the audit log left out."""
    return [
        await value(store, f"SELECT json_agg(t ORDER BY t::text)::text FROM {table} AS t")
        for table in (
            "jobs",
            "runs",
            "occurrences",
            "timers",
            "dead_letters",
            "operations",
            "replays",
            "tenants",
            "api_keys",
            "lanes",
            "limits",
            "pauses",
        )
    ]


async def test_a_key_may_do_what_its_role_allows_and_nothing_more(api: Api) -> None:
    things = await things_of(api, api.admin)
    clients = {role: await api.client(role) for role in Role}
    before = await state_of(api.store)
    for route in ROUTES:
        if route.role is None:
            continue
        case = CASES[route.name]
        path, body = path_of(route, things), case.body
        answer = await api.anonymous().call(route.method, path, body)
        assert (answer.status, answer.code) == (401, "unauthorized"), route.name
        assert answer.headers["www-authenticate"].startswith("Bearer")
        for role, client in clients.items():
            if role < route.role:
                answer = await client.call(route.method, path, body, **case.headers)
                assert (answer.status, answer.code) == (403, "forbidden"), (route.name, role)
    assert await state_of(api.store) == before
    for route in ROUTES:
        for role in Role:
            if role == route.role:
                case = CASES[route.name]
                path, body = path_of(route, things), case.body
                answer = await clients[role].call(route.method, path, body, **case.headers)
                assert answer.status not in (401, 404) or CASES[route.name].missing, route.name
                assert answer.status < 500, route.name


@pytest.mark.parametrize("route", OF_TENANTS, ids=lambda route: route.name)
async def test_what_belongs_to_another_tenant_does_not_exist(api: Api, route: Route) -> None:
    things = await things_of(api, api.admin)
    case = CASES[route.name]
    assert case.thing
    assert case.missing
    stranger = await api.client(Role.ADMIN, "beta")
    before = await state_of(api.store)
    headers = case.headers | {"x_request_id": "r"}
    theirs = await stranger.call(route.method, path_of(route, things), case.body, **headers)
    missing = await stranger.call(
        route.method,
        route.path.replace("{id}", case.missing) + case.query,
        case.body,
        **headers,
    )
    assert (theirs.status, theirs.code) == (404, "not_found")
    assert theirs.raw == missing.raw
    assert await state_of(api.store) == before
    mine = await api.admin.call(route.method, path_of(route, things), case.body, **case.headers)
    assert mine.status < 300


async def test_denied_tries_at_changing_a_job_are_in_the_audit_log(api: Api) -> None:
    job = await api.admin.create()
    stranger = await api.client(Role.ADMIN, "beta")
    await stranger.delete(f"/v1/jobs/{job}")
    await stranger.post(f"/v1/jobs/{job}/trigger")
    log = (await api.admin.get("/v1/audit")).body["data"]
    denied = [entry for entry in log if entry["actor"] == stranger.key_id]
    assert [(entry["action"], entry["object_id"], entry["after"]) for entry in denied] == [
        ("job.trigger", job, {"denied": "not_found"}),
        ("job.cancel", job, {"denied": "not_found"}),
    ]


async def test_lists_show_only_what_is_the_tenants_own(api: Api) -> None:
    mine = await things_of(api, api.admin)
    stranger = await api.client(Role.VIEWER, "beta")
    for path in (
        "/v1/jobs",
        "/v1/dlq",
        "/v1/dlq/replays",
        f"/v1/dlq?job_id={mine.job}",
        "/v1/jobs?name_prefix=n",
    ):
        assert (await stranger.get(path)).body["data"] == [], path


@pytest.mark.parametrize(
    "path",
    ["/v1/jobs/not-an-id", "/v1/jobs/%00", "/v1/runs/x", "/v1/dlq/x-s1", "/v1/tenants/%00", "/v1/",
     "/v1/tenants/%ff", "/v1/jobs/%7Bid%7D", "/v1/runs/%F0%9F%99%82", "/nothing", "/v1/jobs/"],
)  # fmt: skip
async def test_what_is_not_there_is_a_problem_with_404(api: Api, path: str) -> None:
    answer = await api.admin.get(path)
    assert (answer.status, answer.code) == (404, "not_found")


async def test_a_method_that_a_path_does_not_have_names_those_it_has(api: Api) -> None:
    answer = await api.admin.call("PUT", "/v1/jobs")
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
    assert (await api.admin.call("HEAD", "/v1/jobs")).status == 200


async def test_parameters_that_are_not_known_or_not_carried_out_are_refused(api: Api) -> None:
    job = await api.admin.create()
    cancel = await api.admin.delete(f"/v1/jobs/{job}?running=later")
    assert (cancel.status, cancel.code) == (422, "invalid")
    assert cancel.body["errors"][0]["pointer"] == "/query/running"
    assert (await api.admin.get(f"/v1/jobs/{job}")).body["status"] == "PENDING"
    listed = await api.admin.get("/v1/jobs?colour=red&due_from=x&status=PENDING&status=RUNNING")
    assert listed.status == 422
    assert {(error["pointer"], error["code"]) for error in listed.body["errors"]} == {
        ("/query/colour", "unknown_parameter"),
        ("/query/due_from", "not_supported"),
        ("/query/status", "duplicate"),
    }


async def test_every_answer_has_a_request_id_and_keeps_a_sane_one(api: Api) -> None:
    for path in ("/v1/jobs", "/nothing", "/healthz", "/docs"):
        given = await api.admin.get(path, x_request_id="trace-1:a/b")
        assert given.headers["x-request-id"] == "trace-1:a/b", path
        made = await api.admin.get(path, x_request_id="no spaces")
        assert len(made.headers["x-request-id"]) == 32
    problem = await api.admin.get("/nothing", x_request_id="mine")
    assert problem.body["request_id"] == "mine"


async def test_a_crash_is_a_problem_that_tells_nothing(api: Api) -> None:
    async with api.store.transaction() as tx:
        await tx.execute("ALTER TABLE jobs RENAME COLUMN labels TO secrets_of_ours")
    answer = await api.admin.get("/v1/jobs", x_request_id="mine")
    assert (answer.status, answer.code) == (500, "internal")
    assert answer.headers["x-request-id"] == answer.body["request_id"] == "mine"
    assert b"labels" not in answer.raw
