"""The notice of an alert: what is posted, in the form of Alertmanager's webhooks (version 4).

What takes alerts takes that form: pagers, chats by way of a bridge, and those who have Prometheus
beside it. It holds nothing but the alert: no payload, no header, no URL of a target.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from noonday.domain.alerts import RULES, UNKNOWN, Alert, AlertState

PAGE: Final = "docs/operate.md"
_NOT_ENDED: Final = "0001-01-01T00:00:00Z"


def alertname(name: str) -> str:
    """The name in rules for Prometheus: ``queue_age`` is ``NoondayQueueAge``."""
    return "Noonday" + "".join(part.capitalize() for part in name.split("_"))


def labels(alert: Alert) -> dict[str, str]:
    """What tells an alert from others of its name."""
    rule = RULES.get(alert.name, UNKNOWN)
    return {rule.label: alert.subject} if rule.label is not None else {}


def runbook(name: str) -> str:
    """Where the alert is explained."""
    return f"{PAGE}#{name}"


def notice(alerts: Sequence[Alert]) -> dict[str, Any]:
    """The body that tells of ``alerts``, firing and resolved ones together."""
    told = [_told(alert) for alert in alerts]
    firing = any(alert.state is AlertState.FIRING for alert in alerts)
    common = dict(sorted(set.intersection(*(set(one["labels"].items()) for one in told))))
    return {
        "version": "4",
        "groupKey": "noonday",
        "truncatedAlerts": 0,
        "status": "firing" if firing else "resolved",
        "receiver": "noonday",
        "groupLabels": {},
        "commonLabels": common,
        "commonAnnotations": {},
        "externalURL": "",
        "alerts": told,
    }


def _told(alert: Alert) -> dict[str, Any]:
    rule = RULES.get(alert.name, UNKNOWN)
    named = {
        "alertname": alertname(alert.name),
        "service": "noonday",
        "severity": rule.severity,
        **labels(alert),
    }
    resolved = alert.state is AlertState.RESOLVED
    return {
        "status": "resolved" if resolved else "firing",
        "labels": named,
        "annotations": {
            "summary": rule.summary,
            "description": rule.action,
            "runbook": runbook(alert.name),
            "value": f"{alert.value:g}",
            "samples": "\n".join(alert.samples),
        },
        "startsAt": _written(alert.fired_at),
        "endsAt": _written(alert.resolved_at) if resolved else _NOT_ENDED,
        "generatorURL": "",
        "fingerprint": hashlib.sha256(repr(sorted(named.items())).encode()).hexdigest()[:16],
    }


def _written(at: datetime | None) -> str:
    return at.isoformat() if at is not None else _NOT_ENDED
