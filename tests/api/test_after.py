"""Jobs that wait for others: what is taken, what is refused, and what is shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from noonday.domain.roles import Role
from tests.support.holds import holding
from tests.support.invariants import broken
from tests.support.outcomes import How, bring
from tests.support.scripted import Parts
from tests.support.servers import EVERY_HOUR, NOW, Answered, Api, a_job


@pytest.fixture
async def parts(api: Api, tmp_path: Path) -> AsyncIterator[Parts]:
    made = Parts(api.store, tmp_path)
    yield made
    made.close()


async def told(parts: Parts) -> None:
    """Until every child has been told of every end."""
    dependents = parts.dependents()
    while await dependents.tick():
        pass


def faults(answer: Answered) -> list[tuple[str, str]]:
    assert (answer.status, answer.code) == (422, "invalid"), answer
    return [(fault["pointer"], fault["code"]) for fault in answer.body["errors"]]


async def last(api: Api, job_id: str) -> Any:
    ledger = (await api.admin.get(f"/v1/jobs/{job_id}/occurrences")).body["data"]
    return (ledger[0]["outcome"], ledger[0]["reason"], ledger[0]["blocking_run"])


async def run_of(api: Api, job_id: str) -> str:
    return str((await api.admin.get(f"/v1/jobs/{job_id}/occurrences")).body["data"][0]["run_id"])


# --- what is taken ----------------------------------------------------------------------------


async def test_the_short_form_is_answered_in_the_long_one(api: Api) -> None:
    parent = await api.admin.create(schedule=NOW)
    answer = await api.admin.post("/v1/jobs", a_job(schedule=NOW, after=[parent.upper()]))
    assert answer.status == 202
    after = {"jobs": [parent], "on": "success", "cascade_cancel": False}
    assert (answer.body["after"], answer.body["waits_for"]) == (after, [parent])
    assert (answer.body["status"], answer.body["next_run_at"]) == ("PENDING", None)
    assert (await api.admin.get(f"/v1/jobs/{answer.body['id']}")).body == answer.body
    again = await api.admin.create(schedule=NOW, after=after)
    assert (await api.admin.get(f"/v1/jobs/{again}")).body["after"] == after
    assert not await broken(api.store)


@pytest.mark.parametrize("nothing", [[], {}, {"jobs": []}, {"on": "any"}])
async def test_who_waits_for_nothing_runs_at_once(api: Api, nothing: Any) -> None:
    job = await api.admin.create(schedule=NOW, after=nothing)
    shown = (await api.admin.get(f"/v1/jobs/{job}")).body
    assert shown["after"] == {"jobs": [], "on": "success", "cascade_cancel": False}
    assert shown["waits_for"] == []
    assert await last(api, job) == (None, None, None)


async def test_what_is_shown_of_the_open_parents_is_bounded(api: Api) -> None:
    parents = [await api.admin.create() for _ in range(25)]
    child = await api.admin.create(after=parents)
    shown = (await api.admin.get(f"/v1/jobs/{child}")).body
    assert shown["after"]["jobs"] == parents
    assert shown["waits_for"] == sorted(parents)[:20]


async def test_a_parent_that_succeeded_before_is_not_waited_for(api: Api) -> None:
    parent = await api.admin.create(schedule=NOW)
    await bring(api.store, parent, "complete")
    child = await api.admin.create(schedule=NOW, after=[parent])
    assert (await api.admin.get(f"/v1/jobs/{child}")).body["waits_for"] == []
    assert await last(api, child) == (None, None, None)


@pytest.mark.parametrize(
    ("on", "cascade", "outcome"),
    [
        ("success", False, ("SKIPPED", "parent_cancelled")),
        ("success", True, ("CANCELLED", "parent_cancelled")),
        ("any", True, ("CANCELLED", "parent_cancelled")),
        ("any", False, (None, None)),
    ],
)
async def test_a_parent_that_was_cancelled_before_counts_as_that(
    api: Api, parts: Parts, on: str, cascade: bool, outcome: tuple[str | None, str | None]
) -> None:
    parent, open_one = await api.admin.create(), await api.admin.create()
    await api.admin.delete(f"/v1/jobs/{parent}")
    jobs = [parent] if outcome[0] is None else [parent, open_one]
    after = {"jobs": jobs, "on": on, "cascade_cancel": cascade}
    child = await api.admin.create(schedule=NOW, after=after)
    assert not await broken(api.store)
    await told(parts)
    assert (await last(api, child))[:2] == outcome
    assert not await broken(api.store)


@pytest.mark.parametrize("how", ["dead"])
async def test_a_parent_that_failed_before_has_its_child_skipped(
    api: Api, parts: Parts, how: How
) -> None:
    parent = await api.admin.create(schedule=NOW)
    run = await run_of(api, parent)
    await bring(api.store, parent, how)
    child = await api.admin.create(schedule=NOW, after=[parent])
    await told(parts)
    assert await last(api, child) == ("SKIPPED", "parent_failed", run)
    assert (await api.admin.get(f"/v1/jobs/{child}")).body["status"] == "FAILED"


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [False, True])
async def test_an_unknown_parent_is_named_by_its_place(api: Api, wrap: bool) -> None:
    mine, unknown = await api.admin.create(), str(uuid4())
    other = await api.client(Role.ADMIN, "beta")
    foreign = await other.create()
    jobs = [mine, unknown, foreign]
    answer = await api.admin.post("/v1/jobs", a_job(after={"jobs": jobs} if wrap else jobs))
    where = "/after/jobs" if wrap else "/after"
    assert faults(answer) == [(f"{where}/1", "unknown_job"), (f"{where}/2", "unknown_job")]
    details = {fault["detail"] for fault in answer.body["errors"]}
    assert len(details) == 1, "whether another tenant has such a job is not told"


async def test_a_recurring_job_is_no_parent_and_waits_for_none(api: Api) -> None:
    recurring, once = await api.admin.create(schedule=EVERY_HOUR), await api.admin.create()
    answer = await api.admin.post("/v1/jobs", a_job(after=[once, recurring]))
    assert faults(answer) == [("/after/1", "invalid")]
    async with api.store.transaction() as tx:
        flagged = await tx.rows("SELECT job_id::text FROM timers WHERE awaited")
        assert [row["job_id"] for row in flagged] == [once]
    answer = await api.admin.post("/v1/jobs", a_job(schedule=EVERY_HOUR, after=[once]))
    assert faults(answer) == [("/after", "conflict")]


@pytest.mark.parametrize(
    ("after", "fault"),
    [
        ("x", ("/after", "wrong_type")),
        (None, ("/after", "wrong_type")),
        (7, ("/after", "wrong_type")),
        ([7], ("/after/0", "wrong_type")),
        (["x"], ("/after/0", "invalid")),
        ([str(uuid4()) + "\n"], ("/after/0", "invalid")),
        ([str(uuid4())] * 101, ("/after", "wrong_length")),
        ({"jobs": [str(uuid4())] * 101}, ("/after/jobs", "wrong_length")),
        ({"jobs": "x"}, ("/after/jobs", "wrong_type")),
        ({"job": []}, ("/after/job", "unknown_field")),
        ({"on": "failure"}, ("/after/on", "unknown_value")),
        ({"cascade_cancel": 1}, ("/after/cascade_cancel", "wrong_type")),
    ],
)
async def test_what_is_no_list_of_jobs_is_refused(
    api: Api, after: Any, fault: tuple[str, str]
) -> None:
    body = a_job() | {"after": after}
    assert faults(await api.admin.post("/v1/jobs", body)) == [fault]


@pytest.mark.parametrize("atomic", [False, True])
async def test_while_a_parent_is_written_to_nothing_is_created(
    api: Api, database_url: str, atomic: bool
) -> None:
    parent = await api.admin.create(schedule=NOW)
    body = a_job(after=[parent])
    path, sent = ("/v1/jobs", body)
    if atomic:
        path, sent = ("/v1/jobs:batch", {"atomic": True, "jobs": [{"job": body}]})
    async with holding(database_url, "SELECT FROM runs FOR UPDATE"):
        answer = await api.admin.post(path, sent)
    assert (answer.status, answer.code) == (503, "parents_moving")
    assert answer.headers["retry-after"] == "1"
    assert (await api.admin.post(path, sent)).status == 202
    assert not await broken(api.store)


async def test_a_job_named_twice_is_refused(api: Api) -> None:
    parent = await api.admin.create()
    answer = await api.admin.post("/v1/jobs", a_job(after=[parent, parent.upper()]))
    assert faults(answer) == [("/after/1", "conflict")]


async def test_a_field_given_twice_within_is_refused(api: Api) -> None:
    body = b'{"schedule":{"type":"once"},"target":{"type":"http","url":"https://a.b/"},'
    for after in (b'{"on":"any","on":"any"}', b'{"on":"any","jobs":[],"on":"success"}'):
        answer = await api.admin.call("POST", "/v1/jobs", data=body + b'"after":' + after + b"}")
        assert faults(answer) == [("/after/on", "duplicate_field")]


async def test_the_jobs_of_a_batch_cannot_name_each_other(api: Api) -> None:
    """So no circle can be made: an id is known only once its job is there, and `after` stays."""
    parent = await api.admin.create()
    good, bad = a_job(after=[parent]), a_job(after=[str(uuid4())])
    body = {"jobs": [{"job": good}, {"job": bad}]}
    answer = (await api.admin.post("/v1/jobs:batch", body)).body
    assert [each["status"] for each in answer["results"]] == [202, 422]
    assert answer["results"][0]["job"]["waits_for"] == [parent]
    whole = await api.admin.post("/v1/jobs:batch", {**body, "atomic": True})
    assert faults(whole) == [("/jobs/1/job/after/0", "unknown_job")]
    assert not await broken(api.store)


async def test_every_edge_leads_to_a_newer_job(api: Api) -> None:
    first = await api.admin.create()
    second = await api.admin.create(after=[first])
    third = await api.admin.create(after=[first, second])
    path, after = f"/v1/jobs/{first}", {"after": [third]}
    assert (await api.admin.call("PUT", path, after)).status == 405
    changed = await api.admin.call("PATCH", path, after, if_match="*")
    assert (changed.status, changed.body["errors"][0]["code"]) == (422, "immutable")
    async with api.store.transaction() as tx:
        assert await tx.value("SELECT bool_and(parent_id < child_id) FROM dependencies")


# --- cancelling -------------------------------------------------------------------------------


async def test_who_waits_is_cancelled_by_hand_and_its_children_are_told(
    api: Api, parts: Parts
) -> None:
    parent = await api.admin.create()
    middle = await api.admin.create(after=[parent])
    skipped = await api.admin.create(schedule=NOW, after=[middle])
    runs = await api.admin.create(schedule=NOW, after={"jobs": [middle], "on": "any"})
    assert (await api.admin.delete(f"/v1/jobs/{middle}")).body["status"] == "CANCELLED"
    assert not await broken(api.store)
    await told(parts)
    assert (await last(api, skipped))[:2] == ("SKIPPED", "parent_cancelled")
    assert (await api.admin.get(f"/v1/jobs/{runs}")).body["waits_for"] == []
    assert (await api.admin.get(f"/v1/jobs/{parent}")).body["status"] == "PENDING"
    assert not await broken(api.store)


async def test_cancelling_cascades_only_where_that_was_asked_for(api: Api, parts: Parts) -> None:
    parent = await api.admin.create(schedule=NOW)
    chain = [parent]
    for cascade in (True, True, False):
        after = {"jobs": [chain[-1]], "cascade_cancel": cascade}
        chain.append(await api.admin.create(schedule=NOW, after=after))
    await api.admin.delete(f"/v1/jobs/{parent}")
    await told(parts)
    outcomes = [(await last(api, job))[0] for job in chain]
    assert outcomes == ["CANCELLED", "CANCELLED", "CANCELLED", "SKIPPED"]
    shown = (await api.admin.get(f"/v1/jobs/{chain[1]}")).body
    assert shown["status"] == "CANCELLED"
    assert shown["state_reason"].startswith("parent_cancelled: ")
    assert not await broken(api.store)


async def test_a_child_of_a_far_time_is_skipped_before_the_ledger_reaches_it(
    api: Api, parts: Parts
) -> None:
    parent = await api.admin.create(schedule=NOW)
    child = await api.admin.create(after=[parent])
    await bring(api.store, parent, "dead")
    await told(parts)
    shown = (await api.admin.get(f"/v1/jobs/{child}")).body
    assert (shown["status"], shown["waits_for"]) == ("CANCELLED", [])
    assert shown["state_reason"].startswith("parent_failed: ")
    assert not await broken(api.store)
