"""What becomes of a timer that is due: fires, misses with reasons, and where it is armed next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from unittest.mock import patch
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noonday.domain import schedule
from noonday.domain.model import Cron, Interval, Misfire, Once, Schedule
from noonday.domain.schedule import Miss, Missed, Plan

JOB = UUID(int=7)
T = datetime(2027, 5, 3, 9, 0, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3600, 86_400))
TICK = timedelta(microseconds=1)

EVERY_MINUTE = Cron(cron="* * * * *")
DAILY = Cron(cron="0 9 * * *")


def alone(at: datetime, reason: Miss) -> Missed:
    return Missed(at, at, 1, reason)


def apart(
    job: Schedule, missed: Iterable[Missed], job_id: UUID = JOB
) -> list[tuple[datetime, Miss]]:
    """Each nominal time for itself: those of a stretch follow each other, and are as many as it
    says."""
    found: list[tuple[datetime, Miss]] = []
    for each in missed:
        times = [each.from_at]
        while times[-1] < each.to_at:
            at = schedule.next_after(job, times[-1], job_id)
            assert at is not None
            times.append(at)
        assert (times[-1], len(times)) == (each.to_at, each.number)
        found += [(at, each.reason) for at in times]
    return found


class Ledger:
    """A timer driven by hand: what the scheduler would write down, in order."""

    def __init__(self, job: Schedule, armed: datetime | None) -> None:
        self.job = job
        self.armed = armed
        self.fired: list[datetime] = []
        self.missed: list[tuple[datetime, str]] = []
        self.calls = 0

    def tick(self, now: datetime, limit: int = 1000) -> None:
        more = True
        while more and self.armed is not None:
            done = schedule.plan(self.job, self.armed, JOB, now, limit)
            assert done.decided <= limit + 1
            self.missed += apart(self.job, done.missed)
            self.fired += [done.fire] if done.fire else []
            self.armed, more = done.rearm, done.more
            self.calls += 1


# --- Gaps --------------------------------------------------------------------------------------


def test_what_fell_into_a_gap_supersedes_nothing_and_is_written_down_as_such() -> None:
    job = Cron(cron="30 2 * * *", timezone="America/New_York", dst_gap="skip")
    saturday, gap, monday = (
        datetime(2027, 3, day, hour, minute, tzinfo=UTC)
        for day, hour, minute in ((13, 7, 30), (14, 7, 0), (15, 6, 30))
    )
    assert schedule.plan(job, gap, JOB, gap) == Plan(missed=(alone(gap, "dst_gap"),), rearm=monday)
    late = schedule.plan(job, saturday, JOB, gap + HOUR)
    both = (alone(saturday, "grace"), alone(gap, "dst_gap"))
    assert late == Plan(missed=both, rearm=monday)
    within = msgspec.structs.replace(job, grace_sec=2 * 86_400)
    late = schedule.plan(within, saturday, JOB, gap + HOUR)
    assert late == Plan(missed=(alone(gap, "dst_gap"),), fire=saturday, rearm=monday)
    later = schedule.plan(job, saturday, JOB, monday)
    assert later.fire == monday
    assert later.missed == (alone(saturday, "superseded"), alone(gap, "dst_gap"))


def test_what_does_not_run_on_both_sides_of_what_does_is_not_one_stretch() -> None:
    """A job that has only times in gaps, but for one: the last that is due of these runs."""
    job = Cron("30 2 14 3 *", "America/New_York", dst_gap="skip", grace_sec=10**9)
    zone = ZoneInfo(job.timezone)
    years = [datetime(year, 3, 14, 2, 30, tzinfo=zone).astimezone(UTC) for year in (2020, 2022)]
    gap = datetime(2021, 3, 14, 7, tzinfo=UTC)
    done = schedule.plan(job, years[0], JOB, gap + DAY)
    assert (done.fire, done.missed) == (years[0], (alone(gap, "dst_gap"),))
    done = schedule.plan(job, gap, JOB, datetime(2027, 3, 20, tzinfo=UTC))
    assert done.fire == datetime(2026, 3, 14, 6, 30, tzinfo=UTC)
    assert [(each.from_at.year, each.number, each.reason) for each in done.missed] == [
        (2021, 1, "dst_gap"), (2022, 4, "superseded"), (2027, 1, "dst_gap"),
    ]  # fmt: skip


# --- Once -------------------------------------------------------------------------------------


def test_once_fires_however_late() -> None:
    assert schedule.plan(Once(run_at=T), T, JOB, T + 400 * DAY) == Plan(fire=T)


def test_once_with_grace_is_missed_when_later_than_that() -> None:
    job = Once(run_at=T, grace_sec=60)
    assert schedule.plan(job, T, JOB, T + MINUTE) == Plan(fire=T)
    assert schedule.plan(job, T, JOB, T + MINUTE + TICK) == Plan(missed=(alone(T, "grace"),))


def test_a_timer_that_is_not_due_stays_as_it_is() -> None:
    assert schedule.plan(EVERY_MINUTE, T, JOB, T - TICK) == Plan(rearm=T)
    assert schedule.plan(Once(run_at=T), T, JOB, T - TICK) == Plan(rearm=T)


# --- Recurring --------------------------------------------------------------------------------


def test_a_punctual_tick_fires_and_arms_the_next() -> None:
    assert schedule.plan(EVERY_MINUTE, T, JOB, T) == Plan(fire=T, rearm=T + MINUTE)


def test_the_next_is_computed_from_the_occurrence_and_not_from_the_clock() -> None:
    job = Interval(interval_sec=3600, starts_at=T)
    done = schedule.plan(job, T, JOB, T + timedelta(minutes=59))
    assert done == Plan(fire=T, rearm=T + HOUR)


def test_of_several_due_the_latest_fires_and_the_others_are_superseded() -> None:
    done = schedule.plan(EVERY_MINUTE, T, JOB, T + 2 * MINUTE + 30 * SECOND)
    assert done.missed == (Missed(T, T + MINUTE, 2, "superseded"),)
    assert done.fire == T + 2 * MINUTE
    assert done.rearm == T + 3 * MINUTE


def test_the_latest_is_missed_too_when_it_is_later_than_its_grace() -> None:
    job = Cron(cron="0 9 * * *", grace_sec=3600)
    assert schedule.plan(job, T, JOB, T + HOUR) == Plan(fire=T, rearm=T + DAY)
    done = schedule.plan(job, T, JOB, T + DAY + 2 * HOUR)
    assert done.missed == (alone(T, "superseded"), alone(T + DAY, "grace"))
    assert done.fire is None
    assert done.rearm == T + 2 * DAY


def test_due_and_late_count_from_the_jittered_time() -> None:
    job = Cron(cron="0 9 * * *", jitter_sec=600, grace_sec=60)
    due = T + schedule.jitter(JOB, 600)
    assert due > T + MINUTE
    assert schedule.plan(job, T, JOB, due - TICK) == Plan(rearm=T)
    assert schedule.plan(job, T, JOB, due + MINUTE) == Plan(fire=T, rearm=T + DAY)
    assert schedule.plan(job, T, JOB, due + MINUTE + TICK).missed == (alone(T, "grace"),)


# --- Outages ----------------------------------------------------------------------------------


@pytest.mark.parametrize("outage", [130 * SECOND, 3 * HOUR, 3 * DAY])
def test_after_an_outage_each_job_runs_once_late_and_then_as_usual(outage: timedelta) -> None:
    down = T - 10 * SECOND
    back = down + outage
    minutely, daily = Ledger(EVERY_MINUTE, T), Ledger(DAILY, T)
    for ledger in (minutely, daily):
        ledger.tick(back)
        assert len(ledger.fired) == 1
        assert {reason for _, reason in ledger.missed} <= {"superseded"}
    latest = back.replace(second=0)
    assert minutely.fired == [latest]
    assert len(minutely.missed) == (latest - T) // MINUTE
    assert daily.fired[0] == T + (back - T) // DAY * DAY
    minutely.tick(latest + MINUTE)
    assert minutely.fired == [latest, latest + MINUTE]


def test_three_days_of_seconds_are_written_down_in_bounded_chunks() -> None:
    ledger = Ledger(Interval(interval_sec=1, starts_at=T), T)
    first = schedule.plan(ledger.job, T, JOB, T + 3 * DAY)
    assert first.more
    assert first.fire is None
    assert first.missed == (Missed(T, T + 999 * SECOND, 1000, "superseded"),)
    assert first.rearm == T + 1000 * SECOND
    ledger.tick(T + 3 * DAY)
    assert ledger.calls == 260
    assert len(ledger.missed) == 3 * 86_400
    assert ledger.fired == [T + 3 * DAY]
    assert ledger.armed == T + 3 * DAY + SECOND


@pytest.mark.parametrize(("due", "calls"), [(1001, 1), (1002, 2), (2001, 2)])
def test_the_limit_is_exact(due: int, calls: int) -> None:
    ledger = Ledger(EVERY_MINUTE, T)
    ledger.tick(T + (due - 1) * MINUTE)
    assert (len(ledger.missed), len(ledger.fired), ledger.calls) == (due - 1, 1, calls)


def test_an_interval_is_untouched_by_restarts() -> None:
    """Six hours apart, with a scheduler that lives four hours at a time for two days."""
    ledger = Ledger(Interval(interval_sec=6 * 3600, starts_at=T), T)
    for hours in range(0, 48, 4):
        ledger.tick(T + hours * HOUR + MINUTE)
        ledger.tick(T + hours * HOUR + 3 * HOUR)
    assert ledger.fired == [T + 6 * n * HOUR for n in range(8)]
    assert ledger.missed == []


def test_jobs_keep_their_own_phase_after_a_restart() -> None:
    phases: Counter[int] = Counter()
    for n in range(200):
        created = T + timedelta(milliseconds=300 * n)
        job = Interval(interval_sec=60, starts_at=created)
        armed = schedule.first(job, JOB, created)
        assert armed == created
        done = schedule.plan(job, armed, JOB, T + HOUR)
        assert done.rearm is not None
        assert (done.rearm - created) % MINUTE == timedelta(0)
        phases[done.rearm.second] += 1
    assert max(phases.values()) <= 4


def test_a_night_with_a_repeated_hour_runs_a_daily_job_once_even_if_ticked_each_second() -> None:
    job = Cron(cron="30 1 * * *", timezone="America/New_York")
    created = datetime(2027, 11, 6, 12, tzinfo=UTC)
    ledger = Ledger(job, schedule.first(job, JOB, created))
    start = datetime(2027, 11, 7, 5, 0, tzinfo=UTC)
    for second in range(0, 3 * 3600, 5):
        ledger.tick(start + second * SECOND)
    assert ledger.fired == [datetime(2027, 11, 7, 5, 30, tzinfo=UTC)]
    assert ledger.missed == []


def test_a_job_that_has_no_further_occurrence_is_not_armed_again() -> None:
    last = schedule.HORIZON - MINUTE
    done = schedule.plan(EVERY_MINUTE, last, JOB, last + 5 * SECOND)
    assert done == Plan(fire=last, rearm=None)


# --- All, and none ----------------------------------------------------------------------------


def catching_up(job: Schedule, armed: datetime, now: datetime) -> list[Plan]:
    """All that is decided at one time, step by step."""
    done = [schedule.plan(job, armed, JOB, now)]
    while done[-1].more:
        before = done[-1]
        assert before.rearm is not None
        done.append(schedule.plan(job, before.rearm, JOB, now, catch_up_to=before.catch_up_to))
    return done


def test_all_of_an_outage_run_one_after_the_other_from_the_oldest_on() -> None:
    job = Cron("* * * * *", misfire="all")
    done = catching_up(job, T, T + 3 * MINUTE)
    assert [plan.fire for plan in done] == [T + n * MINUTE for n in range(4)]
    assert {plan.catch_up_to for plan in done[:-1]} == {T + 3 * MINUTE}
    assert (done[-1].rearm, done[-1].catch_up_to) == (T + 4 * MINUTE, None)


@pytest.mark.parametrize("due", [999, 1_000, 1_001, 5_000])
def test_of_a_long_outage_the_last_thousand_run(due: int) -> None:
    job = Interval(1, T, misfire="all")
    done = catching_up(job, T, T + (due - 1) * SECOND)
    missed = [each for plan in done for each in apart(job, plan.missed)]
    assert missed == [(T + n * SECOND, "superseded") for n in range(due - 1_000)]
    ran = [plan.fire for plan in done if plan.fire]
    assert ran == [T + n * SECOND for n in range(max(due - 1_000, 0), due)]


def test_what_comes_due_while_an_outage_is_caught_up_on_is_not_part_of_it() -> None:
    job = Cron("* * * * *", misfire="all")
    first = schedule.plan(job, T, JOB, T + MINUTE)
    assert (first.fire, first.rearm, first.catch_up_to) == (T, T + MINUTE, T + MINUTE)
    second = schedule.plan(job, T + MINUTE, JOB, T + 2 * MINUTE, catch_up_to=first.catch_up_to)
    assert second == Plan(fire=T + MINUTE, rearm=T + 2 * MINUTE)


def test_all_are_not_run_that_are_out_of_their_grace() -> None:
    job = Cron("* * * * *", misfire="all", grace_sec=90)
    done = catching_up(job, T, T + 3 * MINUTE)
    missed = [plan.missed for plan in done]
    assert missed == [(alone(T, "grace"),), (alone(T + MINUTE, "grace"),), (), ()]
    assert [plan.fire for plan in done[2:]] == [T + 2 * MINUTE, T + 3 * MINUTE]


@pytest.mark.parametrize("limit", [1, 2, 3, 1_000])
@pytest.mark.parametrize("due", [2, 3, 4, 5])
def test_none_of_an_outage_run_however_it_is_divided(due: int, limit: int) -> None:
    ledger = Ledger(Cron("* * * * *", misfire="skip"), T)
    armed: datetime | None = T
    while armed is not None and armed < T + due * MINUTE:
        done = schedule.plan(ledger.job, armed, JOB, T + (due - 1) * MINUTE, limit)
        assert done.fire is None
        ledger.missed += apart(ledger.job, done.missed)
        armed = done.rearm
    assert ledger.missed == [(T + n * MINUTE, "misfire") for n in range(due)]


def test_one_that_is_merely_late_is_no_outage() -> None:
    job = Cron("* * * * *", misfire="skip")
    late = T + MINUTE - TICK
    assert schedule.plan(job, T, JOB, late) == Plan(fire=T, rearm=T + MINUTE)


# --- The end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("misfire", ["one", "skip", "all"])
def test_the_last_of_a_number_of_occurrences_is_not_armed_again(misfire: Misfire) -> None:
    job = Cron("* * * * *", max_occurrences=3, misfire=misfire)
    assert schedule.plan(job, T, JOB, T, seq=2) == Plan(fire=T, rearm=T + MINUTE)
    assert schedule.plan(job, T, JOB, T, seq=3) == Plan(fire=T)


def test_after_an_outage_no_more_are_decided_than_there_are() -> None:
    job = Cron("* * * * *", max_occurrences=3)
    done = schedule.plan(job, T, JOB, T + DAY)
    assert done.missed == (Missed(T, T + MINUTE, 2, "superseded"),)
    assert (done.fire, done.rearm) == (T + 2 * MINUTE, None)


def test_nothing_is_armed_beyond_its_end() -> None:
    job = Cron("* * * * *", ends_at=T + MINUTE)
    assert schedule.plan(job, T, JOB, T) == Plan(fire=T, rearm=T + MINUTE)
    assert schedule.plan(job, T + MINUTE, JOB, T + MINUTE) == Plan(fire=T + MINUTE)


# --- Whatever the schedule --------------------------------------------------------------------

TURNS = [(3, 14), (11, 7)]
BASIS = {
    "jitter_sec": st.sampled_from([0, 7, 3600]),
    "grace_sec": st.sampled_from([0, 60, 3_600, 86_400]),
    "misfire": st.sampled_from(["one", "skip", "all"]),
    "max_occurrences": st.one_of(st.none(), st.integers(1, 200)),
}
SCHEDULES = st.one_of(
    st.builds(Interval, interval_sec=st.integers(5, 5000), starts_at=st.just(T), **BASIS),
    st.builds(
        Cron,
        cron=st.sampled_from(["* * * * *", "*/7 * * * *", "30 1,2 * * *", "*/20 * * * * *"]),
        timezone=st.sampled_from(["UTC", "America/New_York"]),
        dst_gap=st.sampled_from(["run", "skip"]),
        dst_fold=st.sampled_from(["first", "second", "both"]),
        starts_at=st.sampled_from([T, *(datetime(2027, *day, 3, tzinfo=UTC) for day in TURNS)]),
        **BASIS,
    ),
)
CAUGHT_UP = 7


def outcomes_of(
    job: Interval | Cron, job_id: UUID, due: list[datetime], now: datetime
) -> dict[datetime, str]:
    """What is to become of all that is due, and was not at the tick before."""

    def run(at: datetime) -> str:
        late = now - at - schedule.jitter(job_id, job.jitter_sec)
        return "fire" if late <= timedelta(seconds=job.grace_sec) else "grace"

    found = {at: "dst_gap" for at in due if schedule.is_left_out(job, at, job_id)}
    real = [at for at in due if at not in found]
    match job.misfire:
        case "all":
            early = due[:-CAUGHT_UP]
            found |= {at: "superseded" if at in early else run(at) for at in real}
        case "skip" if len(real) > 1:
            found |= dict.fromkeys(real, "misfire")
        case _:
            found |= dict.fromkeys(real[:-1], "superseded") | {at: run(at) for at in real[-1:]}
    return found


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(
    SCHEDULES,
    st.one_of(st.none(), st.integers(3_600, 90_000)),
    st.lists(st.integers(0, 20_000), min_size=1, max_size=8),
    st.integers(1, 50),
    st.uuids(),
)
def test_each_nominal_time_has_exactly_one_outcome_whenever_the_ticks_come(
    job: Interval | Cron, ends_in: int | None, pauses: list[int], limit: int, job_id: UUID
) -> None:
    if ends_in is not None and job.starts_at is not None:
        job = msgspec.structs.replace(job, ends_at=job.starts_at + ends_in * SECOND)
    assert job.starts_at is not None
    delay = schedule.jitter(job_id, job.jitter_sec)
    armed = schedule.first(job, job_id, job.starts_at)
    now, seq, upto = job.starts_at, 1, None
    every = schedule.upcoming(job, job_id, job.starts_at - TICK, sum(pauses) // 5 + 10)
    every = every[: job.max_occurrences]
    for pause in pauses:
        now += pause * SECOND
        decided: list[tuple[datetime, str]] = []
        more = True
        while more and armed is not None:
            with patch.object(schedule, "MOST_CAUGHT_UP", CAUGHT_UP):
                done = schedule.plan(job, armed, job_id, now, limit, seq=seq, catch_up_to=upto)
            assert list(done.missed) == sorted(done.missed)
            came: list[tuple[datetime, str]] = [*apart(job, done.missed, job_id)]
            came += [(done.fire, "fire")] if done.fire else []
            assert len(came) == done.decided
            decided += came
            seq += len(came)
            armed, more, upto = done.rearm, done.more, done.catch_up_to
        due = every[seq - 1 - len(decided) : seq - 1]
        assert sorted(at for at, _ in decided) == due
        assert dict(decided) == outcomes_of(job, job_id, due, now)
    assert armed == (every[seq - 1] if seq <= len(every) else None)
    assert armed is None or armed + delay > now
