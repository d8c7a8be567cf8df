"""The calendar that the checks go by agrees with the one of the scheduler."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from noonday.domain.model import Cron, Interval, Once, Schedule
from noonday.domain.schedule import upcoming
from noonday.drill.checks.reference import calendar


@pytest.mark.parametrize(
    "schedule",
    [
        Interval(7, datetime(2027, 3, 1, 0, 0, 3, tzinfo=UTC)),
        Cron("* * * * * *"),
        Cron("*/7 * * * * *"),
        Cron("5,50 2-59/9 * * * *"),
        Cron("*/2 * * * *"),
        Cron("30 2 * * *", "Europe/Paris"),
        Once(datetime(2027, 3, 28, 1, tzinfo=UTC)),
    ],
    ids=str,
)
def test_the_reference_calendar_and_the_scheduler_agree(schedule: Schedule) -> None:
    since = datetime(2027, 3, 28, 0, 30, 0, 500_000, tzinfo=UTC)
    expected = upcoming(schedule, uuid4(), since, 100)
    assert expected
    assert calendar(schedule, since, expected[-1]) == expected
