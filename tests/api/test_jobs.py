"""A job is shown as it stands, and what is shown follows from what is stored."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from noonday.domain.model import JobSpec
from noonday.domain.roles import Role
from noonday.store import Store, locks, occurrences, runs, timers
from noonday.store.secretbox import HEADERS
from tests.support.changing import MINUTE, T, minutely, tick
from tests.support.database_locks import value
from tests.support.outcomes import How, bring
from tests.support.servers import (
    EVERY_HOUR,
    NIGHTLY,
    NOW,
    Api,
    a_context,
    a_job,
    running_api,
)


async def test_what_is_created_is_answered_with_all_its_defaults_and_read_back(api: Api) -> None:
    made = await api.admin.post("/v1/jobs", a_job(schedule=NIGHTLY))
    assert (made.status, made.headers["location"]) == (202, f"/v1/jobs/{made.body['id']}")
    job = made.body
    assert job["status"] == "PENDING"
    assert job["schedule"]["overlap"] == "skip"
    assert job["retry_policy"]["max_attempts"] == 8
    assert job["payload_bytes"] == len('{"n":1}')
    assert job["created_by"] == api.admin.key_id
    read = await api.admin.get(made.headers["location"])
    assert (read.status, read.body) == (200, job)
    (listed,) = (await api.admin.get("/v1/jobs")).body["data"]
    assert listed == job


@pytest.mark.parametrize("schedule", [NOW, NIGHTLY, EVERY_HOUR])
async def test_a_default_that_is_spelled_out_makes_the_same_job(
    api: Api, schedule: dict[str, Any]
) -> None:
    short = (await api.admin.post("/v1/jobs", a_job(schedule=schedule))).body
    told = {name: short[name] for name in ("retry_policy", "lease_sec", "on_unknown", "lane")}
    target = {name: value for name, value in short["target"].items() if name != "secret_headers"}
    spelled = a_job(schedule=schedule | short["schedule"], target=target, **told)
    made = (await api.admin.post("/v1/jobs", spelled)).body
    read = [(await api.admin.get(f"/v1/jobs/{job['id']}")).body for job in (short, made)]
    for name in (*told, "target"):
        assert read[0][name] == read[1][name] == short[name]
    kept = await value(api.store, "SELECT array_agg(spec::text ORDER BY id) FROM jobs")
    assert "retry_policy" not in kept[0]
    specs = [msgspec.json.decode(text, type=JobSpec) for text in kept]
    assert specs[0].target == specs[1].target
    assert specs[0].retry_policy == specs[1].retry_policy


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("token=TOK2", "token=***"),
        ("a=1&token=TOK2&b", "a=***&token=***&***"),
        ("TOK2", "***"),
        ("token=TOK2=TOK2?TOK2", "token=***"),
        ("", ""),
    ],
)
async def test_what_stands_in_a_query_may_be_a_secret_and_is_not_shown(
    api: Api, query: str, shown: str
) -> None:
    target = {"type": "http", "url": f"https://example.com/hook?{query}"}
    made = await api.admin.post("/v1/jobs", a_job(target=target))
    for answer in (made, await api.admin.get("/v1/jobs"), await api.admin.get("/v1/audit")):
        assert b"TOK2" not in answer.raw
    assert made.body["target"]["url"] == f"https://example.com/hook?{shown}"
    spec = await value(api.store, "SELECT spec->'target'->>'url' FROM jobs")
    assert spec == target["url"]


async def test_what_follows_an_unknown_outcome_or_a_cancellation_is_stored_and_shown(
    api: Api,
) -> None:
    url = "https://example.com/cancel?token=TOK2"
    made = await api.admin.post("/v1/jobs", a_job(on_unknown="dead_letter", cancel_url=url))
    for answer in (made, await api.admin.get("/v1/jobs"), await api.admin.get("/v1/audit")):
        assert b"TOK2" not in answer.raw
    assert made.body["on_unknown"] == "dead_letter"
    assert made.body["cancel_url"] == "https://example.com/cancel?token=***"
    assert (await api.admin.get(made.headers["location"])).body == made.body
    spec = await value(api.store, "SELECT spec::text FROM jobs")
    stored = msgspec.json.decode(spec, type=JobSpec)
    assert (stored.on_unknown, stored.cancel_url) == ("dead_letter", url)


async def test_the_next_five_fires_are_told(api: Api) -> None:
    job = (await api.admin.post("/v1/jobs", a_job(schedule=NIGHTLY))).body
    fires = [datetime.fromisoformat(at) for at in job["next_fires"]]
    assert len(fires) == 5
    assert all(later > earlier for earlier, later in pairwise(fires))
    assert job["next_run_at"] == job["next_fires"][0]
    hourly = (await api.admin.post("/v1/jobs", a_job(schedule=EVERY_HOUR))).body
    first = datetime.fromisoformat(hourly["next_fires"][0])
    assert datetime.fromisoformat(hourly["created_at"]) + timedelta(hours=1) == first
    assert hourly["next_run_at"] == hourly["created_at"]
    once = (await api.admin.post("/v1/jobs", a_job(schedule=NOW))).body
    assert once["next_fires"] == []


async def test_jitter_moves_the_run_and_not_the_nominal_time(api: Api) -> None:
    schedule = {"type": "once", "run_at": "2050-01-01T00:00:00Z", "jitter_sec": 86_400}
    job = (await api.admin.post("/v1/jobs", a_job(schedule=schedule))).body
    assert job["next_fires"] == ["2050-01-01T00:00:00.000Z"]
    assert "2050-01-01T00:00:00.000Z" < job["next_run_at"] < "2050-01-02T00:00:00.000Z"
    assert (await api.admin.get(f"/v1/jobs/{job['id']}")).body == job


@pytest.mark.parametrize(
    ("how", "once", "recurring"),
    [("running", "RUNNING", "RUNNING"), ("retrying", "PENDING", "PENDING"),
     ("complete", "COMPLETE", "PENDING"), ("dead", "FAILED", "PENDING")],
)  # fmt: skip
async def test_the_status_of_a_job_follows_its_runs(
    api: Api, how: How, once: str, recurring: str
) -> None:
    for schedule, expected in ((NOW, once), (EVERY_HOUR, recurring)):
        job = await api.admin.create(schedule=schedule)
        await bring(api.store, job, how)
        shown = (await api.admin.get(f"/v1/jobs/{job}")).body
        assert shown["status"] == expected
        assert shown["attempts"] == 1
        error = {"dead": "the receiver said no"}.get(how)
        assert shown["last_error"] == error or how == "retrying"
        assert (shown["next_run_at"] is None) == (expected in ("COMPLETE", "FAILED") or (
            how == "running" and schedule is NOW))  # fmt: skip
        listed = await api.admin.get(f"/v1/jobs?status={expected}")
        assert job in [item["id"] for item in listed.body["data"]]


async def test_a_skipped_occurrence_does_not_hide_the_run_it_was_skipped_for(api: Api) -> None:
    job = await api.admin.create(schedule=EVERY_HOUR)
    await bring(api.store, job, "retrying")
    before = (await api.admin.get(f"/v1/jobs/{job}")).body
    assert (before["attempts"], before["last_error"]) == (1, "busy")
    async with api.store.transaction() as tx:
        await tx.execute(
            """INSERT INTO occurrences (job_id, occurrence_at, kind, tenant_id, due_at,
                   materialized_at, outcome, reason, blocking_run, ended_at, attempts)
               SELECT job_id, now(), 0, tenant_id, now(), now(), 'SKIPPED', 'overlap', 'x', now(), 0
               FROM occurrences"""
        )
    assert (await api.admin.get(f"/v1/jobs/{job}")).body == before
    await bring_back_and_fail(api, job)
    ended = (await api.admin.get(f"/v1/jobs/{job}")).body
    assert (ended["attempts"], ended["last_error"]) == (2, "the receiver said no")


async def bring_back_and_fail(api: Api, job: str) -> None:
    async with api.store.transaction() as tx:
        await tx.execute("UPDATE runs SET retry_at = now()")
        await runs.retry_due(tx, 1)
    await bring(api.store, job, "dead")


async def test_a_trigger_before_its_time_leaves_a_once_job_pending(api: Api) -> None:
    job = await api.admin.create()
    await api.admin.post(f"/v1/jobs/{job}/trigger")
    await bring(api.store, job, "complete")
    assert (await api.admin.get(f"/v1/jobs/{job}")).body["status"] == "PENDING"


async def test_a_missed_once_job_has_failed(api: Api) -> None:
    job = await api.admin.create()
    async with api.store.transaction() as tx:
        await tx.execute("DELETE FROM timers")
        await tx.execute("UPDATE jobs SET first_at = created_at")
        await tx.execute(
            """INSERT INTO occurrences (job_id, occurrence_at, kind, tenant_id, due_at,
                   materialized_at, outcome, reason, ended_at, attempts)
               SELECT id, first_at, 0, tenant_id, first_at, now(), 'MISSED', 'grace', now(), 0
               FROM jobs"""
        )
    shown = (await api.admin.get(f"/v1/jobs/{job}")).body
    assert (shown["status"], shown["attempts"], shown["next_run_at"]) == ("FAILED", 0, None)


async def test_a_timer_that_is_due_elsewhen_is_found(api: Api) -> None:
    job = await api.admin.create()
    async with api.store.transaction() as tx:
        await tx.execute("UPDATE timers SET due_at = '2061-05-05T00:00:00Z'")
    shown = (await api.admin.get(f"/v1/jobs/{job}")).body
    assert shown["next_run_at"] == "2061-05-05T00:00:00.000Z"


async def test_an_etag_is_good_until_what_it_stands_for_changes(api: Api) -> None:
    job = await api.admin.create(schedule=NOW)
    path = f"/v1/jobs/{job}"
    tag = (await api.admin.get(path)).headers["etag"]
    assert tag.startswith('"v1-')
    for given in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        same = await api.admin.get(path, if_none_match=given)
        assert (same.status, same.raw, same.headers["etag"]) == (304, b"", tag), given
    await bring(api.store, job, "complete")
    # The definition is at version 1 still, but the status is another.
    changed = await api.admin.get(path, if_none_match=tag)
    assert changed.status == 200
    assert changed.headers["etag"] != tag


async def test_credentials_of_a_target_are_stored_sealed_and_never_shown(api: Api) -> None:
    headers = {"Authorization": "Bearer s3cr3t", "X-Api-Key": "s3cr3t", "x-team": "payments"}
    target = {"type": "http", "url": "https://receiver.example/run", "headers": headers}
    made = await api.admin.post("/v1/jobs", a_job(target=target), idempotency_key="k")
    answers = [
        made,
        await api.admin.post("/v1/jobs", a_job(target=target), idempotency_key="k"),
        await api.admin.get(f"/v1/jobs/{made.body['id']}"),
        await api.admin.get("/v1/jobs"),
        await api.admin.get("/v1/audit"),
        await api.admin.delete(f"/v1/jobs/{made.body['id']}"),
    ]
    assert all(b"s3cr3t" not in answer.raw for answer in answers)
    shown = answers[2].body["target"]
    assert shown["headers"] == {"x-team": "payments"}
    assert {name.lower() for name in shown["secret_headers"]} == {"authorization", "x-api-key"}
    async with api.store.transaction() as tx:
        row = await tx.one("SELECT * FROM jobs")
        everything = repr([row, await tx.rows("SELECT * FROM idempotency_keys")])
    assert "s3cr3t" not in everything
    opened = api.context.secretbox.open(row["secret_headers"], row["tenant_id"], HEADERS)
    assert msgspec.json.decode(opened)["Authorization"] == "Bearer s3cr3t"


async def test_a_job_whose_secrets_do_not_open_is_still_shown(
    api: Api, store: Store, tmp_path: Path
) -> None:
    target = {"type": "http", "url": "https://receiver.example/", "headers": {"Cookie": "x"}}
    await api.admin.create(target=target)
    async with running_api(a_context(store, tmp_path)) as with_another_key:
        (job,) = (await with_another_key.admin.get("/v1/jobs")).body["data"]
    assert job["target"]["secret_headers"] == []


async def test_a_trace_is_kept_for_its_deliveries_if_it_is_one(api: Api) -> None:
    good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for given in (good, "00-0-0-00", good.upper(), f"00-{'0' * 32}-b7ad6b7169203331-01"):
        await api.admin.post("/v1/jobs", a_job(), traceparent=given)
    kept = await value(api.store, "SELECT array_agg(traceparent ORDER BY id) FROM jobs")
    assert kept == [good, None, None, None]


# --- cancel -----------------------------------------------------------------------------------


async def test_a_cancelled_job_has_nothing_left_to_run(api: Api) -> None:
    for schedule in ({"type": "once", "run_at": "2050-01-01T00:00:00Z"}, NOW, EVERY_HOUR):
        job = await api.admin.create(schedule=schedule)
        answer = await api.admin.delete(f"/v1/jobs/{job}")
        assert (answer.status, answer.body["status"]) == (200, "CANCELLED")
        assert (answer.body["version"], answer.body["next_fires"]) == (2, [])
        assert answer.body["next_run_at"] is None
        assert (await api.admin.get(f"/v1/jobs/{job}")).raw == answer.raw
    for table in ("timers", "runs"):
        assert await value(api.store, f"SELECT count(*) FROM {table}") == 0
    outcomes = "SELECT array_agg(DISTINCT outcome) FROM occurrences"
    assert await value(api.store, outcomes) == ["CANCELLED"]


async def test_cancelling_again_changes_nothing(api: Api) -> None:
    job = await api.admin.create()
    first = await api.admin.delete(f"/v1/jobs/{job}")
    second = await api.admin.delete(f"/v1/jobs/{job}")
    assert (second.status, second.raw) == (200, first.raw)
    log = "SELECT count(*) FROM audit_log WHERE action = 'job.cancel'"
    assert await value(api.store, log) == 1


async def test_a_run_that_is_under_way_goes_on_after_a_cancel(api: Api) -> None:
    job = await api.admin.create(schedule=EVERY_HOUR)
    await bring(api.store, job, "running")
    answer = await api.admin.delete(f"/v1/jobs/{job}")
    assert (answer.status, answer.body["status"]) == (200, "CANCELLED")
    assert await value(api.store, "SELECT state FROM runs") == "RUNNING"
    assert await value(api.store, "SELECT count(*) FROM timers") == 0


@pytest.mark.parametrize(("how", "status"), [("complete", "COMPLETE"), ("dead", "FAILED")])
async def test_a_job_that_had_ended_stays_as_it_ended(api: Api, how: How, status: str) -> None:
    job = await api.admin.create(schedule=NOW)
    await bring(api.store, job, how)
    answer = await api.admin.delete(f"/v1/jobs/{job}")
    assert (answer.status, answer.body["status"]) == (200, status)
    assert (await api.admin.get(f"/v1/jobs/{job}")).body["status"] == status


async def test_a_submitter_cancels_its_own_jobs_only(api: Api) -> None:
    submitter = await api.client(Role.SUBMITTER)
    operator = await api.client(Role.OPERATOR)
    theirs = await api.admin.create()
    refused = await submitter.delete(f"/v1/jobs/{theirs}")
    assert (refused.status, refused.code) == (403, "forbidden")
    assert (await api.admin.get(f"/v1/jobs/{theirs}")).body["status"] == "PENDING"
    own = await submitter.create()
    assert (await submitter.delete(f"/v1/jobs/{own}")).status == 200
    assert (await operator.delete(f"/v1/jobs/{theirs}")).status == 200


async def test_after_a_cancel_no_tick_materializes_the_job(api: Api) -> None:
    job_id = await api.admin.create()
    async with api.store.transaction() as tx:
        job = await tx.one("SELECT * FROM jobs")
        timer = await timers.of_job(tx, job["id"])
        assert timer is not None
    await api.admin.delete(f"/v1/jobs/{job_id}")
    async with api.store.transaction() as tx:
        # A tick that had read the timer before.
        shard = job["id"].int % 64
        await tx.open_with(locks.sharing([shard]))
        due = occurrences.Fired(job["id"], timer["due_at"], 1, timer["seq"], shard, 1)
        entry = occurrences.Entry(
            job["id"], timer["occurrence_at"], timer["due_at"], None, None, None
        )
        done = await occurrences.materialize(tx, [due], [entry], [], await tx.clock())
    assert (done.fired, done.ready) == (0, 0)


# --- trigger ----------------------------------------------------------------------------------


async def test_a_trigger_makes_a_run_beside_the_schedule(api: Api) -> None:
    job = await api.admin.create()
    operator = await api.client(Role.OPERATOR)
    answer = await operator.post(f"/v1/jobs/{job}/trigger", {"reason": "the customer asked"})
    assert (answer.status, answer.headers["location"]) == (202, f"/v1/runs/{answer.body['id']}")
    assert (answer.body["kind"], answer.body["state"]) == ("trigger", "READY")
    assert (await api.admin.get(answer.headers["location"])).body == answer.body
    assert await value(api.store, "SELECT count(*) FROM timers") == 1
    entry = (await api.admin.get("/v1/audit")).body["data"][0]
    assert (entry["actor"], entry["action"]) == (operator.key_id, "job.trigger")
    assert entry["after"] == {"run": answer.body["id"], "reason": "the customer asked"}


async def test_triggers_of_one_moment_are_runs_of_their_own(api: Api) -> None:
    job = await api.admin.create()
    api.store.now = await value(api.store, "SELECT now()")
    answers = [await api.admin.post(f"/v1/jobs/{job}/trigger") for _ in range(3)]
    api.store.now = None
    assert {answer.status for answer in answers} == {202}
    assert len({answer.body["id"] for answer in answers}) == 3


async def test_a_job_that_does_not_overlap_itself_is_not_triggered_while_it_runs(api: Api) -> None:
    job = await api.admin.create(schedule=EVERY_HOUR)
    refused = await api.admin.post(f"/v1/jobs/{job}/trigger")
    assert (refused.status, refused.code) == (409, "overlap")
    await bring(api.store, job, "complete")
    assert (await api.admin.post(f"/v1/jobs/{job}/trigger")).status == 202
    allowed = await api.admin.create(schedule={**EVERY_HOUR, "overlap": "allow"})
    assert (await api.admin.post(f"/v1/jobs/{allowed}/trigger")).status == 202


@pytest.mark.parametrize("overlap", ["queue", "replace"])
async def test_a_trigger_waits_for_what_its_job_is_doing(api: Api, overlap: str) -> None:
    job = await api.admin.create(schedule={**EVERY_HOUR, "overlap": overlap})
    first = await api.admin.post(f"/v1/jobs/{job}/trigger")
    second = await api.admin.post(f"/v1/jobs/{job}/trigger")
    assert [answer.status for answer in (first, second)] == [202, 202]
    run = (await api.admin.get(f"/v1/runs/{second.body['id']}")).body
    assert (run["state"], run["hold"]) == ("READY", "overlap")
    assert run["hold_reason"] == "waits for the end of another run of its job"
    assert (await api.admin.get(f"/v1/runs/{first.body['id']}")).body["hold"] is None


async def test_a_job_that_ends_at_once_still_has_its_only_occurrence(api: Api) -> None:
    document = {"type": "interval", "interval_sec": 60, "max_occurrences": 1}
    answer = await api.admin.post("/v1/jobs", a_job(schedule=document))
    assert len(answer.body["next_fires"]) == 1
    assert answer.body["schedule"]["max_occurrences"] == 1
    gone = document | {"ends_at": "2020-01-01T00:00:00Z"}
    refused = await api.admin.post("/v1/jobs", a_job(schedule=gone))
    assert [each["pointer"] for each in refused.body["errors"]] == ["/schedule/ends_at"]


async def test_a_cancelled_job_is_not_triggered(api: Api) -> None:
    job = await api.admin.create()
    await api.admin.delete(f"/v1/jobs/{job}")
    refused = await api.admin.post(f"/v1/jobs/{job}/trigger")
    assert (refused.status, refused.code) == (409, "job_cancelled")
    assert await value(api.store, "SELECT count(*) FROM runs") == 0


@pytest.mark.parametrize("missed", [1, 2, 30])
async def test_what_was_superseded_names_what_took_its_place(api: Api, missed: int) -> None:
    api.store.now = T
    job = await api.admin.create(schedule=minutely(overlap="skip"))
    await bring(api.store, job, "complete")
    for start in (1, 2 + missed):  # of the second outage what is to run is skipped
        await tick(api.store, T + (start + missed) * MINUTE)
    ledger = (await api.admin.get(f"/v1/jobs/{job}/occurrences")).body["data"]
    skipped, second, ran, first, _ = ledger
    assert [line["outcome"] for line in ledger] == ["SKIPPED", "MISSED", None, "MISSED", "COMPLETE"]
    assert first["superseded_by"] == ran["run_id"] == skipped["blocking_run"]
    assert second["superseded_by"] == skipped["run_id"]
    assert [line["superseded_by"] for line in ledger[::2]] == [None] * 3
    for line in (first, second):
        assert (line["range"] or {"count": 1})["count"] == missed


async def test_a_run_is_found_while_it_lasts_and_after_it_ended(api: Api) -> None:
    job = await api.admin.create(schedule=NOW)
    (line,) = (await api.admin.get(f"/v1/jobs/{job}/occurrences")).body["data"]
    path = f"/v1/runs/{line['run_id']}"
    states = [(await api.admin.get(path)).body["state"]]
    await bring(api.store, job, "running")
    running = (await api.admin.get(path)).body
    states.append(running["state"])
    assert running["lease_version"] == running["attempt"] == 1
    async with api.store.transaction() as tx:
        await tx.execute("DELETE FROM runs")
        await tx.execute(
            "UPDATE occurrences SET outcome = 'COMPLETE', ended_at = now(), attempts = 1"
        )
    ended = (await api.admin.get(path)).body
    assert [*states, ended["state"]] == ["READY", "RUNNING", "COMPLETE"]
    assert (ended["attempt"], ended["lease_version"]) == (1, None)
