"""What is due, as the API shows it; jitter by default; notes on hot minutes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from noonday.domain.forecast import Part, Stream
from noonday.domain.roles import Role
from noonday.loops.forecasting import Forecasting
from noonday.store import Store, forecasts, lanes, tenants
from noonday.store.forecasts import Made, Minute
from tests.support.counting import CountingStore
from tests.support.servers import Answered, Api, Client, a_context, a_job, running_api

PATH = "/v1/forecast"
START = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=3)
HOURLY = {"type": "cron", "cron": "0 * * * *"}
EVERY_HOUR = {"type": "interval", "interval_sec": 3_600, "starts_at": "2027-01-01T00:00:00Z"}


async def ids(api: Api) -> tuple[int, int]:
    """The tenants alpha and beta."""
    await api.client(Role.VIEWER, "beta")
    async with api.store.transaction() as tx:
        rows = [await tenants.one(tx, name) for name in ("alpha", "beta")]
    alpha, beta = (row["id"] for row in rows if row is not None)
    return alpha, beta


async def forecast(store: Store, minutes: dict[int, list[Part]], hot_from: float = 60.0) -> None:
    """A forecast that says so, by the minute from the start on."""
    made = Made(
        START - timedelta(seconds=30), 0.5, START, START + timedelta(hours=72), 9, False, hot_from
    )
    listed = []
    for minute, parts in minutes.items():
        count = sum(part.occurrences for part in parts)
        at = START + timedelta(minutes=minute)
        listed.append(Minute(at, parts, count, count >= hot_from))
    async with store.transaction() as tx:
        assert await forecasts.put(tx, made, listed)


async def two_tenants(api: Api) -> None:
    alpha, beta = await ids(api)
    mine, batch = Stream(alpha, "default", "a.example"), Stream(alpha, "batch", "b.example")
    theirs = Stream(beta, "default", "a.example")
    await forecast(
        api.store,
        {
            0: [Part(mine, 100, 90), Part(theirs, 50, 50), Part(batch, 10, 0)],
            1: [Part(mine, 3, 0)],
            90: [Part(theirs, 4, 4)],
            120: [
                Part(mine, 70, 70), Part(Stream(0, "", ""), 5, 5), Part(Stream(alpha, "", ""), 2, 2)
            ],
        },
    )  # fmt: skip


def stamp(minute: int) -> str:
    return f"{START + timedelta(minutes=minute):%Y-%m-%dT%H:%M:00.000Z}"


async def shown(client: Client, query: str = "") -> dict[str, Any]:
    answer = await client.get(PATH + query)
    assert answer.status == 200, answer
    body: dict[str, Any] = answer.body
    return body


def minutes_of(document: dict[str, Any]) -> dict[str, tuple[float, bool]]:
    return {each["at"]: (each["occurrences"], each["hot"]) for each in document["minutes"]}


# --- what is shown ----------------------------------------------------------------------------


async def test_before_it_was_counted_there_is_nothing(api: Api) -> None:
    document = await shown(await api.client(Role.VIEWER))
    assert (document["computed_at"], document["minutes"], document["hot"]) == (None, [], [])


async def test_an_admin_sees_what_is_due_of_all_tenants(api: Api) -> None:
    await two_tenants(api)
    document = await shown(api.admin)
    assert document["starts_at"] == stamp(0)
    assert document["ends_at"] == stamp(72 * 60)
    assert minutes_of(document) == {
        stamp(0): (160, True), stamp(1): (3, False), stamp(90): (4, False), stamp(120): (77, True),
    }  # fmt: skip
    assert document["occurrences"] == 244
    assert document["outlook"] == {"hot_minutes": 2, "busiest_at": stamp(0), "busiest": 160}
    first, second = document["hot"]
    assert first["tenants"] == [
        {"name": "alpha", "occurrences": 110}, {"name": "beta", "occurrences": 50},
    ]  # fmt: skip
    assert first["lanes"] == [
        {"name": "default", "occurrences": 150}, {"name": "batch", "occurrences": 10},
    ]  # fmt: skip
    assert first["target_hosts"][0] == {"name": "a.example", "occurrences": 150}
    assert second["tenants"][-1] == {"name": None, "occurrences": 5}
    assert second["lanes"][-1] == {"name": None, "occurrences": 7}
    assert document["folded_minutes"] == 1


async def test_who_is_no_admin_sees_what_is_the_tenants_own_and_what_is_hot_for_all(
    api: Api,
) -> None:
    await two_tenants(api)
    document = await shown(await api.client(Role.OPERATOR, "beta"))
    assert minutes_of(document) == {stamp(0): (50, True), stamp(90): (4, False)}
    (hot,) = document["hot"]
    assert hot["tenants"] == [{"name": "beta", "occurrences": 50}]
    assert "alpha" not in str(document)
    assert document["folded_minutes"] == 1, "what beta has in that minute may not be listed"


async def test_an_admin_may_look_at_one_tenant_and_others_only_at_their_own(api: Api) -> None:
    await two_tenants(api)
    assert stamp(1) not in minutes_of(await shown(api.admin, "?tenant=beta"))
    viewer = await api.client(Role.VIEWER, "beta")
    assert await shown(viewer, "?tenant=beta") == await shown(viewer)
    answer = await viewer.get(f"{PATH}?tenant=alpha")
    assert (answer.status, answer.code) == (403, "forbidden")
    answer = await api.admin.get(f"{PATH}?tenant=nobody")
    assert answer.status == 422
    assert answer.body["errors"][0]["pointer"] == "/query/tenant"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("lane=batch", {0: (10, True)}),
        ("target_host=b.example", {0: (10, True)}),
        ("lane=batch&target_host=a.example", {}),
        ("hours=1", {0: (160, True), 1: (3, False)}),
        ("hours=2&hot_only=true", {0: (160, True)}),
        ("hot_only=false&hours=1", {0: (160, True), 1: (3, False)}),
    ],
)
async def test_it_can_be_narrowed_down(
    api: Api, query: str, expected: dict[int, tuple[float, bool]]
) -> None:
    await two_tenants(api)
    document = await shown(api.admin, f"?{query}")
    assert minutes_of(document) == {stamp(minute): found for minute, found in expected.items()}


async def test_what_a_jitter_would_do_is_shown_beside(api: Api) -> None:
    await two_tenants(api)
    document = await shown(api.admin, "?jitter_sec=1200")
    minutes = {each["at"]: each for each in document["minutes"]}
    first = minutes[stamp(0)]
    assert (first["with_jitter"], first["hot_with_jitter"]) == (20 + 7, False)
    assert (minutes[stamp(7)]["occurrences"], minutes[stamp(7)]["with_jitter"]) == (0, 7)
    assert document["with_jitter"]["hot_minutes"] == 0
    assert document["with_jitter"]["busiest"] == 27
    assert sum(each["with_jitter"] for each in document["minutes"]) == pytest.approx(
        document["occurrences"]
    )
    assert document["hot"][0]["with_jitter"] == 27
    none = await shown(api.admin, "?jitter_sec=0")
    assert none["with_jitter"] == none["outlook"]


async def test_a_jitter_of_one_tenant_leaves_the_others_where_they_are(api: Api) -> None:
    await two_tenants(api)
    viewer = await api.client(Role.VIEWER, "beta")
    first = (await shown(viewer, "?jitter_sec=3000"))["minutes"][0]
    assert (first["with_jitter"], first["hot_with_jitter"]) == (1, True), "110 of alpha stay"


@pytest.mark.parametrize(
    "query",
    ["hours=0", "hours=73", "hours=x", "jitter_sec=-1", "jitter_sec=86401", "hot_only=yes",
     "lane=%00", "hours=1.5"],
)  # fmt: skip
async def test_what_is_not_understood_is_refused_by_name(api: Api, query: str) -> None:
    answer = await api.admin.get(f"{PATH}?{query}")
    assert answer.status == 422, answer
    (fault,) = answer.body["errors"]
    assert fault["pointer"] == f"/query/{query.partition('=')[0]}"
    both = await api.admin.get(f"{PATH}?hours=0&jitter_sec=x&lane=%00")
    assert len(both.body["errors"]) == 3


async def test_minutes_that_are_over_are_left_out(api: Api) -> None:
    await two_tenants(api)
    api.store.now = START + timedelta(minutes=1, seconds=30)
    document = await shown(api.admin)
    assert (document["starts_at"], document["minutes"][0]["at"]) == (stamp(1), stamp(1))
    api.store.now = START + timedelta(hours=80)
    document = await shown(api.admin)
    assert (document["minutes"], document["starts_at"]) == ([], document["ends_at"])


async def test_what_is_created_is_in_the_next_forecast(api: Api) -> None:
    for _ in range(3):
        await api.admin.create(schedule=HOURLY)
    one = Forecasting(api.store, every_sec=300, leads=lambda: True)
    while await one.tick():
        pass
    document = await shown(api.admin, "?hours=72")
    assert {each["occurrences"] for each in document["minutes"]} == {3}
    assert len(document["minutes"]) == 72


# --- jitter by default ------------------------------------------------------------------------


async def jitter_of(client: Client, schedule: dict[str, Any], **more: Any) -> int:
    made = await client.post("/v1/jobs", a_job(schedule=schedule, **more))
    assert made.status == 202, made
    stored = (await client.get(f"/v1/jobs/{made.body['id']}")).body
    assert stored["schedule"] == made.body["schedule"], "what is echoed is what is stored"
    return int(made.body["schedule"]["jitter_sec"])


async def settings(api: Api, tenant: int | None = None, lane: int | None = None) -> None:
    answer: Answered
    if tenant is not None:
        answer = await api.admin.patch("/v1/tenants/alpha", {"jitter_sec": tenant})
        assert (answer.status, answer.body["jitter_sec"]) == (200, tenant)
    answer = await api.admin.call("PUT", "/v1/lanes/batch", {"jitter_sec": lane})
    assert (answer.status, answer.body["jitter_sec"]) == (200, lane)


async def test_at_first_nothing_is_jittered(api: Api) -> None:
    assert await jitter_of(api.admin, HOURLY) == 0
    assert (await api.admin.get("/v1/tenants/alpha")).body["jitter_sec"] == 0


async def test_a_recurring_job_has_the_jitter_of_its_lane_else_of_its_tenant(api: Api) -> None:
    await settings(api, tenant=300)
    assert await jitter_of(api.admin, HOURLY) == 300
    assert await jitter_of(api.admin, EVERY_HOUR) == 300
    assert await jitter_of(api.admin, HOURLY, lane="batch") == 300
    await settings(api, lane=60)
    assert await jitter_of(api.admin, HOURLY, lane="batch") == 60
    assert await jitter_of(api.admin, HOURLY) == 300
    await settings(api, lane=0)
    assert await jitter_of(api.admin, HOURLY, lane="batch") == 0, "a lane that says 0 means it"
    beta = await api.client(Role.ADMIN, "beta")
    assert await jitter_of(beta, HOURLY) == 0


async def test_what_names_a_jitter_has_that_one(api: Api) -> None:
    await settings(api, tenant=300, lane=60)
    for given in (0, 7):
        assert await jitter_of(api.admin, HOURLY | {"jitter_sec": given}) == given
        assert await jitter_of(api.admin, EVERY_HOUR | {"jitter_sec": given}, lane="batch") == given
    assert await jitter_of(api.admin, {"type": "once", "run_at": "2050-01-01T00:00:00Z"}) == 0


async def test_a_jitter_by_default_is_shorter_than_the_interval(api: Api) -> None:
    await settings(api, tenant=300)
    assert await jitter_of(api.admin, EVERY_HOUR | {"interval_sec": 60}) == 59
    assert await jitter_of(api.admin, EVERY_HOUR | {"interval_sec": 1}) == 0


@pytest.mark.parametrize("atomic", [False, True])
async def test_jobs_of_a_batch_have_their_defaults_too(api: Api, atomic: bool) -> None:
    await settings(api, tenant=300, lane=60)
    jobs = [{"job": a_job(schedule=HOURLY)}, {"job": a_job(schedule=HOURLY, lane="batch")}]
    answer = await api.admin.post("/v1/jobs:batch", {"jobs": jobs, "atomic": atomic})
    found = [result["job"]["schedule"]["jitter_sec"] for result in answer.body["results"]]
    assert found == [300, 60]


async def test_a_preview_has_the_jitter_that_such_a_job_would_have(api: Api) -> None:
    await settings(api, tenant=300, lane=60)
    for more, expected in (({}, 300), ({"lane": "batch"}, 60)):
        answer = await api.admin.post("/v1/schedules/preview", {"schedule": HOURLY, **more})
        assert answer.body["schedule"]["jitter_sec"] == expected
    answer = await api.admin.post(
        "/v1/schedules/preview", {"schedule": HOURLY | {"jitter_sec": 0}, "lane": "batch"}
    )
    assert answer.body["schedule"]["jitter_sec"] == 0
    answer = await api.admin.post("/v1/schedules/preview", {"schedule": HOURLY, "lane": "nowhere"})
    assert [(each["pointer"], each["code"]) for each in answer.body["errors"]] == [
        ("/lane", "unknown_lane")
    ]


async def test_a_job_that_was_there_keeps_what_it_has(api: Api) -> None:
    job = await api.admin.create(schedule=HOURLY)
    await settings(api, tenant=300)
    assert (await api.admin.get(f"/v1/jobs/{job}")).body["schedule"]["jitter_sec"] == 0


@pytest.mark.parametrize("jitter_sec", [-1, 86_401, "5", 1.5])
async def test_no_jitter_is_longer_than_a_day(api: Api, jitter_sec: Any) -> None:
    for method, path in (("PATCH", "/v1/tenants/alpha"), ("PUT", "/v1/lanes/batch")):
        answer = await api.admin.call(method, path, {"jitter_sec": jitter_sec})
        assert answer.status == 422
        assert answer.body["errors"][0]["pointer"] == "/jitter_sec"


async def test_a_jitter_by_default_is_on_record(api: Api) -> None:
    await settings(api, tenant=300, lane=60)
    log = (await api.admin.get("/v1/audit")).body["data"]
    found = {
        entry["action"]: (entry["before"]["jitter_sec"], entry["after"]["jitter_sec"])
        for entry in log
        if entry["action"] in ("tenant.change", "lane.change")
    }
    assert found == {"tenant.change": (0, 300), "lane.change": (None, 60)}


async def test_defaults_and_notes_need_no_statement_of_their_own_for_each_job(
    store: Store, tmp_path: Path
) -> None:
    counting = CountingStore(store)
    async with running_api(a_context(counting, tmp_path / "blobs")) as api:
        await api.admin.create(schedule=HOURLY)
        assert {lanes.EVERY, forecasts.HOT} <= set(counting.statements)
        counting.statements.clear()
        await api.admin.create(schedule=HOURLY)
        assert not {lanes.EVERY, forecasts.HOT} & set(counting.statements)


# --- notes ------------------------------------------------------------------------------------


async def a_hot_minute(api: Api, minute: int = 0) -> None:
    alpha, _ = await ids(api)
    await forecast(api.store, {minute: [Part(Stream(alpha, "default", "a.example"), 500, 500)]})


def once(minute: int, second: int = 30) -> dict[str, Any]:
    at = START + timedelta(minutes=minute, seconds=second)
    return {"type": "once", "run_at": at.isoformat()}


async def test_a_job_that_is_due_in_a_hot_minute_is_told_so(api: Api) -> None:
    await a_hot_minute(api)
    for schedule in (HOURLY, once(0), {"type": "cron", "cron": f"{0} * * * *", "jitter_sec": 5}):
        made = (await api.admin.post("/v1/jobs", a_job(schedule=schedule))).body
        (note,) = made["notes"]
        assert stamp(0) in note
        assert "notes" not in (await api.admin.get(f"/v1/jobs/{made['id']}")).body


async def test_other_jobs_are_told_nothing(api: Api) -> None:
    await a_hot_minute(api)
    for schedule in (once(1), {"type": "cron", "cron": "30 * * * *"}, {"type": "once"}):
        made = await api.admin.post("/v1/jobs", a_job(schedule=schedule))
        assert made.status == 202
        assert "notes" not in made.body


async def test_items_of_a_batch_are_told_one_by_one(api: Api) -> None:
    await a_hot_minute(api)
    jobs = [{"job": a_job(schedule=once(0))}, {"job": a_job(schedule=once(1))}]
    for atomic in (False, True):
        answer = await api.admin.post("/v1/jobs:batch", {"jobs": jobs, "atomic": atomic})
        assert ["notes" in result["job"] for result in answer.body["results"]] == [True, False]


async def test_an_answer_that_is_given_again_has_its_note_again(api: Api) -> None:
    await a_hot_minute(api)
    first = await api.admin.post("/v1/jobs", a_job(schedule=HOURLY), idempotency_key="k")
    again = await api.admin.post("/v1/jobs", a_job(schedule=HOURLY), idempotency_key="k")
    assert "notes" in first.body
    assert again.raw == first.raw


async def test_a_preview_is_told_of_hot_minutes(api: Api) -> None:
    await a_hot_minute(api)
    for schedule, told in (
        (HOURLY, True),
        (once(0), True),
        (once(1), False),
        (HOURLY | {"jitter_sec": 600}, False),
        ({"type": "cron", "cron": "H * * * *"}, False),
    ):
        answer = await api.admin.post("/v1/schedules/preview", {"schedule": schedule})
        assert ("notes" in answer.body) == told, schedule


async def test_hot_minutes_are_read_once_in_a_while(api: Api, store: Store, tmp_path: Path) -> None:
    assert (await api.admin.post("/v1/jobs", a_job(schedule=once(0)))).status == 202
    await a_hot_minute(api)
    made = await api.admin.post("/v1/jobs", a_job(schedule=once(0)))
    assert "notes" not in made.body, "they were read for the job before"
    async with running_api(a_context(store, tmp_path / "other")) as other:
        made = await other.admin.post("/v1/jobs", a_job(schedule=once(0)))
    assert "notes" in made.body
