"""What comes before a run is what its workers would claim before it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from noonday.domain.explaining import ranges_before
from noonday.domain.lane_clock import LaneClock
from noonday.domain.model import PRIORITIES
from noonday.domain.ranking import Band, queued, seconds

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
AGEING_SEC = 6.0
ranks = st.floats(-100, 100).map(lambda sec: NOW + timedelta(seconds=round(sec, 3))) | st.floats(
    -100, 100
).map(lambda sec: queued(seconds(NOW) + round(sec, 3)))
priorities = st.sampled_from(list(PRIORITIES))


def clock_of(waiting: float | None) -> LaneClock:
    """As a worker has it that saw a queue of priority 5 begin so many seconds from now."""
    clock = LaneClock(AGEING_SEC)
    left = {} if waiting is None else {Band(5, True): queued(seconds(NOW) + waiting)}
    clock.claimed(left, NOW, everything=waiting is None)
    return clock


@given(
    own=ranks,
    priority=priorities,
    other=ranks,
    others=priorities,
    waiting=st.none() | st.integers(-50, 50),
)
def test_what_is_counted_as_before_a_run_is_what_a_worker_claims_before_it(
    own: datetime, priority: int, other: datetime, others: int, waiting: int | None
) -> None:
    clock = clock_of(waiting)
    reports = [clock.report(8, has_room=False)]
    before = ranges_before(own, priority, NOW, AGEING_SEC, reports)
    counted = any(each == others and since <= other < until for each, since, until in before)
    mine, theirs = clock.key(own, priority, NOW), clock.key(other, others, NOW)
    if abs(mine - theirs) > 1e-3:
        assert counted is (theirs < mine)
