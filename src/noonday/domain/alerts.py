"""Alerts: what may be wrong with the service, and when that is worth waking somebody.

``judge`` compares the conditions that hold with the alerts that stand. A condition has to hold
for a while before its alert fires, and must be gone for a while before it is resolved, so that
what comes and goes is one alert. ``deploy/alerts.yml`` has the same alerts for Prometheus.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal, NamedTuple, TypeAlias

KEEP: Final = timedelta(minutes=5)
"""How long a condition must be gone until its alert is resolved."""


class AlertName(StrEnum):
    """A closed set, so that alerts can be routed and looked up."""

    QUEUE_AGE = "queue_age"
    DEAD_LETTERS = "dead_letters"
    TICK_SLOW = "tick_slow"
    PAST_LEASE = "past_lease"
    LEASES_EXPIRE = "leases_expire"
    DUPLICATES = "duplicates"
    LOOP_FAILING = "loop_failing"
    LOOP_STALLED = "loop_stalled"
    SHARDS_UNOWNED = "shards_unowned"
    ROLE_ABSENT = "role_absent"
    NO_SCHEDULER = "no_scheduler"
    """Nobody evaluates: seen by Prometheus, and by whoever lists the alerts."""


class Rule(NamedTuple):
    """What an alert is about."""

    severity: Literal["critical", "warning"]
    """``critical``: look now. ``warning``: look today."""
    label: str | None
    """What its subject is; None when there is only one."""
    after: timedelta
    """How long the condition has to hold."""
    summary: str
    action: str
    """What to do first."""


RULES: Final[dict[str, Rule]] = {
    AlertName.QUEUE_AGE: Rule(
        "critical",
        "lane",
        timedelta(seconds=30),
        "Runs wait longer than the objective of their lane",
        "See whether workers are alive (`noonday workers`) and have free slots; start more.",
    ),
    AlertName.DEAD_LETTERS: Rule(
        "warning",
        "reason",
        timedelta(0),
        "Runs are given up",
        "List them (`noonday dlq list --reason …`); mend the receiver or the job first.",
    ),
    AlertName.TICK_SLOW: Rule(
        "warning",
        None,
        timedelta(minutes=1),
        "Ticks of a scheduler are slow, so timers fire late",
        "Look at Postgres: load, locks, transactions that stay open. Start more schedulers.",
    ),
    AlertName.PAST_LEASE: Rule(
        "critical",
        "lane",
        timedelta(0),
        "Runs are RUNNING long after their lease has expired: nobody reaps them",
        "Look at the logs of the schedulers for the loop `reaper`.",
    ),
    AlertName.LEASES_EXPIRE: Rule(
        "critical",
        None,
        timedelta(0),
        "More leases expire than attempts succeed: workers die or hang",
        "Look at the workers: memory, restarts, their way to Postgres.",
    ),
    AlertName.DUPLICATES: Rule(
        "critical",
        None,
        timedelta(0),
        "A receiver was called again although nothing explains a second call",
        "Keep the logs and the history of the run, and report it: this should not happen.",
    ),
    AlertName.LOOP_FAILING: Rule(
        "warning",
        "loop",
        timedelta(0),
        "Ticks of a loop fail again and again",
        "Look at the logs for `loop.failed` and `upkeep.failed` of this loop.",
    ),
    AlertName.LOOP_STALLED: Rule(
        "critical",
        "loop",
        timedelta(minutes=1),
        "A loop has not ticked well lately: its process is not ready",
        "Ask `/readyz` of the processes; look at their logs; restart the one that hangs.",
    ),
    AlertName.SHARDS_UNOWNED: Rule(
        "critical",
        None,
        timedelta(seconds=30),
        "Shards of timers have no owner: their jobs do not fire",
        "See whether enough schedulers are alive (`noonday workers`, `noonday shards`).",
    ),
    AlertName.ROLE_ABSENT: Rule(
        "critical",
        "role",
        timedelta(seconds=30),
        "No process of this role is alive, though there was one",
        "Start one; look at the logs of the last one for why it went.",
    ),
    AlertName.NO_SCHEDULER: Rule(
        "critical",
        None,
        timedelta(0),
        "No scheduler looks after this service, nor evaluates its alerts",
        "Start a scheduler; look at the logs of the last one for why it went.",
    ),
}


UNKNOWN: Final = Rule("warning", None, timedelta(0), "An alert of another release", "")
"""Stands for the rule of an alert that this release does not have."""


class AlertState(StrEnum):
    """PENDING: the condition holds, but not for long enough yet."""

    PENDING = "PENDING"
    FIRING = "FIRING"
    RESOLVED = "RESOLVED"


Key: TypeAlias = tuple[str, str]
"""An alert's name and subject."""


