"""Request bodies: read up to a limit while they stream in, and only of the type that is read."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar, cast

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from noonday.api import reading
from noonday.api.context import context_of
from noonday.api.headers import field
from noonday.api.problems import Problem, invalid, too_large, unsupported_media_type
from noonday.api.reading import Fault

T = TypeVar("T")

SLOWEST_SEC: Final = 30.0


JSON: Final = ("application/json",)
MERGE_PATCH: Final = (*JSON, "application/merge-patch+json")


async def read(
    request: Request, limit: int, *, optional: bool = False, types: Sequence[str] = JSON
) -> bytes:
    """The body as it was sent; raises a problem when it is too large, too slow or of another type.

    ``optional``: an empty one is fine, whatever its type.
    """
    try:
        body = await _whole(request, limit)
    except ClientDisconnect:
        raise Problem(400, "disconnected", "The body did not come to its end.") from None
    except TimeoutError:
        late = f"The body was not complete within {SLOWEST_SEC:.0f} seconds."
        raise Problem(408, "too_slow", late, headers={"Connection": "close"}) from None
    if not (optional and not body):
        _check_type(request, types)
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


async def _whole(request: Request, limit: int) -> bytes:
    declared = field(request, b"content-length") or ""
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    first = _at_hand(request)
    if first is not None and not first.get("more_body", False):
        return _chunk(first, 0, limit)
    async with asyncio.timeout(SLOWEST_SEC):
        return await _stream(request, first, limit)


def _at_hand(request: Request) -> Message | None:
    """What has come with the head, or None. (Most bodies have, and need no deadline, which would
    cost more than all else about them.)"""
    receiving = cast("Coroutine[Any, Any, Message]", request.receive())
    try:
        receiving.send(None)
    except StopIteration as received:
        return cast("Message", received.value)
    receiving.close()  # it waits, and has taken nothing
    return None


async def _stream(request: Request, message: Message | None, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = message or await request.receive()
        chunks.append(_chunk(message, size, limit))
        size += len(chunks[-1])
        if not message.get("more_body", False):
            return b"".join(chunks)
        message = None


def _chunk(message: Message, before: int, limit: int) -> bytes:
    """A piece of a body; raises when the client has gone, or has sent too much with it."""
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    chunk = cast("bytes", message["body"])
    if before + len(chunk) > limit:
        raise _too_large(limit)
    return chunk


def _too_large(limit: int) -> Problem:
    problem = too_large(limit)
    # The rest is not read, so nothing else can follow on this connection.
    problem.headers["Connection"] = "close"
    return problem


def _check_type(request: Request, types: Sequence[str]) -> None:
    kind, _, parameters = (field(request, b"content-type") or "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if kind.strip().lower() not in types or charset not in ("", "charset=utf-8"):
        raise unsupported_media_type(" or ".join(types))
    if (field(request, b"content-encoding") or "identity").lower() != "identity":
        raise Problem(
            415,
            "unsupported_media_type",
            "A body with a Content-Encoding is not read here.",
            headers={"Accept-Encoding": "identity"},
        )
