"""Cancelling, in stages that can be seen, and what is answered agrees with what comes of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from noonday.domain.roles import Role
from noonday.loops.operations import Operations
from noonday.store import Store, cancels
from tests.support import seeds
from tests.support.database_locks import value
from tests.support.invariants import broken
from tests.support.outcomes import How, bring
from tests.support.servers import NOW, Api

LATER = {"type": "once", "run_at": "2050-01-01T00:00:00Z"}


async def run_of(api: Api, how: How | None = None, **job: Any) -> str:
    """The run of a new job that is due now, brought to where a test wants it."""
    job_id = await api.admin.create(**{"schedule": NOW, **job})
    if how is not None:
        await bring(api.store, job_id, how)
    ledger = (await api.admin.get(f"/v1/jobs/{job_id}/occurrences")).body["data"]
    return str(ledger[0]["run_id"])


async def audited(api: Api, action: str) -> list[Any]:
    log = (await api.admin.get("/v1/audit")).body["data"]
    return [entry["after"] for entry in log if entry["action"] == action]


# --- one run ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [None, "retrying"])
async def test_a_run_that_waits_is_cancelled_at_once(api: Api, how: How | None) -> None:
    run = await run_of(api, how)
    answer = await api.admin.post(f"/v1/runs/{run}/cancel", {"reason": "not needed"})
    assert (answer.status, answer.body["state"]) == (200, "CANCELLED")
    assert (answer.body["reason"], answer.body["cancel"]) == ("not needed", None)
    assert (await api.admin.get(f"/v1/runs/{run}")).body == answer.body
    assert await audited(api, "run.cancel") == [{"reason": "not needed", "dead_letter": False}]
    assert not await broken(api.store)


async def test_a_run_that_is_held_is_cancelled_at_once(api: Api) -> None:
    run = await run_of(api)
    async with api.store.transaction() as tx:
        await tx.execute("UPDATE runs SET hold = 'lane', hold_key = 'lane:x', claimable = false")
    assert (await api.admin.post(f"/v1/runs/{run}/cancel")).body["state"] == "CANCELLED"


async def test_a_run_that_is_under_way_is_cancelled_in_stages(api: Api) -> None:
    run = await run_of(api, "running")
    requested = await api.admin.post(f"/v1/runs/{run}/cancel", {"reason": "stop it"})
    assert (requested.status, requested.body["state"]) == (200, "RUNNING")
    cancel = requested.body["cancel"]
    assert (cancel["stage"], cancel["reason"], cancel["told_at"]) == ("requested", "stop it", None)
    assert cancel["requested_at"] is not None
    async with api.store.transaction() as tx:
        (asked,) = await cancels.asked(tx, seeds.WORKER, 10)
        assert await cancels.asked(tx, seeds.OTHER_WORKER, 10) == []
    told = (await api.admin.get(f"/v1/runs/{run}")).body["cancel"]
    assert (told["stage"], told["requested_at"]) == ("told", cancel["requested_at"])
    again = await api.admin.post(f"/v1/runs/{run}/cancel", {"reason": "again"})
    assert again.body["cancel"] == told
    async with api.store.transaction() as tx:
        assert asked == (asked.held, "stop it", False)
        assert await seeds.settle(tx, seeds.stopped(asked.held))
    fenced = await api.admin.post(f"/v1/runs/{run}/cancel")
    assert (fenced.status, fenced.body["state"], fenced.body["cancel"]) == (200, "CANCELLED", None)
    assert fenced.body["reason"] == "stop it"
    async with api.store.transaction() as tx:
        assert not await seeds.settle(tx, seeds.completed(asked.held)), "a late result is fenced"


@pytest.mark.parametrize(("how", "state"), [("complete", "COMPLETE"), ("dead", "FAILED")])
async def test_where_the_work_was_quicker_the_answer_says_how_it_ended(
    api: Api, how: How, state: str
) -> None:
    run = await run_of(api, how)
    answer = await api.admin.post(f"/v1/runs/{run}/cancel")
    assert (answer.status, answer.code) == (409, "run_ended")
    assert state in answer.body["detail"]
    assert (await api.admin.get(f"/v1/runs/{run}")).body["state"] == state
    assert await audited(api, "run.cancel") == []


@pytest.mark.parametrize("how", [None, "retrying"])
async def test_a_run_that_is_killed_is_a_dead_letter(api: Api, how: How | None) -> None:
    run = await run_of(api, how)
    wanted = {"reason": "it harms", "dead_letter": True}
    answer = await api.admin.post(f"/v1/runs/{run}/cancel", wanted)
    assert (answer.status, answer.body["state"], answer.body["reason"]) == (200, "FAILED", "killed")
    letter = (await api.admin.get(f"/v1/dlq/{run}")).body
    assert (letter["reason"], letter["error"]) == ("killed", "it harms")
    assert (await api.admin.post(f"/v1/runs/{run}/cancel", wanted)).status == 200
    assert (await api.admin.post(f"/v1/runs/{run}/cancel")).status == 409
    assert not await broken(api.store)


@pytest.mark.parametrize("end", [seeds.retried, seeds.interrupted, seeds.handed_back])
async def test_a_run_that_is_killed_under_way_is_a_dead_letter_however_it_ends(
    api: Api, end: Any
) -> None:
    run = await run_of(api, "running")
    await api.admin.post(f"/v1/runs/{run}/cancel", {"reason": "it harms", "dead_letter": True})
    async with api.store.transaction() as tx:
        (asked,) = await cancels.asked(tx, seeds.WORKER, 10)
        assert asked.kills
        assert await seeds.settle(tx, end(asked.held))
    assert (await api.admin.get(f"/v1/dlq/{run}")).body["reason"] == "killed"
    assert not await broken(api.store)


async def test_a_submitter_cancels_only_what_it_created_and_kills_nothing(api: Api) -> None:
    submitter = await api.client(Role.SUBMITTER)
    theirs = await run_of(api)
    assert (await submitter.post(f"/v1/runs/{theirs}/cancel")).code == "forbidden"
    made = (await submitter.post("/v1/jobs", {**_job(), "schedule": NOW})).body["id"]
    mine = (await api.admin.get(f"/v1/jobs/{made}/occurrences")).body["data"][0]["run_id"]
    kill = await submitter.post(f"/v1/runs/{mine}/cancel", {"dead_letter": True})
    assert (kill.status, kill.code) == (403, "forbidden")
    assert (await submitter.post(f"/v1/runs/{mine}/cancel")).body["state"] == "CANCELLED"


def _job() -> dict[str, Any]:
    return {"target": {"type": "http", "url": "https://example.com/hook"}}


# --- a job ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "stage"), [("", "finishing"), ("?running=finish", "finishing"),
                         ("?running=cancel", "requested")],
)  # fmt: skip
async def test_a_job_is_cancelled_with_or_without_what_runs(
    api: Api, query: str, stage: str
) -> None:
    run = await run_of(api, "running")
    job = (await api.admin.get(f"/v1/runs/{run}")).body["job_id"]
    assert (await api.admin.delete(f"/v1/jobs/{job}{query}")).body["status"] == "CANCELLED"
    assert (await api.admin.get(f"/v1/runs/{run}")).body["cancel"]["stage"] == stage
    await api.admin.delete(f"/v1/jobs/{job}?running=cancel")
    assert (await api.admin.get(f"/v1/runs/{run}")).body["cancel"]["stage"] == "requested"


# --- many jobs --------------------------------------------------------------------------------


async def through(store: Store) -> int:
    """Tick until there is nothing left to do; how many jobs were looked at."""
    part, looked_at = Operations(store), 0
    while done := await part.tick():
        looked_at += done
    return looked_at


async def test_many_jobs_are_cancelled_by_a_filter_and_the_others_stay(api: Api) -> None:
    old = [await api.admin.create(name=f"old-{n}", schedule=LATER) for n in range(7)]
    new = [await api.admin.create(name=f"new-{n}", schedule=LATER) for n in range(3)]
    running = await run_of(api, "running", name="old-and-running")
    asked = {"filter": {"name_prefix": "old-"}, "running": "cancel", "reason": "moved"}
    made = await api.admin.post("/v1/jobs:cancel", asked)
    assert (made.status, made.body["state"]) == (202, "RUNNING")
    later = await api.admin.create(name="old-but-later", schedule=LATER)
    await through(api.store)
    operation = (await api.admin.get(made.headers["location"])).body
    assert (operation["state"], operation["done"]) == ("DONE", 8)
    assert operation["looked_at"] >= 11
    assert operation["skipped"] == operation["looked_at"] - 8
    assert (operation["total"], operation["job_id"]) == (None, None)
    for job, status in [*((job, "CANCELLED") for job in old), *((job, "PENDING") for job in new),
                        (later, "PENDING")]:  # fmt: skip
        assert (await api.admin.get(f"/v1/jobs/{job}")).body["status"] == status
    assert (await api.admin.get(f"/v1/runs/{running}")).body["cancel"]["stage"] == "requested"
    assert len(await audited(api, "job.cancel")) == 8
    assert (await api.admin.get("/v1/operations")).body["data"] == [operation]
    assert not await broken(api.store)


FILTERS = [
    ({"label": "env:test"}, {"labels": {"env": "test"}}),
    (
        {"target_host": "other.example"},
        {"target": {"type": "http", "url": "https://other.example"}},
    ),
    ({"schedule_type": "interval"}, {"schedule": {"type": "interval", "interval_sec": 3600}}),
    ({"lane": "long"}, {"lane": "long"}),
]


@pytest.mark.parametrize(("by", "job"), FILTERS)
async def test_each_filter_means_what_it_says(api: Api, by: Any, job: Any) -> None:
    other = await api.admin.create()
    mine = await api.admin.create(**job)
    await api.admin.post("/v1/jobs:cancel", {"filter": by})
    await through(api.store)
    assert (await api.admin.get(f"/v1/jobs/{mine}")).body["status"] == "CANCELLED"
    assert (await api.admin.get(f"/v1/jobs/{other}")).body["status"] != "CANCELLED"


@pytest.mark.parametrize("by", [{}, {"label": "no colon"}, {"colour": "red"}])
async def test_a_filter_that_narrows_nothing_or_is_not_understood_is_refused(
    api: Api, by: Any
) -> None:
    answer = await api.admin.post("/v1/jobs:cancel", {"filter": by})
    assert answer.status == 422
    assert answer.body["errors"][0]["pointer"].startswith("/filter")
    assert await value(api.store, "SELECT count(*) FROM operations") == 0


async def test_an_aborted_operation_goes_no_further(api: Api) -> None:
    jobs = [await api.admin.create(name="x", schedule=LATER) for _ in range(3)]
    made = await api.admin.post("/v1/jobs:cancel", {"filter": {"name_prefix": "x"}})
    place = made.headers["location"]
    assert (await api.admin.post(f"{place}/abort")).body["state"] == "ABORTED"
    assert (await api.admin.post(f"{place}/abort")).status == 200
    assert await through(api.store) == 0
    for job in jobs:
        assert (await api.admin.get(f"/v1/jobs/{job}")).body["status"] == "PENDING"


async def test_an_operation_that_is_through_cannot_be_aborted(api: Api) -> None:
    made = await api.admin.post("/v1/jobs:cancel", {"filter": {"name_prefix": "x"}})
    await through(api.store)
    answer = await api.admin.post(f"{made.headers['location']}/abort")
    assert (answer.status, answer.code) == (409, "operation_ended")


async def test_the_same_key_makes_one_operation(api: Api) -> None:
    wanted = {"filter": {"name_prefix": "x"}}
    first = await api.admin.post("/v1/jobs:cancel", wanted, idempotency_key="k")
    second = await api.admin.post("/v1/jobs:cancel", wanted, idempotency_key="k")
    assert second.body == first.body
    assert second.headers["idempotent-replayed"] == "true"


async def test_two_processes_on_one_operation_cancel_each_job_once(api: Api, store: Store) -> None:
    for n in range(20):
        await api.admin.create(name=f"x-{n}", schedule=LATER)
    await api.admin.post("/v1/jobs:cancel", {"filter": {"name_prefix": "x"}})
    one, other = Operations(store), Operations(api.store)
    async with store.transaction() as tx:
        (seen,) = await tx.rows("SELECT * FROM operations")
    assert await one._go_on(seen) > 0
    await other._go_on(seen)  # it acts on what it read before the first one's steps
    await through(store)
    assert len(await audited(api, "job.cancel")) == 20
    assert await value(store, "SELECT (done, looked_at) FROM operations") == (20, 20)


async def test_what_was_asked_before_is_told_only_while_it_runs(store: Store) -> None:
    async with store.transaction() as tx:
        (run,) = await seeds.ready(tx)
        await seeds.claim(tx)
        which = cancels.Which.run(run)
        assert await cancels.request(tx, which, "a", stop=True) == 1
        await seeds.settle(tx, seeds.retried(seeds.held(run), timedelta()))
        assert await cancels.asked(tx, seeds.WORKER, 10) == []
        assert await tx.value("SELECT outcome FROM occurrences") == "CANCELLED"


# --- what fell due meanwhile ------------------------------------------------------------------


async def overdue(api: Api, schedule: dict[str, Any], name: str, at: datetime) -> str:
    """A job that has stood before its occurrence ``at`` since then, for no scheduler ran."""
    job_id: str = await api.admin.create(schedule=schedule)
    async with api.store.transaction() as tx:
        spec = json.loads(await tx.value("SELECT spec FROM jobs"))
        spec["schedule"][name] = at.isoformat()
        await tx.execute("UPDATE jobs SET spec = $1, first_at = $2", json.dumps(spec), at)
        await tx.execute("UPDATE timers SET occurrence_at = $1, due_at = $1", at)
    return job_id


async def ledger_of(api: Api, job_id: str) -> list[Any]:
    return list((await api.admin.get(f"/v1/jobs/{job_id}/occurrences")).body["data"])


async def test_what_fell_due_before_a_cancel_is_on_record(api: Api) -> None:
    at = datetime.now(UTC) - timedelta(seconds=35)
    schedule = {"type": "interval", "interval_sec": 10, "starts_at": "2050-01-01T00:00:00Z"}
    job_id = await overdue(api, schedule, "starts_at", at)
    await api.admin.delete(f"/v1/jobs/{job_id}")
    cancelled, missed = await ledger_of(api, job_id)
    assert cancelled["outcome"] == "CANCELLED"
    assert cancelled["reason"].startswith("cancelled by ")
    assert (missed["outcome"], missed["reason"]) == ("MISSED", "superseded")
    assert (missed["range"]["count"], missed["range"]["by"]) == (3, "noonday scheduler")
    assert missed["superseded_by"] == cancelled["run_id"]
    assert not await broken(api.store)


@pytest.mark.parametrize("misfire", ["one", "skip", "all"])
async def test_however_much_fell_due_before_a_cancel_all_of_it_is_on_record(
    api: Api, monkeypatch: pytest.MonkeyPatch, misfire: str
) -> None:
    monkeypatch.setattr("noonday.store.cancels.MOST_CLOSED", 3)
    at = datetime.now(UTC) - timedelta(seconds=10_000)
    schedule = {"type": "interval", "interval_sec": 10, "starts_at": "2050-01-01T00:00:00Z"}
    job_id = await overdue(api, schedule | {"misfire": misfire}, "starts_at", at)
    await api.admin.delete(f"/v1/jobs/{job_id}")
    ledger = await ledger_of(api, job_id)
    rest = ledger[0]
    assert (rest["outcome"], rest["reason"]) == ("SKIPPED", "cancelled")
    numbers = [(line["range"] or {"count": 1})["count"] for line in ledger]
    assert sum(numbers) in (1_001, 1_002), "the time goes on"
    assert not await broken(api.store)


async def test_a_late_one_off_job_that_is_cancelled_is_on_record(api: Api) -> None:
    job_id = await overdue(api, LATER, "run_at", datetime.now(UTC) - timedelta(minutes=1))
    await api.admin.delete(f"/v1/jobs/{job_id}")
    assert [row["outcome"] for row in await ledger_of(api, job_id)] == ["CANCELLED"]


async def test_what_was_not_due_when_it_was_cancelled_leaves_no_line(api: Api) -> None:
    job_id = await api.admin.create(schedule=LATER)
    await api.admin.delete(f"/v1/jobs/{job_id}")
    assert await ledger_of(api, job_id) == []
