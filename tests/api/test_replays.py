"""Replays over HTTP: started, watched, paused, resumed and aborted, by whom they may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from noonday.domain.roles import Role
from noonday.loops.worker import Worker
from noonday.store import Store
from noonday.store.signing import SigningKeys
from tests.api.test_dlq import lie
from tests.support.database_locks import value
from tests.support.dumps import changes, dump
from tests.support.letters import loop_over
from tests.support.scripted import Parts, Scripted, carry_out
from tests.support.seeds import FAILURE
from tests.support.servers import Answered, Api

PATH = "/v1/dlq/replays"
QUICK = {"rate_per_sec": 1_000, "ramp_sec": 0}


@pytest.fixture
async def parts(store: Store, tmp_path: Path) -> AsyncIterator[Parts]:
    made = Parts(store, tmp_path / "worker-blobs")
    yield made
    made.close()


async def start(api: Api, **body: Any) -> Answered:
    return await api.admin.post(PATH, {"filter": {}, **QUICK, **body})


async def replay_of(api: Api, **body: Any) -> str:
    answer = await start(api, **body)
    assert answer.status == 202, answer
    return str(answer.body["id"])


async def turn(api: Api, replay_id: str, verb: str) -> Answered:
    return await api.admin.post(f"{PATH}/{replay_id}/{verb}", {"reason": f"to {verb}"})


def worker_of(api: Api, parts: Parts, executor: Scripted) -> Worker:
    """A worker that has the key file of the API."""
    worker = parts.worker(executor)
    worker._keys = SigningKeys(api.store, api.context.secretbox)
    return worker


async def shown(api: Api, replay_id: str) -> Any:
    return (await api.admin.get(f"{PATH}/{replay_id}")).body


async def audited(api: Api) -> list[tuple[str, str]]:
    log = (await api.admin.get("/v1/audit")).body["data"]
    return [(entry["action"], entry["object_id"]) for entry in reversed(log)]


async def test_a_replay_is_durable_found_and_shows_all_that_was_asked_for(api: Api) -> None:
    await lie(api, 3)
    answer = await start(api, filter={"reason": "transient"}, reason="the shop is back")
    assert (answer.status, answer.headers["location"]) == (202, f"{PATH}/{answer.body['id']}")
    body = answer.body
    assert body == await shown(api, body["id"]) | {"current_rate_per_sec": 1_000.0}
    assert body["filter"] == {
        "reason": "transient", "fingerprint": None, "job_id": None, "target_host": None,
        "dead_from": None, "dead_to": None,
    }  # fmt: skip
    assert (body["state"], body["matched"], body["replayed"]) == ("RUNNING", 3, 0)
    assert body["stop_when"] == {"failure_ratio": 0.2, "window": 50}
    assert (body["canary"], body["again"], body["ids"]) == (1, False, None)
    assert (body["reason"], body["created_by"]) == ("the shop is back", api.admin.key_id)
    assert (await api.admin.get(PATH)).body["data"][0]["id"] == body["id"]
    assert await audited(api) == [("replay.create", body["id"])]


async def test_without_a_word_about_its_rate_a_replay_begins_slowly(api: Api) -> None:
    body = (await api.admin.post(PATH, {"filter": {}})).body
    assert (body["rate_per_sec"], body["ramp_sec"], body["current_rate_per_sec"]) == (10, 60, 1)


async def test_a_dry_run_counts_and_writes_nothing(api: Api) -> None:
    made = await lie(api, 4)
    await lie(api, 2, reason="timeout")
    await lie(api, 9, tenant=2)
    async with api.store.transaction() as tx:
        await tx.execute("UPDATE dead_letters SET replayed_at = now() WHERE reason = 'timeout'")
        job = (await api.admin.get(f"/v1/dlq/{made[0]}")).body["job_id"]
        await tx.execute("UPDATE jobs SET state = 'CANCELLED' WHERE id = $1::text::uuid", job)
    async with api.store.transaction() as tx:
        before = await dump(tx)
    for body, expected in (
        (
            {"filter": {}},
            (6, {"transient": 4, "timeout": 2}, {"replayed_before": 2, "job_cancelled": 1}),
        ),
        ({"filter": {}, "again": True}, (6, {"transient": 4, "timeout": 2}, {"job_cancelled": 1})),
        ({"ids": [made[1], "0" * 32 + "-s1"]}, (1, {"transient": 1}, {"not_found": 1})),
        ({"filter": {"target_host": "nowhere"}}, (0, {}, {})),
    ):
        answer = await api.admin.post(
            PATH, {**body, "dry_run": True}, idempotency_key="a key is not used up"
        )
        assert answer.status == 200, answer
        shown = answer.body
        assert (shown["matched"], shown["by_reason"], shown["left_out"]) == expected, body
        assert shown["matched_all"] is True
    async with api.store.transaction() as tx:
        assert changes(before, await dump(tx)) == {}


async def test_a_replay_that_is_asked_for_again_with_its_key_is_one(api: Api) -> None:
    body = {"filter": {}, **QUICK}
    answers = [await api.admin.post(PATH, body, idempotency_key="k") for _ in range(3)]
    assert {answer.raw for answer in answers} == {answers[0].raw}
    assert [answer.headers.get("idempotent-replayed") for answer in answers] == [
        None, "true", "true",
    ]  # fmt: skip
    assert await value(api.store, "SELECT count(*) FROM replays") == 1
    other = await api.admin.post(PATH, {**body, "canary": 2}, idempotency_key="k")
    assert (other.status, other.code) == (409, "idempotency_conflict")


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        ({}, {("/filter", "missing")}),
        ({"filter": {}, "ids": ["x"]}, {("/filter", "conflict")}),
        ({"ids": []}, {("/ids", "wrong_length")}),
        ({"ids": ["0" * 32 + "-s1"] * 1_001}, {("/ids", "wrong_length")}),
        ({"ids": ["0" * 32 + "-s1", "x"]}, {("/ids/1", "invalid")}),
        ({"filter": {"reason": "boredom"}}, {("/filter/reason", "unknown_value")}),
        ({"filter": {"colour": "red"}}, {("/filter/colour", "unknown_field")}),
        ({"filter": {"dead_to": "2027-01-01T00:00:00"}}, {("/filter/dead_to", "naive_time")}),
        (
            {"filter": {}, "canary": -1, "rate_per_sec": 0, "ramp_sec": -1},
            {(f"/{name}", "out_of_range") for name in ("canary", "rate_per_sec", "ramp_sec")},
        ),
        ({"filter": {}, "rate_per_sec": 1_001}, {("/rate_per_sec", "out_of_range")}),
        ({"filter": {}, "stop_when": {"failure_ratio": 1.1, "window": 0}},
         {("/stop_when/failure_ratio", "out_of_range"), ("/stop_when/window", "out_of_range")}),
    ],
)  # fmt: skip
async def test_all_faults_of_a_replay_are_named_at_once(
    api: Api, body: dict[str, Any], faults: set[tuple[str, str]]
) -> None:
    answer = await api.admin.post(PATH, body)
    assert answer.status == 422, answer
    assert {(error["pointer"], error["code"]) for error in answer.body["errors"]} == faults
    assert await value(api.store, "SELECT count(*) FROM replays") == 0


async def test_a_paused_replay_reopens_nothing_until_it_is_resumed(api: Api, parts: Parts) -> None:
    await lie(api, 3)
    replay_id = await replay_of(api)
    loop, worker = loop_over(api.store), worker_of(api, parts, Scripted())
    paused = (await turn(api, replay_id, "pause")).body
    assert (paused["state"], paused["state_reason"]) == ("PAUSED", "to pause")
    assert (await turn(api, replay_id, "pause")).body == paused
    assert await loop.tick() == 0
    assert (await turn(api, replay_id, "resume")).body["state"] == "RUNNING"
    assert (await turn(api, replay_id, "resume")).status == 200
    while (await shown(api, replay_id))["state"] == "RUNNING":
        await loop.tick()
        await carry_out(worker)
    done = await shown(api, replay_id)
    assert (done["state"], done["succeeded"], done["unfinished"]) == ("DONE", 3, 0)
    for verb in ("pause", "resume", "abort"):
        late = await turn(api, replay_id, verb)
        assert (late.status, late.code) == (409, "replay_over")
    assert await audited(api) == [
        (f"replay.{verb}", replay_id) for verb in ("create", "pause", "resume")
    ]


async def test_an_aborted_replay_never_goes_on(api: Api) -> None:
    await lie(api, 3)
    replay_id = await replay_of(api)
    await turn(api, replay_id, "pause")
    assert (await turn(api, replay_id, "abort")).body["state"] == "ABORTED"
    assert (await turn(api, replay_id, "abort")).status == 200
    for verb in ("pause", "resume"):
        assert (await turn(api, replay_id, verb)).code == "replay_over"
    assert await loop_over(api.store).tick() == 0
    assert await value(api.store, "SELECT count(*) FROM runs") == 0


async def test_after_a_stop_the_canary_is_asked_for_again(api: Api, parts: Parts) -> None:
    await lie(api, 6)
    replay_id = await replay_of(api)
    loop, executor = loop_over(api.store), Scripted(FAILURE)
    worker = worker_of(api, parts, executor)

    async def until_it_rests() -> Any:
        while (found := await shown(api, replay_id))["state"] == "RUNNING":
            await loop.tick()
            await carry_out(worker)
        return found

    for number in (1, 2):
        stopped = await until_it_rests()
        assert (stopped["state"], stopped["failed"]) == ("STOPPED", number)
        assert stopped["state_reason"] == "the canary failed: 1 of 1"
        resumed = (await turn(api, replay_id, "resume")).body
        assert (resumed["state"], resumed["canary_passed_at"]) == ("RUNNING", None)
    executor.outcomes = []
    done = await until_it_rests()
    assert (done["state"], done["succeeded"], done["failed"]) == ("DONE", 4, 2)


async def test_somebody_elses_replay_cannot_be_steered_and_the_try_is_on_record(api: Api) -> None:
    replay_id = await replay_of(api)
    stranger = await api.client(Role.ADMIN, "beta")
    for verb in ("pause", "resume", "abort"):
        assert (await stranger.post(f"{PATH}/{replay_id}/{verb}")).code == "not_found"
    assert (await stranger.get(PATH)).body["data"] == []
    log = (await api.admin.get("/v1/audit")).body["data"]
    denied = [entry["action"] for entry in log if entry["actor"] == stranger.key_id]
    assert denied == ["replay.abort", "replay.resume", "replay.pause"]


async def test_replays_are_listed_once_each_newest_first(api: Api) -> None:
    made = [await replay_of(api) for _ in range(5)]
    first = (await api.admin.get(f"{PATH}?limit=3")).body
    rest = (await api.admin.get(f"{PATH}?limit=3&cursor={first['next_cursor']}")).body
    assert [each["id"] for each in first["data"] + rest["data"]] == made[::-1]
