"""Lists: one page, where the next one begins, and the same as a ``Link`` (RFC 8288)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from noonday.api import cursors
from noonday.api.context import caller_of, context_of
from noonday.api.documents import Page
from noonday.api.queries import Query
from noonday.store import Row

Position = TypeVar("Position")

_encode: Final = msgspec.json.Encoder().encode


NEWEST: Final = UUID(int=2**128 - 1)
"""Later than any id that is ordered by time: where a list begins that is read backwards."""


class Place(NamedTuple):
    """Which list is read, and how much of it."""

    request: Request
    of: tuple[Any, ...]
    limit: int

    def after(self, position: type[Position]) -> Position | None:
        """Where the page before ended; None at the beginning."""
        cursor = self.request.query_params.get("cursor")
        if cursor is None:
            return None
        return cursors.decode(context_of(self.request).secretbox, self.of, cursor, position)

    def answer(self, items: list[Any], next_position: tuple[Any, ...] | None) -> Response:
        """The page; ``next_position`` is where the next one begins, None on the last."""
        cursor = None
        headers = {}
        if next_position is not None:
            cursor = cursors.encode(context_of(self.request).secretbox, self.of, next_position)
            url = self.request.url.include_query_params(cursor=cursor)
            headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
        page = Page(data=items, next_cursor=cursor, has_more=cursor is not None)
        return json(page, headers=headers)

    def answer_rows(
        self,
        rows: Sequence[Row],
        show: Callable[[Row], Any],
        position_of: Callable[[Row], tuple[Any, ...]],
    ) -> Response:
        """The page of a list that was read with one row more than the limit."""
        shown = rows[: self.limit]
        more = len(rows) > self.limit
        return self.answer([show(row) for row in shown], position_of(shown[-1]) if more else None)


def place(request: Request, query: Query, *of: Any) -> Place:
    """Which page of which list; ``of`` is all that narrows it. Raises what the query has faults."""
    limit = query.limit()
    query.check()
    whose = caller_of(request).tenant_id
    return Place(request, (request.scope["path"], whose, *of), limit)


def json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer that has a body."""
    return Response(_encode(body), status, headers, "application/json")


def there(row: Row | None) -> Row:
    """A row that this transaction has written."""
    if row is None:
        raise LookupError("a row that was written is not there")
    return row
