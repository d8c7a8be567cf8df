"""Around every request: its id, how long it took, and an answer even when a handler crashes."""

from __future__ import annotations

import time
from typing import Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from noonday.api import headers
from noonday.api.problems import Problem, respond
from noonday.telemetry import Metrics

NO_ROUTE: Final = "none"

log = structlog.get_logger("noonday.api")


class Requests:
    """Plain ASGI, since it is on the way of every request."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at = time.perf_counter()
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = headers.request_id(given)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"].append((b"x-request-id", request_id.encode()))
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:
            log.exception(
                "request.failed", request_id=request_id, method=scope["method"],
                route=state.get("route", NO_ROUTE),
            )  # fmt: skip
            if status:  # half an answer is out: the connection has to end
                raise
            problem = Problem(500, "internal", "Something is wrong on this side; it was logged.")
            await respond(problem, request_id)(scope, receive, sending)
        finally:
            took = time.perf_counter() - started_at
            route = state.get("route", NO_ROUTE)
            self._metrics.requested(route, scope["method"], status, took)
