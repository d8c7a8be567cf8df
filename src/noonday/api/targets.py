"""What is called, and whether it is left alone."""

from __future__ import annotations

from typing import Any, Final, get_args

from starlette.requests import Request
from starlette.responses import Response

from noonday.api.context import caller_of, context_of
from noonday.api.documents import ResumedDocument, TargetState, TargetStateDocument, maybe, stamp
from noonday.api.ids import name_of
from noonday.api.notes import note
from noonday.api.pages import json, place
from noonday.api.problems import Problem, not_found
from noonday.api.queries import Query
from noonday.store import Row, targets
from noonday.store.targets import TargetPosition

_STATES: Final[tuple[str, ...]] = get_args(TargetState)


async def page(request: Request) -> Response:
    """The tenant's targets whose breaker has opened before or whose host has a rate, by host."""
    query = Query(request)
    state = query.choice("state", _STATES)
    where = place(request, query, state)
    after = where.after(TargetPosition) or TargetPosition()
    async with context_of(request).store.transaction() as tx:
        rows = await targets.page(tx, caller_of(request).tenant_id, after, state, where.limit + 1)
    return where.answer_rows(
        rows,
        lambda row: _document(row, listed=True),
        lambda row: TargetPosition(row["host"], row["hold_key"]),
    )


async def resume(request: Request) -> Response:
    """A person lets the runs of a host go on, those to its suspended URLs too."""
    host = name_of(request, "No target", "host").lower()
    caller = caller_of(request)
    async with context_of(request).store.transaction() as tx:
        rows = await targets.resume(tx, caller.tenant_id, host, f"resumed by {caller.key_id}")
        shown = [_document(row) for row in rows or ()]
        if shown:
            after: list[Any] = [{"port": one.port, "url": one.url} for one in shown]
            await note(tx, request, "target.resume", ("target", host), after=after)
    if rows is None:
        raise not_found("No target that was ever left alone")
    if not rows:
        raise Problem(409, "not_held_back", "Nothing of this host is left alone: its runs go on.")
    return json(ResumedDocument(sorted(shown, key=lambda one: (one.port or 0, one.url or ""))))


def _document(row: Row, *, listed: bool = False) -> TargetStateDocument:
    rate = row["rate_per_sec"] if listed else None
    return TargetStateDocument(
        host=row["host"],
        port=row["port"],
        url=row["url"],
        state=row["state"],
        reason=row["reason"],
        since=stamp(row["since"]),
        trips=row["trips"],
        next_try_at=maybe(row["probe_at"]) if row["state"] == "OPEN" else None,
        held=row["held"] if listed else None,
        rate_per_sec=rate,
        slowed=None if rate is None else row["slowed"] or 1.0,
        waiting_for_rate=None if rate is None else row["waiting"],
    )
