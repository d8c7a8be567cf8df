"""Dead letters: runs that will not be tried again by themselves."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from noonday.api.context import caller_of, context_of
from noonday.api.ids import run_key_of
from noonday.api.letter_documents import groups_document, letter_document
from noonday.api.notes import denied, note
from noonday.api.pages import json, place
from noonday.api.problems import Problem, not_found
from noonday.api.queries import Query
from noonday.domain.model import Reason
from noonday.store import dead_letters, letters
from noonday.store.letters import LetterFilter, LetterPosition

STATES: Final = ("DEAD", "REPLAYED", "DISCARDED")
_DISCARD: Final = "dead_letter.discard"
GROUPINGS: Final = ("reason", "fingerprint", "reason,fingerprint")


async def page(request: Request) -> Response:
    """The tenant's dead letters, newest first; or, with ``group_by``, how many of a kind."""
    query = Query(request)
    group_by = query.choice("group_by", GROUPINGS)
    by = LetterFilter(
        fingerprint=query.text("fingerprint", 64),
        job_id=query.uuid("job_id"),
        state=query.choice("state", STATES),
        dead_from=query.instant("dead_from"),
        dead_to=query.instant("dead_to"),
        reason=query.choice("reason", list(Reason)),
        target_host=query.text("target_host"),
    )
    if group_by is not None:
        return await _groups(request, query, by, group_by.split(","))
    where = place(request, query, by)
    before = where.after(LetterPosition) or LetterPosition()
    async with context_of(request).store.transaction() as tx:
        found = await letters.dead_letters(
            tx, caller_of(request).tenant_id, before, by, where.limit
        )
    return where.answer([letter_document(row) for row in found.rows], found.next_before)


async def _groups(
    request: Request, query: Query, by: LetterFilter, group_by: list[str]
) -> Response:
    query.check()
    async with context_of(request).store.transaction() as tx:
        found = await letters.groups(
            tx,
            caller_of(request).tenant_id,
            by,
            reason="reason" in group_by,
            fingerprint="fingerprint" in group_by,
        )
    return json(groups_document(found))


async def get(request: Request) -> Response:
    """One dead letter."""
    key = run_key_of(request, "No dead letter")
    async with context_of(request).store.transaction() as tx:
        row = await letters.dead_letter(tx, key, caller_of(request).tenant_id)
    if row is None:
        raise not_found("No dead letter")
    return json(letter_document(row))


async def discard(request: Request) -> Response:
    """Lay a letter aside for good. One that was discarded before stays as it was."""
    key = run_key_of(request, "No dead letter")
    query = Query(request)
    reason = query.required("reason")
    query.check()
    caller, state = caller_of(request), None
    async with context_of(request).store.transaction() as tx:
        done = await dead_letters.discard(tx, key, caller.tenant_id, caller.key_id, reason)
        row = await letters.dead_letter(tx, key, caller.tenant_id)
        state = None if row is None else row["state"]
        if done:
            await note(tx, request, _DISCARD, ("dead_letter", key), after={"reason": reason})
        elif row is None:
            await denied(tx, request, _DISCARD, ("dead_letter", key))
    if row is None:
        raise not_found("No dead letter")
    if state != "DISCARDED":
        raise Problem(409, "not_dead", "It does not lie there any more: its run was opened again.")
    return json(letter_document(row))
