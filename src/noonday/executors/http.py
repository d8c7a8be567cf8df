"""Calls webhooks: one signed request for each attempt, in one deadline, to vetted addresses."""

from __future__ import annotations

import asyncio
import socket
import ssl
import traceback
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import NamedTuple, cast

import structlog
from msgspec.structs import replace
from yarl import URL

from noonday.domain.model import Attempt, Outcome, OutcomeKind
from noonday.domain.target import WEB_PORTS, forbidden, parse_url
from noonday.executors.addresses import GetAddrInfo, Resolver
from noonday.executors.answers import answered, crashed, failed, timed_out
from noonday.executors.cancelling import cancel_attempt, cancel_headers
from noonday.executors.excerpts import Body, excerpt
from noonday.executors.headers import Refused, customer_headers, lines, own_headers
from noonday.executors.sending import Sent, now
from noonday.executors.signing import sign
from noonday.executors.wire import Connector, Destination, Response, Wire

OwnHeaders = Callable[[Attempt], dict[str, str]]

log = structlog.get_logger()


class _Place(NamedTuple):
    """A target's URL, ready to call, and the part of it that may be shown."""

    destination: Destination
    opening: str
    """The rest of a request's first line, and its first header."""
    origin: str


class _Exchange:
    """One request and its answer, as far as they got."""

    __slots__ = ("answer", "body", "own", "response")

    def __init__(self, own: dict[str, str]) -> None:
        self.own = own
        """Our headers; the signatures too, once it is sent."""
        self.answer: Outcome | None = None
        self.body = Body()
        self.response: Response | None = None

    @property
    def stands(self) -> bool:
        """Whether the answer holds, however its body ends: a failure does, and a success of whose
        body enough was read."""
        if self.answer is None:
            return False
        return self.answer.kind is not OutcomeKind.SUCCESS or self.body.needless


class HttpExecutor:
    """The executor of webhooks, many at a time over one set of connections.

    Args:
        allow_private: Also call loopback, private and carrier-grade NAT addresses.
        ports: The ports that may be called; None allows any.
        limit: Connections at once in all, 0 for no limit. Waiting for one spends the deadline.
        limit_per_host: The same for each scheme, host and port.
        ssl_context: Whom to trust; by default the system's certificate authorities.
        getaddrinfo: Resolves names, as ``socket.getaddrinfo`` does.
    """

    def __init__(
        self,
        *,
        allow_private: bool = False,
        ports: Collection[int] | None = WEB_PORTS,
        limit: int = 1_000,
        limit_per_host: int = 0,
        ssl_context: ssl.SSLContext | None = None,
        getaddrinfo: GetAddrInfo = socket.getaddrinfo,
    ) -> None:
        self._allow_private = allow_private
        self._ports = ports
        self._options = {
            "limit": limit,
            "limit_per_host": limit_per_host,
            "ssl": True if ssl_context is None else ssl_context,
        }
        self._getaddrinfo = getaddrinfo
        self._place = lru_cache(4_096)(self._find)
        self._destination = lru_cache(4_096)(Destination)
        self._resolver: Resolver
        self._connector: Connector

    async def open(self) -> None:
        """Make ready to call, on the running event loop."""
        allow = self._allow_private
        self._resolver = Resolver(allow_private=allow, getaddrinfo=self._getaddrinfo)
        self._connector = Connector(self._resolver, allow_private=allow, **self._options)

    async def close(self) -> None:
        """Close all connections, those in use too."""
        await self._connector.close()
        await self._resolver.close()

    async def execute(self, attempt: Attempt, sent: Sent) -> Outcome:
        """Call the target once and say what came of it. Raises nothing but CancelledError."""
        return await self._safely(attempt, own_headers, sent)

    async def cancel(self, attempt: Attempt, url: str, reason: str = "") -> Outcome:
        """Tell ``url`` that the attempt was cut off. Raises nothing but CancelledError."""
        return await self._safely(cancel_attempt(attempt, url, reason), cancel_headers, Sent())

    async def _safely(self, attempt: Attempt, own: OwnHeaders, sent: Sent) -> Outcome:
        try:
            return await self._call(attempt, own(attempt), sent)
        except Refused as refusal:
            return refusal.outcome
        except Exception as error:
            _report(attempt, error)
            return crashed(error, maybe_sent=sent.maybe)

    async def _call(self, attempt: Attempt, own: dict[str, str], sent: Sent) -> Outcome:
        if not attempt.secrets:
            raise Refused(OutcomeKind.BAD_PAYLOAD, "there is no secret to sign with")
        place = self._place(attempt.target.url)
        given = customer_headers(attempt)
        exchange = _Exchange(own)
        outcome: Outcome | None
        try:
            async with asyncio.timeout(attempt.target.timeout_sec) as deadline:
                outcome = await self._exchange(attempt, place, given, exchange, sent)
        except Exception as error:
            answer = exchange.answer
            if exchange.stands:
                outcome = answer
            elif deadline.expired():
                outcome = timed_out(attempt.target.timeout_sec, answer, maybe_sent=sent.maybe)
            else:
                outcome = failed(error, place.origin, answer, maybe_sent=sent.maybe)
            if outcome is None:
                raise
        return _with_excerpt(outcome, exchange, attempt)

    async def _exchange(
        self, attempt: Attempt, place: _Place, given: str, exchange: _Exchange, sent: Sent
    ) -> Outcome:
        connection = await self._connector.reach(place.destination)
        rest: asyncio.Task[None] | None = None
        try:
            wire = cast("Wire", connection.protocol)
            wire.expect_answer()
            # Signed as of now: to get a connection can take long.
            exchange.own |= sign(attempt, exchange.own, int(now(attempt)))
            head = f"{attempt.target.method} {place.opening}{given}{lines(exchange.own)}\r\n"
            data = head.encode("ascii")
            sent.maybe = True
            rest = wire.send(data, attempt.body)
            exchange.response = response = await wire.answer()
            exchange.answer = answer = answered(
                response.status, response.headers, lambda: now(attempt)
            )
            await exchange.body.read(response)
            if rest is None or rest.done():
                connection.release()
            return answer
        finally:
            if rest is not None:
                rest.cancel()
            connection.close()

    def _find(self, url: str) -> _Place:
        try:
            endpoint = parse_url(url)
        except ValueError as fault:
            raise Refused(OutcomeKind.BAD_PAYLOAD, f"the target's URL {fault}") from None
        reason = forbidden(endpoint, allow_private=self._allow_private, ports=self._ports)
        if reason is not None:
            raise Refused(OutcomeKind.BLOCKED, f"blocked: {reason}")
        destination = self._destination(URL(endpoint.origin, encoded=True))
        opening = f"{endpoint.resource} HTTP/1.1\r\nHost: {endpoint.authority}\r\n"
        return _Place(destination, opening, endpoint.origin)


def _with_excerpt(outcome: Outcome, exchange: _Exchange, attempt: Attempt) -> Outcome:
    """What is kept of the answer is a convenience: no fault in it may change the outcome."""
    if exchange.response is None:
        return outcome
    try:
        kept = excerpt(exchange.response, exchange.body, attempt, exchange.own)
    except Exception as error:
        _report(attempt, error)
        return outcome
    return outcome if kept is None else replace(outcome, response=kept)


def _report(attempt: Attempt, error: Exception) -> None:
    # Frames and class only: the text of a client's exception can hold the whole URL.
    log.error(
        "attempt.crashed",
        run_id=str(attempt.run),
        error=type(error).__name__,
        frames="".join(traceback.format_tb(error.__traceback__)),
    )
