"""A job is changed by a merge patch: judged as a new one; nothing of what it was fires after."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from noonday.api import patches
from noonday.api.documents import stamp
from noonday.domain.roles import Role
from noonday.store.secretbox import HEADERS
from tests.support.changing import MINUTE, T, after, fires, lines, minutely, parent_at, slow, tick
from tests.support.database_locks import value
from tests.support.invariants import broken
from tests.support.outcomes import bring
from tests.support.scripted import Parts
from tests.support.seeds import claim
from tests.support.servers import NOW, Answered, Api, Client

HALF = timedelta(seconds=30)
URL = "https://receiver.example/run"


async def made(api: Api, schedule: dict[str, Any] | None = None, **changes: Any) -> str:
    """A job created at ``T``."""
    api.store.now = T
    return await api.admin.create(schedule=schedule or minutely(), **changes)


async def patch(
    client: Client, job: str, body: Any, *, query: str = "", tag: str = "*", **headers: str
) -> Answered:
    path = f"/v1/jobs/{job}{query}"
    return await client.call("PATCH", path, body, if_match=tag, **headers)


async def change(api: Api, job: str, **body: Any) -> Any:
    """A change that is made; what it came to."""
    answer = await patch(api.admin, job, body)
    assert answer.status == 200, answer
    shown = await api.admin.get(f"/v1/jobs/{job}")
    assert shown.headers["etag"] == answer.headers["etag"]
    assert shown.body == {name: it for name, it in answer.body.items() if name != "changes"}
    return answer.body


def faults(answer: Answered) -> list[tuple[str, str]]:
    assert answer.status in (400, 422), answer
    return [(fault["pointer"], fault["code"]) for fault in answer.body["errors"]]


# --- what a patch makes of a job --------------------------------------------------------------


async def test_what_is_given_replaces_what_was_there_and_the_rest_stays(api: Api) -> None:
    target = {"type": "http", "url": URL, "headers": {"x-a": "1", "x-b": "2"}, "timeout_sec": 7}
    job = await made(api, target=target, labels={"env": "prod", "team": "x"}, priority=2)
    before = (await api.admin.get(f"/v1/jobs/{job}")).body
    answer = await change(
        api,
        job,
        name="other",
        labels={"env": None, "site": "b"},
        target={"headers": {"x-b": "3"}},
        retry_policy={"max_attempts": 3},
        priority=None,
        lease_sec=30,
        on_unknown="dead_letter",
        concurrency_key="k",
        cancel_url="https://receiver.example/cancel",
    )
    assert answer["labels"] == {"team": "x", "site": "b"}
    assert answer["target"]["headers"] == {"x-a": "1", "x-b": "3"}
    assert (answer["target"]["timeout_sec"], answer["priority"]) == (7.0, 5)
    assert answer["retry_policy"] == before["retry_policy"] | {"max_attempts": 3}
    assert answer["version"] == before["version"] + 1
    assert sorted(answer["changes"]["fields"]) == [
        "cancel_url", "concurrency_key", "labels", "lease_sec", "name", "on_unknown", "priority",
        "retry_policy", "target",
    ]  # fmt: skip
    again = await change(api, job, cancel_url=None, concurrency_key=None, on_unknown=None)
    assert (again["cancel_url"], again["concurrency_key"]) == (None, None)
    assert again["on_unknown"] == "retry"


@pytest.mark.parametrize(
    "body",
    [{}, {"priority": 5}, {"name": "nightly"}, {"labels": {}}, {"payload": {"n": 1}},
     {"schedule": {"type": "interval", "interval_sec": 60}}, {"content_type": None},
     {"schedule": {"starts_at": stamp(T)}}, {"target": {"type": "http"}, "labels": {"a": None}}],
)  # fmt: skip
async def test_what_changes_nothing_makes_no_new_version(api: Api, body: Any) -> None:
    job = await made(api)
    before = (await api.admin.get(f"/v1/jobs/{job}")).body
    answer = await change(api, job, **body)
    assert answer["changes"]["fields"] == []
    assert answer["version"] == before["version"]
    entries = (await api.admin.get("/v1/audit")).body["data"]
    assert [entry["action"] for entry in entries] == ["job.create"]


async def test_a_schedule_of_another_type_takes_the_place_of_the_one_that_was(api: Api) -> None:
    job = await made(api, minutely(jitter_sec=30))
    answer = await change(api, job, schedule={"type": "cron", "cron": "*/5 * * * *"})
    assert answer["schedule"]["type"] == "cron"
    assert (answer["schedule"]["jitter_sec"], answer["schedule"]["overlap"]) == (0, "skip")
    assert fires(answer) == [5, 10, 15, 20, 25]
    kept = await value(api.store, "SELECT schedule::text FROM schedule_versions")
    assert msgspec.json.decode(kept)["interval_sec"] == 60
    second = await change(api, job, schedule={"cron": "*/10 * * * *"})
    assert second["schedule"]["cron"] == "*/10 * * * *"
    gaps = """SELECT count(*) FROM schedule_versions AS a JOIN schedule_versions AS b
              ON b.version = a.version + 1 AND b.from_at <> a.until_at"""
    assert await value(api.store, gaps) == 0
    assert await value(api.store, "SELECT array_agg(version) FROM schedule_versions") == [1, 2]


TOKYO = {"type": "cron", "cron": "0 8 * * *", "timezone": "Asia/Tokyo"}


@pytest.mark.parametrize(
    ("body", "schedule", "utc"),
    [
        ({"target": {"url": f"{URL}/2"}}, TOKYO, "23:00"),
        ({"name": "x", "priority": 1, "payload": None}, TOKYO, "23:00"),
        ({"schedule": {"grace_sec": 60}}, TOKYO, "23:00"),
        ({"schedule": {"cron": "0 9 * * *"}}, TOKYO | {"cron": "0 9 * * *"}, "00:00"),
        ({"schedule": {"timezone": "Asia/Kolkata"}}, TOKYO | {"timezone": "Asia/Kolkata"}, "02:30"),
    ],
)
async def test_a_zone_and_an_expression_that_are_not_given_stay_and_what_fires_next_follows(
    api: Api, body: dict[str, Any], schedule: dict[str, str], utc: str
) -> None:
    api.store.now = T + HALF
    job = await api.admin.create(schedule=TOKYO)
    answer = await change(api, job, **body)
    assert {name: answer["schedule"][name] for name in TOKYO} == schedule
    assert answer["next_run_at"] == answer["next_fires"][0]
    assert {at[11:16] for at in answer["next_fires"]} == {utc}
    assert T + HALF < datetime.fromisoformat(answer["next_run_at"]) <= T + timedelta(days=1)
    stands_at = await value(api.store, "SELECT occurrence_at FROM timers")
    assert stamp(stands_at) == answer["next_run_at"]
    await tick(api.store, T + HALF)
    assert await value(api.store, "SELECT count(*) FROM occurrences") == 0, "none for the change"


async def test_the_difference_of_the_next_fires_is_told(api: Api) -> None:
    job = await made(api)
    answer = await change(api, job, schedule={"interval_sec": 120})
    told = answer["changes"]["next_fires"]
    assert {name: fires({"next_fires": at}) for name, at in told.items()} == {
        "before": [1, 2, 3, 4, 5],
        "after": [2, 4, 6, 8, 10],
        "added": [6, 8, 10],
        "removed": [1, 3, 5],
    }


async def test_a_rehearsal_says_the_same_and_changes_nothing(api: Api) -> None:
    job = await made(api)
    api.store.now = T + 2 * MINUTE + HALF
    tables = ("jobs", "timers", "runs", "occurrences", "schedule_versions", "payload_versions")
    everything = " || ".join(f"(SELECT json_agg(t) FROM {t} AS t)::text" for t in tables[:4])
    before = await value(api.store, f"SELECT {everything}")
    body = {"schedule": {"interval_sec": 300}, "payload": "x" * 40_000}
    rehearsed = await patch(api.admin, job, body, query="?dry_run=true")
    assert await value(api.store, f"SELECT {everything}") == before
    assert rehearsed.status == 200
    assert "etag" not in rehearsed.headers
    assert await change(api, job, **body) == rehearsed.body


async def test_credentials_stay_unless_they_are_changed_and_are_never_shown(api: Api) -> None:
    headers = {"Authorization": "Bearer S3CRET", "x-a": "1"}
    job = await made(api, target={"type": "http", "url": URL, "headers": headers})

    async def secrets() -> dict[str, str]:
        sealed = await value(api.store, "SELECT secret_headers FROM jobs")
        tenant = await value(api.store, "SELECT tenant_id FROM jobs")
        if sealed is None:
            return {}
        opened: dict[str, str] = msgspec.json.decode(
            api.context.secretbox.open(sealed, tenant, HEADERS)
        )
        return opened

    await change(api, job, target={"url": "https://receiver.example/other"})
    assert await secrets() == {"Authorization": "Bearer S3CRET"}
    answer = await change(api, job, target={"headers": {"authorization": "Bearer OTH3R"}})
    assert await secrets() == {"authorization": "Bearer OTH3R"}
    assert answer["target"]["secret_headers"] == ["authorization"]
    await change(api, job, target={"headers": {"AUTHORIZATION": None, "X-A": None}})
    assert await secrets() == {}
    shown = await api.admin.get(f"/v1/jobs/{job}")
    assert (shown.body["target"]["headers"], shown.body["target"]["secret_headers"]) == ({}, [])
    log = (await api.admin.get("/v1/audit")).raw
    assert b"S3CRET" not in log
    assert b"OTH3R" not in log


async def test_a_change_is_in_the_audit_log_with_what_was_before(api: Api) -> None:
    job = await made(api)
    await change(api, job, priority=1, payload={"n": 2})
    entry = (await api.admin.get("/v1/audit?limit=1")).body["data"][0]
    assert (entry["action"], entry["object_id"]) == ("job.change", job)
    assert entry["before"] == {"priority": 5, "payload": {"version": 1, "bytes": 7}}
    assert entry["after"] == {"priority": 1, "payload": {"version": 2, "bytes": 7}}


# --- payloads ---------------------------------------------------------------------------------


async def sent(api: Api) -> dict[int, tuple[bytes, str]]:
    """What the runs that can be claimed send, by the minutes after ``T``."""
    async with api.store.transaction() as tx:
        rows = await claim(tx)
    found = {}
    for row in rows:
        old = "old_" if row["payload_version"] != row["current_payload"] else ""
        payload = row[f"{old}payload"], row[f"{old}content_type"]
        found[(row["occurrence_at"] - T) // MINUTE] = payload
    return found


async def test_a_payload_is_replaced_byte_for_byte_and_runs_that_are_there_keep_theirs(
    api: Api,
) -> None:
    job = await made(api, payload={"a": 1, "b": 2})
    raw = b'{"payload": {"b":  3.50, "b2":null} }'
    answer = await api.admin.call(
        "PATCH", f"/v1/jobs/{job}", data=raw, if_match="*",
        content_type="application/merge-patch+json",
    )  # fmt: skip
    assert answer.status == 200, answer
    await tick(api.store, T + MINUTE)
    await change(api, job, payload_base64=b64encode(b"hello").decode(), content_type="text/plain")
    await tick(api.store, T + 2 * MINUTE)
    assert (await change(api, job, payload=None))["payload_bytes"] == 0
    await tick(api.store, T + 3 * MINUTE)
    assert await sent(api) == {
        0: (b'{"a":1,"b":2}', "application/json"),
        1: (b'{"b":  3.50, "b2":null}', "application/json"),
        2: (b"hello", "text/plain"),
        3: (b"", "application/json"),
    }


@pytest.fixture
def parts(api: Api, tmp_path: Any) -> Any:
    made = Parts(api.store, tmp_path / "blobs-of-parts")
    yield made
    made.close()


async def test_old_payloads_are_kept_while_a_run_or_a_dead_letter_refers_to_them(
    api: Api, tmp_path: Any
) -> None:
    parts = Parts(api.store, tmp_path / "blobs")  # the API's
    big = "x" * 50_000
    dead = await made(api, payload=big)
    await bring(api.store, dead, "dead")
    running, idle = [await made(api, payload=big) for _ in range(2)]
    await bring(api.store, idle, "complete")
    for job in (dead, running, idle):
        await change(api, job, payload="small")

    def blobs() -> int:
        return len([path for path in (tmp_path / "blobs").rglob("*") if path.is_file()])

    assert blobs() == 3
    await parts.janitor().tick()
    kept = "SELECT array_agg(job_id::text ORDER BY job_id) FROM payload_versions"
    assert await value(api.store, kept) == sorted([dead, running])
    assert blobs() == 2
    await bring(api.store, running, "complete")
    (letter,) = (await api.admin.get("/v1/dlq")).body["data"]
    assert letter["payload"]["version"] == 1
    assert (await api.admin.get(f"/v1/dlq/{letter['id']}")).status == 200
    await parts.janitor().tick()
    assert await value(api.store, kept) == [dead]
    assert blobs() == 1
    parts.close()


async def test_a_big_payload_that_is_refused_or_only_rehearsed_leaves_no_blob(
    api: Api, tmp_path: Any
) -> None:
    job, big = await made(api), "x" * 50_000
    assert (await patch(api.admin, job, {"payload": big}, query="?dry_run=true")).status == 200
    fired = await made(api, NOW)
    body = {"payload": big, "schedule": {"run_at": stamp(T + MINUTE)}}
    assert (await patch(api.admin, fired, body)).code == "job_fired"
    assert not [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]


async def test_a_payload_is_no_larger_than_the_tenant_may_have(api: Api) -> None:
    job = await made(api)
    changed = await api.admin.patch("/v1/tenants/alpha", {"max_payload_bytes": 100})
    assert changed.status == 200
    answer = await patch(api.admin, job, {"payload": "x" * 100})
    assert (answer.status, answer.code) == (413, "too_large")


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"after": []}, [("/after", "immutable")]),
        ({"id": "x"}, [("/id", "unknown_field")]),
        ({"schedule": None, "target": None}, [("/schedule", "missing"), ("/target", "missing")]),
        ({"schedule": {"cron": "* * * * *"}}, [("/schedule/cron", "unknown_field")]),
        ({"schedule": {"type": "cron"}}, [("/schedule/cron", "missing")]),
        ({"schedule": {"type": "cron", "cron": "x"}}, [("/schedule/cron", "invalid")]),
        ({"schedule": {"interval_sec": 0}, "priority": 10, "lane": "none"},
         [("/lane", "unknown_lane"), ("/priority", "out_of_range"),
          ("/schedule/interval_sec", "out_of_range")]),
        ({"target": {"url": "https://10.0.0.1/"}}, [("/target/url", "forbidden_target")]),
        ({"target": {"headers": {"x-job-id": "1"}}},
         [("/target/headers/x-job-id", "reserved_header")]),
        ({"labels": {"a": 1}, "after": []}, [("/after", "immutable"), ("/labels/a", "wrong_type")]),
        ({"payload": 1, "payload_base64": "aGk="}, [("/payload_base64", "conflict")]),
        ({"content_type": "text/plain"}, [("/content_type", "conflict")]),
        ({"schedule": {"starts_at": "2300-01-01T00:00:00Z"}},
         [("/schedule/starts_at", "out_of_range")]),
        ({"name": "a\0b"}, [("/name", "nul")]),
    ],
)  # fmt: skip
async def test_all_that_is_wrong_is_told_at_once_by_the_checks_of_new_jobs(
    api: Api, body: Any, expected: list[tuple[str, str]]
) -> None:
    job = await made(api)
    assert sorted(faults(await patch(api.admin, job, body))) == expected
    assert (await api.admin.get(f"/v1/jobs/{job}")).body["version"] == 1


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"[]", ("", "wrong_type")),
        (b"", ("", "malformed")),
        (b"{", ("", "malformed")),
        (b'{"name": "a", "name": "b"}', ("/name", "duplicate_field")),
        (b'{"labels": {"a": "1", "a": "2"}}', ("/labels/a", "duplicate_field")),
        (b'{"labels": ' + b'{"a":' * 70 + b"1" + b"}" * 71, ("", "too_deep")),
        (b'{"labels": {' + b",".join(b'"%d":"x"' % n for n in range(1_100)) + b"}}",
         ("/labels", "wrong_length")),
    ],
)  # fmt: skip
async def test_what_is_no_patch_is_refused(api: Api, raw: bytes, expected: tuple[str, str]) -> None:
    job = await made(api)
    answer = await api.admin.call("PATCH", f"/v1/jobs/{job}", data=raw, if_match="*")
    assert faults(answer) == [expected]


async def test_equal_names_within_a_payload_are_the_payloads_own_affair(api: Api) -> None:
    job, raw = await made(api), b'{"payload": {"a": 1, "a": 2}}'
    answer = await api.admin.call("PATCH", f"/v1/jobs/{job}", data=raw, if_match="*")
    assert (answer.status, answer.body["payload_bytes"]) == (200, len(b'{"a": 1, "a": 2}'))


async def test_a_body_of_another_type_is_refused(api: Api) -> None:
    job = await made(api)
    answer = await patch(api.admin, job, {}, content_type="application/json-patch+json")
    assert answer.status == 415
    assert answer.headers["accept"] == "application/json, application/merge-patch+json"


# --- versions ---------------------------------------------------------------------------------


async def test_a_change_is_meant_for_a_version(api: Api) -> None:
    job = await made(api)
    seen = (await api.admin.get(f"/v1/jobs/{job}")).headers["etag"]
    missing = await api.admin.call("PATCH", f"/v1/jobs/{job}", {"priority": 1})
    assert (missing.status, missing.code) == (428, "precondition_required")
    await bring(api.store, job, "running")
    assert (await api.admin.get(f"/v1/jobs/{job}")).headers["etag"] != seen
    first = await patch(api.admin, job, {"priority": 1}, tag=seen)
    assert first.status == 200, "it stands otherwise, and is still of that version"
    second = await patch(api.admin, job, {"priority": 2}, tag=seen)
    assert (second.status, second.code) == (412, "precondition_failed")
    for tag in ('"v1"', 'W/"v2"', "v2", '"2"', ""):
        assert (await patch(api.admin, job, {"priority": 2}, tag=tag)).status == 412, tag
    for tag in ('"v2"', '"v1", "v3"', first.headers["etag"] + ', "v4"', "*"):
        answer = await patch(api.admin, job, {"priority": 1 + len(tag) % 7}, tag=tag)
        assert answer.status == 200, tag
        assert answer.headers["etag"].startswith(f'"v{answer.body["version"]}-')


async def test_of_changes_at_the_same_time_for_one_version_one_is_made(api: Api) -> None:
    job = await made(api)
    answers = await asyncio.gather(
        *[patch(api.admin, job, {"priority": n}, tag='"v1"') for n in (1, 2, 3, 4)]
    )
    assert sorted(answer.status for answer in answers) == [200, 412, 412, 412]
    changes = [{"name": "a"}, {"priority": 1}, {"lease_sec": 30}]
    answers = await asyncio.gather(*[patch(api.admin, job, each) for each in changes])
    assert [answer.status for answer in answers] == [200] * 3
    shown = (await api.admin.get(f"/v1/jobs/{job}")).body
    assert (shown["name"], shown["priority"], shown["lease_sec"]) == ("a", 1, 30)


async def test_a_submitter_changes_what_its_own_key_has_made(api: Api) -> None:
    submitter, other = await api.client(Role.SUBMITTER), await api.client(Role.SUBMITTER)
    job = await submitter.create()
    assert (await patch(submitter, job, {"priority": 1})).status == 200
    assert (await patch(other, job, {"priority": 2})).status == 403
    assert (await patch(await api.client(Role.OPERATOR), job, {"priority": 3})).status == 200
    stranger = await api.client(Role.ADMIN, "beta")
    assert (await patch(stranger, job, {"priority": 4})).status == 404


# --- when it fires ----------------------------------------------------------------------------


async def test_what_was_due_is_fired_as_it_was_and_then_only_what_it_is_now(api: Api) -> None:
    job = await made(api)
    api.store.now = T + 2 * MINUTE + HALF
    answer = await change(api, job, schedule={"interval_sec": 300}, payload="new")
    assert fires(answer)[:2] == [5, 10]
    was = [(0, None, None), (1, "MISSED", "superseded"), (2, None, None)]
    assert await lines(api, job) == was
    assert await value(api.store, "SELECT max(payload_version) FROM runs") == 1
    await tick(api.store, T + 4 * MINUTE)
    assert await lines(api, job) == was
    await tick(api.store, T + 5 * MINUTE)
    assert await lines(api, job) == [*was, (5, None, None)]
    assert await value(api.store, "SELECT max(payload_version) FROM runs") == 2
    assert await value(api.store, "SELECT max(seq) FROM timers") == 2
    assert not await broken(api.store)


async def test_a_change_that_names_the_same_times_leaves_the_timer_where_it_is(api: Api) -> None:
    job = await made(api)
    await tick(api.store, T + MINUTE)
    before = await value(api.store, "SELECT (occurrence_at, seq)::text FROM timers")
    await change(api, job, priority=1)
    await change(api, job, schedule={"grace_sec": 7, "overlap": "skip"})
    assert await value(api.store, "SELECT (occurrence_at, seq)::text FROM timers") == before
    assert await value(api.store, "SELECT schedule_version FROM timers") == 3
    await tick(api.store, T + 2 * MINUTE)
    assert [n for n, _, _ in await lines(api, job)] == [0, 1, 2]
    assert not await broken(api.store)


async def test_nominal_times_that_waited_for_their_jitter_are_left_out_on_record(api: Api) -> None:
    job = await slow(api, {"type": "cron", "cron": "* * * * *", "jitter_sec": 86_400})
    api.store.now = T + 2 * MINUTE + HALF
    assert await lines(api, job) == []
    answer = await change(api, job, schedule={"cron": "*/5 * * * *", "jitter_sec": 0})
    assert fires(answer)[0] == 5
    assert await lines(api, job) == [((0, 2), "SKIPPED", "changed")]
    assert not await broken(api.store)


async def test_less_jitter_makes_the_same_times_due_at_once(api: Api) -> None:
    job = await slow(api, {"type": "cron", "cron": "0 * * * *", "jitter_sec": 86_400})
    api.store.now = T + MINUTE
    answer = await change(api, job, schedule={"jitter_sec": 0})
    assert (fires(answer)[0], answer["next_run_at"]) == (0, stamp(T + MINUTE))
    await tick(api.store, T + MINUTE)
    assert await lines(api, job) == [(0, None, None)]


async def test_a_paused_job_that_gets_another_schedule_goes_on_with_that(api: Api) -> None:
    job = await made(api)
    assert (await api.admin.post(f"/v1/jobs/{job}/pause")).status == 200
    api.store.now = T + 3 * MINUTE + HALF
    answer = await change(api, job, schedule={"interval_sec": 600})
    assert (answer["status"], answer["next_fires"]) == ("PAUSED", [])
    assert await lines(api, job) == [(0, None, None), ((1, 3), "SKIPPED", "paused")]
    api.store.now = T + 4 * MINUTE
    resumed = await api.admin.post(f"/v1/jobs/{job}/resume")
    assert fires(resumed.body)[0] == 10
    assert len(await lines(api, job)) == 2
    assert not await broken(api.store)


async def test_a_suspended_job_is_repaired_and_resumed(api: Api) -> None:
    job = await made(api)
    async with api.store.transaction() as tx:
        await tx.execute("""UPDATE jobs SET spec = replace(spec::text, ':60', ':0')::json""")
    await tick(api.store, T + MINUTE)
    answer = await change(api, job, schedule={"interval_sec": 120})
    assert answer["status"] == "SUSPENDED"
    resumed = await api.admin.post(f"/v1/jobs/{job}/resume")
    assert (resumed.status, fires(resumed.body)[0]) == (200, 2)
    assert not await broken(api.store)


async def test_a_job_of_one_run_changes_its_time_until_it_has_fired(api: Api) -> None:
    job = await made(api, {"type": "once", "run_at": stamp(T + 5 * MINUTE)})
    answer = await change(api, job, schedule={"run_at": stamp(T + 2 * MINUTE)})
    assert fires(answer) == [2]
    answer = await change(api, job, schedule={"delay": "PT1M"})
    assert fires(answer) == [1]
    await tick(api.store, T + MINUTE)
    assert await lines(api, job) == [(1, None, None)]
    late = await patch(api.admin, job, {"schedule": {"delay": "PT1M"}})
    assert (late.status, late.code) == (409, "job_fired")
    assert (await change(api, job, retry_policy={"max_attempts": 2}))["version"] == 4
    await bring(api.store, job, "complete")
    ended = await patch(api.admin, job, {"priority": 1})
    assert (ended.status, ended.code) == (409, "job_ended")
    assert not await broken(api.store)


async def test_a_job_of_one_run_becomes_a_recurring_one_and_the_other_way_round(
    api: Api,
) -> None:
    job = await made(api, {"type": "once", "run_at": stamp(T + 5 * MINUTE)})
    assert fires(await change(api, job, schedule=minutely()))[0] == 1
    await tick(api.store, T + MINUTE)
    refused = await patch(
        api.admin, job, {"schedule": {"type": "once", "run_at": stamp(T + MINUTE)}}
    )
    assert faults(refused) == [("/schedule/run_at", "conflict")]
    once = await change(api, job, schedule={"type": "once", "run_at": stamp(T + 9 * MINUTE)})
    assert fires(once) == [9]
    await tick(api.store, T + 9 * MINUTE)
    assert [n for n, _, _ in await lines(api, job)] == [1, 9]
    assert not await broken(api.store)


async def test_who_waits_and_who_is_waited_for_keep_to_what_that_needs(api: Api) -> None:
    parent = await parent_at(api, 5)
    child = await made(api, NOW, after=[parent])
    waits = await patch(api.admin, child, {"schedule": {"delay": "PT1M"}})
    assert (waits.status, waits.code) == (409, "job_waits")
    assert (await change(api, child, priority=1))["waits_for"] == [parent]
    recurring = await patch(api.admin, parent, {"schedule": minutely()})
    assert (recurring.status, recurring.code) == (409, "job_awaited")
    await change(api, parent, schedule={"run_at": stamp(T + MINUTE)})
    assert not await broken(api.store)
    await tick(api.store, T + MINUTE)
    assert await value(api.store, "SELECT awaited FROM runs") is True
    cron = await patch(api.admin, child, {"schedule": minutely()})
    assert faults(cron) == [("/after", "conflict")]
    assert not await broken(api.store)


async def test_a_child_that_was_changed_while_it_waited_fires_when_it_waits_no_more(
    api: Api, parts: Parts
) -> None:
    parent = await parent_at(api, None)
    child = await made(api, NOW, after=[parent])
    await change(api, child, payload="new", priority=1)
    await bring(api.store, parent, "complete")
    assert await parts.dependents().tick()
    await tick(api.store, T + MINUTE)
    assert await lines(api, child) == [(0, None, None)]
    assert await value(api.store, "SELECT (payload_version, priority)::text FROM runs") == "(2,1)"


async def test_a_cancelled_job_does_not_change(api: Api) -> None:
    job = await made(api)
    assert (await api.admin.delete(f"/v1/jobs/{job}")).status == 200
    answer = await patch(api.admin, job, {"priority": 1})
    assert (answer.status, answer.code) == (409, "job_cancelled")


@pytest.mark.parametrize("misfire", ["one", "skip"])
async def test_what_was_decided_by_a_clock_that_was_ahead_is_not_decided_again(
    api: Api, misfire: str
) -> None:
    job = await made(api, minutely(misfire=misfire))
    await tick(api.store, T + 5 * MINUTE)
    await tick(api.store, T + 6 * MINUTE)
    before = await lines(api, job)
    api.store.now = T + 2 * MINUTE + HALF  # it was set back
    answer = await change(api, job, schedule={"starts_at": stamp(T - MINUTE)})
    assert fires(answer)[:2] == [7, 8]
    await tick(api.store, T + 12 * MINUTE + HALF)
    missed = {"one": ((7, 11), "MISSED", "superseded"), "skip": ((7, 12), "MISSED", "misfire")}
    found = await lines(api, job)
    assert found[: len(before) + 1] == [*before, missed[misfire]]
    assert not await broken(api.store)


@pytest.mark.parametrize("minute", [1, 10, 29])
async def test_a_time_that_was_missed_is_not_run_by_a_job_that_is_to_run_once(
    api: Api, minute: int
) -> None:
    job = await made(api)
    await tick(api.store, T + 30 * MINUTE)
    assert ((1, 29), "MISSED", "superseded") in await lines(api, job)
    once = {"type": "once", "run_at": stamp(T + minute * MINUTE)}
    refused = await patch(api.admin, job, {"schedule": once})
    assert refused.status == 422
    assert [(e["pointer"], e["code"]) for e in refused.body["errors"]] == [
        ("/schedule/run_at", "conflict")
    ]
    later = once | {"run_at": stamp(T + 31 * MINUTE)}
    assert (await patch(api.admin, job, {"schedule": later})).status == 200


@pytest.mark.parametrize("minutes", [4, 5])
async def test_an_end_that_leaves_nothing_is_refused_by_its_name(api: Api, minutes: int) -> None:
    job = await made(api)
    api.store.now = T + 5 * MINUTE
    change = {"schedule": {"ends_at": stamp(T + minutes * MINUTE), "interval_sec": 300}}
    refused = await patch(api.admin, job, change)
    assert [e["pointer"] for e in refused.body["errors"]] == ["/schedule/ends_at"]


async def test_what_waits_for_its_turn_after_an_outage_is_fired_before_a_change(api: Api) -> None:
    job = await made(api)
    async with api.store.transaction() as tx:
        await tx.execute("UPDATE timers SET due_at = due_at + interval '1 hour'")
    api.store.now = T + 5 * MINUTE + HALF
    await change(api, job, schedule={"interval_sec": 3600})
    assert await lines(api, job) == [
        (0, None, None), ((1, 4), "MISSED", "superseded"), (5, None, None),
    ]  # fmt: skip


async def test_more_overdue_than_is_decided_at_once_is_left_out_on_record(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noonday.store.firing.MOST_FIRED", 6)
    job = await made(api)
    api.store.now = T + 20 * MINUTE + HALF
    await change(api, job, schedule={"interval_sec": 3600})
    assert await lines(api, job) == [
        (0, None, None), ((1, 6), "MISSED", "superseded"), ((7, 20), "SKIPPED", "changed"),
    ]  # fmt: skip
    await tick(api.store, T + 70 * MINUTE)
    ledger = (await api.admin.get(f"/v1/jobs/{job}/occurrences")).body["data"]
    assert [line["superseded_by"] for line in ledger] == [None] * 4, "nothing took their place"
    assert not await broken(api.store)


# --- merging ----------------------------------------------------------------------------------


def test_a_patch_is_merged_as_the_standard_has_it() -> None:
    base = {"schedule": {"type": "cron", "cron": "@daily", "jitter_sec": 5}, "labels": {"a": "1"}}
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"labels": {"b": "2"}}, base | {"labels": {"a": "1", "b": "2"}}),
        ({"labels": {"a": None}}, base | {"labels": {}}),
        ({"labels": None}, {"schedule": base["schedule"]}),
        ({"labels": "x"}, base | {"labels": "x"}),
        ({"labels": {"a": {"b": None, "c": 1}}}, base | {"labels": {"a": {"c": 1}}}),
        ({"name": {"b": None}}, base | {"name": {}}),
        ({"schedule": {"type": "once"}}, base | {"schedule": {"type": "once"}}),
        (
            {"schedule": {"type": "cron", "jitter_sec": None}},
            base | {"schedule": {"type": "cron", "cron": "@daily"}},
        ),
        ({"payload": {"a": None}}, base | {"payload": {"a": None}}),
    ]
    for given, expected in cases:
        assert msgspec.json.decode(patches.laid_over(given, base)) == expected, given


# --- its end ----------------------------------------------------------------------------------


async def test_the_number_of_occurrences_goes_on_when_the_end_is_moved(api: Api) -> None:
    job = await made(api, minutely(max_occurrences=9))
    await tick(api.store, T + MINUTE)
    api.store.now = T + MINUTE + HALF
    changed = await change(api, job, schedule={"max_occurrences": 4})
    assert fires(changed) == [2, 3]
    assert [after(at) for at in changed["changes"]["next_fires"]["removed"]] == [4, 5, 6]
    for n in range(2, 6):
        await tick(api.store, T + n * MINUTE)
    assert await lines(api, job) == [(n, None, None) for n in range(4)]
    assert await value(api.store, "SELECT state FROM jobs") == "ENDED"
    refused = await patch(api.admin, job, {"schedule": {"max_occurrences": 9}})
    assert (refused.status, refused.code) == (409, "job_ended")
    assert not await broken(api.store)


async def test_a_job_whose_end_is_moved_before_its_next_occurrence_has_ended(api: Api) -> None:
    job = await made(api)
    await tick(api.store, T + MINUTE)
    api.store.now = T + MINUTE + HALF
    sooner = {"schedule": {"ends_at": stamp(T + MINUTE + HALF)}}
    assert faults(await patch(api.admin, job, sooner)) == [("/schedule/ends_at", "out_of_range")]
    changed = await change(api, job, schedule={"max_occurrences": 2})
    assert changed["next_fires"] == []
    assert await value(api.store, "SELECT state FROM jobs") == "ENDED"
    assert await value(api.store, "SELECT count(*) FROM timers") == 0
    await tick(api.store, T + 5 * MINUTE)
    assert await lines(api, job) == [(0, None, None), (1, None, None)]
    assert not await broken(api.store)


async def test_a_job_whose_last_occurrence_is_due_is_left_to_fire_it(api: Api) -> None:
    job = await made(api, minutely(max_occurrences=2))
    api.store.now = T + MINUTE + HALF
    refused = await patch(api.admin, job, {"name": "another"})
    assert (refused.status, refused.code) == (409, "job_ended")
    await tick(api.store, T + MINUTE + HALF)
    assert await lines(api, job) == [(0, None, None), (1, None, None)]
    assert await value(api.store, "SELECT state FROM jobs") == "ENDED"


async def test_a_paused_job_whose_end_is_moved_has_ended_when_it_is_resumed(api: Api) -> None:
    job = await made(api)
    await tick(api.store, T + 2 * MINUTE)
    api.store.now = T + 2 * MINUTE + HALF
    assert (await api.admin.post(f"/v1/jobs/{job}/pause")).status == 200
    await change(api, job, schedule={"max_occurrences": 2})
    assert await value(api.store, "SELECT state FROM jobs") == "PAUSED"
    api.store.now = T + 5 * MINUTE
    assert (await api.admin.post(f"/v1/jobs/{job}/resume")).body["next_fires"] == []
    assert await value(api.store, "SELECT state FROM jobs") == "ENDED"
    assert await value(api.store, "SELECT count(*) FROM timers") == 0
    assert not await broken(api.store)
