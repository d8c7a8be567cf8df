"""Idempotency keys on the way in: which request it is, and what its answer is.

Compatible with draft-ietf-httpapi-idempotency-key-header-07, except that a key used for another
request is answered with 409. A key is reached for without waiting; who finds it taken tries
again for two seconds, by which time the holder has answered, or failed and let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from noonday.api import headers
from noonday.api.context import caller_of
from noonday.api.problems import Problem
from noonday.domain.errors import CommitUnknown
from noonday.store import Store, Tx, idempotency
from noonday.store.idempotency import Grip, KeyId, Stored, Use

PATIENCE_SEC: Final = 2.0
_FIRST_PAUSE_SEC: Final = 0.01
_LONGEST_PAUSE_SEC: Final = 0.1


class Answer(NamedTuple):
    """What a request was answered with, for the first time or again."""

    status: int
    location: str | None
    body: bytes
    replayed: bool = False

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        """The answer as it is sent, with what else it says of the moment."""
        extra = dict(headers or {})
        if self.location is not None:
            extra["Location"] = self.location
        if self.replayed:
            extra["Idempotent-Replayed"] = "true"
        return Response(self.body, self.status, extra, "application/json")


class Busy(NamedTuple):
    """The key is in other hands; try again."""

    grip: Grip


def use_of(request: Request, route: str, body: bytes) -> Use | None:
    """The key of a request and what it is used for; None without a key."""
    key = headers.idempotency_key(request)
    return None if key is None else use(request, route, key, body)


def use(request: Request, route: str, key: str, body: bytes) -> Use:
    """A key used for ``body``: the same body under another path or type is another request."""
    return uses(request, route)(key, body)


def uses(request: Request, route: str) -> Callable[[str, bytes], Use]:
    """The same for several keys that come in one request, each with a body of its own."""
    tenant_id, beginning = caller_of(request).tenant_id, sha256()
    for part in (
        request.method.encode(),
        request.scope["path"].encode(),
        request.scope["query_string"],
        (headers.field(request, b"content-type") or "").encode(),
    ):
        _add(beginning, part)

    def use(key: str, body: bytes) -> Use:
        seen = beginning.copy()
        _add(seen, body)
        return Use(KeyId(key, tenant_id, route), seen.digest())

    return use


def _add(seen: Any, part: bytes) -> None:
    seen.update(len(part).to_bytes(8))
    seen.update(part)


def judge(kept: Stored, fingerprint: bytes) -> Answer | Problem:
    """The stored answer again, or a conflict when the key was used for another request."""
    if kept.fingerprint != fingerprint:
        return conflict()
    return Answer(kept.status, kept.location, kept.body, replayed=True)


def conflict() -> Problem:
    """The key belongs to another request."""
    return Problem(
        409,
        "idempotency_conflict",
        "This Idempotency-Key was used for another request; take a new key for a new request.",
    )


def refusal(busy: Busy) -> Problem:
    """What to say when the key stays in other hands."""
    if busy.grip is Grip.OTHER:
        return conflict()
    return Problem(
        409,
        "idempotency_in_flight",
        "The first request with this Idempotency-Key is still being carried out.",
        headers={"Retry-After": "1"},
    )


def pauses() -> Iterator[float]:
    """Seconds to wait before each further try; ends when patience does."""
    waited, pause = 0.0, _FIRST_PAUSE_SEC
    while waited < PATIENCE_SEC:
        yield pause
        waited += pause
        pause = min(pause * 2, _LONGEST_PAUSE_SEC)


Execute = Callable[[Tx], Awaitable[Answer | Problem]]
"""A problem that it returns, rather than raises, leaves what it wrote beside in place."""


async def once(store: Store, use: Use | None, execute: Execute) -> Answer:
    """Execute in a transaction of its own and keep the answer; or replay it. Raises problems."""
    waits = pauses()
    unknown = False
    while True:
        result: Answer | Problem | Busy
        try:
            async with store.transaction() as tx:
                result = await execute(tx) if use is None else await _under(tx, use, execute)
        except CommitUnknown:
            # The key tells what became of it.
            if use is None:
                raise
            unknown, result = True, Busy(Grip.SAME)
        if isinstance(result, Answer):
            return result._replace(replayed=result.replayed and not unknown)
        if isinstance(result, Problem):
            raise result
        pause = next(waits, None)
        if pause is None:
            raise refusal(result)
        await asyncio.sleep(pause)


async def _under(tx: Tx, use: Use, execute: Execute) -> Answer | Problem | Busy:
    (grip,) = await idempotency.take(tx, [use])
    if grip is not Grip.MINE:
        return Busy(grip)
    kept = await idempotency.find(tx, [use.id])
    if kept:
        return judge(kept[use.id], use.fingerprint)
    answer = await execute(tx)
    if isinstance(answer, Answer):
        stored = Stored(use.id, use.fingerprint, answer.status, answer.location, answer.body)
        await idempotency.store(tx, [stored], await tx.clock())
    return answer
