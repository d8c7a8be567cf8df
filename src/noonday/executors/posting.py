"""Posts a notice to the operator's own URL: one small request, one deadline, no surprises."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

import aiohttp
from yarl import URL

from noonday.executors.addresses import Resolver
from noonday.executors.wire import Connector

TIMEOUT_SEC: Final = 10.0


class Poster:
    """Posts JSON to ``url``, which may lie in a private network, but not at a metadata address.

    ``authorization`` is sent as the header of this name. Neither is ever shown: both may be
    secrets.
    """

    def __init__(
        self, url: str, authorization: str | None = None, *, timeout_sec: float = TIMEOUT_SEC
    ) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json", "User-Agent": "noonday"}
        if authorization is not None:
            self._headers["Authorization"] = authorization
        self._timeout_sec = timeout_sec

    async def post(self, body: bytes) -> str | None:
        """None when the answer was 2xx, else why not. Raises nothing but CancelledError."""
        try:
            async with asyncio.timeout(self._timeout_sec):
                status = await self._post(body)
        except TimeoutError:
            return f"no answer within {self._timeout_sec:g} s"
        except Exception as error:
            # Its class only: the text can hold the whole URL.
            return f"cannot be reached ({type(error).__name__})"
        return None if 200 <= status < 300 else f"answered {status}"

    async def _post(self, body: bytes) -> int:
        resolver = Resolver(allow_private=True, getaddrinfo=socket.getaddrinfo)
        connector = Connector(resolver, allow_private=True)
        try:
            async with aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            ) as session:
                request = session.post(
                    URL(self._url), data=body, headers=self._headers, allow_redirects=False
                )
                async with request as response:
                    return response.status
        finally:
            await resolver.close()
