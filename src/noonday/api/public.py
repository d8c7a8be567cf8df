"""What needs no key: that the process answers, and what the API is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from noonday.api import openapi as description
from noonday.api import reference
from noonday.api.routes import Route


class Description:
    """What the API is, written once it is asked for."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes

    @cached_property
    def document(self) -> bytes:
        """For programs."""
        return description.document(self._routes)

    @cached_property
    def page(self) -> bytes:
        """For people."""
        return reference.page(self._routes)


async def healthz(_: Request) -> Response:
    """The process answers; says nothing about the database."""
    return PlainTextResponse("ok\n")


async def openapi(request: Request) -> Response:
    """The OpenAPI document."""
    return Response(request.app.state.description.document, media_type="application/json")


async def docs(request: Request) -> Response:
    """The same as a page."""
    page = request.app.state.description.page
    return Response(page, headers=reference.HEADERS, media_type="text/html")
