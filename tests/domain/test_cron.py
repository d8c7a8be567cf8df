"""The cron dialect: what an expression means, and what is refused."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from noonday.domain import cron, preview, schedule
from noonday.domain.errors import ScheduleError
from noonday.domain.model import Cron
from noonday.drill.checks import oracle

NIL = UUID(int=0)
NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)  # a Friday


def fires(text: str, n: int, after: str = "2027-01-01T12:00", job_id: UUID = NIL) -> list[str]:
    start = datetime.fromisoformat(after).replace(tzinfo=UTC)
    found = schedule.upcoming(Cron(cron=text), job_id, start, n)
    return [f"{at:%Y-%m-%d %H:%M:%S}" for at in found]


def midnights(text: str, n: int, after: str = "2027-01-01T12:00") -> list[str]:
    found = fires(text, n, after)
    assert {at[10:] for at in found} == {" 00:00:00"}
    return [at[:10] for at in found]


def refusal(text: str) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        schedule.check(Cron(cron=text))
    assert caught.value.field == "cron"
    return caught.value


@pytest.mark.parametrize(
    "text", ["0 0 * * 6-7", "0 0 * * SAT-SUN", "0 0 * * 6,0", "0 0 * * sat,SUN"]
)
def test_a_weekend_is_saturday_and_sunday_however_it_is_written(text: str) -> None:
    assert midnights(text, 4) == ["2027-01-02", "2027-01-03", "2027-01-09", "2027-01-10"]


@pytest.mark.parametrize(
    ("text", "dates"),
    [
        ("0 0 * * 7", ["2027-01-03", "2027-01-10", "2027-01-17"]),
        ("0 0 * * SUN-SUN", ["2027-01-03", "2027-01-10", "2027-01-17"]),
        ("0 0 * * 5-7", ["2027-01-02", "2027-01-03", "2027-01-08"]),
        ("0 0 * * 5-0", ["2027-01-02", "2027-01-03", "2027-01-08"]),
        ("0 0 * * FRI-SUN/2", ["2027-01-03", "2027-01-08", "2027-01-10"]),
        ("0 0 * * MON-SUN", ["2027-01-02", "2027-01-03", "2027-01-04"]),
    ],
)
def test_a_range_may_end_on_sunday(text: str, dates: list[str]) -> None:
    assert midnights(text, 3) == dates


def test_29_february_comes_in_leap_years_only() -> None:
    assert midnights("0 0 29 2 *", 3) == ["2028-02-29", "2032-02-29", "2036-02-29"]
    assert midnights("0 0 29 2 *", 1, after="2096-03-01T00:00") == ["2104-02-29"]
    assert midnights("0 0 29 2 */7", 2, after="2080-01-01T00:00") == ["2088-02-29", "2128-02-29"]


@pytest.mark.parametrize(
    ("text", "dates"),
    [
        ("0 0 L * *", ["2027-01-31", "2027-02-28", "2027-03-31"]),
        ("0 0 LW * *", ["2027-01-29", "2027-02-26", "2027-03-31"]),
        ("0 0 15,L FEB *", ["2027-02-15", "2027-02-28", "2028-02-15"]),
        ("0 0 ? * 5L", ["2027-01-29", "2027-02-26", "2027-03-26"]),
        ("0 0 * * MON#1", ["2027-01-04", "2027-02-01", "2027-03-01"]),
        ("0 0 * * 1#5", ["2027-03-29", "2027-05-31", "2027-08-30"]),
        ("0 0 10/10 JAN-mar ?", ["2027-01-10", "2027-01-20", "2027-01-30"]),
    ],
)
def test_last_and_nth_days_and_names_are_read(text: str, dates: list[str]) -> None:
    assert midnights(text, 3) == dates


def test_two_restricted_day_fields_mean_either_and_a_star_means_both() -> None:
    assert midnights("0 0 5 * MON", 3) == ["2027-01-04", "2027-01-05", "2027-01-11"]
    assert midnights("0 0 * * MON", 2) == ["2027-01-04", "2027-01-11"]
    assert midnights("0 0 */2 * MON", 3) == ["2027-01-11", "2027-01-25", "2027-02-01"]
    assert midnights("0 0 30 2 MON", 2) == ["2027-02-01", "2027-02-08"]


def test_a_step_on_a_range_of_one_stays_within_the_range() -> None:
    assert fires("5-5/10 * * * *", 2) == ["2027-01-01 12:05:00", "2027-01-01 13:05:00"]
    assert midnights("0 0 * * 1-MON/2", 2) == ["2027-01-04", "2027-01-11"]
    assert fires("50/5 0 * * *", 3) == [f"2027-01-02 00:{m}:00" for m in (50, 55)] + [
        "2027-01-03 00:50:00"
    ]


def test_with_six_fields_the_seconds_come_first() -> None:
    assert fires("*/20 30 9 * * *", 3) == [f"2027-01-02 09:30:{s}" for s in ("00", "20", "40")]


@pytest.mark.parametrize(
    ("macro", "text"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        (" @Annually\t", "0 0 1 1 *"),
    ],
)
def test_a_macro_stands_for_its_expression(macro: str, text: str) -> None:
    assert fires(macro, 5) == fires(text, 5)


# --- H: numbers drawn from the job ------------------------------------------------------------

JOBS = [UUID(int=n * 0x9E3779B97F4A7C15F39CC0605CEDC834 % 2**128) for n in range(1, 601)]


def test_drawn_numbers_never_change_between_releases() -> None:
    """Else an upgrade would move every job that uses them."""
    drawn = [fires("H H H * *", 1, job_id=job_id)[0] for job_id in JOBS[:3]]
    assert drawn == ["2027-01-07 21:04:00", "2027-01-16 01:33:00", "2027-01-17 07:09:00"]


def test_h_spreads_jobs_over_the_whole_field() -> None:
    minutes = {fires("H * * * *", 1, job_id=job_id)[0][14:16] for job_id in JOBS}
    assert len(minutes) > 55
    days = {fires("0 0 H * *", 1, job_id=job_id)[0][8:10] for job_id in JOBS}
    assert days == {f"{day:02}" for day in range(1, 29)}


def test_fields_of_one_job_are_drawn_apart() -> None:
    pairs = {fires("H H * * * *", 1, job_id=job_id)[0][14:] for job_id in JOBS}
    assert len(pairs) > 500


def test_h_with_a_step_keeps_the_step_and_with_a_range_the_range() -> None:
    for job_id in JOBS[:50]:
        at = [int(text[14:16]) for text in fires("H/15 * * * *", 5, job_id=job_id)]
        assert [(b - a) % 60 for a, b in pairwise(at)] == [15] * 4
        (hour,) = {text[11:13] for text in fires("0 H(1-4) * * *", 5, job_id=job_id)}
        assert 1 <= int(hour) <= 4
        at = [int(text[14:16]) for text in fires("H(0-29)/10 * * * *", 6, job_id=job_id)]
        assert sorted(at[:3]) == [min(at), min(at) + 10, min(at) + 20]
        assert max(at) <= 29
        assert len(fires("H(0-29)/999,45 * * * *", 3, job_id=job_id)) == 3


def test_names_that_hold_an_h_draw_nothing() -> None:
    assert midnights("0 0 * MAR THU", 2) == ["2027-03-04", "2027-03-11"]


# --- Refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 0 15W * *", "day-of-month: W"),
        ("0 0 W * *", "day-of-month: W"),
        ("R * * * *", "minute: R"),
        ("0 R(0-5) * * *", "hour: R"),
        ("0 0 L/2 * *", "day-of-month"),
        ("0 0 * * FRI-MON", "day-of-week"),
        ("0 0 * * 8", "day-of-week"),
        ("61 * * * *", "minute"),
        ("60 * * * * *", "second"),
        ("*/0 * * * *", "minute"),
        ("5-5/0 * * * *", "minute"),
        ("0 ? * * *", "hour"),
        ("-1 * * * *", "minute"),
        ("+1 * * * *", "minute"),
        ("1_0 * * * *", "minute"),
        ("0 0 * FOO *", "month"),
        ("H-5 * * * *", "minute: H"),
        ("H(50-70) * * * *", "minute"),
        ("H(9-5) * * * *", "minute"),
        ("H/0 * * * *", "minute"),
        ("@reboot", "@reboot is not a time"),
        ("@every 5m", "unknown macro"),
        ("", "5 fields"),
        ("* * * *", "5 fields"),
        ("0 0 0 1 1 * 2027", "5 fields"),
        ("٣ * * * *", "characters"),
        ("0 0 * *\u2003*", "characters"),
        ("0 0 * *\n*", "characters"),
        ("0 0 * * *\0", "characters"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_by_name(text: str, said: str) -> None:
    assert said in refusal(text).detail


@pytest.mark.parametrize(
    "text",
    ["0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6,9,11 *", "0 0 LW * */7", "0 0 */31 * 1#5"],
)
def test_what_never_fires_is_refused_in_bounded_time(text: str) -> None:
    spent = []
    for _ in range(3):
        began = time.process_time()
        assert "day-of-month and month" in refusal(text).detail.replace(", month", " and month")
        spent.append(time.process_time() - began)
    assert min(spent) < 0.05


def test_a_31st_that_exists_in_one_of_the_months_is_accepted() -> None:
    assert midnights("0 0 31 4,5 *", 2) == ["2027-05-31", "2028-05-31"]


def test_an_expression_is_bounded_in_length() -> None:
    assert "longer than 200" in refusal("0 " * 100_000).detail
    longest = ",".join(str(n) for n in range(10, 60)) + ",1" * 21 + "  * * * *"
    assert len(longest) == cron.LONGEST
    assert fires(longest, 1) == ["2027-01-01 12:01:00"]


def test_rare_dates_are_found_without_walking_minutes() -> None:
    cron.next_instant.cache_clear()
    zones = ["UTC", "Asia/Tokyo", "America/New_York", "Africa/Cairo", "Australia/Lord_Howe"]
    for zone in zones:
        began = time.process_time()
        job = Cron(cron="59 23 29 2 *", timezone=zone)
        assert len(schedule.upcoming(job, NIL, NEW_YEAR, 50)) == 42
        assert time.process_time() - began < 0.05


@pytest.mark.parametrize(
    "zone",
    ["UTC", "Asia/Tokyo", "America/New_York", "Africa/Cairo", "Australia/Lord_Howe",
     "America/Santiago", "Europe/London", "Asia/Kathmandu", "Pacific/Apia", "Antarctica/Troll"],
)  # fmt: skip
@pytest.mark.parametrize("text", ["59 23 29 2 *", "59 59 23 29 2 *", "0 0 29 2 1#5"])
def test_the_work_for_each_rare_date_is_bounded(zone: str, text: str) -> None:
    """What 50 of them take for a preview; a walk over the minutes takes half a million a year."""
    cron.next_instant.cache_clear()
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        found = preview.fires(Cron(cron=text, timezone=zone), NIL, None, NEW_YEAR, 50)
    finally:
        sys.setprofile(before)
    years = (found[-1].at - NEW_YEAR).days // 365
    assert (years, len(found)) == (169, 42), "there are no more before 2200"
    assert calls < 1_000 * years


ALPHABET = "0123456789*/,-#?LWHR@() \tMONJAN+_.é²\0"


@settings(max_examples=400, derandomize=True, deadline=None, database=None)
@given(
    st.one_of(
        st.text(alphabet=ALPHABET, max_size=30),
        st.lists(
            st.text(alphabet="0123456789*/,-#LH()SUN", min_size=1, max_size=6),
            min_size=5,
            max_size=6,
        ).map(" ".join),
        st.text(max_size=20),
    )
)
@example("0 0 * * 5L/2")
@example("0 0 L-3 * *")
@example("0 0 * * 1#2/2")
@example("0 0 * * ,")
@example("9" * 190 + " * * * *")
def test_any_text_is_either_computed_or_refused_as_a_schedule_error(text: str) -> None:
    job = Cron(cron=text)
    try:
        schedule.check(job)
    except ScheduleError:
        return
    found = schedule.upcoming(job, NIL, NEW_YEAR, 3)
    assert found == sorted(set(found))


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    pair = st.tuples(number, number).map(sorted)
    term = st.one_of(
        st.just("*"),
        st.integers(1, high).map("*/{}".format),
        number.map(str),
        pair.map(lambda p: f"{p[0]}-{p[1]}"),
        st.tuples(pair, st.integers(1, high)).map(lambda t: f"{t[0][0]}-{t[0][1]}/{t[1]}"),
        st.tuples(number, st.integers(1, high)).map(lambda t: f"{t[0]}/{t[1]}"),
    )
    return st.lists(term, min_size=1, max_size=3).map(",".join)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(st.tuples(field(0, 59), field(0, 23), field(1, 31), st.just("*"), field(0, 7)).map(" ".join))
def test_random_expressions_fire_when_a_minute_by_minute_walk_says_so(text: str) -> None:
    end = NEW_YEAR + timedelta(days=1)
    wanted = oracle.fires(text, WALK)
    try:
        found = schedule.upcoming(Cron(cron=text), NIL, NEW_YEAR, len(wanted) + 1)
    except ScheduleError:  # some day fields exclude one another
        found = []
    assert [at for at in found if at < end] == wanted


WALK = list(oracle.clock("UTC", NEW_YEAR, NEW_YEAR + timedelta(days=1)))
