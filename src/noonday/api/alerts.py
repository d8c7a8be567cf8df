"""Alerts: what is wrong with the service, for those who run it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from noonday.api.context import context_of
from noonday.api.documents import AlertDocument, maybe, stamp
from noonday.api.pages import place
from noonday.api.queries import Query
from noonday.domain.alerts import RULES, UNKNOWN, Alert, AlertName, AlertState
from noonday.domain.notices import labels, runbook
from noonday.store import Row, Tx, alerts
from noonday.store.alerts import alert_of

CHECKED_WITHIN: Final = timedelta(minutes=1)
"""When the alerts were not evaluated for so long, that is an alert of its own."""
_ORDER: Final = {AlertState.FIRING: 0, AlertState.PENDING: 1, AlertState.RESOLVED: 2}


class _Position(NamedTuple):
    """Where a page ended."""

    order: int
    name: str
    labels: str


async def page(request: Request) -> Response:
    """Alerts that fire, then those that are about to, then those that were resolved lately."""
    where = place(request, Query(request))
    after = where.after(_Position) or _Position(-1, "", "")
    async with context_of(request).store.transaction() as tx:
        documents = [_document(row) for row in await alerts.every(tx)]
        documents += await _unwatched(tx)
    rest = sorted((one for one in documents if _position(one) > after), key=_position)
    shown = rest[: where.limit]
    return where.answer(shown, _position(shown[-1]) if len(rest) > len(shown) else None)


def _position(document: AlertDocument) -> _Position:
    return _Position(_ORDER[AlertState(document.state)], document.name, str(document.labels))


async def _unwatched(tx: Tx) -> list[AlertDocument]:
    """Without a scheduler nobody says that there is none: then we do."""
    at = await alerts.checked_at(tx)
    silence = await tx.clock() - at
    if silence <= CHECKED_WITHIN:
        return []
    alert = Alert(
        AlertName.NO_SCHEDULER.value, "", AlertState.FIRING, 1, at, at, at, None, 1,
        silence.total_seconds(), (),
    )  # fmt: skip
    return [_shown(alert)]


def _document(row: Row) -> AlertDocument:
    return _shown(alert_of(row), row["told_at"], row["tries"])


def _shown(alert: Alert, told_at: datetime | None = None, tries: int = 0) -> AlertDocument:
    rule = RULES.get(alert.name, UNKNOWN)
    began = {
        AlertState.FIRING: alert.fired_at,
        AlertState.RESOLVED: alert.resolved_at,
        AlertState.PENDING: alert.since,
    }[alert.state]
    return AlertDocument(
        name=alert.name,
        labels=labels(alert),
        state=alert.state.value,
        severity=rule.severity,
        summary=rule.summary,
        action=rule.action,
        runbook=runbook(alert.name),
        value=alert.value,
        samples=list(alert.samples),
        times=alert.times,
        since=stamp(began or alert.since),
        last_sent_at=maybe(told_at),
        unsent_tries=tries,
    )
