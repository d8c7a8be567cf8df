"""Every endpoint over a database that misbehaves: it answers as always, or 503 with Retry-After.

Whatever was answered, the same request again leaves what one request would have left. A route
without a case fails.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from noonday.api.app import ROUTES
from noonday.api.routes import Route
from noonday.domain.breaker import target_of
from noonday.domain.roles import Role
from noonday.store import Store, targets, tenants
from noonday.store.secretbox import SIGNING
from tests.support.database import open_store
from tests.support.faulty import Faults, FaultyStore, Kind
from tests.support.invariants import broken
from tests.support.outcomes import bring
from tests.support.servers import EVERY_HOUR, NIGHTLY, NOW, Answered, Api, Client, a_context, a_job
from tests.support.servers import running_api as running

Thing = Callable[[Api], Awaitable[str]]


@dataclass(frozen=True)
class Case:
    """How a route is called, and what it leaves when it is called until it has answered."""

    answers: tuple[int, ...] = (200,)
    """Without faults, the first time or again."""
    body: Any = None
    thing: Thing | None = None
    """Makes what stands in the path."""
    query: str = ""
    keyed: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    leaves: str | None = None
    """What is counted."""
    count: tuple[int, int] = (0, 0)
    """By how much that rises, at least and at most, over one fault and what came after."""


async def a_tenant(api: Api) -> str:
    name = f"tenant-{random.getrandbits(48)}"
    assert (await api.admin.post("/v1/tenants", {"name": name})).status == 201
    return name


async def a_key(api: Api) -> str:
    return (await api.client(Role.VIEWER)).key_id


async def an_armed_job(api: Api) -> str:
    return await api.admin.create()


async def a_recurring_job(api: Api) -> str:
    return await api.admin.create(schedule=EVERY_HOUR | {"starts_at": "2050-01-01T00:00:00Z"})


async def a_nightly_job(api: Api) -> str:
    return await api.admin.create(schedule=NIGHTLY)


async def a_paused_job(api: Api) -> str:
    job = await a_recurring_job(api)
    assert (await api.admin.post(f"/v1/jobs/{job}/pause")).status == 200
    return job


async def a_letter(api: Api) -> str:
    job = await api.admin.create(schedule=NOW)
    await bring(api.store, job, "dead")
    (letter,) = (await api.admin.get(f"/v1/dlq?job_id={job}")).body["data"]
    return str(letter["id"])


async def a_run(api: Api) -> str:
    job = await api.admin.create(schedule=NOW)
    (row,) = (await api.admin.get(f"/v1/jobs/{job}/occurrences")).body["data"]
    return str(row["run_id"])


async def an_operation(api: Api) -> str:
    answer = await api.admin.post("/v1/jobs:cancel", {"filter": {"lane": "long"}})
    assert answer.status == 202
    return str(answer.body["id"])


async def a_target(api: Api) -> str:
    """The host of one that is left alone."""
    host = f"host-{random.getrandbits(48)}.example"
    async with api.store.transaction() as tx:
        alpha = await tenants.one(tx, "alpha")
        assert alpha is not None
        found = target_of(alpha["id"], f"https://{host}/")
        assert found is not None
        pause = [timedelta(minutes=1)]
        assert await targets.open(tx, alpha["id"], found, "answered 503", timedelta(), pause)
    return host


async def a_replay(api: Api) -> str:
    answer = await api.admin.post("/v1/dlq/replays", {"filter": {"reason": "killed"}})
    assert answer.status == 202
    return str(answer.body["id"])


async def a_paused_replay(api: Api) -> str:
    made = await a_replay(api)
    assert (await api.admin.post(f"/v1/dlq/replays/{made}/pause")).status == 200
    return made


async def a_lane(api: Api, name: str = "own-lane") -> str:
    assert (await api.admin.call("PUT", f"/v1/lanes/{name}", {"weight": 2})).status in (200, 201)
    return name


async def a_running_lane(api: Api) -> str:
    name = await a_lane(api, "to-be-paused")
    assert (await api.admin.post(f"/v1/lanes/{name}/resume")).status == 200
    return name


async def a_paused_lane(api: Api) -> str:
    name = await a_lane(api, "to-be-resumed")
    assert (await api.admin.post(f"/v1/lanes/{name}/pause")).status == 200
    return name


async def a_lane_to_delete(api: Api) -> str:
    return await a_lane(api, "to-be-deleted")


async def a_name(api: Api) -> str:
    return f"name-{random.getrandbits(48)}"


async def a_limited_host(api: Api) -> str:
    name = await a_name(api)
    answer = await api.admin.call("PUT", f"/v1/limits/hosts/{name}", {"max_running": 1})
    assert answer.status == 200, answer
    return name


async def a_limited_key(api: Api) -> str:
    name = await a_name(api)
    answer = await api.admin.call("PUT", f"/v1/limits/keys/{name}", {"max_running": 2})
    assert answer.status == 200, answer
    return name


A_DAY_AGO = datetime.now(UTC) - timedelta(days=1)
YESTERDAY = {"from": A_DAY_AGO.isoformat(), "to": A_DAY_AGO.isoformat()}
TWO = {"jobs": [{"job": a_job(), "idempotency_key": f"{{key}}-{n}"} for n in range(2)]}
AUDIT = "SELECT count(*) FROM audit_log WHERE action = '{}'"

CASES = {
    "create_job": Case(
        (202,), a_job(), keyed=True, leaves="SELECT count(*) FROM jobs", count=(1, 1)
    ),
    "create_jobs": Case((202,), TWO, leaves="SELECT count(*) FROM jobs", count=(2, 2)),
    "list_jobs": Case(),
    "get_job": Case(thing=an_armed_job),
    "cancel_job": Case(thing=an_armed_job, leaves=AUDIT.format("job.cancel"), count=(1, 1)),
    "trigger_job": Case(
        (202,), {}, a_recurring_job, keyed=True, leaves="SELECT count(*) FROM runs", count=(1, 1)
    ),
    "backfill_job": Case(
        (202,),
        YESTERDAY,
        a_nightly_job,
        keyed=True,
        leaves="SELECT count(*) FROM operations WHERE kind = 'backfill'",
        count=(1, 1),
    ),
    "change_job": Case(
        body={"schedule": {"interval_sec": 60}, "payload": {"n": 2}},
        thing=a_recurring_job,
        headers={"if_match": "*"},
        leaves=AUDIT.format("job.change"),
        count=(1, 1),
    ),
    "pause_job": Case(
        body={}, thing=a_recurring_job, leaves=AUDIT.format("job.pause"), count=(1, 1)
    ),
    "resume_job": Case(
        body={}, thing=a_paused_job, leaves=AUDIT.format("job.resume"), count=(1, 1)
    ),
    "list_executions": Case(thing=an_armed_job),
    "list_occurrences": Case(thing=an_armed_job),
    "explain_job": Case(thing=an_armed_job),
    "get_forecast": Case(query="?jitter_sec=60"),
    "get_run": Case(thing=a_run),
    "cancel_run": Case(
        (200,),
        {},
        a_run,
        leaves="SELECT count(*) FROM occurrences WHERE outcome = 'CANCELLED'",
        count=(1, 1),
    ),
    "cancel_jobs": Case(
        (202,),
        {"filter": {"lane": "long"}},
        keyed=True,
        leaves="SELECT count(*) FROM operations",
        count=(1, 1),
    ),
    "list_operations": Case(),
    "get_operation": Case(thing=an_operation),
    "abort_operation": Case(
        thing=an_operation, leaves=AUDIT.format("operation.abort"), count=(1, 1)
    ),
    "list_dead_letters": Case(),
    "get_dead_letter": Case(thing=a_letter),
    "discard_dead_letter": Case(
        thing=a_letter,
        query="?reason=old",
        leaves="SELECT count(*) FROM dead_letters WHERE state = 'DISCARDED'",
        count=(1, 1),
    ),
    "list_replays": Case(),
    "create_replay": Case(
        (202,),
        {"filter": {"reason": "killed"}},
        keyed=True,
        leaves="SELECT count(*) FROM replays",
        count=(1, 1),
    ),
    "get_replay": Case(thing=a_replay),
    "pause_replay": Case(
        body={}, thing=a_replay, leaves=AUDIT.format("replay.pause"), count=(1, 1)
    ),
    "resume_replay": Case(
        body={}, thing=a_paused_replay, leaves=AUDIT.format("replay.resume"), count=(1, 1)
    ),
    "abort_replay": Case(
        body={}, thing=a_replay, leaves=AUDIT.format("replay.abort"), count=(1, 1)
    ),
    "preview_schedule": Case(body={"schedule": {"type": "interval", "interval_sec": 60}}),
    "list_targets": Case(),
    "resume_target": Case(
        (200, 409), thing=a_target, leaves=AUDIT.format("target.resume"), count=(1, 1)
    ),
    "list_lanes": Case(),
    "put_lane": Case((200, 201), {"weight": 3}, thing=a_lane),
    "pause_lane": Case(thing=a_running_lane, leaves=AUDIT.format("lane.pause"), count=(1, 1)),
    "resume_lane": Case(thing=a_paused_lane, leaves=AUDIT.format("lane.resume"), count=(1, 1)),
    "delete_lane": Case(
        (200, 404), thing=a_lane_to_delete, leaves=AUDIT.format("lane.delete"), count=(1, 1)
    ),
    "list_limits": Case(),
    "limit_host": Case(
        body={"max_running": 3},
        thing=a_name,
        leaves="SELECT count(*) FROM limits WHERE kind = 'host' AND max_running = 3",
        count=(1, 1),
    ),
    "limit_key": Case(
        body={"max_running": 3},
        thing=a_name,
        leaves="SELECT count(*) FROM limits WHERE kind = 'key' AND max_running = 3",
        count=(1, 1),
    ),
    "free_host": Case(
        (200, 404),
        thing=a_limited_host,
        leaves="SELECT -count(*) FROM limits WHERE kind = 'host' AND max_running = 1",
        count=(1, 1),
    ),
    "free_key": Case(
        (200, 404),
        thing=a_limited_key,
        leaves="SELECT -count(*) FROM limits WHERE kind = 'key' AND max_running = 2",
        count=(1, 1),
    ),
    "get_backlog": Case(),
    "list_tenants": Case(),
    "create_tenant": Case(
        (201, 409), {"name": "{key}"}, leaves="SELECT count(*) FROM tenants", count=(1, 1)
    ),
    "get_tenant": Case(thing=a_tenant),
    "change_tenant": Case(
        body={"keep_responses": False},
        thing=a_tenant,
        leaves="SELECT count(*) FROM tenants WHERE NOT keep_responses",
        count=(1, 1),
    ),
    "rotate_signing_secret": Case(
        thing=a_tenant, leaves=AUDIT.format("tenant.rotate_signing_secret"), count=(1, 2)
    ),
    "list_api_keys": Case(),
    "create_api_key": Case(
        (201,),
        {"tenant": "alpha", "role": "viewer"},
        leaves=AUDIT.format("api_key.create"),
        count=(1, 2),
    ),
    "revoke_api_key": Case(thing=a_key, leaves=AUDIT.format("api_key.revoke"), count=(1, 1)),
    "list_workers": Case(),
    "list_shards": Case(),
    "list_audit": Case(),
    "list_alerts": Case(),
    "healthz": Case(),
    "openapi": Case(),
    "docs": Case(),
}


def test_every_route_has_a_case() -> None:
    assert {route.name for route in ROUTES} == set(CASES)


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    """An API over a store that is well until its faults are told otherwise."""
    store = await open_store(database_url, FaultyStore.under(Faults(4)), size=8)
    async with running(a_context(store, tmp_path / "blobs")) as api:
        yield api
    await store.close()


def faults_of(api: Api) -> Faults:
    assert isinstance(api.store, FaultyStore)
    return api.store.faults


class Call:
    """One request, which may be made again."""

    numbers = iter(range(1_000_000))

    def __init__(self, route: Route, client: Client, thing: str) -> None:
        self.case = CASES[route.name]
        self.route = route
        self._client = client
        self._key = f"key-{next(self.numbers)}"
        self._path = re.sub(r"\{(id|name|host|key)\}", thing, route.path) + self.case.query

    @classmethod
    async def new(cls, api: Api, route: Route) -> Call:
        """With a key that the API has not seen before, on a thing made for it."""
        thing = CASES[route.name].thing
        return cls(route, await api.client(Role.ADMIN), await thing(api) if thing else "")

    async def make(self) -> Answered:
        """Its answer, which is one that it may give."""
        headers = self.case.headers | ({"idempotency_key": self._key} if self.case.keyed else {})
        body = _filled(self.case.body, self._key)
        answer = await self._client.call(self.route.method, self._path, body, **headers)
        if answer.status == 503:
            assert (answer.code, answer.headers["retry-after"]) == ("unavailable", "1"), self
        else:
            assert answer.status in self.case.answers, (self, answer)
        return answer

    async def until_answered(self) -> Answered:
        """Its answer, made again while the database is said to be away."""
        while (answer := await self.make()).status == 503 or self.is_partial(answer):
            pass
        return answer

    def is_partial(self, answer: Answered) -> bool:
        """Whether some items of a batch were not carried out."""
        return self.route.name == "create_jobs" and answer.body["failed"] > 0

    def __repr__(self) -> str:
        return f"{self.route.name} {self._path} {self._key}"


def _filled(body: Any, key: str) -> Any:
    match body:
        case dict():
            return {name: _filled(value, key) for name, value in body.items()}
        case list():
            return [_filled(value, key) for value in body]
        case str():
            return body.replace("{key}", key)
    return body


async def counted(store: Store, case: Case) -> int:
    if case.leaves is None:
        return 0
    async with store.transaction() as tx:
        return int(await tx.value(case.leaves))


@pytest.mark.parametrize(
    "kind",
    [Kind.TOO_MANY, Kind.SERIALIZATION, Kind.READ_ONLY, Kind.CUT, Kind.REFUSED, Kind.UNSAID,
     Kind.UNHEARD],
)  # fmt: skip
async def test_a_fault_at_any_point_of_a_request_is_made_good_by_the_same_request(
    store: Store, api: Api, kind: Kind
) -> None:
    faults = faults_of(api)
    for route in ROUTES:
        for after in range(40):
            call = await Call.new(api, route)
            before = await counted(store, call.case)
            faults.once(kind, after)
            answer = await call.make()
            came = not faults.waits
            faults.heal()
            if answer.status == 503 or call.case.keyed or call.is_partial(answer):
                await call.until_answered()
            least, most = call.case.count
            left = await counted(store, call.case) - before
            assert least <= left <= most, (call, kind, after, left)
            if not came:
                break
        else:
            pytest.fail(f"{route.name} does not come to its end")
    assert await broken(store) == {}


@pytest.mark.parametrize(("rate", "calls"), [(0.01, 12), (0.25, 4)])
async def test_under_faults_every_endpoint_answers_as_always_or_asks_to_try_again(
    store: Store, api: Api, rate: float, calls: int
) -> None:
    faults = faults_of(api)
    for route in ROUTES:
        for _ in range(calls):
            call = await Call.new(api, route)
            before = await counted(store, call.case)
            faults.rage(rate)
            await call.until_answered()
            faults.heal()
            left = await counted(store, call.case) - before
            assert call.case.count[0] <= left, call
            assert left == call.case.count[0] or call.case.count[0] < call.case.count[1], call
    assert faults.met.total() >= 5
    assert await broken(store) == {}


async def test_what_was_answered_with_503_was_not_created(store: Store, api: Api) -> None:
    faults_of(api).rage(0.25)
    answers = [await api.admin.post("/v1/jobs", a_job()) for _ in range(60)]
    faults_of(api).heal()
    made = [answer for answer in answers if answer.status == 202]
    assert len(made) < len(answers)
    assert await counted(store, CASES["create_job"]) == len(made)


async def test_a_rotation_whose_answer_was_lost_leaves_the_secret_that_receivers_know(
    store: Store, api: Api
) -> None:
    name = "gamma"
    made = await api.admin.post("/v1/tenants", {"name": name})
    known = made.body["signing_secret"]
    path = f"/v1/tenants/{name}/signing-secret"
    faults_of(api).once(Kind.UNHEARD)
    assert (await api.admin.post(path)).status == 503
    rotated = (await api.admin.post(path)).body["signing_secret"]
    async with store.transaction() as tx:
        sealed = (await tenants.signing_keys(tx, [made.body["id"]]))[made.body["id"]]
    opened = [
        tenants.written(api.context.secretbox.open(one, made.body["id"], SIGNING)) for one in sealed
    ]
    assert opened[0] == rotated
    assert known in opened
