"""What is due in each minute, whose it is, and which minutes are hot."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from noonday.domain import cron, schedule
from noonday.domain.forecast import (
    HOT_LEAST,
    MINUTE,
    MINUTES,
    MOST_PARTS,
    OTHERS,
    Ends,
    Part,
    Recurring,
    Stream,
    Survey,
    fold,
    hot_from,
    shape_of,
    spread,
    with_jitter,
)
from noonday.domain.model import Cron, Interval

START = datetime(2027, 3, 26, 12, tzinfo=UTC)  # the clock changes in Paris within three days
END = START + MINUTES * MINUTE
A_JOB = UUID(int=0)
A, B = Stream(1, "default", "a.example"), Stream(2, "batch", "b.example")


def minute_of(at: datetime) -> int:
    return (at - START) // MINUTE


def one_by_one(wanted: Recurring, job: UUID) -> Counter[int]:
    """When a job is due, told by the schedule itself."""
    delay = schedule.jitter(job, wanted.jitter_sec)
    found: Counter[int] = Counter()
    at = schedule.next_after(wanted, START - delay - timedelta(microseconds=1), job)
    while at is not None and at + delay < END:
        if not schedule.is_left_out(wanted, at, job):
            found[minute_of(at + delay)] += 1
        at = schedule.next_after(wanted, at, job)
    return found


def totals(survey: Survey) -> list[float]:
    return [sum(part.occurrences for part in parts) for parts in survey.each()]


# --- hot --------------------------------------------------------------------------------------


def test_a_comb_is_hot_and_an_even_load_is_not() -> None:
    comb = [1_000.0 if minute % 60 == 0 else 0.0 for minute in range(MINUTES)]
    assert hot_from(comb) < 1_000
    even = [1_000.0] * MINUTES
    assert hot_from(even) > 1_000
    on_top = [2_000.0 if minute % 60 == 0 else 1_000.0 for minute in range(MINUTES)]
    assert hot_from(on_top) > 2_000, "twice the usual is no reason to worry"


def test_what_a_minute_takes_in_its_stride_is_not_hot() -> None:
    assert hot_from([HOT_LEAST - 1] + [0.0] * 59) == HOT_LEAST
    assert hot_from([]) == HOT_LEAST


# --- jitter -----------------------------------------------------------------------------------


def test_occurrences_are_spread_evenly_over_their_jitter() -> None:
    assert spread([(0, 60)], 0, 3) == [60, 0, 0]
    assert spread([(0, 60)], 120, 3) == [30, 30, 0]
    assert spread([(30, 60)], 60, 3) == [30, 30, 0]
    assert spread([(0, 60)], 59, 3) == [60, 0, 0]
    assert spread([(59, 60)], 120, 3) == pytest.approx([0.5, 30, 29.5])


def test_what_is_spread_over_the_edges_is_cut_off_there() -> None:
    assert spread([(-60, 60)], 120, 2) == [30, 0]
    assert spread([(-120, 60)], 60, 2) == [0, 0]
    assert spread([(-600, 60)], 1_200, 2) == [3, 3]
    assert spread([(60, 60)], 120, 2) == [0, 30]
    assert spread([(0, 60)], 0, 0) == []


def test_many_jobs_are_jittered_as_the_spread_says() -> None:
    jobs = 20_000
    found: Counter[int] = Counter()
    for n in range(jobs):
        found[schedule.jitter(UUID(int=n), 300) // MINUTE] += 1
    expected = spread([(0, jobs)], 300, 6)
    assert [found[minute] for minute in range(5)] == pytest.approx(expected[:5], rel=0.05)
    assert sum(expected) == pytest.approx(jobs)


def test_a_jitter_moves_only_what_has_none() -> None:
    assert with_jitter([100, 0, 0], [60, 0, 0], 120) == [70, 30, 0]
    assert with_jitter([100, 0, 0], [60, 0, 0], 0) == [100, 0, 0]
    assert sum(with_jitter([7, 8, 9, 0, 0, 0], [7, 8, 9, 0, 0, 0], 180)) == pytest.approx(24)


def test_a_short_jitter_makes_a_comb_lower_and_broader_and_a_long_one_flat() -> None:
    comb = [1_200.0 if minute % 60 == 0 else 0.0 for minute in range(MINUTES)]
    short, long = (with_jitter(comb, comb, jitter_sec) for jitter_sec in (300, 721))
    assert short[60:66] == pytest.approx([240] * 5 + [0])
    assert max(short) >= hot_from(comb), "the mean minute is as before"
    assert max(long) < hot_from(comb)


# --- the shape of a schedule ------------------------------------------------------------------


@pytest.mark.parametrize(
    "wanted",
    [
        Cron("0 * * * *"),
        Cron("*/7 9-17 * * MON-FRI", "America/New_York"),
        Cron("30 2 * * *", "Europe/Paris"),
        Cron("30 2 * * *", "Europe/Paris", dst_gap="skip"),
        Cron("15,45 */10 * * * *"),
        Cron("* * * * * *", "Asia/Kathmandu"),
        Cron("@daily", "Pacific/Apia"),
        Cron("0 0 1 1 *"),
        Cron("0 * * * *", starts_at=START + timedelta(hours=30, minutes=1)),
        Interval(3_600, START - timedelta(days=40, seconds=11)),
        Interval(90, START - timedelta(seconds=7)),
        Interval(86_401, START - timedelta(days=3, microseconds=5)),
        Interval(600, START + timedelta(hours=50, seconds=3)),
    ],
    ids=str,
)
def test_a_job_is_due_in_the_minutes_of_its_shape(wanted: Recurring) -> None:
    assert shape_of(wanted, START) == one_by_one(wanted, UUID(int=0))


def test_what_fires_within_minutes_is_counted_by_its_mean() -> None:
    shape = shape_of(Interval(7, START - timedelta(seconds=3)), START)
    assert len(shape) == MINUTES
    assert set(shape.values()) == {60 / 7}


def test_what_was_jittered_into_the_time_ahead_belongs_to_it() -> None:
    wanted = Cron("0 12 * * *", jitter_sec=7_200)
    shape = shape_of(Cron("30 11 * * *", jitter_sec=7_200), START)
    assert sum(number for minute, number in shape.items() if minute < 90) == pytest.approx(0.75)
    assert sum(shape_of(wanted, START).values()) == pytest.approx(3)


def test_a_shape_takes_no_more_searches_than_there_are_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches = 0
    search = schedule.next_after

    def counting(wanted: Recurring, after: datetime, job_id: UUID) -> datetime | None:
        nonlocal searches
        searches += 1
        return search(wanted, after, job_id)

    monkeypatch.setattr(schedule, "next_after", counting)
    shape_of(Cron("* * * * * *", jitter_sec=86_400), START)
    shape_of(Interval(1, START), START)
    assert searches <= 2 * MINUTES + 24 * 60 + 2


@pytest.mark.parametrize("left", [1, 2, 7, 71, 72, 73, 4_319, 4_320, 4_321, 10**9])
@pytest.mark.parametrize(
    "wanted",
    [
        Cron("0 * * * *"),
        Cron("30 2 * * *", "Europe/Paris"),
        Cron("*/7 * * * *", "Europe/Paris"),
        Interval(60, START - timedelta(days=3)),
        Interval(3_601, START),
    ],
)
def test_what_is_left_of_a_job_ends_with_its_last(wanted: Recurring, left: int) -> None:
    at = schedule.next_after(wanted, START - MINUTE, A_JOB)
    assert at is not None
    ends = Ends(END)
    every = [at, *takewhile(lambda each: each < END, schedule.each_after(wanted, at, A_JOB))]
    for _ in range(2):  # the second time it is known
        limited = ends.of(replace(wanted, max_occurrences=9), at, left)
        assert limited.max_occurrences is None
        last = every[left - 1] if left <= len(every) else None
        assert limited.ends_at == last


@pytest.mark.parametrize("wanted", [Cron("*/20 * * * * *"), Interval(20, START)])
def test_what_is_left_within_minutes_ends_with_the_minute(wanted: Recurring) -> None:
    limited = Ends(END).of(wanted, START, 10)
    assert limited.ends_at is not None
    assert (limited.ends_at - START) // MINUTE == 3


def test_an_expression_is_thinned_to_one_second_of_each_minute() -> None:
    assert cron.by_minutes("5 4 * * *") == ("0 5 4 * * *", 1)
    assert cron.by_minutes("*/20 5 4 * * *") == ("0 5 4 * * *", 3)
    assert cron.by_minutes("10-12 5 4 * * *") == ("10 5 4 * * *", 3)


def test_drawn_numbers_are_those_of_the_job() -> None:
    for _ in range(50):
        job = uuid4()
        plain = cron.drawn("H H(3-5) * * *", job)
        after = START
        for _ in range(3):
            expected = schedule.next_after(Cron("H H(3-5) * * *"), after, job)
            assert expected is not None
            assert schedule.next_after(Cron(plain), after, UUID(int=0)) == expected
            after = expected
        assert not cron.is_drawn(plain)


# --- the survey -------------------------------------------------------------------------------

SCHEDULES: list[Recurring] = [
    Cron("0 * * * *"),
    Cron("0 * * * *", "Europe/Paris", misfire="one", grace_sec=60),
    Cron("*/5 * * * *"),
    Cron("0 0 * * *"),
    *(Interval(3_600, START - timedelta(seconds=n)) for n in range(0, 4_000, 37)),
    *(Interval(1_234, START - timedelta(seconds=n / 10)) for n in range(0, 4_000, 370)),
]


def test_groups_of_jobs_add_up_to_the_jobs_one_by_one() -> None:
    chance = random.Random(7)
    survey, expected = Survey(START), [0.0] * MINUTES
    for _ in range(400):
        wanted, jobs = chance.choice(SCHEDULES), chance.randint(1, 20)
        survey.add_recurring(wanted, chance.choice([A, B]), jobs)
        for minute, number in one_by_one(wanted, UUID(int=0)).items():
            expected[minute] += number * jobs
    for _ in range(50):
        minute, number = chance.randrange(MINUTES), chance.randint(1, 9)
        survey.add_once(START + minute * MINUTE, A, number)
        expected[minute] += number
    survey.add_once(END, A, 1)
    assert totals(survey) == pytest.approx(expected)


def test_each_minute_says_whose_it_is_and_what_could_be_spread() -> None:
    survey = Survey(START)
    survey.add_recurring(Cron("0 * * * *"), A, 5)
    survey.add_recurring(Cron("0 * * * *", grace_sec=60), A, 2)
    survey.add_recurring(Cron("0 13 * * *"), B, 4)
    survey.add_recurring(Cron("0 * * * *", jitter_sec=120), A, 6)
    survey.add_once(START + 60 * MINUTE, B, 3)
    minutes = list(survey.each())
    assert minutes[0] == [Part(A, 10, 7)]
    assert minutes[1] == [Part(A, 3, 0)]
    assert minutes[2] == []
    assert minutes[60] == [Part(A, 10, 7), Part(B, 7, 4)]


@pytest.mark.parametrize("room", [0, 2, 80, 1_000])
def test_without_room_all_is_counted_but_not_told_apart(room: int) -> None:
    survey, roomy = Survey(START, room=room), Survey(START)
    for each in (survey, roomy):
        for n in range(30):
            wanted = Cron(f"{n % 7} * * * *", jitter_sec=60 * (n % 3))
            each.add_recurring(wanted, Stream(n, "default", "a.example"), n)
            each.add_once(START + n * MINUTE, B, n)
    minutes = list(survey.each())
    expected = list(roomy.each())
    for mine, other in zip(minutes, expected, strict=True):
        assert sum(part.occurrences for part in mine) == pytest.approx(
            sum(part.occurrences for part in other)
        )
        assert sum(part.unspread for part in mine) == pytest.approx(
            sum(part.unspread for part in other)
        )
    named = {part.stream for parts in minutes for part in parts}
    assert (named == {OTHERS}) == (room == 0)


# --- what is small goes together --------------------------------------------------------------


def test_few_parts_are_told_apart_the_biggest_first() -> None:
    loads = {A: (1.0, 0.0), B: (2.0, 2.0), Stream(3, "x", "y"): (0.0, 0.0)}
    assert fold(loads) == [Part(B, 2.0, 2.0), Part(A, 1.0, 0.0)]


def test_many_parts_are_folded_by_tenant_and_then_all_together() -> None:
    loads = {
        Stream(tenant, "default", f"{host}.example"): (float(tenant * 10 + host), float(host))
        for tenant in range(1, 101)
        for host in range(10)
    }
    parts = fold(loads)
    assert len(parts) == MOST_PARTS
    assert sum(part.occurrences for part in parts) == sum(number for number, _ in loads.values())
    assert sum(part.unspread for part in parts) == sum(number for _, number in loads.values())
    assert parts == sorted(parts, key=lambda part: -part.occurrences)
    streams = {part.stream for part in parts}
    assert len(streams) == MOST_PARTS, "each once"
    assert {Stream(100, "default", "9.example"), Stream(95, "", ""), OTHERS} <= streams


def test_what_was_not_told_apart_before_stays_so() -> None:
    loads = {Stream(n, "default", "a.example"): (1.0, 1.0) for n in range(1, 200)}
    parts = fold({**loads, OTHERS: (1_000.0, 10.0)})
    assert next(part for part in parts if part.stream == OTHERS).occurrences >= 1_000
    assert len({part.stream for part in parts}) == len(parts) == MOST_PARTS
    assert sum(part.occurrences for part in parts) == 1_199
