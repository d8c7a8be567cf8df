"""When a condition becomes an alert, when it stops being one, and what may be said of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noonday.domain import vitals
from noonday.domain.alerts import KEEP, RULES, Alert, AlertName, AlertState, Condition, Key, judge
from noonday.domain.notices import alertname, notice
from noonday.domain.vitals import Letters, Seen, Vitals, conditions, p99, sample

NOW = datetime(2027, 3, 14, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


class Board:
    """Alerts as they stand, with each judgement written down."""

    def __init__(self) -> None:
        self.alerts: dict[Key, Alert] = {}
        self.now = NOW

    def see(self, *found: Condition, after: timedelta = SECOND) -> list[str]:
        """The changes of state that these conditions bring about ``after`` the last ones."""
        self.now += after
        changes = judge(self.alerts, found, self.now)
        for alert in (*changes.opened, *changes.moved, *changes.refreshed):
            self.alerts[alert.key] = alert
        for alert in changes.dropped:
            del self.alerts[alert.key]
        return [alert.state.value for alert in (*changes.opened, *changes.moved)]


QUEUE = Condition(AlertName.QUEUE_AGE, "default", 90)
LETTERS = Condition(AlertName.DEAD_LETTERS, "timeout", 11, ("no answer",))


def test_a_condition_has_to_hold_for_a_while_before_its_alert_fires() -> None:
    board = Board()
    assert board.see(QUEUE) == ["PENDING"]
    assert board.see(QUEUE, after=timedelta(seconds=29)) == []
    assert board.see(QUEUE) == ["FIRING"]
    (alert,) = board.alerts.values()
    assert (alert.fired_at, alert.since, alert.times) == (board.now, NOW + SECOND, 1)


def test_one_that_came_and_went_leaves_nothing() -> None:
    board = Board()
    board.see(QUEUE)
    assert board.see() == []
    assert board.alerts == {}


def test_a_condition_that_flickers_is_one_alert() -> None:
    board = Board()
    assert board.see(LETTERS) == ["FIRING"]
    for _ in range(50):
        assert board.see(after=KEEP - SECOND) == []
        assert board.see(LETTERS) == []
    assert board.see(after=KEEP) == ["RESOLVED"]
    (alert,) = board.alerts.values()
    assert (alert.resolved_at, alert.times) == (board.now, 1)


def test_one_that_comes_again_is_counted_and_one_that_nearly_does_is_not() -> None:
    board = Board()
    wait = RULES[AlertName.QUEUE_AGE].after
    for again in range(1, 4):
        board.see(QUEUE)
        assert board.see(QUEUE, after=wait) == ["FIRING"]
        assert board.see(after=KEEP) == ["RESOLVED"]
        resolved_at = board.alerts[QUEUE.key].resolved_at
        assert board.see(QUEUE) == ["PENDING"]
        assert board.see() == ["RESOLVED"]
        assert board.alerts[QUEUE.key].resolved_at == resolved_at
        assert board.alerts[QUEUE.key].times == again


def test_subjects_are_alerts_of_their_own() -> None:
    board = Board()
    other = LETTERS._replace(subject="expired")
    assert board.see(LETTERS, other) == ["FIRING", "FIRING"]
    assert board.see(other, after=KEEP) == ["RESOLVED"]
    assert board.alerts[other.key].state is AlertState.FIRING


def test_an_alert_that_this_release_does_not_know_is_resolved() -> None:
    board = Board()
    board.see(LETTERS)
    alert = board.alerts.pop(LETTERS.key)
    board.alerts["of_tomorrow", ""] = alert._replace(name="of_tomorrow", subject="")
    assert board.see(after=KEEP) == ["RESOLVED"]
    assert notice(list(board.alerts.values()))["status"] == "resolved"


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 200))))
def test_versions_grow_by_one_with_each_change_of_state(steps: list[tuple[bool, int]]) -> None:
    board = Board()
    for holds, seconds in steps:
        before = board.alerts.get(QUEUE.key)
        moved = board.see(*[QUEUE] * holds, after=timedelta(seconds=seconds))
        alert = board.alerts.get(QUEUE.key)
        if before is not None and alert is not None:
            assert alert.version - before.version == len(moved)
            assert (alert.state is not before.state) == bool(moved)


# --- conditions -------------------------------------------------------------------------------


def lane(**changes: Any) -> dict[str | int, Any]:
    seen: dict[str | int, Any] = {"lane": "default", "oldest_age_sec": 0.0, "past_lease_sec": 0.0}
    seen.update(changes)
    return seen


def found(**seen: Any) -> list[tuple[str, str]]:
    objectives = {"default": 60.0, "batch": 3_600.0}
    return [one.key for one in conditions(Seen(**{"lanes": [], **seen}), objectives.__getitem__)]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ({"lanes": [lane(oldest_age_sec=60)]}, []),
        ({"lanes": [lane(oldest_age_sec=60.1)]}, [("queue_age", "default")]),
        ({"lanes": [lane(lane="batch", oldest_age_sec=61)]}, []),
        ({"lanes": [lane(past_lease_sec=30)]}, []),
        ({"lanes": [lane(past_lease_sec=31)]}, [("past_lease", "default")]),
        ({"letters": [Letters("timeout", 10, [])]}, []),
        ({"letters": [Letters("timeout", 11, [])]}, [("dead_letters", "timeout")]),
        ({"letters": [Letters("killed", 1_000, [])]}, []),
        ({"processes": [Vitals(tick_p99_sec=1.0), Vitals()]}, []),
        ({"processes": [Vitals(tick_p99_sec=2.5), Vitals()]}, [("tick_slow", "")]),
        ({"processes": [Vitals(leases_expired=3)]}, []),
        ({"processes": [Vitals(leases_expired=2)] * 2}, [("leases_expire", "")]),
        ({"processes": [Vitals(leases_expired=4), Vitals(successes=4)]}, []),
        ({"processes": [Vitals(leases_expired=5), Vitals(successes=4)]}, [("leases_expire", "")]),
        ({"processes": [Vitals(unexplained=1)]}, [("duplicates", "")]),
        ({"processes": [Vitals(loop_errors={"reaper": 20})] * 3}, []),
        ({"processes": [Vitals(loop_errors={"reaper": 21})]}, [("loop_failing", "reaper")]),
        ({"processes": [Vitals(stalled=("claim",))] * 2}, [("loop_stalled", "claim")]),
        ({"unowned": 1}, [("shards_unowned", "")]),
        ({"absent": ["worker"]}, [("role_absent", "worker")]),
    ],
)
def test_what_is_seen_is_wrong_only_beyond_its_limit(
    seen: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert found(**seen) == expected


def test_p99_is_the_bound_below_which_nearly_all_lie() -> None:
    inf = float("inf")
    assert p99([]) is None
    assert p99([(1, 19), (inf, 19)]) is None
    assert p99([(1, 99), (2, 100), (inf, 100)]) == 1
    assert p99([(1, 98), (2, 100), (inf, 100)]) == 2
    assert p99([(1, 0), (2, 10), (inf, 100)]) == 2


# --- what leaves the service ------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "cannot connect to https://user:geheim@host.example/path: refused",
        "no: https://host.example/path?key=geheim&x=geheim",
        "no: HTTPS://host.example?geheim no",
        "no: wss://geheim@host.example#geheim",
        "'https://host.example/a?b=geheim'",
    ],
)
def test_a_sample_has_no_secret_that_stood_in_a_url(text: str) -> None:
    assert "geheim" not in sample(text)
    assert "host.example" in sample(text)


@given(st.text())
def test_a_sample_is_short_and_one_printable_line(text: str) -> None:
    assert len(sample(text)) <= vitals.LONGEST_SAMPLE
    assert sample(text).isprintable()


def test_of_many_texts_three_are_told() -> None:
    letters = Letters("timeout", 5_000, [f"text {n}" for n in range(9)])
    (condition,) = conditions(Seen([], [letters]), lambda _: 60.0)
    assert condition.samples == ("text 0", "text 1", "text 2")


def test_a_notice_is_what_alertmanager_sends() -> None:
    board = Board()
    board.see(LETTERS, QUEUE)
    board.see(LETTERS, QUEUE, after=timedelta(minutes=1))
    body = notice([board.alerts[LETTERS.key], board.alerts[QUEUE.key]])
    assert (body["version"], body["status"]) == ("4", "firing")
    assert body["commonLabels"] == {"service": "noonday"}
    letters, queue = body["alerts"]
    assert letters["labels"] == {
        "alertname": "NoondayDeadLetters", "service": "noonday", "severity": "warning",
        "reason": "timeout",
    }  # fmt: skip
    assert letters["annotations"]["samples"] == "no answer"
    assert letters["startsAt"] == "2027-03-14T12:00:01+00:00"
    assert letters["endsAt"] == "0001-01-01T00:00:00Z"
    assert queue["annotations"]["value"] == "90"
    assert letters["fingerprint"] != queue["fingerprint"]
    board.see(after=KEEP)
    resolved = notice([board.alerts[LETTERS.key]])
    assert resolved["status"] == resolved["alerts"][0]["status"] == "resolved"
    assert resolved["alerts"][0]["endsAt"] == board.now.isoformat()
    assert resolved["alerts"][0]["fingerprint"] == letters["fingerprint"]


def test_every_name_has_a_rule_and_a_name_in_prometheus() -> None:
    assert set(RULES) == set(AlertName)
    assert alertname("queue_age") == "NoondayQueueAge"
