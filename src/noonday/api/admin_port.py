"""The admin port of every process: alive, ready, and its metrics. Not for the public."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from noonday.telemetry import CONTENT_TYPE

Checks = Callable[[], Awaitable[Mapping[str, str | None]]]
"""What readiness consists of: None is well, text says what is wrong."""


class Check(msgspec.Struct, frozen=True):
    """One thing that readiness consists of."""

    name: str
    ok: bool
    detail: str | None = None


class Readiness(msgspec.Struct, frozen=True):
    """Whether work may be sent here, and what was allowed although it is not safe."""

    ready: bool
    checks: list[Check]
    unsafe: list[str]


def create_admin_app(
    checks: Checks, render_metrics: Callable[[], bytes], unsafe: Sequence[str] = ()
) -> Starlette:
    """``unsafe`` are warnings that ``unsafe_database: allow`` has let pass."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        found = [Check(name, fault is None, fault) for name, fault in (await checks()).items()]
        ready = all(check.ok for check in found)
        body = msgspec.json.encode(Readiness(ready, found, list(unsafe)))
        return Response(body, 200 if ready else 503, media_type="application/json")

    async def metrics(_: Request) -> Response:
        return Response(render_metrics(), media_type=CONTENT_TYPE)

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ]
    )