class Condition(NamedTuple):
    """Something is wrong at this moment."""

    name: AlertName
    subject: str
    value: float
    samples: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """Which alert it is."""
        return self.name.value, self.subject


class Alert(NamedTuple):
    """An alert as it stands."""

    name: str
    subject: str
    state: AlertState
    version: int
    """Grows with each change of state."""
    since: datetime
    seen_at: datetime
    fired_at: datetime | None
    resolved_at: datetime | None
    times: int
    """How often it has fired."""
    value: float
    samples: Sequence[str]

    @property
    def key(self) -> Key:
        """Which alert it is."""
        return self.name, self.subject


class Changes(NamedTuple):
    """What is to be written. A moved alert has the version after the one it was read with."""

    opened: list[Alert]
    moved: list[Alert]
    refreshed: list[Alert]
    dropped: list[Alert]


def judge(standing: Mapping[Key, Alert], conditions: Iterable[Condition], now: datetime) -> Changes:
    """What becomes of the alerts that stand, now that these conditions hold and no others."""
    changes = Changes([], [], [], [])
    holding = {condition.key: condition for condition in conditions}
    for key, condition in holding.items():
        alert = standing.get(key)
        if alert is None:
            changes.opened.append(_opened(condition, now))
        else:
            after = _held(alert, condition, now)
            same = after.version == alert.version
            (changes.refreshed if same else changes.moved).append(after)
    for key, alert in standing.items():
        if key not in holding:
            _gone(changes, alert, now)
    return changes


def _opened(condition: Condition, now: datetime) -> Alert:
    fires = not RULES[condition.name].after
    return Alert(
        condition.name.value,
        condition.subject,
        AlertState.FIRING if fires else AlertState.PENDING,
        1,
        now,
        now,
        now if fires else None,
        None,
        int(fires),
        condition.value,
        condition.samples,
    )


def _held(alert: Alert, condition: Condition, now: datetime) -> Alert:
    """The alert after its condition was seen to hold."""
    if alert.state is AlertState.RESOLVED:
        alert = alert._replace(since=now)
    # Of a firing one the samples stay as they are while there are no others.
    samples = condition.samples or (alert.samples if alert.state is AlertState.FIRING else ())
    alert = alert._replace(seen_at=now, value=condition.value, samples=samples)
    if alert.state is AlertState.FIRING:
        return alert
    if now - alert.since >= RULES[condition.name].after:
        alert = _moved(alert, AlertState.FIRING)
        return alert._replace(fired_at=now, resolved_at=None, times=alert.times + 1)
    if alert.state is AlertState.RESOLVED:
        return _moved(alert, AlertState.PENDING)
    return alert


def _gone(changes: Changes, alert: Alert, now: datetime) -> None:
    if alert.state is AlertState.FIRING and now - alert.seen_at >= KEEP:
        changes.moved.append(_moved(alert, AlertState.RESOLVED)._replace(resolved_at=now))
    elif alert.state is AlertState.PENDING and alert.resolved_at is not None:
        changes.moved.append(_moved(alert, AlertState.RESOLVED))
    elif alert.state is AlertState.PENDING:
        changes.dropped.append(alert)


def _moved(alert: Alert, state: AlertState) -> Alert:
    return alert._replace(state=state, version=alert.version + 1)
