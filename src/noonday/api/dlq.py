"""Dead letters: runs that will not be tried again by themselves."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from noonday.api.context import caller_of, context_of
from noonday.api.documents import DeadLetterDocument, maybe, stamp
from noonday.api.ids import run_key_of
from noonday.api.pages import json, place
from noonday.api.problems import not_found
from noonday.api.queries import Query
from noonday.domain.model import Reason
from noonday.store import Row, reports, runs
from noonday.store.reports import LetterFilter, LetterPosition


async def page(request: Request) -> Response:
    """The tenant's dead letters, newest first."""
    query = Query(request)
    by = LetterFilter(
        reason=query.choice("reason", list(Reason)),
        job_id=query.uuid("job_id"),
        target_host=query.text("target_host"),
        dead_from=query.instant("dead_from"),
        dead_to=query.instant("dead_to"),
    )
    where = place(request, query, by)
    before = where.after(LetterPosition) or LetterPosition()
    async with context_of(request).store.transaction() as tx:
        rows = await reports.dead_letters(
            tx, caller_of(request).tenant_id, before, by, where.limit + 1
        )
    return where.answer_rows(
        rows,
        _document,
        lambda row: LetterPosition(
            row["dead_at"], row["job_id"], row["occurrence_at"], row["kind"]
        ),
    )


async def get(request: Request) -> Response:
    """One dead letter."""
    key = run_key_of(request, "No dead letter")
    async with context_of(request).store.transaction() as tx:
        row = await reports.dead_letter(tx, key, caller_of(request).tenant_id)
    if row is None:
        raise not_found("No dead letter")
    return json(_document(row))


def _document(row: Row) -> DeadLetterDocument:
    return DeadLetterDocument(
        id=str(runs.key_of(row)),
        job_id=str(row["job_id"]),
        reason=row["reason"],
        http_status=row["http_status"],
        error=row["error"],
        attempts=row["attempts"],
        target_host=row["target_host"],
        occurrence_at=stamp(row["occurrence_at"]),
        dead_at=stamp(row["dead_at"]),
        replayed_at=maybe(row["replayed_at"]),
    )
