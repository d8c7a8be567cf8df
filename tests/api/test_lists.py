"""Lists give each item once, whatever happens between two pages."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from noonday.domain.roles import Role
from noonday.store import reports
from noonday.store.jobs import Filter
from tests.support.database_locks import value
from tests.support.outcomes import bring
from tests.support.servers import EVERY_HOUR, NIGHTLY, NOW, Api, Client, a_job


async def walk(client: Client, path: str, limit: int) -> list[Any]:
    """All items of a list, page by page."""
    items: list[Any] = []
    cursor = ""
    while True:
        mark = "&" if "?" in path else "?"
        answer = await client.get(f"{path}{mark}limit={limit}{cursor}")
        assert answer.status == 200, answer
        page = answer.body
        assert len(page["data"]) <= limit
        assert page["has_more"] == (page["next_cursor"] is not None) == ("link" in answer.headers)
        items += page["data"]
        if not page["has_more"]:
            return items
        cursor = f"&cursor={page['next_cursor']}"


async def make(client: Client, *jobs: dict[str, Any]) -> list[str]:
    """Jobs created in one transaction, so that all have the same ``created_at``."""
    batch = {"atomic": True, "jobs": [{"job": job} for job in jobs]}
    answer = await client.post("/v1/jobs:batch", batch)
    assert answer.status == 202, answer
    return [result["job"]["id"] for result in answer.body["results"]]


async def test_a_thousand_jobs_of_one_transaction_are_listed_once_each(api: Api) -> None:
    ids = await make(api.admin, *[a_job(labels={"n": str(n % 2)}) for n in range(1000)])
    assert await value(api.store, "SELECT count(DISTINCT created_at) FROM jobs") == 1
    listed = [job["id"] for job in await walk(api.admin, "/v1/jobs", 7)]
    assert listed == sorted(ids, reverse=True)
    odd = [job["id"] for job in await walk(api.admin, "/v1/jobs?label=n:1", 7)]
    assert odd == sorted(ids[1::2], reverse=True)


async def test_jobs_that_come_and_go_meanwhile_neither_hide_nor_repeat_others(api: Api) -> None:
    ids = await make(api.admin, *[a_job()] * 30)
    first = (await api.admin.get("/v1/jobs?limit=10")).body
    await make(api.admin, *[a_job()] * 5)
    async with api.store.transaction() as tx:
        last = first["data"][-1]["id"]
        await tx.execute("DELETE FROM jobs WHERE id = $1::text::uuid", last)
    rest = await walk(api.admin, f"/v1/jobs?cursor={first['next_cursor']}", 20)
    listed = [job["id"] for job in first["data"] + rest]
    assert listed == sorted(ids, reverse=True)


async def test_a_filter_that_matches_little_looks_at_a_bounded_number_of_jobs(api: Api) -> None:
    rare = (await make(api.admin, a_job(name="rare"), *[a_job()] * 25))[0]
    async with api.store.transaction() as tx:
        by, before, pages, found = Filter(name_prefix="rare"), None, 0, []
        while True:
            page = await reports.jobs(tx, 1, before, 5, by, scanned=10)
            found += [str(row["id"]) for row in page.rows]
            pages, before = pages + 1, page.next_before
            if before is None:
                break
    assert (found, pages) == ([rare], 3)


async def test_each_filter_narrows_to_what_it_names(api: Api) -> None:
    once, cron, interval, due = await make(
        api.admin,
        a_job(name="alpha-1", labels={"env": "prod"}),
        a_job(name="alpha_2", schedule=NIGHTLY, labels={"env": "test"}),
        a_job(name="100%", schedule={**EVERY_HOUR, "starts_at": "2050-01-01T00:00:00Z"},
              target={"type": "http", "url": "https://other.example/", "timeout_sec": 121}),
        a_job(name="beta", schedule=NOW),
    )  # fmt: skip
    await bring(api.store, due, "complete")
    created = (await api.admin.get(f"/v1/jobs/{once}")).body["created_at"]
    for query, expected in {
        "schedule_type=cron": {cron},
        "schedule_type=interval": {interval},
        "status=PENDING": {once, cron, interval},
        "status=COMPLETE": {due},
        "status=FAILED": set(),
        "name_prefix=alpha": {once, cron},
        "name_prefix=alpha_": {cron},
        "name_prefix=100%25": {interval},
        "label=env:prod": {once},
        "label=env:": set(),
        "target_host=other.example": {interval},
        "lane=default": {once, cron, due},
        "lane=long": {interval},
        "lane=other": set(),
        f"created_to={created}": set(),
        f"created_from={created}": {once, cron, interval, due},
        "created_from=2100-01-01T00:00:00%2B02:00": set(),
        "created_to=9999-12-31T23:59:59.999Z": {once, cron, interval, due},
        "created_from=0001-01-01T00:00:00Z": {once, cron, interval, due},
        "status=PENDING&label=env:test": {cron},
    }.items():
        listed = (await api.admin.get(f"/v1/jobs?{query}")).body["data"]
        assert {job["id"] for job in listed} == expected, query


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "limit=x", "limit=-1", "limit=", "limit=٣", "status=DONE",
     "created_from=yesterday", "created_from=2027-01-01T00:00:00", "name_prefix=%00",
     "label=x", "label=:y", f"name_prefix={'x' * 256}", "schedule_type=ONCE"],
)  # fmt: skip
async def test_a_parameter_that_makes_no_sense_is_named(api: Api, query: str) -> None:
    answer = await api.admin.get(f"/v1/jobs?{query}")
    assert (answer.status, answer.code) == (422, "invalid")
    (error,) = answer.body["errors"]
    assert error["pointer"] == f"/query/{query.partition('=')[0]}"


async def test_a_cursor_holds_for_its_list_its_filter_and_its_tenant_only(api: Api) -> None:
    await make(api.admin, *[a_job()] * 3)
    cursor = (await api.admin.get("/v1/jobs?limit=1")).body["next_cursor"]
    assert (await api.admin.get(f"/v1/jobs?limit=2&cursor={cursor}")).status == 200
    stranger = await api.client(Role.ADMIN, "beta")
    for client, path in (
        (api.admin, f"/v1/jobs?status=PENDING&cursor={cursor}"),
        (api.admin, f"/v1/dlq?cursor={cursor}"),
        (api.admin, f"/v1/audit?cursor={cursor}"),
        (stranger, f"/v1/jobs?cursor={cursor}"),
    ):
        answer = await client.get(path)
        assert (answer.status, answer.code) == (400, "cursor_mismatch"), path


async def test_a_damaged_cursor_is_refused(api: Api) -> None:
    await make(api.admin, *[a_job()] * 3)
    cursor = (await api.admin.get("/v1/jobs?limit=1")).body["next_cursor"]
    raw = bytearray(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    raw[-3] ^= 1
    changed = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    for damaged in (changed, cursor[:-1], cursor + "A", "", "x", "%00", "e30", cursor.swapcase()):
        answer = await api.admin.get(f"/v1/jobs?cursor={damaged}")
        assert (answer.status, answer.code) == (400, "cursor_invalid"), damaged


async def test_the_next_page_is_also_given_as_a_link(api: Api) -> None:
    await make(api.admin, *[a_job(labels={"a b": "c&d"})] * 3)
    answer = await api.admin.get("/v1/jobs?limit=2&label=a%20b:c%26d")
    target, _, relation = answer.headers["link"].partition(">; ")
    assert relation == 'rel="next"'
    page = (await api.admin.get(target.removeprefix("<"))).body
    assert (len(page["data"]), page["has_more"]) == (1, False)


async def test_attempts_and_the_ledger_are_listed_once_each(api: Api) -> None:
    job = await api.admin.create(schedule=NOW)
    for _ in range(4):
        await bring(api.store, job, "complete")
        assert (await api.admin.post(f"/v1/jobs/{job}/trigger")).status == 202
    await bring(api.store, job, "running")
    async with api.store.transaction() as tx:
        # Settled in one batch: nothing but the run tells these apart.
        await tx.execute(
            "UPDATE executions SET finished_at = (SELECT max(finished_at) FROM executions)"
        )
    attempts = await walk(api.admin, f"/v1/jobs/{job}/executions", 2)
    assert [attempt["status"] for attempt in attempts] == ["RUNNING"] + ["SUCCESS"] * 4
    assert len({attempt["run_id"] for attempt in attempts}) == 5
    ledger = await walk(api.admin, f"/v1/jobs/{job}/occurrences", 2)
    assert [row["kind"] for row in ledger] == ["trigger"] * 4 + ["schedule"]
    assert [row["outcome"] for row in ledger] == [None] + ["COMPLETE"] * 4
    assert {row["run_id"] for row in ledger} == {attempt["run_id"] for attempt in attempts}


async def test_dead_letters_are_listed_once_each_and_by_filter(api: Api) -> None:
    jobs = await make(api.admin, *[a_job(schedule=NOW)] * 9)
    for job in jobs:
        await bring(api.store, job, "dead")
    async with api.store.transaction() as tx:
        await tx.execute(
            "UPDATE dead_letters SET dead_at = (SELECT max(dead_at) FROM dead_letters)"
        )
    letters = await walk(api.admin, "/v1/dlq", 2)
    assert {letter["job_id"] for letter in letters} == set(jobs)
    assert len(letters) == 9
    letter = letters[0]
    assert (letter["reason"], letter["http_status"]) == ("permanent_answer", 400)
    assert (await api.admin.get(f"/v1/dlq/{letter['id']}")).body == letter
    for query, count in {
        "reason=permanent_answer": 9,
        "reason=timeout": 0,
        f"job_id={jobs[0]}": 1,
        "target_host=receiver.example": 9,
        "target_host=other.example": 0,
        f"dead_to={letter['dead_at']}": 0,
        f"dead_from={letter['dead_at']}": 9,
    }.items():
        assert len((await api.admin.get(f"/v1/dlq?{query}")).body["data"]) == count, query


async def test_lists_of_the_service_are_pages_too(api: Api) -> None:
    shards = await walk(api.admin, "/v1/shards", 7)
    assert [shard["shard"] for shard in shards] == list(range(64))
    for n in range(5):
        await api.admin.post("/v1/tenants", {"name": f"t{n}"})
        await api.admin.post("/v1/api-keys", {"tenant": f"t{n}", "role": "viewer"})
    tenants = await walk(api.admin, "/v1/tenants", 2)
    assert [tenant["name"] for tenant in tenants] == ["alpha", "t0", "t1", "t2", "t3", "t4"]
    keys = await walk(api.admin, "/v1/api-keys", 2)
    assert len({key["id"] for key in keys}) == 6
    assert [key["tenant"] for key in await walk(api.admin, "/v1/api-keys?tenant=t3", 2)] == ["t3"]
    audit = await walk(api.admin, "/v1/audit", 3)
    assert len({entry["id"] for entry in audit}) == len(audit) == 10
