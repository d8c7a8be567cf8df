"""Cron in time zones: gaps, repeated hours, zone names, and where zone data comes from."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noonday.domain import cron, schedule
from noonday.domain.errors import ScheduleError
from noonday.domain.model import Cron
from noonday.drill.checks import oracle
from tests.support.clocks import local_zone

NIL = UUID(int=0)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(text: str, zone: str, after: str, n: int) -> list[str]:
    found = schedule.upcoming(Cron(cron=text, timezone=zone), NIL, at(after), n)
    return [f"{instant:%m-%dT%H:%M}" for instant in found]


def left_out(job: Cron, at: datetime) -> bool:
    return schedule.is_left_out(job, at, NIL)


def between(text: str, zone: str, start: str, end: str) -> list[str]:
    return [f for f in fires(text, zone, start, 200) if f < end[5:]]


# --- Gaps -------------------------------------------------------------------------------------


def test_a_time_in_the_spring_gap_fires_once_right_after_it() -> None:
    found = fires("30 2 * * *", "America/New_York", "2027-03-13T08:00", 3)
    assert found == ["03-14T07:00", "03-15T06:30", "03-16T06:30"]


def test_all_times_in_one_gap_fire_together_and_once() -> None:
    found = fires("*/15 2,3 * * *", "America/New_York", "2027-03-14T00:00", 4)
    assert found == ["03-14T07:00", "03-14T07:15", "03-14T07:30", "03-14T07:45"]


def test_six_fields_keep_the_same_rules() -> None:
    assert fires("0 30 2 * * *", "America/New_York", "2027-03-14T00:00", 1) == ["03-14T07:00"]
    found = fires("0 30 1 * * *", "America/New_York", "2027-11-07T00:00", 2)
    assert found == ["11-07T05:30", "11-08T06:30"]


def test_a_clock_that_jumps_at_midnight_loses_no_day() -> None:
    found = fires("0 6 * * *", "America/Santiago", "2027-09-04T12:00", 2)
    assert found == ["09-05T09:00", "09-06T09:00"]
    found = fires("0 */2 * * *", "Africa/Cairo", "2027-04-29T20:30", 3)
    assert found == ["04-29T23:00", "04-30T01:00", "04-30T03:00"]
    assert fires("0 1 * * 5", "Africa/Cairo", "2027-04-29T19:00", 1) == ["04-29T22:00"]
    assert fires("0 0 * * *", "Africa/Cairo", "2027-04-29T19:00", 2) == [
        "04-29T22:00",
        "04-30T21:00",
    ]


def test_after_a_shifted_run_the_schedule_returns_to_its_own_time() -> None:
    found = fires("30 1 * * *", "Europe/London", "2027-03-27T00:00", 4)
    assert found == ["03-27T01:30", "03-28T01:00", "03-29T00:30", "03-30T00:30"]


def test_a_day_that_a_zone_left_out_fires_at_the_start_of_the_next() -> None:
    found = fires("0 12 * * *", "Pacific/Apia", "2011-12-29T00:00", 3)
    assert found == ["12-29T22:00", "12-30T10:00", "12-30T22:00"]


# --- Repeated hours ---------------------------------------------------------------------------


def test_a_time_in_the_repeated_hour_fires_in_the_first_pass_only() -> None:
    found = fires("30 1 * * *", "America/New_York", "2027-11-06T12:00", 3)
    assert found == ["11-07T05:30", "11-08T06:30", "11-09T06:30"]
    # The same, asked anew between the two passes.
    assert fires("30 1 * * *", "America/New_York", "2027-11-07T06:00", 1) == ["11-08T06:30"]


@pytest.mark.parametrize("hours", ["*", "*/1", "0-23"])
def test_every_hour_means_every_real_hour_through_both_passes(hours: str) -> None:
    found = between(
        f"0 {hours} * * *", "America/Los_Angeles", "2027-11-07T06:30", "2027-11-07T11:30"
    )
    assert found == ["11-07T07:00", "11-07T08:00", "11-07T09:00", "11-07T10:00", "11-07T11:00"]


def test_quarter_hours_follow_real_time_without_hole_or_double() -> None:
    start = at("2027-11-07T06:30")
    job = Cron(cron="*/15 * * * *", timezone="America/Los_Angeles")
    found = schedule.upcoming(job, NIL, start, 20)
    assert found == [start + timedelta(minutes=15 * n) for n in range(1, 21)]


def test_clocks_that_go_back_by_half_an_hour_show_both_passes() -> None:
    """Lord Howe Island: 02:00 becomes 01:30 again at 15:00 UTC."""
    found = fires("45 * * * *", "Australia/Lord_Howe", "2027-04-03T13:00", 4)
    assert found == ["04-03T13:45", "04-03T14:45", "04-03T15:15", "04-03T16:15"]
    assert fires("45 1 * * *", "Australia/Lord_Howe", "2027-04-03T13:00", 2) == [
        "04-03T14:45",
        "04-04T15:15",
    ]


def test_inside_the_second_pass_the_next_fire_is_the_next_day() -> None:
    """A search that returned its own input here would fire on every tick for an hour."""
    job = Cron(cron="30 1 * * *", timezone="America/New_York")
    for second in range(0, 2400, 10):
        now = at("2027-11-07T06:30:05") + timedelta(seconds=second)
        assert schedule.next_after(job, now, NIL) == at("2027-11-08T06:30")


# --- As the schedule says ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fold", "wanted"),
    [
        ("first", ["11-07T05:30", "11-08T06:30"]),
        ("second", ["11-07T06:30", "11-08T06:30"]),
        ("both", ["11-07T05:30", "11-07T06:30", "11-08T06:30"]),
    ],
)
def test_a_fixed_time_in_a_repeated_hour_fires_in_the_passes_that_are_named(
    fold: cron.Fold, wanted: list[str]
) -> None:
    job = Cron(cron="30 1 * * *", timezone="America/New_York", dst_fold=fold)
    start = at("2027-11-06T12:00")
    found = schedule.upcoming(job, NIL, start, len(wanted))
    assert [f"{instant:%m-%dT%H:%M}" for instant in found] == wanted
    # Asked anew at any minute of the night, it says the same.
    for minute in range(0, 48 * 60, 7):
        now = start + timedelta(minutes=minute)
        later = [instant for instant in found if instant > now]
        assert not later or schedule.next_after(job, now, NIL) == later[0]


@pytest.mark.parametrize("fold", ["first", "second", "both"])
def test_wildcard_hours_follow_real_time_whatever_is_said(fold: cron.Fold) -> None:
    start = at("2027-11-07T03:00")
    job = Cron(cron="*/15 * * * *", timezone="America/Los_Angeles", dst_fold=fold, dst_gap="skip")
    found = schedule.upcoming(job, NIL, start, 40)
    assert found == [start + timedelta(minutes=15 * n) for n in range(1, 41)]


@pytest.mark.parametrize(
    ("text", "day", "out"),
    [
        ("30 2 * * *", "2027-03-14T07:00", True),
        ("0,30 2 * * *", "2027-03-14T07:00", True),
        ("30 2,3 * * *", "2027-03-14T07:00", True),
        ("0 2,3 * * *", "2027-03-14T07:00", False),  # 03:00 is named itself
        ("30 * * * *", "2027-03-14T07:30", False),
        ("30 2 * * *", "2027-03-15T06:30", False),
    ],
)
def test_only_what_the_clock_skipped_is_left_out(text: str, day: str, out: bool) -> None:
    job = Cron(cron=text, timezone="America/New_York", dst_gap="skip")
    assert schedule.next_after(job, at(day) - timedelta(seconds=1), NIL) == at(day)
    assert left_out(job, at(day)) is out
    assert not left_out(msgspec.structs.replace(job, dst_gap="run"), at(day))


@pytest.mark.parametrize("zone", ["America/Sao_Paulo", "UTC", "America/New_York"])
def test_an_instant_of_older_zone_data_is_not_taken_for_a_gap(zone: str) -> None:
    """A timer that was armed before a zone gave up summer time: its instant is named no more."""
    job = Cron(cron="30 2 * * *", timezone=zone, dst_gap="skip")
    assert not left_out(job, at("2027-01-15T04:45"))
    assert not left_out(job, at("2027-11-07T06:45")), "nor where clocks go back"


# --- Against an independent walk of every minute ----------------------------------------------

TURNS = [
    ("America/New_York", 2027),
    ("Europe/London", 2027),
    ("Australia/Lord_Howe", 2027),  # half an hour
    ("America/Santiago", 2027),  # at midnight
    ("Africa/Cairo", 2027),
    ("Africa/Casablanca", 2025),  # back for Ramadan
    ("Europe/Dublin", 2027),
    ("Antarctica/Troll", 2027),  # two hours
    ("Pacific/Apia", 2011),  # a whole day
    ("America/Caracas", 2016),
    ("America/St_Johns", 2010),  # at one minute past midnight
    ("America/Havana", 2150),  # from the rule, not from a table
]
EXPRESSIONS = [
    "*/15 * * * *",
    "45 * * * *",
    "0 */2 * * *",
    "15 0-23 * * *",
    "30 1 * * *",
    "30 2 * * *",
    "0 3 * * *",
    "*/20 1,2 * * *",
    "0 0 * * *",
    "30 0,23 * * 0,5",
    "0 6 */2 * 1",
    "10 1-3 1-7 * 6",
]


@pytest.mark.parametrize(("gap", "fold"), [("run", "first"), ("skip", "second"), ("run", "both")])
@pytest.mark.parametrize(("zone", "year"), TURNS)
def test_around_each_turn_of_the_clock_fires_match_a_minute_by_minute_walk(
    zone: str, year: int, gap: Literal["run", "skip"], fold: cron.Fold
) -> None:
    turns = oracle.changes(
        zone, datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    )
    assert turns
    for turn in turns[:2]:
        start, end = turn - timedelta(hours=5), turn + timedelta(hours=26)
        minutes = list(oracle.clock(zone, start, end))
        for text in EXPRESSIONS:
            wanted = oracle.fires(text, minutes, gap, fold)
            job = Cron(cron=text, timezone=zone, dst_gap=gap, dst_fold=fold)
            found = schedule.upcoming(job, NIL, start, len(wanted) + 2)
            assert [f for f in found if f < end and not left_out(job, f)] == wanted, text
            # From any moment, not only from one fire to the next.
            for moment in [m for m, _ in minutes[30:780:29]]:
                later = [w for w in wanted if w > moment][:1]
                found = schedule.upcoming(job, NIL, moment, 2)
                found = [f for f in found if not left_out(job, f)][:1]
                assert not later or found == later, (text, moment)


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(
    st.sampled_from(
        [*EXPRESSIONS, "* * * * * *", "*/7 1 1,2 * * *", "H H(0-3) * * *", "0 0 29 2 *"]
    ),
    st.sampled_from(sorted({zone for zone, _ in TURNS} | {"UTC", "Asia/Kathmandu"})),
    st.datetimes(datetime(1969, 12, 31), datetime(2199, 12, 31)),
    st.uuids(),
)
def test_the_next_fire_is_always_later_than_the_moment_asked_about(
    text: str, zone: str, moment: datetime, job_id: UUID
) -> None:
    now = moment.replace(tzinfo=UTC)
    found = [now, *schedule.upcoming(Cron(cron=text, timezone=zone), job_id, now, 3)]
    assert all(a < b for a, b in pairwise(found))


# --- Zone names and zone data -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("alias", "utc"),
    [
        ("Europe/Kiev", "10:00"),
        ("US/Pacific", "20:00"),
        ("Asia/Calcutta", "06:30"),
        ("UTC", "12:00"),
    ],
)
def test_real_names_and_aliases_fire_at_the_right_instant(alias: str, utc: str) -> None:
    schedule.check(Cron(cron="0 12 * * *", timezone=alias))
    assert fires("0 12 * * *", alias, "2027-01-04T00:00", 1) == [f"01-04T{utc}"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "europe/paris",
        "UTC+3",
        "+05:30",
        "EST",
        "CET",
        "EST5EDT",
        "CET-1CEST,M3.5.0,M10.5.0/3",
        "GMT+0",
        "Amercia/New_York",
        "Mars/Phobos",
        "America",
        "Factory",
        "localtime",
        "zone.tab",
        "../../etc/passwd",
        "/usr/share/zoneinfo/UTC",
        "Europe/Paris ",
        "Europe/Paris\0",
        "x" * 5000,
    ],
)
def test_any_other_zone_is_refused_when_checked_and_when_computed(name: str) -> None:
    job = Cron(cron="0 12 * * *", timezone=name)
    with pytest.raises(ScheduleError) as refused:
        schedule.check(job)
    assert refused.value.field == "timezone"
    with pytest.raises(ScheduleError):
        schedule.next_after(job, at("2027-01-01T00:00"), NIL)


def test_every_zone_of_the_database_is_usable() -> None:
    names = [name for name in zoneinfo.available_timezones() if "/" in name]
    assert len(names) > 500
    for name in names:
        assert len(fires("30 2 * * *", name, "2027-06-01T00:00", 2)) == 2


def test_zone_data_comes_from_the_package_and_not_from_the_system() -> None:
    assert zoneinfo.TZPATH == ()
    assert cron.zone_named("Europe/Paris").key == "Europe/Paris"


@pytest.fixture(params=["Europe/London", "Australia/Sydney"])
def server_zone(request: pytest.FixtureRequest) -> Iterator[str]:
    with local_zone(request.param):
        yield request.param


@pytest.mark.parametrize("day", ["2027-10-31", "2027-03-28", "2027-04-03", "2027-10-02"])
def test_the_zone_of_the_server_does_not_matter(server_zone: str, day: str) -> None:
    start, end = at(f"{day}T00:00"), at(f"{day}T00:00") + timedelta(days=1)
    cron.next_instant.cache_clear()
    daily, hourly = Cron(cron="30 1 * * *"), Cron(cron="0 * * * *")
    assert schedule.next_after(daily, start, NIL) == start + timedelta(minutes=90)
    assert schedule.next_after(daily, start + timedelta(minutes=90), NIL) == end + timedelta(
        minutes=90
    )
    hours = schedule.upcoming(hourly, NIL, start, 24)
    assert hours == [start + timedelta(hours=n) for n in range(1, 25)]


# --- Many in a row ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "zone", ["UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"]
)
@pytest.mark.parametrize(
    "text",
    ["30 2 * * *", "*/20 * * * *", "0,30 1-3 * * *", "15 0 L * *", "59 59 23 * * *", "0 0 29 2 *",
     "0 */7 2 * * *", "0 0 13 * FRI"],
)  # fmt: skip
@pytest.mark.parametrize("fold", ["first", "second", "both"])
def test_many_in_a_row_are_what_is_found_one_by_one(
    text: str, zone: str, fold: Literal["first", "second", "both"]
) -> None:
    wanted = Cron(text, zone, dst_fold=fold)
    for start in ("2011-12-28T05:00", "2027-03-12T23:59:59", "2027-04-02", "2027-10-29T12:00",
                  "2027-11-05T00:30"):  # fmt: skip
        after = at(start)
        one_by_one = schedule.upcoming(wanted, NIL, after, 300)
        in_a_row = islice(schedule.each_after(wanted, after, NIL), 300)
        assert list(in_a_row) == one_by_one, start


def test_many_in_a_row_end_where_the_schedule_does() -> None:
    first, last = at("2027-01-01T00:00"), at("2027-01-04T00:00")
    wanted = Cron("0 0 * * *", starts_at=first, ends_at=last)
    found = list(schedule.each_after(wanted, first - timedelta(days=9), NIL))
    assert (found[0], found[-1], len(found)) == (first, last, 4)
    late = at("2199-12-30T12:00")
    assert len(list(schedule.each_after(Cron("0 0 * * *"), late, NIL))) == 1
    assert list(schedule.each_after(Cron("0 0 * * *"), at("2200-01-01T00:00"), NIL)) == []
