"""Which lanes wait for others, and until when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from noonday.domain.lanes import CALM, READY_MADE, Lane, Standing, is_name, judge

NOW = datetime(2027, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def standing(
    name: str, age_sec: float = 0, *, running: int = 1, served: bool = True, **lane: Any
) -> Standing:
    parts: dict[str, Any] = {
        "weight": 1, "max_running": None, "ageing_sec": 6, "objective_sec": None,
        "sheddable": name == "batch", "paused_at": None, "paused_by": None, "pause_reason": None,
        "shed_at": None, "shed_reason": None, "version": 1, **lane,
    }  # fmt: skip
    return Standing(Lane(name, **parts), age_sec, 60.0, running, served)


SHED: dict[str, Any] = {"shed_at": NOW - 100 * SECOND, "shed_reason": "x"}


def test_what_may_wait_does_while_another_lane_misses_its_objective() -> None:
    verdict = judge([standing("default", 61), standing("batch", 500), standing("long")], None, NOW)
    assert verdict.shed == ["batch"]
    assert verdict.reason == "runs of the lane default wait 61 s, and its objective is 60 s"
    assert verdict.released == []


def test_what_is_shed_already_is_not_shed_again() -> None:
    verdict = judge([standing("default", 61), standing("batch", **SHED)], NOW, NOW)
    assert (verdict.shed, verdict.released, verdict.calm_since) == ([], [], None)


@pytest.mark.parametrize(
    "late",
    [
        standing("batch", 500),
        standing("default", 60),
        standing("default", 500, paused_at=NOW, pause_reason=""),
        standing("default", 500, max_running=3, running=3),
        standing("default", 500, served=False),
    ],
    ids=["may wait itself", "in time", "paused", "at its cap", "not served"],
)
def test_a_lane_that_more_slots_would_not_help_sheds_nothing(late: Standing) -> None:
    assert judge([late, standing("batch")], None, NOW).shed == []


def test_what_was_shed_is_claimed_again_when_all_has_been_well_for_a_while() -> None:
    batch = standing("batch", 900, **SHED)
    calm_since, released = None, []
    for second, age in enumerate([61, 40, 31, *[29] * 20, 31, *[0] * 40]):
        verdict = judge([standing("default", age), batch], calm_since, NOW + second * SECOND)
        calm_since = verdict.calm_since
        released += [second] if verdict.released else []
    assert released[0] == 24 + CALM.total_seconds(), "the count begins anew after a bad moment"


def test_what_may_not_be_shed_any_more_is_claimed_at_once() -> None:
    lanes = [standing("default", 61), standing("reports", sheddable=False, **SHED)]
    assert judge(lanes, None, NOW).released == ["reports"]


def test_names_of_lanes_are_plain() -> None:
    assert all(map(is_name, (*READY_MADE, "a", "a-b_c9")))
    assert not any(map(is_name, ("", "A", "a b", "a:b", "*", "-a", "a-", "a" * 64, "a\n")))
