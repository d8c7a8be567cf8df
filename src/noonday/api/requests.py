"""Around every request: its id, how long it took, and an answer even when a handler crashes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from noonday.api import headers
from noonday.api.problems import HANDLERS, crashed, respond
from noonday.telemetry import Metrics

NO_ROUTE: Final = "none"

log = structlog.get_logger("noonday.api")


Endpoint = Callable[[Request], Awaitable[Response]]


class Requests:
    """Plain ASGI, since it is on the way of every request.

    ``straight`` has the endpoints that are found by method and path alone; ``app`` looks for all
    others, and answers for those that are not there.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, straight: Mapping[tuple[str, str], Endpoint]
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._straight = straight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at = time.perf_counter()
        state = scope.setdefault("state", {})
        given = headers.fields(scope).get(b"x-request-id", b"").decode("latin-1")
        request_id = headers.request_id(given)
        state["request_id"] = request_id
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"].append((b"x-request-id", request_id.encode()))
            await send(message)

        try:
            endpoint = self._straight.get((scope["method"], scope["path"]))
            if endpoint is None:
                await self._app(scope, receive, sending)
            else:
                response = await _answer(endpoint, Request(scope, receive, sending))
                await response(scope, receive, sending)
        except Exception:
            log.exception(
                "request.failed", request_id=request_id, method=scope["method"],
                route=state.get("route", NO_ROUTE),
            )  # fmt: skip
            if status:  # half an answer is out: the connection has to end
                raise
            await respond(crashed(), request_id)(scope, receive, sending)
        finally:
            took = time.perf_counter() - started_at
            route = state.get("route", NO_ROUTE)
            self._metrics.requested(route, scope["method"], status, took)


async def _answer(endpoint: Endpoint, request: Request) -> Response:
    try:
        return await endpoint(request)
    except tuple(HANDLERS) as error:
        handler = next(HANDLERS[kind] for kind in type(error).__mro__ if kind in HANDLERS)
        return await handler(request, error)
