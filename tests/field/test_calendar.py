"""CRN: nights on which clocks are changed, dates that never come or are far, zones that are none.

Jobs come in over HTTP, are fired, and are carried out, on a clock that is set by hand. All times
are in UTC.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from noonday.api.documents import stamp
from noonday.domain import cron
from noonday.domain.model import Kind, RunKey
from noonday.loops.watchdog import Watchdog
from noonday.store import Store
from noonday.store.secretbox import SecretBox
from noonday.telemetry import Metrics
from tests.support.clocks import local_zone
from tests.support.driving import drive, ledger, next_of
from tests.support.invariants import broken
from tests.support.scripted import Parts, Scripted, carry_out
from tests.support.servers import Answered, Api, a_context, a_job, running_api

SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3_600, 86_400))
HALF_HOUR, QUARTER = 30 * MINUTE, 15 * MINUTE

ON_RECORD = """
SELECT occurrence_at, materialized_at, outcome, attempts FROM occurrences WHERE job_id = $1
ORDER BY occurrence_at, kind
"""

Wanted = Sequence[tuple[dict[str, Any], Sequence[str]]]
"""Schedules, and when a job of each fires."""


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def by_cron(text: str, zone: str = "UTC", **more: Any) -> dict[str, Any]:
    return {"type": "cron", "cron": text, "timezone": zone, **more}


class Service:
    """An API, a scheduler, a worker and a janitor, and a watchdog if there is one."""

    def __init__(self, api: Api, parts: Parts) -> None:
        self.api = api
        self.store = api.store
        self.scheduler = parts.scheduler()
        self.watchdog: Watchdog | None = None
        self.repaired = 0
        self._parts = parts
        self._executor = Scripted()
        self._worker = parts.worker(self._executor)

    async def begin(self, now: datetime) -> None:
        """Everything is there as of this time."""
        self.store.now = now
        await self._parts.janitor().tick()

    async def post(self, schedule: dict[str, Any]) -> UUID:
        return UUID(await self.api.admin.create(schedule=schedule))

    async def patch(self, job: UUID, **body: Any) -> Answered:
        return await self.api.admin.call("PATCH", f"/v1/jobs/{job}", body, if_match="*")

    async def shown(self, job: UUID) -> Any:
        return (await self.api.admin.get(f"/v1/jobs/{job}")).body

    async def until(self, end: datetime, step: timedelta = HALF_HOUR) -> None:
        """Let time go by; all there is to do is done after each step."""
        now = self.store.now
        assert now is not None
        while now < end:
            before, now = now, now + step
            if before.date() != now.date():
                await self.begin(now)  # partitions and their indexes come a few days ahead
            if await drive(self.scheduler, self.store, now):
                await self.carry_out()
            await self.look()

    async def carry_out(self) -> None:
        await carry_out(self._worker)

    async def look(self) -> None:
        if self.watchdog is not None:
            self.repaired += await self.watchdog.tick()

    def restart(self) -> None:
        """Another scheduler takes the place of the one that was, which has died."""
        self.scheduler = self._parts.scheduler()

    async def fired(self, job: UUID) -> list[datetime]:
        """When a job was fired: on time, run once, and nothing else is on record of it."""
        async with self.store.transaction() as tx:
            rows = await tx.rows(ON_RECORD, job)
        times: list[datetime] = [row["occurrence_at"] for row in rows]
        assert [tuple(row.values()) for row in rows] == [(t, t, "COMPLETE", 1) for t in times]
        ran = [each.run for each in self._executor.attempts if each.run.job_id == job]
        assert ran == [RunKey(job, Kind.SCHEDULE, t) for t in times]
        return times


@pytest.fixture
async def service(parts: Parts, store: Store, tmp_path: Path) -> AsyncIterator[Service]:
    box = SecretBox([bytes(32)])  # that of the worker, too
    async with running_api(a_context(store, tmp_path / "payloads", secretbox=box)) as api:
        yield Service(api, parts)


async def night(
    service: Service, made: str, jobs: Wanted, *, until: str, restarted: str | None = None
) -> None:
    """Jobs that are made at one time, and what has become of them later."""
    await service.begin(at(made))
    posted = [(await service.post(schedule), wanted) for schedule, wanted in jobs]
    if restarted is not None:
        await service.until(at(restarted))
        service.restart()
    await service.until(at(until))
    for job, wanted in posted:
        assert await service.fired(job) == [at(text) for text in wanted]
    assert not await broken(service.store)


# --- clocks that are put forward --------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "until", "jobs"),
    [
        ("2027-03-13T08:00", "2027-03-16T08:00", [
            (by_cron("30 2 * * *", "America/New_York"),
             ["2027-03-14T07:00", "2027-03-15T06:30", "2027-03-16T06:30"]),
            (by_cron("0 30 2 * * SUN,MON", "America/New_York"),
             ["2027-03-14T07:00", "2027-03-15T06:30"]),
            (by_cron("*/30 2 14,15 3 *", "US/Eastern"),
             ["2027-03-14T07:00", "2027-03-15T06:00", "2027-03-15T06:30"]),
        ]),
        ("2027-03-27T00:00", "2027-03-31T01:00", [
            (by_cron("30 1 * * *", "Europe/London"),
             ["2027-03-27T01:30", "2027-03-28T01:00", "2027-03-29T00:30", "2027-03-30T00:30",
              "2027-03-31T00:30"]),
        ]),
        # By half an hour, from 02:00 to 02:30.
        ("2027-10-02T15:00", "2027-10-03T16:00", [
            (by_cron("0,30 2 * * *", "Australia/Lord_Howe"),
             ["2027-10-02T15:30", "2027-10-03T15:00", "2027-10-03T15:30"]),
            (by_cron("0 2 * * *", "Australia/Lord_Howe"),
             ["2027-10-02T15:30", "2027-10-03T15:00"]),
        ]),
    ],
)  # fmt: skip
async def test_a_time_in_the_gap_fires_once_after_it_and_the_next_day_at_its_own_time(
    service: Service, made: str, until: str, jobs: Wanted
) -> None:
    """CRN-01, CRN-03."""
    await night(service, made, jobs, until=until)


@pytest.mark.parametrize(
    ("made", "until", "jobs"),
    [
        ("2027-09-04T12:00", "2027-09-06T10:00", [
            (by_cron("0 6 * * *", "America/Santiago"), ["2027-09-05T09:00", "2027-09-06T09:00"]),
            (by_cron("30 0 * * *", "America/Santiago"), ["2027-09-05T04:00", "2027-09-06T03:30"]),
        ]),
        ("2027-04-29T19:00", "2027-04-30T03:00", [
            (by_cron("0 */2 * * *", "Africa/Cairo"),
             ["2027-04-29T20:00", "2027-04-29T23:00", "2027-04-30T01:00", "2027-04-30T03:00"]),
            (by_cron("0 1 * * 5", "Africa/Cairo"), ["2027-04-29T22:00"]),
            (by_cron("0 0 30 4 *", "Africa/Cairo"), ["2027-04-29T22:00"]),
        ]),
        ("2027-03-27T20:00", "2027-03-28T04:00", [
            (by_cron("0 6 28 * *", "Asia/Beirut"), ["2027-03-28T03:00"]),
            (by_cron("30 1 * * SUN", "Asia/Beirut"), ["2027-03-27T22:30"]),
        ]),
    ],
)  # fmt: skip
async def test_a_day_without_a_midnight_has_all_its_other_hours(
    service: Service, made: str, until: str, jobs: Wanted
) -> None:
    """CRN-02."""
    await night(service, made, jobs, until=until)


# --- clocks that are put back -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "restarted", "until", "jobs"),
    [
        ("2027-11-06T12:00", "2027-11-07T06:00", "2027-11-09T12:00", [
            (by_cron("30 1 * * *", "America/New_York"),
             ["2027-11-07T05:30", "2027-11-08T06:30", "2027-11-09T06:30"]),
            (by_cron("30 1 * * *", "America/New_York", dst_fold="second"),
             ["2027-11-07T06:30", "2027-11-08T06:30", "2027-11-09T06:30"]),
            (by_cron("0,30 1 7 11 *", "America/Toronto"), ["2027-11-07T05:00", "2027-11-07T05:30"]),
        ]),
        ("2027-10-30T22:00", "2027-10-31T01:00", "2027-10-31T04:00", [
            (by_cron("30 1 * * *", "Europe/London"), ["2027-10-31T00:30"]),
            (by_cron("0 1 31 10 *", "Europe/London"), ["2027-10-31T00:00"]),
        ]),
        ("2027-04-03T12:00", "2027-04-03T15:00", "2027-04-04T16:00", [
            (by_cron("30 1 * * *", "Australia/Lord_Howe"),
             ["2027-04-03T14:30", "2027-04-04T15:00"]),
        ]),
    ],
)  # fmt: skip
async def test_a_fixed_time_fires_once_although_a_scheduler_dies_between_the_two_passes(
    service: Service, made: str, restarted: str, until: str, jobs: Wanted
) -> None:
    """CRN-04."""
    await night(service, made, jobs, until=until, restarted=restarted)


@pytest.mark.parametrize(
    ("zone", "made", "hours"),
    [
        ("America/Los_Angeles", "2027-11-07T06:30",
         ["07T07:00", "07T08:00", "07T09:00", "07T10:00", "07T11:00"]),
        ("Europe/London", "2027-10-30T22:30",
         ["30T23:00", "31T00:00", "31T01:00", "31T02:00", "31T03:00"]),
        # There it is half an hour that comes twice.
        ("Australia/Lord_Howe", "2027-04-03T12:30",
         ["03T13:00", "03T14:00", "03T15:30", "03T16:30", "03T17:30"]),
    ],
)  # fmt: skip
async def test_every_hour_and_every_quarter_are_real_ones_through_both_passes(
    service: Service, zone: str, made: str, hours: list[str]
) -> None:
    """CRN-05: beside an interval, which is a grid of real time."""
    start = at(made)
    end = start + 5 * HOUR
    await service.begin(start)
    hourly = await service.post(by_cron("0 * * * *", zone))
    quarterly = await service.post(by_cron("*/15 * * * *", zone, starts_at=stamp(start + SECOND)))
    grid = {"type": "interval", "interval_sec": 900, "starts_at": stamp(start + QUARTER)}
    interval = await service.post(grid)
    await service.until(end, QUARTER)
    assert await service.fired(hourly) == [at(made[:8] + hour) for hour in hours]
    quarters = [start + n * QUARTER for n in range(1, 21)]
    assert await service.fired(quarterly) == await service.fired(interval) == quarters
    assert not await broken(service.store)


async def test_ticked_each_second_of_the_second_pass_a_job_fires_no_more_than_it_should(
    service: Service,
) -> None:
    """CRN-06: all are made in the second pass of 01:30, five seconds after it."""
    start = at("2027-11-07T06:30:05")
    end = start + 40 * MINUTE
    await service.begin(start)
    posted = {
        await service.post(by_cron(text, zone, dst_fold=fold)): wanted
        for text, zone, fold, wanted in (
            ("30 1 * * *", "America/New_York", "first", []),
            ("30 1 * * *", "America/Toronto", "second", []),
            ("*/10 1 * * *", "US/Eastern", "first", []),
            ("45 1 * * *", "America/New_York", "first", []),
            ("45 1 * * *", "America/New_York", "second", ["06:45"]),
            ("45 1 * * *", "America/New_York", "both", ["06:45"]),
            ("45 * * * *", "America/New_York", "first", ["06:45"]),
            ("*/15 * * * *", "America/New_York", "first", ["06:45", "07:00"]),
        )
    }
    for n in range(1, (end - start) // SECOND + 1):
        service.store.now = start + n * SECOND
        if n % 4 == 1:
            await service.scheduler.keep_shards()
        if await service.scheduler.tick():
            await service.carry_out()
    for job, wanted in posted.items():
        assert [f"{t:%H:%M}" for t in await service.fired(job)] == wanted
        following = await next_of(service.store, job)
        assert following is not None
        assert following > end
    assert not await broken(service.store)


# --- the zone of the process ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Europe/London", "2027-10-31"),
        ("Europe/London", "2027-03-28"),
        ("Australia/Sydney", "2027-04-03"),
        ("Australia/Sydney", "2027-10-02"),
    ],
)
async def test_the_zone_of_the_process_does_not_matter(
    service: Service, zone: str, day: str
) -> None:
    """CRN-13: jobs in UTC, on days on which that zone has another offset than before."""
    start = at(day)
    with local_zone(zone):
        assert start.astimezone().utcoffset() != (start + DAY).astimezone().utcoffset()
        cron.next_instant.cache_clear()
        await service.begin(start - MINUTE)
        daily, hourly = [await service.post(by_cron(text)) for text in ("30 1 * * *", "0 * * * *")]
        await service.until(start, MINUTE)
        await service.until(start + DAY)
        assert await service.fired(daily) == [start + 90 * MINUTE]
        assert await service.fired(hourly) == [start + n * HOUR for n in range(25)]
        assert not await broken(service.store)


# --- dates that never come --------------------------------------------------------------------

NEVER = [
    "0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6,9,11 *", "15 3 30,31 FEB ?", "0 0 0 31 6/5 *",
    "*/5 * 31 9 *",
]  # fmt: skip


def faults(problem: Any) -> list[tuple[str, str]]:
    return [(each["pointer"], each["detail"]) for each in problem["errors"]]


async def refusals(service: Service, job: UUID, schedule: dict[str, Any]) -> list[Any]:
    """The problems that a schedule is answered with wherever it can be given."""
    api = service.api.admin
    batch = await api.post("/v1/jobs:batch", {"jobs": [{"job": a_job(schedule=schedule)}]})
    answers = [
        await api.post("/v1/jobs", a_job(schedule=schedule)),
        await api.post("/v1/schedules/preview", {"schedule": schedule}),
        await service.patch(job, schedule=schedule),
    ]
    assert [answer.status for answer in answers] == [422] * 3, (schedule, answers)
    (result,) = batch.body["results"]
    assert result["status"] == 422, (schedule, result)
    return [result["problem"], *(answer.body for answer in answers)]


async def test_dates_that_never_come_are_refused_wherever_they_are_given_and_others_go_on(
    service: Service,
) -> None:
    """CRN-07."""
    start = at("2027-01-01")
    await service.begin(start - 30 * SECOND)
    others = [await service.post(by_cron("* * * * *")) for _ in range(20)]
    nightly = await service.post(by_cron("0 3 * * *"))
    before = await service.shown(nightly)
    for n, text in enumerate(NEVER):
        for problem in await refusals(service, nightly, by_cron(text)):
            ((pointer, detail),) = faults(problem)
            assert pointer == "/schedule/cron"
            assert "day-of-month, month" in detail
        await service.until(start + n * MINUTE, 30 * SECOND)
    assert await service.shown(nightly) == before
    for job in others:
        assert await service.fired(job) == [start + n * MINUTE for n in range(len(NEVER))]
    assert not await broken(service.store)


@pytest.mark.parametrize("text", ["0 0 31 4,5 *", "0 0 31 APR-MAY ?"])
async def test_a_31st_of_one_of_its_months_is_accepted_and_the_first_fire(
    service: Service, text: str
) -> None:
    """CRN-07."""
    await service.begin(at("2027-05-30T22:10"))
    posted, patched = await service.post(by_cron(text)), await service.post(by_cron("0 3 1 1 *"))
    assert (await service.patch(patched, schedule={"cron": text})).status == 200
    for job in (posted, patched):
        assert (await service.shown(job))["next_fires"][:2] == [
            "2027-05-31T00:00:00.000Z",
            "2028-05-31T00:00:00.000Z",
        ]
    await service.until(at("2027-05-31T01:00"), 10 * MINUTE)
    for job in (posted, patched):
        assert await service.fired(job) == [at("2027-05-31")]


# --- names of zones ---------------------------------------------------------------------------

NOT_ZONES = [
    "europe/paris", "UTC+3", "+05:30", "Amercia/New_York", "../../etc/passwd", "", "Europe/Paris ",
    "localtime", "CET",
]  # fmt: skip


async def test_what_is_no_zone_is_refused_alike_wherever_it_is_given(service: Service) -> None:
    """CRN-12."""
    await service.begin(at("2027-01-04T00:00"))
    job = await service.post(by_cron("0 12 * * *", "Asia/Tokyo"))
    before, timer = await service.shown(job), await next_of(service.store, job)
    for name in NOT_ZONES:
        found = [faults(each) for each in await refusals(service, job, by_cron("* * * * *", name))]
        assert {pointer for ((pointer, _),) in found} == {"/schedule/timezone"}, name
        assert len({detail for ((_, detail),) in found}) == 1, "one verdict, in the same words"
        alone = await service.patch(job, schedule={"timezone": name})
        assert (alone.status, faults(alone.body)) == (422, found[0]), name
    assert await service.shown(job) == before
    assert await next_of(service.store, job) == timer == at("2027-01-04T03:00")
    await service.until(at("2027-01-04T04:00"))
    assert await service.fired(job) == [at("2027-01-04T03:00")]


async def test_real_names_and_aliases_are_taken_in_a_post_and_a_patch_and_fire_when_they_should(
    service: Service,
) -> None:
    """CRN-12."""
    await service.begin(at("2027-01-04T00:00"))
    wanted = {}
    for name, hour in {
        "Europe/Kiev": "10:00", "US/Pacific": "20:00", "Asia/Calcutta": "06:30", "UTC": "12:00",
    }.items():  # fmt: skip
        wanted[await service.post(by_cron("0 12 * * *", name))] = name, hour
        patched = await service.post(by_cron("0 12 * * *", "Asia/Tokyo"))
        assert (await service.patch(patched, schedule={"timezone": name})).status == 200
        wanted[patched] = name, hour
    await service.until(at("2027-01-04T23:00"))
    for job, (name, hour) in wanted.items():
        assert (await service.shown(job))["schedule"]["timezone"] == name
        assert await service.fired(job) == [at(f"2027-01-04T{hour}")]


async def test_a_zone_that_is_null_is_none_and_in_a_patch_that_of_a_job_that_names_none(
    service: Service,
) -> None:
    """CRN-12: a merge patch takes away what is null."""
    await service.begin(at("2027-01-04T00:00"))
    job = await service.post(by_cron("0 12 * * *", "Asia/Tokyo"))
    body = a_job(schedule=by_cron("0 12 * * *") | {"timezone": None})
    answer = await service.api.admin.post("/v1/jobs", body)
    assert answer.status == 422
    assert [pointer for pointer, _ in faults(answer.body)] == ["/schedule/timezone"]
    unnamed = await service.post({"type": "cron", "cron": "0 12 * * *"})
    taken_away = await service.patch(job, schedule={"timezone": None})
    for shown in (taken_away.body, await service.shown(unnamed)):
        assert shown["schedule"]["timezone"] == "UTC"
        assert shown["next_run_at"] == "2027-01-04T12:00:00.000Z"


# --- zone data that has changed ---------------------------------------------------------------

ZONE_NAMED: Final = cron.zone_named


def follow(patch: pytest.MonkeyPatch, zone: str, rules: str) -> None:
    """Have a zone follow the rules of another, as in another release of the zone data."""
    patch.setattr(cron, "zone_named", lambda name: ZONE_NAMED(rules if name == zone else name))


# For each: by which rules a job was armed, and which hold when that is due; when it fires, and when
# if the watchdog has looked at it meanwhile and put it right.
CHANGES = {
    "summer time was given up": (
        by_cron("0 12 * * *", "Europe/Paris"), "Europe/Paris", "Africa/Algiers", HOUR,
        "2027-07-01T08:00", ["01T10:00", "01T11:00", "02T11:00"], ["01T11:00", "02T11:00"],
    ),
    "summer time came": (
        by_cron("0 12 * * *", "Africa/Algiers"), "Africa/Algiers", "Europe/Paris", HOUR,
        "2027-07-01T08:00", ["01T11:00", "02T10:00", "03T10:00"], ["01T10:00", "02T10:00"],
    ),
    "a quarter of an hour": (
        by_cron("0 * * * *", "Asia/Kathmandu"), "Asia/Kolkata", "Asia/Kathmandu", QUARTER,
        "2027-07-01T00:00", ["01T00:30", "01T01:15", "01T02:15"], ["01T00:15", "01T01:15"],
    ),
    "over the date line": (
        by_cron("0 9 * * MON", "Pacific/Apia"), "Pacific/Pago_Pago", "Pacific/Apia", 2 * HOUR,
        "2027-07-04T18:00", ["05T20:00", "11T20:00"], ["04T20:00"],
    ),
    "back over the date line": (
        by_cron("0 9 * * MON", "Pacific/Apia"), "Pacific/Apia", "Pacific/Pago_Pago", 2 * HOUR,
        "2027-07-04T18:00", ["04T20:00", "05T20:00"], ["05T20:00"],
    ),
    "a gap that is none any more": (
        by_cron("30 2 * * *", "Europe/Paris", dst_gap="skip"), "Europe/Paris", "Africa/Algiers",
        HALF_HOUR, "2027-03-28T00:00", ["28T01:00", "28T01:30", "29T01:30"],
        ["28T01:30", "29T01:30"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_timer_of_older_zone_data_fires_once_and_the_next_is_of_the_new(
    service: Service, monkeypatch: pytest.MonkeyPatch, change: str, watched: bool
) -> None:
    """The watchdog puts a timer right that stands where the schedule names nothing any more."""
    schedule, older, newer, step, made, unwatched, repaired = CHANGES[change]
    start = at(made)
    await service.begin(start)
    follow(monkeypatch, schedule["timezone"], older)
    job = await service.post(schedule)
    assert await next_of(service.store, job) == at(made[:8] + unwatched[0])
    follow(monkeypatch, schedule["timezone"], newer)
    if watched:
        service.watchdog = Watchdog(service.store, Metrics(), leads=lambda: True)
        await service.look()
    wanted = [at(made[:8] + text) for text in (repaired if watched else unwatched)]
    await service.until(wanted[-1], step)
    assert await service.fired(job) == wanted
    assert service.repaired == watched
    assert not await broken(service.store)


# --- far dates (API-05) -----------------------------------------------------------------------


async def test_a_far_date_is_never_early_and_a_past_one_is_due_at_once(service: Service) -> None:
    """API-05: delays beyond 2³¹ ms, instants with an odd offset or parts of a microsecond."""
    start = at("2027-01-01T00:00")
    await service.begin(start)
    posted = []
    for once, due in (
        ({"delay": "PT2147484S"}, start + timedelta(seconds=2_147_484)),
        ({"run_at": stamp(start + 60 * DAY)}, start + 60 * DAY),
        ({"run_at": "2027-03-03T14:00:00.1234567+14:00"}, at("2027-03-03T00:00:00.123457")),
        ({"run_at": "2037-01-01T00:00:00Z"}, at("2037-01-01")),
    ):
        posted.append((await service.post({"type": "once", **once}), due))
    past = await service.post({"type": "once", "run_at": stamp(start - HOUR)})
    await service.until(start + MINUTE, MINUTE)
    async with service.store.transaction() as tx:
        assert await tx.value("SELECT array_agg(job_id) FROM occurrences") == [past]
    await service.until(start + 30 * DAY, 5 * DAY)
    for n, (job, due) in enumerate(posted):
        assert bool(await ledger(service.store, job)) is (n == 0)
        assert await next_of(service.store, job) == (None if n == 0 else due)
    for job, due in posted[1:]:
        await service.begin(due - timedelta(microseconds=1))
        await drive(service.scheduler, service.store, due - timedelta(microseconds=1))
        assert not await ledger(service.store, job)
        await drive(service.scheduler, service.store, due)
        await service.carry_out()
        assert await service.fired(job) == [due]
    assert not await broken(service.store)
