"""Request bodies: read up to a limit while they stream in, and only of the type that is read."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar, cast

from starlette.requests import ClientDisconnect, Request

from noonday.api import reading
from noonday.api.context import context_of
from noonday.api.headers import field
from noonday.api.problems import Problem, invalid, too_large, unsupported_media_type
from noonday.api.reading import Fault

T = TypeVar("T")

SLOWEST_SEC: Final = 30.0


async def read(request: Request, limit: int, *, optional: bool = False) -> bytes:
    """The body as it was sent; raises a problem when it is too large, too slow or of another type.

    ``optional``: an empty one is fine, whatever its type.
    """
    try:
        async with asyncio.timeout(SLOWEST_SEC):
            body = await _stream(request, limit)
    except ClientDisconnect:
        raise Problem(400, "disconnected", "The body did not come to its end.") from None
    except TimeoutError:
        late = f"The body was not complete within {SLOWEST_SEC:.0f} seconds."
        raise Problem(408, "too_slow", late, headers={"Connection": "close"}) from None
    if not (optional and not body):
        _check_type(request)
    return body


async def parsed(request: Request, kind: type[T], *, optional: bool = False) -> T:
    """The body as a value; raises a problem with all that is wrong with it.

    ``optional``: an empty one stands for all defaults.
    """
    document = await read(request, context_of(request).body_limit, optional=optional)
    value = reading.read(document, kind) if document or not optional else kind()
    if isinstance(value, list):
        raise invalid(cast("list[Fault]", value))
    return value


async def _stream(request: Request, limit: int) -> bytes:
    declared = field(request, b"content-length") or ""
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large(limit: int) -> Problem:
    problem = too_large(limit)
    # The rest is not read, so nothing else can follow on this connection.
    problem.headers["Connection"] = "close"
    return problem


def _check_type(request: Request) -> None:
    kind, _, parameters = (field(request, b"content-type") or "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise unsupported_media_type()
    if (field(request, b"content-encoding") or "identity").lower() != "identity":
        raise Problem(
            415,
            "unsupported_media_type",
            "A body with a Content-Encoding is not read here.",
            headers={"Accept-Encoding": "identity"},
        )
