"""The address guard: names are resolved once, every address is judged, the last one again.

Lookups run in threads of their own, few at once for any one domain, so that slow name servers
hold up nobody else. A lookup that nobody waits for any more is not begun.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Final
from weakref import WeakValueDictionary

from aiohttp import AddrInfoType
from aiohttp.abc import AbstractResolver, ResolveResult

from noonday.domain.addresses import blocked_reason

KEPT_SEC: Final = 5.0
KEPT_NAMES: Final = 10_000
AT_ONCE: Final = 64
AT_ONCE_PER_DOMAIN: Final = 4

KEEPALIVE: Final = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 60),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 15),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
)
"""Seconds of silence before a peer is asked whether it is there, then how often, how many times."""

GetAddrInfo = Callable[..., list[Any]]


class BlockedAddress(OSError):
    """The address may not be called. An ``OSError``, as connectors expect of their sockets."""


def guard(address: str, *, allow_private: bool) -> None:
    """Raise BlockedAddress unless ``address``, the text of an IP address, may be called."""
    if reason := blocked_reason(ip_address(address), allow_private=allow_private):
        raise BlockedAddress(reason)


def guarded_socket(info: AddrInfoType, *, allow_private: bool) -> socket.socket:
    """A socket for exactly this address, judged in the last moment before it is connected."""
    family, kind, protocol, _, address = info
    guard(address[0], allow_private=allow_private)
    made = socket.socket(family, kind, protocol)
    # An attempt may take a day: who is gone is noticed in two minutes, and who only translates
    # addresses on the way does not forget the connection.
    for level, name, value in KEEPALIVE:
        if hasattr(socket, name):
            made.setsockopt(level, getattr(socket, name), value)
    return made


class _Lookup:
    """One name being resolved, for all who wait for it."""

    def __init__(self) -> None:
        self.waiting = 0
        self.begun = False
        self.task: asyncio.Task[list[str]]


class Resolver(AbstractResolver):
    """Resolves names to addresses that may all be called, and keeps them for a short time.

    A name with even one blocked address is refused: mixing both kinds is a way around guards.
    """

    def __init__(
        self, *, allow_private: bool = False, getaddrinfo: GetAddrInfo = socket.getaddrinfo
    ) -> None:
        self._allow_private = allow_private
        self._getaddrinfo = getaddrinfo
        self._kept: dict[str, tuple[float, list[str]]] = {}
        self._lookups: dict[str, _Lookup] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._domains: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of ``host``. OSError: it has none, or (BlockedAddress) a blocked one."""
        now = asyncio.get_running_loop().time()
        until, addresses = self._kept.get(host, (now, []))
        if until <= now:
            addresses = await self._look_up(host)
        for address in addresses:
            guard(address, allow_private=self._allow_private)
        return [_result(host, address, port) for address in addresses]

    async def close(self) -> None:
        """Wait for nobody: a thread that still asks a name server ends by itself."""
        for lookup in self._lookups.values():
            lookup.task.cancel()

    async def _look_up(self, host: str) -> list[str]:
        lookup = self._lookups.get(host) or self._begin(host)
        lookup.waiting += 1
        try:
            return await asyncio.shield(lookup.task)
        finally:
            lookup.waiting -= 1
            if not lookup.waiting and not lookup.begun:
                self._forget(host, lookup)
                lookup.task.cancel()

    def _begin(self, host: str) -> _Lookup:
        lookup = self._lookups[host] = _Lookup()
        lookup.task = asyncio.create_task(self._ask(host, lookup))
        lookup.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return lookup

    async def _ask(self, host: str, lookup: _Lookup) -> list[str]:
        # The last two labels stand for whoever runs the name servers.
        domain = ".".join(host.rstrip(".").split(".")[-2:])
        if (gate := self._domains.get(domain)) is None:
            gate = self._domains[domain] = asyncio.Semaphore(AT_ONCE_PER_DOMAIN)
        try:
            async with gate, self._slots:
                lookup.begun = True
                infos = await _in_thread(
                    self._getaddrinfo, host, None, 0, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG
                )
        finally:
            self._forget(host, lookup)
        return self._keep(host, list(dict.fromkeys(info[4][0] for info in infos)))

    def _forget(self, host: str, lookup: _Lookup) -> None:
        if self._lookups.get(host) is lookup:
            del self._lookups[host]

    def _keep(self, host: str, addresses: list[str]) -> list[str]:
        if len(self._kept) >= KEPT_NAMES:
            self._kept.clear()
        self._kept[host] = asyncio.get_running_loop().time() + KEPT_SEC, addresses
        return addresses


def _result(host: str, address: str, port: int) -> ResolveResult:
    return ResolveResult(
        hostname=host,
        host=address,
        port=port,
        family=socket.AF_INET6 if ":" in address else socket.AF_INET,
        proto=0,
        flags=socket.AI_NUMERICHOST,
    )


async def _in_thread(call: GetAddrInfo, *args: object) -> list[Any]:
    """Run ``call`` in a daemon thread: an executor's threads would hold up the process's exit."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Any]] = loop.create_future()

    def settle(give: Callable[[Any], None], what: object) -> None:
        if not answer.done():
            give(what)

    def run() -> None:
        give: Callable[[Any], None] = answer.set_result
        try:
            what: object = call(*args)
        except Exception as error:
            give, what = answer.set_exception, error
        with suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(settle, give, what)

    threading.Thread(target=run, name="noonday-dns", daemon=True).start()
    return await answer
