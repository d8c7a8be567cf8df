"""Lanes, as the API makes, changes, pauses, shows and deletes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from noonday.domain.lanes import MOST_LANES, READY_MADE
from noonday.domain.roles import Role
from noonday.store import Store, lanes, scaling
from noonday.store.lanes import Gauge
from tests.api.test_lists import walk
from tests.races.test_lanes import claim
from tests.support.database_locks import value
from tests.support.servers import NOW, Api, Client, a_context, a_job, running_api


async def listed(client: Client) -> dict[str, Any]:
    answer = await client.get("/v1/lanes")
    assert answer.status == 200, answer
    return {lane["name"]: lane for lane in answer.body["data"]}


async def put(client: Client, name: str, **settings: Any) -> Any:
    answer = await client.call("PUT", f"/v1/lanes/{name}", settings)
    assert answer.status in (200, 201), answer
    return answer.body


async def audited(api: Api) -> list[Any]:
    log = (await api.admin.get("/v1/audit")).body["data"]
    return [
        (entry["action"], entry["object_id"], entry["before"], entry["after"])
        for entry in log
        if entry["object_type"] == "lane"
    ]


async def test_four_lanes_are_ready_made_and_anybody_may_see_them(api: Api) -> None:
    viewer = await api.client(Role.VIEWER)
    found = await listed(viewer)
    assert list(found) == sorted(READY_MADE)
    assert found["batch"] == {
        "name": "batch", "state": "OPEN", "reason": None, "since": None, "by": None, "weight": 1.0,
        "max_running": None, "ageing_sec": 6.0, "objective_sec": None, "sheddable": True,
        "jitter_sec": None,
        "counts": None, "scaling": None,
    }  # fmt: skip
    assert found["critical"]["weight"] > found["default"]["weight"] > found["long"]["weight"]
    assert await walk(viewer, "/v1/lanes", 3) == list((await listed(viewer)).values())


async def test_a_lane_shows_what_the_leader_has_counted_last(api: Api) -> None:
    async with api.store.transaction() as tx:
        await lanes.note(tx, [Gauge("default", 7, 12.5, 3, 60.0), Gauge("gone", 1, 1.0, 1, 1.0)])
        await lanes.note(tx, [Gauge("default", 8, 12.5, 3, 60.0)])
    counts = (await listed(api.admin))["default"]["counts"]
    assert counts == {
        "counted_at": counts["counted_at"], "ready": 8, "oldest_age_sec": 12.5, "running": 3,
        "objective_sec": 60.0,
    }  # fmt: skip


async def test_a_lane_shows_how_many_slots_are_wanted_and_forgets_it_with_the_lane(
    api: Api,
) -> None:
    async with api.store.transaction() as tx:
        await scaling.note(tx, [scaling.Wanted("default", 96, "400 wait", 0.5)])
    shown = (await listed(api.admin))["default"]["scaling"]
    assert shown == {"wanted_slots": 96, "reason": "400 wait", "since": shown["since"]}
    await put(api.admin, "reports")
    async with api.store.transaction() as tx:
        await scaling.note(tx, [scaling.Wanted("reports", 1, "1 waits", 0.5)])
    await api.admin.call("DELETE", "/v1/lanes/reports")
    assert (await put(api.admin, "reports"))["scaling"] is None


async def test_a_lane_is_made_with_what_is_given_and_changed_by_what_is_given(api: Api) -> None:
    answer = await api.admin.call("PUT", "/v1/lanes/reports", {"weight": 0.5, "max_running": 3})
    assert answer.status == 201
    made = answer.body
    assert (made["weight"], made["max_running"], made["sheddable"]) == (0.5, 3, False)
    answer = await api.admin.call(
        "PUT", "/v1/lanes/reports", {"objective_sec": 30, "sheddable": True}
    )
    assert answer.status == 200
    assert answer.body == made | {"objective_sec": 30.0, "sheddable": True}
    changed = await put(api.admin, "reports", max_running=None, objective_sec=None)
    assert (changed["max_running"], changed["objective_sec"]) == (None, None)
    create, *changes = reversed(await audited(api))
    assert create[:3] == ("lane.create", "reports", None)
    assert [(action, before["max_running"], after["max_running"]) for action, _, before, after
            in changes] == [("lane.change", 3, 3), ("lane.change", 3, None)]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "pointer", "code"),
    [
        ({"weight": 0}, "/weight", "out_of_range"),
        ({"weight": -1}, "/weight", "out_of_range"),
        ({"weight": 1e300}, "/weight", "out_of_range"),
        ({"weight": "1"}, "/weight", "wrong_type"),
        ({"weight": None}, "/weight", "wrong_type"),
        ({"max_running": 1.5}, "/max_running", "wrong_type"),
        ({"max_running": -1}, "/max_running", "out_of_range"),
        ({"max_running": "many"}, "/max_running", "wrong_type"),
        ({"ageing_sec": 0}, "/ageing_sec", "out_of_range"),
        ({"objective_sec": 0}, "/objective_sec", "out_of_range"),
        ({"sheddable": 1}, "/sheddable", "wrong_type"),
        ({"colour": "red"}, "/colour", "unknown_field"),
    ],
)
async def test_a_setting_that_cannot_be_is_refused_by_its_name(
    api: Api, settings: dict[str, Any], pointer: str, code: str
) -> None:
    before = await listed(api.admin)
    answer = await api.admin.call("PUT", "/v1/lanes/batch", settings)
    assert answer.status == 422
    assert [(fault["pointer"], fault["code"]) for fault in answer.body["errors"]] == [
        (pointer, code)
    ]
    assert await listed(api.admin) == before


@pytest.mark.parametrize("name", ["Batch", "a:b", "*", "a,b", "-a", "a" * 64, "a=1", "%20"])
async def test_a_name_that_cannot_be_is_refused(api: Api, name: str) -> None:
    answer = await api.admin.call("PUT", f"/v1/lanes/{name}", {})
    assert (answer.status, answer.body["errors"][0]["pointer"]) == (422, "/path/name")


async def test_there_are_not_more_lanes_than_there_may_be(api: Api) -> None:
    for n in range(MOST_LANES - len(READY_MADE)):
        await put(api.admin, f"lane-{n}")
    answer = await api.admin.call("PUT", "/v1/lanes/one-more", {})
    assert (answer.status, answer.code) == (409, "too_many_lanes")
    assert (await put(api.admin, "lane-0", weight=2))["weight"] == 2


# --- jobs -------------------------------------------------------------------------------------


async def test_a_job_joins_any_lane_that_is_there_from_the_moment_it_is(api: Api) -> None:
    for lane in READY_MADE:
        assert (await api.admin.post("/v1/jobs", a_job(lane=lane))).body["lane"] == lane
    answer = await api.admin.post("/v1/jobs", a_job(lane="reports"))
    (fault,) = answer.body["errors"]
    assert (answer.status, fault["pointer"], fault["code"]) == (422, "/lane", "unknown_lane")
    assert fault["detail"] == "must be one of batch, critical, default, long"
    await put(api.admin, "reports")
    assert (await api.admin.post("/v1/jobs", a_job(lane="reports"))).body["lane"] == "reports"


async def test_a_lane_made_by_another_process_is_known_at_once(
    api: Api, store: Store, tmp_path: Path
) -> None:
    assert (await api.admin.post("/v1/jobs", a_job(lane="critical"))).status == 202
    async with running_api(a_context(store, tmp_path / "other")) as other:
        await put(other.admin, "reports")
    assert (await api.admin.post("/v1/jobs", a_job(lane="reports"))).status == 202


async def test_jobs_of_a_batch_are_told_apart_by_their_lanes(api: Api) -> None:
    jobs = [{"job": a_job(lane=lane)} for lane in ("critical", "nowhere")]
    answer = await api.admin.post("/v1/jobs:batch", {"jobs": jobs})
    assert [result["status"] for result in answer.body["results"]] == [202, 422]
    answer = await api.admin.post("/v1/jobs:batch", {"jobs": jobs, "atomic": True})
    assert answer.status == 422
    assert answer.body["errors"][0]["pointer"] == "/jobs/1/job/lane"


async def test_a_lane_goes_only_when_no_job_belongs_to_it(api: Api) -> None:
    await put(api.admin, "used")
    await put(api.admin, "unused", max_running=1)
    await api.admin.create(lane="used")
    assert (await api.admin.delete("/v1/lanes/unused")).body["name"] == "unused"
    for lane, code in (("used", "lane_in_use"), ("default", "ready_made")):
        answer = await api.admin.delete(f"/v1/lanes/{lane}")
        assert (answer.status, answer.code) == (409, code)
    assert set(await listed(api.admin)) == {*READY_MADE, "used"}
    assert (await api.admin.post("/v1/jobs", a_job(lane="unused"))).status == 422
    assert next(entry[:2] for entry in await audited(api)) == ("lane.delete", "unused")


async def test_a_job_that_meets_the_end_of_its_lane_is_refused(
    api: Api, store: Store, tmp_path: Path
) -> None:
    await put(api.admin, "reports")
    async with running_api(a_context(store, tmp_path / "other")) as other:
        assert (await other.admin.post("/v1/jobs", a_job(lane="batch"))).status == 202
        await api.admin.delete("/v1/lanes/reports")
        answer = await other.admin.post("/v1/jobs", a_job(lane="reports"))
    assert answer.status == 422
    assert [(each["pointer"], each["code"]) for each in answer.body["errors"]] == [
        ("/lane", "unknown_lane")
    ]
    assert await value(store, "SELECT count(*) FROM jobs WHERE lane = 'reports'") == 0


# --- pause ------------------------------------------------------------------------------------


async def test_a_paused_lane_starts_nothing_until_it_is_resumed(api: Api) -> None:
    operator = await api.client(Role.OPERATOR)
    await api.admin.create(schedule=NOW, lane="batch")
    await api.admin.create(schedule=NOW)
    answer = await operator.post("/v1/lanes/batch/pause", {"reason": "the warehouse is down"})
    paused = answer.body
    assert (paused["state"], paused["reason"], paused["by"]) == (
        "PAUSED", "the warehouse is down", operator.key_id,
    )  # fmt: skip
    assert paused["since"] is not None
    again = await operator.post("/v1/lanes/batch/pause", {"reason": "another"})
    assert again.body == paused, "a call that is repeated changes nothing"
    assert await claim(api.store, "batch") == 0
    assert await claim(api.store, "default") == 1
    resumed = (await operator.post("/v1/lanes/batch/resume")).body
    assert (resumed["state"], resumed["reason"], resumed["since"]) == ("OPEN", None, None)
    assert (await operator.post("/v1/lanes/batch/resume")).body == resumed
    assert await claim(api.store, "batch") == 1
    assert [entry[0] for entry in await audited(api)] == ["lane.resume", "lane.pause"]


async def test_a_lane_that_may_not_be_shed_any_more_is_claimed_at_once(api: Api) -> None:
    async with api.store.transaction() as tx:
        await lanes.shed(tx, ["batch"], "runs of the lane default wait 75 s")
    assert (await listed(api.admin))["batch"]["state"] == "SHED"
    assert (await put(api.admin, "batch", sheddable=False))["state"] == "OPEN"


@pytest.mark.parametrize("call", ["pause", "resume"])
async def test_what_is_no_lane_cannot_be_paused(api: Api, call: str) -> None:
    answer = await api.admin.post(f"/v1/lanes/nothing/{call}")
    assert (answer.status, answer.code) == (404, "not_found")
