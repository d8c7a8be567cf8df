"""Backfills over HTTP: what is asked for, counted and refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from noonday.domain.backfill import MOST
from noonday.domain.roles import Role
from noonday.store import Store
from tests.support.backfills import FORMER, loop_over, on_record, opened, pass_until_ended
from tests.support.database_locks import value
from tests.support.servers import NOW, Answered, Api

T = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
HOUR = timedelta(hours=1)
HOURLY = {"type": "cron", "cron": "0 * * * *", "overlap": "allow"}
BEGINS = "SELECT starts_at FROM ledger_start"


async def asked(api: Api, job: str, first: datetime, last: datetime, **terms: Any) -> Answered:
    body = {"from": first.isoformat(), "to": last.isoformat(), **terms}
    return await api.admin.post(f"/v1/jobs/{job}/backfill", body)


def faults(answer: Answered) -> list[tuple[str, str]]:
    assert (answer.status, answer.code) == (422, "invalid"), answer
    return [(fault["pointer"], fault["code"]) for fault in answer.body["errors"]]


async def execute(store: Store, statement: str, *args: object) -> None:
    async with store.transaction() as tx:
        await tx.execute(statement, *args)


# --- what is asked for ------------------------------------------------------------------------


async def test_a_backfill_is_an_operation_that_goes_on_by_itself(api: Api) -> None:
    job = await api.admin.create(schedule=HOURLY)
    made = await asked(api, job, T - 5 * HOUR, T - HOUR, reason="outage")
    assert made.status == 202
    shown = {name: made.body[name] for name in ("kind", "state", "job_id", "total", "looked_at")}
    assert shown == {
        "kind": "backfill", "state": "RUNNING", "job_id": job, "total": 5, "looked_at": 0,
    }  # fmt: skip
    operation = (await api.admin.get(made.headers["location"])).body
    assert operation == made.body
    api.store.now = datetime.now(UTC)
    await pass_until_ended(api.store, UUID(operation["id"]), [loop_over(api.store)])
    operation = (await api.admin.get(made.headers["location"])).body
    ended = [operation[name] for name in ("state", "looked_at", "done", "skipped", "error")]
    assert ended == ["DONE", 5, 5, 0, None]
    assert (await api.admin.get("/v1/operations")).body["data"] == [operation]
    (line, *_) = (await api.admin.get(f"/v1/jobs/{job}/occurrences")).body["data"]
    assert (line["kind"], line["outcome"], line["late_ms"]) == ("backfill", None, 0)
    run = (await api.admin.get(f"/v1/runs/{line['run_id']}")).body
    assert (run["kind"], run["lane"], run["state"]) == ("backfill", "batch", "READY")


async def test_who_asked_for_it_and_for_what_is_in_the_audit_log(api: Api) -> None:
    job = await api.admin.create(schedule=HOURLY)
    made = await asked(api, job, T - 5 * HOUR, T - HOUR, reason="outage")
    (entry,) = (
        each
        for each in (await api.admin.get("/v1/audit")).body["data"]
        if each["action"] == "operation.create"
    )
    assert entry["object_id"] == made.body["id"]
    assert (entry["after"]["job"], entry["after"]["nominal"]) == (job, 5)
    assert entry["after"]["asked"]["reason"] == "outage"


async def test_the_same_key_makes_one(api: Api) -> None:
    job = await api.admin.create(schedule=HOURLY)
    body = {"from": (T - HOUR).isoformat(), "to": T.isoformat()}
    path = f"/v1/jobs/{job}/backfill"
    first = await api.admin.post(path, body, idempotency_key="k")
    await api.admin.delete(f"/v1/jobs/{job}")
    second = await api.admin.post(path, body, idempotency_key="k")
    assert second.body == first.body, "whatever has become of the job"
    assert second.headers["idempotent-replayed"] == "true"
    assert await value(api.store, "SELECT count(*) FROM operations") == 1


async def test_it_can_be_aborted(api: Api) -> None:
    job = await api.admin.create(schedule=HOURLY)
    made = await asked(api, job, T - 5 * HOUR, T)
    aborted = await api.admin.post(f"{made.headers['location']}/abort")
    assert (aborted.status, aborted.body["state"]) == (200, "ABORTED")
    assert await loop_over(api.store).tick() == 0
    assert await opened(api.store, UUID(job)) == []


# --- a dry run --------------------------------------------------------------------------------


async def test_a_dry_run_counts_and_writes_nothing(api: Api) -> None:
    job = await api.admin.create(schedule=HOURLY)
    async with api.store.transaction() as tx:
        for n, outcome in enumerate(("COMPLETE", "FAILED", None, "SKIPPED", "MISSED"), 1):
            await on_record(tx, UUID(job), T - n * HOUR, outcome)
        await on_record(tx, UUID(job), T - 5 * HOUR, "COMPLETE", kind=2)
        await on_record(tx, UUID(job), T - 6 * HOUR, "COMPLETE", kind=1)
    answer = await asked(api, job, T - 8 * HOUR, T - HOUR, dry_run=True)
    assert answer.status == 200
    assert answer.body == {"nominal": 8, "to_run": 4, "ran": 4, "left_out": 0}
    for table in ("operations", "runs"):
        assert await value(api.store, f"SELECT count(*) FROM {table}") == 0


async def test_a_dry_run_counts_what_is_still_to_be_fired_apart(api: Api) -> None:
    job = await api.admin.create(schedule=HOURLY)
    await execute(api.store, "UPDATE timers SET occurrence_at = $1", T - HOUR)
    answer = await asked(api, job, T - 3 * HOUR, T, dry_run=True)
    assert answer.body == {"nominal": 4, "to_run": 2, "ran": 0, "left_out": 2}


async def test_a_dry_run_goes_by_the_schedule_that_was_in_force(api: Api) -> None:
    job = await api.admin.create(schedule=HOURLY)
    former = json.dumps({"type": "cron", "cron": "*/15 * * * *"})
    await execute(api.store, FORMER, UUID(job), 1, former, T - 99 * HOUR, T - 2 * HOUR)
    answer = await asked(api, job, T - 3 * HOUR, T - HOUR, dry_run=True)
    assert answer.body["nominal"] == 4 + 2


# --- what is refused --------------------------------------------------------------------------


async def test_all_that_is_wrong_with_a_range_is_told_at_once(api: Api) -> None:
    job = await api.admin.create(schedule=HOURLY)
    begins = await value(api.store, BEGINS)
    later = datetime.now(UTC) + HOUR
    answer = await asked(api, job, begins - HOUR, later, lane="nowhere")
    assert faults(answer) == [
        ("/to", "out_of_range"), ("/from", "before_ledger"), ("/lane", "unknown_lane"),
    ]  # fmt: skip
    assert faults(await asked(api, job, T, T - HOUR)) == [("/from", "out_of_range")]
    assert (await asked(api, job, begins, begins)).status == 202


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({}, {("/from", "missing"), ("/to", "missing")}),
        (
            {"from": "2027-01-01T00:00:00", "to": 7},
            {("/from", "naive_time"), ("/to", "wrong_type")},
        ),
        (
            {"rate_per_sec": 0, "priority": 10, "lane": "", "until": 1},
            {("/from", "missing"), ("/to", "missing"), ("/rate_per_sec", "out_of_range"),
             ("/priority", "out_of_range"), ("/lane", "wrong_length"), ("/until", "unknown_field")},
        ),
    ],
)  # fmt: skip
async def test_each_field_at_fault_is_named(
    api: Api, body: dict[str, Any], found: set[tuple[str, str]]
) -> None:
    job = await api.admin.create(schedule=HOURLY)
    answer = await api.admin.post(f"/v1/jobs/{job}/backfill", body)
    assert set(faults(answer)) == found


@pytest.mark.parametrize("dry_run", [False, True])
async def test_more_than_can_be_backfilled_at_once_is_refused(api: Api, dry_run: bool) -> None:
    for schedule in (
        {"type": "interval", "interval_sec": 1, "starts_at": (T - 24 * HOUR).isoformat()},
        {"type": "cron", "cron": "* * * * * *"},
    ):
        job = await api.admin.create(schedule=schedule)
        last = T - timedelta(seconds=1)
        many = await asked(api, job, last - timedelta(seconds=MOST), last, dry_run=dry_run)
        assert faults(many) == [("/from", "out_of_range")]
        assert "10,000" in many.body["errors"][0]["detail"]
        most = await asked(api, job, last - timedelta(seconds=MOST - 1), last, dry_run=dry_run)
        assert most.status == (200 if dry_run else 202)
        assert most.body["nominal" if dry_run else "total"] == MOST


async def test_only_a_recurring_job_that_is_not_cancelled_has_a_past_to_run(api: Api) -> None:
    for schedule, cancels, code in (
        (NOW, False, "not_recurring"),
        (HOURLY, True, "job_cancelled"),
    ):
        job = await api.admin.create(schedule=schedule)
        if cancels:
            await api.admin.delete(f"/v1/jobs/{job}")
        answer = await asked(api, job, T - HOUR, T)
        assert (answer.status, answer.code) == (409, code)


async def test_a_job_that_cannot_be_computed_is_refused(api: Api) -> None:
    job = await api.admin.create(schedule=HOURLY)
    await execute(api.store, "UPDATE jobs SET spec = '{}'")
    answer = await asked(api, job, T - HOUR, T)
    assert (answer.status, answer.code) == (409, "not_computable")


async def test_it_takes_an_operator(api: Api) -> None:
    job = await api.admin.create(schedule=HOURLY)
    body = {"from": (T - HOUR).isoformat(), "to": T.isoformat(), "dry_run": True}
    for role, status in ((Role.SUBMITTER, 403), (Role.OPERATOR, 200)):
        client = await api.client(role)
        assert (await client.post(f"/v1/jobs/{job}/backfill", body)).status == status


async def test_a_lane_is_not_deleted_under_a_backfill(api: Api) -> None:
    assert (await api.admin.call("PUT", "/v1/lanes/past", {"weight": 1})).status == 201
    job = await api.admin.create(schedule=HOURLY)
    made = await asked(api, job, T - HOUR, T - HOUR, lane="past")
    assert (await api.admin.delete("/v1/lanes/past")).code == "lane_in_use"
    api.store.now = datetime.now(UTC)
    await pass_until_ended(api.store, UUID(made.body["id"]), [loop_over(api.store)])
    api.store.now = None
    assert (await api.admin.delete("/v1/lanes/past")).code == "lane_in_use", "its runs are there"
    await execute(api.store, "DELETE FROM runs")
    assert (await api.admin.delete("/v1/lanes/past")).status == 200
