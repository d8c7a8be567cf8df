"""What is due in the coming hours, from the forecast that the leading scheduler keeps."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from noonday.api import problems
from noonday.api.context import caller_of, context_of
from noonday.api.documents import (
    ForecastDocument,
    HotMinuteDocument,
    MinuteDocument,
    OutlookDocument,
    ShareDocument,
    stamp,
)
from noonday.api.pages import json
from noonday.api.parameters import BOOLEANS
from noonday.api.problems import forbidden
from noonday.api.queries import Query
from noonday.api.reading import Fault
from noonday.domain.forecast import HOURS, MINUTE, with_jitter
from noonday.domain.roles import Role
from noonday.store import Row, Tx, forecasts, tenants
from noonday.store.forecasts import Made, Which

MOST_HOT: Final = 100
"""Hot minutes that are shown with what they consist of."""
MOST_SHARES: Final = 5
"""Tenants, lanes and hosts of each."""
LONGEST_JITTER_SEC: Final = 86_400
_TOO_LITTLE: Final = 0.005
"""What is less than this is nothing to two digits."""


class _Minute(NamedTuple):
    at: datetime
    occurrences: float
    hot: bool
    later: float | None
    """With the jitter that was asked about, where one was."""
    hot_later: bool | None

    @property
    def counts(self) -> bool:
        return max(self.occurrences, self.later or 0.0) >= _TOO_LITTLE


async def show(request: Request) -> Response:
    """What is due, minute by minute, and what the hot minutes consist of."""
    query = Query(request)
    hours = query.number("hours", 1, HOURS) or HOURS
    lane, host, tenant = query.text("lane"), query.text("target_host"), query.text("tenant")
    hot_only = query.choice("hot_only", BOOLEANS) == "true"
    jitter_sec = query.number("jitter_sec", 0, LONGEST_JITTER_SEC)
    query.check()
    opening = forecasts.SNAPSHOT
    async with context_of(request).store.transaction(opening) as tx:
        which = Which(await _whose(tx, request, tenant), lane, host)
        now, made = await tx.clock(), await forecasts.made(tx)
        if made is None:
            return json(_NONE)
        start = min(max(now, made.starts_at), made.ends_at)
        start -= (start - made.starts_at) % MINUTE
        end = min(start + timedelta(hours=hours), made.ends_at)
        minutes = [
            each
            for each in await _minutes(tx, made, end, which, jitter_sec)
            if each.at >= start and each.counts
        ]
        hot = heapq.nlargest(
            MOST_HOT, (each for each in minutes if each.hot), key=lambda each: each.occurrences
        )
        parts = await forecasts.parts_of(tx, start, end, which, [each.at for each in hot])
        folded = await forecasts.folded(tx, start, end, which.tenant_id)
    return json(
        ForecastDocument(
            stamp(made.computed_at), made.took_sec, stamp(start), stamp(end), made.estimated,
            _rounded(sum(each.occurrences for each in minutes)), _rounded(made.hot_from),
            _outlook((each.at, each.occurrences, each.hot) for each in minutes),
            None if jitter_sec is None
            else _outlook((each.at, each.later or 0.0, bool(each.hot_later)) for each in minutes),
            [_minute(each) for each in minutes if each.hot or each.hot_later or not hot_only],
            _hot(sorted(hot), parts), folded,
        )
    )  # fmt: skip


_NONE: Final = ForecastDocument(
    None, None, None, None, False, 0.0, None, OutlookDocument(0, None, 0.0), None, [], [], 0
)


async def _whose(tx: Tx, request: Request, name: str | None) -> int | None:
    """Whose occurrences the caller is shown; None are everybody's."""
    caller = caller_of(request)
    if caller.role < Role.ADMIN:
        if name not in (None, caller.tenant):
            raise forbidden(Role.ADMIN)
        return caller.tenant_id
    if name is None:
        return None
    row = await tenants.one(tx, name)
    if row is None:
        fault = Fault("/query/tenant", "unknown_tenant", "is not a tenant's name")
        raise problems.invalid([fault])
    return int(row["id"])


async def _minutes(
    tx: Tx, made: Made, end: datetime, which: Which, jitter_sec: int | None
) -> list[_Minute]:
    """All minutes from the beginning of the forecast on: what is moved by a jitter may come from
    before those that are shown."""
    count = (end - made.starts_at) // MINUTE
    totals, hot = [0.0] * count, [False] * count
    occurrences, unspread = [0.0] * count, [0.0] * count
    for row in await forecasts.totals(tx, made.starts_at, end):
        n = (row["at"] - made.starts_at) // MINUTE
        totals[n], hot[n] = row["occurrences"], row["hot"]
    for row in await forecasts.chosen(tx, made.starts_at, end, which):
        n = (row["at"] - made.starts_at) // MINUTE
        occurrences[n], unspread[n] = row["occurrences"], row["unspread"]
    later: Sequence[float | None] = [None] * count
    hot_later: Sequence[bool | None] = [None] * count
    if jitter_sec is not None:
        moved = with_jitter(occurrences, unspread, jitter_sec)
        hot_later = [
            total - was + becomes >= made.hot_from
            for total, was, becomes in zip(totals, occurrences, moved, strict=True)
        ]
        later = moved
    return [
        _Minute(made.starts_at + n * MINUTE, occurrences[n], hot[n], later[n], hot_later[n])
        for n in range(count)
    ]


def _outlook(minutes: Iterable[tuple[datetime, float, bool]]) -> OutlookDocument:
    busiest_at, busiest, hot_minutes = None, 0.0, 0
    for at, occurrences, hot in minutes:
        hot_minutes += hot
        if occurrences > busiest:
            busiest_at, busiest = stamp(at), occurrences
    return OutlookDocument(hot_minutes, busiest_at, _rounded(busiest))


def _minute(each: _Minute) -> MinuteDocument:
    return MinuteDocument(
        stamp(each.at), _rounded(each.occurrences), each.hot, _maybe(each.later), each.hot_later
    )


def _hot(minutes: Sequence[_Minute], parts: Sequence[Row]) -> list[HotMinuteDocument]:
    shares: dict[tuple[datetime, str], defaultdict[str | None, float]] = {}
    for row in parts:
        for by in ("tenant", "lane", "target_host"):
            group = shares.setdefault((row["at"], by), defaultdict(float))
            group[row[by]] += row["occurrences"]
    return [
        HotMinuteDocument(
            stamp(each.at), _rounded(each.occurrences), _maybe(each.later), each.hot_later,
            *(_biggest(shares.get((each.at, by), {})) for by in ("tenant", "lane", "target_host")),
        )
        for each in minutes
    ]  # fmt: skip


def _biggest(group: dict[str | None, float]) -> list[ShareDocument]:
    """The biggest shares by name, and all others together."""
    named = {name: number for name, number in group.items() if name is not None}
    biggest = heapq.nlargest(MOST_SHARES, named.items(), key=lambda share: (share[1], share[0]))
    shares = [ShareDocument(name, _rounded(number)) for name, number in biggest]
    rest = sum(group.values()) - sum(number for _, number in biggest)
    if rest >= _TOO_LITTLE:
        shares.append(ShareDocument(None, _rounded(rest)))
    return shares


def _rounded(number: float) -> float:
    return round(number, 2)


def _maybe(number: float | None) -> float | None:
    return None if number is None else _rounded(number)
