"""Calls webhooks: one signed request for each attempt, in one deadline, to vetted addresses."""

from __future__ import annotations

import asyncio
import io
import socket
import ssl
import traceback
from collections.abc import Collection
from functools import lru_cache
from typing import Final, NamedTuple

import aiohttp
import structlog
from yarl import URL

from noonday.domain.model import Attempt, Outcome, OutcomeKind
from noonday.domain.target import WEB_PORTS, forbidden, parse_url
from noonday.executors.addresses import GetAddrInfo, Resolver
from noonday.executors.answers import answered, crashed, failed, timed_out
from noonday.executors.headers import Refused, customer_headers, own_headers
from noonday.executors.sending import Sent
from noonday.executors.wire import SENDING, Connector, Sending, new_session

MAX_BODY_READ: Final = 64 * 1024
"""No more is read of an answer's body; a longer one costs the connection, not the success."""
_WRITTEN_AT_ONCE: Final = 1024 * 1024

log = structlog.get_logger()


class _Place(NamedTuple):
    """A target's URL, ready to call, and the part of it that may be shown."""

    url: URL
    origin: str


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
        self._resolver: Resolver
        self._session: aiohttp.ClientSession

    async def open(self) -> None:
        """Make ready to call, on the running event loop."""
        allow = self._allow_private
        self._resolver = Resolver(allow_private=allow, getaddrinfo=self._getaddrinfo)
        self._session = new_session(Connector(self._resolver, allow_private=allow, **self._options))

    async def close(self) -> None:
        """Close all connections, those in use too."""
        await self._session.close()
        await self._resolver.close()

    async def execute(self, attempt: Attempt, sent: Sent) -> Outcome:
        """Call the target once and say what came of it. Raises nothing but CancelledError."""
        try:
            return await self._call(attempt, sent)
        except Refused as refusal:
            return refusal.outcome
        except Exception as error:
            # Frames and class only: the text of a client's exception can hold the whole URL.
            log.error(
                "attempt.crashed",
                run_id=str(attempt.run),
                error=type(error).__name__,
                frames="".join(traceback.format_tb(error.__traceback__)),
            )
            return crashed(error, maybe_sent=sent.maybe)

    async def _call(self, attempt: Attempt, sent: Sent) -> Outcome:
        if not attempt.secrets:
            raise Refused(OutcomeKind.BAD_PAYLOAD, "there is no secret to sign with")
        place = self._place(attempt.target.url)
        headers = customer_headers(attempt)
        SENDING.set(Sending(attempt, own_headers(attempt), sent))
        answer: Outcome | None = None
        try:
            async with asyncio.timeout(attempt.target.timeout_sec) as deadline:
                response = await self._session.request(
                    attempt.target.method,
                    place.url,
                    data=_data(attempt.body),
                    headers=headers,
                    allow_redirects=False,
                )
                try:
                    answer = answered(response.status, response.headers.getall("Retry-After", ()))
                    await _read_on(response)
                finally:
                    response.close()
        except Exception as error:
            if answer is not None and answer.kind is not OutcomeKind.SUCCESS:
                return answer  # A failure stands, however its body ends.
            if deadline.expired():
                return timed_out(attempt.target.timeout_sec, answer, maybe_sent=sent.maybe)
            fault = failed(error, place.origin, answer, maybe_sent=sent.maybe)
            if fault is None:
                raise
            return fault
        return answer

    def _find(self, url: str) -> _Place:
        try:
            endpoint = parse_url(url)
        except ValueError as fault:
            raise Refused(OutcomeKind.BAD_PAYLOAD, f"the target's URL {fault}") from None
        reason = forbidden(endpoint, allow_private=self._allow_private, ports=self._ports)
        if reason is not None:
            raise Refused(OutcomeKind.BLOCKED, f"blocked: {reason}")
        return _Place(URL(endpoint.origin + endpoint.resource, encoded=True), endpoint.origin)


def _data(body: bytes) -> bytes | io.BytesIO | None:
    """Big bodies go out piece by piece, so that other attempts get their turn."""
    if len(body) > _WRITTEN_AT_ONCE:
        return io.BytesIO(body)
    return body or None


async def _read_on(response: aiohttp.ClientResponse) -> None:
    """Read the body to its end, so that the connection can be used again, or to the limit."""
    room = MAX_BODY_READ
    if (response.content_length or 0) > room:
        return
    while room > 0 and (chunk := await response.content.readany()):
        room -= len(chunk)
