"""What a schedule would do, asked before there is a job."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.support.database_locks import value
from tests.support.servers import Answered, Api, a_job

PATH = "/v1/schedules/preview"
PARIS: dict[str, Any] = {"type": "cron", "cron": "30 2 * * *", "timezone": "Europe/Paris"}


async def preview(api: Api, schedule: dict[str, Any], **more: Any) -> Answered:
    return await api.admin.post(PATH, {"schedule": schedule, **more})


def told(answer: Answered) -> list[tuple[str, str, bool]]:
    assert answer.status == 200, answer
    fires = answer.body["fires"]
    return [(_short(one["at"]), _short(one["local"]), one["runs"]) for one in fires]


def _short(stamp: str) -> str:
    return stamp.replace(".000", "")


@pytest.mark.parametrize("gap", ["run", "skip"])
async def test_a_gap_is_told_of_in_local_time_and_words(api: Api, gap: str) -> None:
    answer = await preview(
        api, PARIS | {"dst_gap": gap}, count=2, after="2027-03-27T12:00:00+01:00"
    )
    assert told(answer) == [
        ("2027-03-28T01:00:00Z", "2027-03-28T03:00:00+02:00", gap == "run"),
        ("2027-03-29T00:30:00Z", "2027-03-29T02:30:00+02:00", True),
    ]
    first, second = answer.body["fires"]
    assert "from 2027-03-28 02:00 to 2027-03-28 03:00" in first["note"]
    assert second["note"] is None
    assert answer.body["sentence"] == "At 02:30 every day in Europe/Paris."
    assert answer.body["schedule"]["dst_gap"] == gap
    assert answer.body["schedule"]["grace_sec"] == 86_400, "with all defaults"


async def test_both_passes_of_a_repeated_hour_are_told_apart(api: Api) -> None:
    answer = await preview(api, PARIS | {"dst_fold": "both"}, count=3, after="2027-10-30T12:00:00Z")
    assert told(answer) == [
        ("2027-10-31T00:30:00Z", "2027-10-31T02:30:00+02:00", True),
        ("2027-10-31T01:30:00Z", "2027-10-31T02:30:00+01:00", True),
        ("2027-11-01T01:30:00Z", "2027-11-01T02:30:00+01:00", True),
    ]
    notes = [one["note"] for one in answer.body["fires"]]
    assert ["first" in (note or "") for note in notes] == [True, False, False]
    assert ["second" in (note or "") for note in notes] == [False, True, False]


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ({"type": "cron", "cron": "@hourly"}, "At the start of every hour in UTC."),
        (
            {"type": "cron", "cron": "0 9 * * MON-FRI", "jitter_sec": 300},
            "At 09:00 on Monday through Friday in UTC, always later by the same part of 5 minutes.",
        ),
        (
            {"type": "interval", "interval_sec": 5_400, "starts_at": "2027-01-01T00:00:00Z"},
            "Every 90 minutes from 2027-01-01 00:00:00 UTC on.",
        ),
        (
            {"type": "once", "run_at": "2027-03-28T02:30:00+01:00"},
            "Once, at 2027-03-28 01:30:00 UTC.",
        ),
    ],
)
async def test_a_schedule_is_said_in_english(
    api: Api, schedule: dict[str, Any], sentence: str
) -> None:
    assert (await preview(api, schedule)).body["sentence"] == sentence


@pytest.mark.parametrize("days", ["1-31 * 1", "1-31/1 * MON", "13 * 0-7", "13 * 1-7", "1-31 * *"])
async def test_a_day_field_that_names_every_day_leaves_nothing_to_the_other(
    api: Api, days: str
) -> None:
    answer = await preview(api, {"type": "cron", "cron": f"0 9 {days}"}, count=40)
    days_apart = {
        datetime.fromisoformat(later["at"]) - datetime.fromisoformat(one["at"])
        for one, later in pairwise(answer.body["fires"])
    }
    assert days_apart == {timedelta(days=1)}
    assert answer.body["sentence"] == "At 09:00 every day in UTC."


async def test_numbers_that_are_drawn_are_called_so(api: Api) -> None:
    assert "drawn" in (await preview(api, {"type": "cron", "cron": "H 3 * * *"})).body["sentence"]


@pytest.mark.parametrize(
    "schedule",
    [
        PARIS,
        {"type": "cron", "cron": "*/7 * * * * *", "starts_at": "2031-01-01T00:00:00Z"},
        {"type": "interval", "interval_sec": 3_600, "starts_at": "2027-01-01T00:30:00Z"},
        {"type": "once", "run_at": "2034-05-05T05:05:05Z"},
    ],
)
async def test_a_job_that_is_created_fires_as_it_was_previewed(
    api: Api, schedule: dict[str, Any]
) -> None:
    shown = (await preview(api, schedule)).body["fires"]
    job = await api.admin.create(schedule=schedule)
    fires = (await api.admin.get(f"/v1/jobs/{job}")).body["next_fires"]
    assert [one["at"] for one in shown] == fires


async def test_a_job_does_not_promise_what_its_schedule_leaves_out(api: Api) -> None:
    schedule = PARIS | {"dst_gap": "skip", "starts_at": "2027-03-28T00:00:00Z", "jitter_sec": 0}
    made = (await api.admin.post("/v1/jobs", a_job(schedule=schedule))).body
    shown = (await api.admin.get(f"/v1/jobs/{made['id']}")).body
    for job in (made, shown):
        assert job["next_run_at"] == "2027-03-29T00:30:00.000Z"
        assert job["next_fires"][:2] == ["2027-03-29T00:30:00.000Z", "2027-03-30T00:30:00.000Z"]


async def test_nothing_is_created_by_a_preview(api: Api) -> None:
    assert (await preview(api, PARIS, count=100)).status == 200
    assert await value(api.store, "SELECT count(*) FROM jobs") == 0
    assert await value(api.store, "SELECT count(*) FROM audit_log WHERE action LIKE 'sched%'") == 0


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"schedule": PARIS | {"timezone": "Mars/Phobos"}}, "/schedule/timezone"),
        ({"schedule": PARIS | {"cron": "0 0 30 2 *"}}, "/schedule/cron"),
        ({"schedule": PARIS | {"cron": "0 0 15W * *"}}, "/schedule/cron"),
        ({"schedule": PARIS | {"dst_gap": "maybe"}}, "/schedule/dst_gap"),
        ({"schedule": PARIS | {"starts_at": "2199-12-31T23:00:00Z"}}, "/schedule/starts_at"),
        ({"schedule": {"type": "interval", "interval_sec": 0}}, "/schedule/interval_sec"),
        ({"schedule": {"type": "interval", "interval_sec": 10**12}}, "/schedule/interval_sec"),
        ({"schedule": {"type": "once", "delay": "soon"}}, "/schedule/delay"),
        ({"schedule": PARIS, "count": 0}, "/count"),
        ({"schedule": PARIS, "count": 101}, "/count"),
        ({"schedule": PARIS, "after": "2027-01-01T00:00:00"}, "/after"),
        ({"schedule": PARIS, "when": "now"}, "/when"),
        ({}, "/schedule"),
    ],
)
async def test_what_a_job_could_not_have_is_refused_by_name(
    api: Api, body: dict[str, Any], pointer: str
) -> None:
    answer = await api.admin.post(PATH, body)
    assert answer.status == 422, answer
    assert [fault["pointer"] for fault in answer.body["errors"]] == [pointer]


MINUTELY: dict[str, Any] = {"type": "interval", "interval_sec": 60}
VALID: dict[str, dict[str, Any]] = {
    "cron": {"cron": "0 8 * * *"},
    "interval": {"interval_sec": 3_600},
    "once": {"delay": "P9D"},
}
REFUSED: list[tuple[dict[str, Any], str]] = [
    (PARIS | {"timezone": "Mars/Phobos"}, "timezone"),
    (PARIS | {"cron": "0 0 31 2,4,6,9,11 *"}, "cron"),
    (PARIS | {"cron": "* * * * * " * 40}, "cron"),
    (PARIS | {"starts_at": "2199-12-31T23:00:00Z"}, "starts_at"),
    (PARIS | {"ends_at": "2000-01-01T00:00:00Z"}, "ends_at"),
    (PARIS | {"cron": "0 0 29 2 *", "ends_at": "2027-12-31T00:00:00Z"}, "ends_at"),
    (MINUTELY | {"ends_at": "2000-01-01T00:00:00Z"}, "ends_at"),
    (MINUTELY | {"starts_at": "2050-01-02T00:00:00Z", "ends_at": "2050-01-01T00:00:00Z"},
     "ends_at"),
    (MINUTELY | {"max_occurrences": 0}, "max_occurrences"),
    (MINUTELY | {"interval_sec": 0}, "interval_sec"),
    (MINUTELY | {"interval_sec": 1_000 * 366 * 86_400}, "interval_sec"),
    ({"type": "once", "run_at": "2027-02-30T00:00:00Z"}, "run_at"),
    ({"type": "once", "run_at": "9999-12-31T23:59:59Z"}, "run_at"),
    ({"type": "once", "run_at": "2020-01-01T00:00:00Z"}, "run_at"),
    ({"type": "once", "delay": "P1000Y"}, "delay"),
]  # fmt: skip


@pytest.mark.parametrize(("schedule", "field"), REFUSED)
async def test_a_schedule_that_cannot_be_is_refused_alike_wherever_it_is_given(
    api: Api, schedule: dict[str, Any], field: str
) -> None:
    job = await api.admin.create(schedule={"type": schedule["type"]} | VALID[schedule["type"]])
    body, change = a_job(schedule=schedule), {"schedule": schedule}
    batch = await api.admin.post("/v1/jobs:batch", {"atomic": False, "jobs": [{"job": body}]})
    for problem in (
        (await api.admin.post("/v1/jobs", body)).body,
        batch.body["results"][0]["problem"],
        (await preview(api, schedule)).body,
        (await api.admin.call("PATCH", f"/v1/jobs/{job}", change, if_match="*")).body,
    ):
        assert problem["status"] == 422, problem
        assert [fault["pointer"] for fault in problem["errors"]] == [f"/schedule/{field}"]
    assert await value(api.store, "SELECT count(*) FROM jobs") == 1


@pytest.mark.parametrize("after", ["1970-01-01T00:00:00Z", "2199-12-31T23:59:59Z"])
async def test_any_instant_may_be_asked_about(api: Api, after: str) -> None:
    answer = await preview(api, PARIS, after=after, count=100)
    assert answer.status == 200
    assert len(answer.body["fires"]) == (100 if after < "2000" else 0)
