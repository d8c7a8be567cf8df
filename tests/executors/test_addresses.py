from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from yarl import URL

from noonday.domain.model import Outcome, OutcomeKind
from noonday.executors import Sent
from noonday.executors.addresses import (
    AT_ONCE_PER_DOMAIN,
    BlockedAddress,
    Resolver,
    guarded_socket,
)
from noonday.executors.http import HttpExecutor
from noonday.executors.wire import Connector, Destination
from tests.executors.attempts import attempt
from tests.executors.names import resolving
from tests.executors.raw import RawServer, saying, serving
from tests.executors.spellings import INTERNAL_HOSTS, MALFORMED
from tests.support.receivers import RecordingReceiver

PUBLIC = "93.184.215.14"


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture
async def internal() -> AsyncIterator[RawServer]:
    """A listener that nobody must reach, on the addresses of loopback."""
    host = "::" if has_ipv6() else "0.0.0.0"
    async with serving(saying(b"HTTP/1.1 200 OK\r\n\r\n"), host=host) as server:
        yield server
        assert server.connections == 0


@pytest.fixture
async def guarded() -> AsyncIterator[HttpExecutor]:
    executor = HttpExecutor(ports=None)
    await executor.open()
    yield executor
    await executor.close()


async def test_no_spelling_of_an_internal_address_reaches_a_listener(
    internal: RawServer, guarded: HttpExecutor
) -> None:
    assert len(INTERNAL_HOSTS) + len(MALFORMED) > 200
    for host in INTERNAL_HOSTS:
        sent = Sent()
        outcome = await guarded.execute(attempt(f"http://{host}:{internal.port}/"), sent)
        assert (outcome.kind, outcome.unknown, sent.maybe) == (OutcomeKind.BLOCKED, False, False)
        assert str(outcome.error).startswith("blocked: the address is not allowed (")
    for url in MALFORMED:
        outcome = await guarded.execute(attempt(url), Sent())
        assert outcome.kind is OutcomeKind.BAD_PAYLOAD


async def test_a_port_that_is_not_allowed_is_not_called() -> None:
    executor = HttpExecutor(allow_private=True)
    await executor.open()
    async with RecordingReceiver() as receiver:
        outcome = await executor.execute(attempt(receiver.url), Sent())
        assert outcome == Outcome(
            OutcomeKind.BLOCKED, error=f"blocked: port {receiver.port} is not allowed"
        )
        assert receiver.connections == 0
    await executor.close()


@pytest.mark.parametrize(
    "addresses",
    [
        ("127.0.0.1",),
        ("::1",),
        ("0.0.0.0",),
        ("::ffff:127.0.0.1",),
        ("::ffff:7f00:1",),
        ("64:ff9b::7f00:1",),
        ("10.0.0.1",),
        ("169.254.169.254",),
        ("fd00:ec2::254",),
        ("fe80::1%1",),
        (PUBLIC, "127.0.0.1"),
        ("127.0.0.1", PUBLIC),
        (PUBLIC, "::1", "2606:4700:4700::1111"),
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_name_with_any_internal_address_is_blocked_and_nothing_connects(
    internal: RawServer, addresses: tuple[str, ...], scheme: str
) -> None:
    executor = HttpExecutor(ports=None, getaddrinfo=resolving(*addresses))
    await executor.open()
    sent = Sent()
    url = f"{scheme}://public.example:{internal.port}/hook"
    outcome = await executor.execute(attempt(url, timeout_sec=2), sent)
    assert (outcome.kind, outcome.unknown, sent.maybe) == (OutcomeKind.BLOCKED, False, False)
    assert str(outcome.error).startswith("blocked: the address is not allowed (")
    await executor.close()


@pytest.mark.parametrize("address", ["127.1", "2130706433", "0x7f.1", "localhost", "", "::1%lo%lo"])
async def test_a_name_that_resolves_to_nonsense_does_not_connect(
    internal: RawServer, address: str
) -> None:
    executor = HttpExecutor(allow_private=True, ports=None, getaddrinfo=resolving(address))
    await executor.open()
    sent = Sent()
    outcome = await executor.execute(attempt(f"http://a.example:{internal.port}/"), sent)
    assert (outcome.kind, outcome.unknown, sent.maybe) == (OutcomeKind.TRANSIENT, False, False)
    await executor.close()


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        UnicodeError("label too long"),
    ],
)
async def test_a_name_that_does_not_resolve_is_transient_and_was_sent_nothing(
    error: Exception,
) -> None:
    def getaddrinfo(*_: object) -> list[Any]:
        raise error

    executor = HttpExecutor(getaddrinfo=getaddrinfo)
    await executor.open()
    sent = Sent()
    outcome = await executor.execute(attempt("http://nowhere.example/?token=TOKEN"), sent)
    assert (outcome.kind, outcome.unknown, sent.maybe) == (OutcomeKind.TRANSIENT, False, False)
    assert "TOKEN" not in str(outcome.error)
    if isinstance(error, OSError):
        assert (
            outcome.error
            == f"the host of http://nowhere.example cannot be resolved: {error.strerror}"
        )
    await executor.close()


async def test_the_receiver_sees_the_name_that_was_called_not_the_address(
    receiver: RecordingReceiver,
) -> None:
    executor = HttpExecutor(allow_private=True, ports=None, getaddrinfo=resolving("127.0.0.1"))
    await executor.open()
    outcome = await executor.execute(attempt(f"http://Hooks.Example:{receiver.port}/a"), Sent())
    assert outcome.kind is OutcomeKind.SUCCESS
    assert receiver.requests[0]["Host"] == f"hooks.example:{receiver.port}"
    await executor.close()


async def test_the_connector_itself_refuses_an_address_that_no_name_led_to(
    internal: RawServer,
) -> None:
    connector = Connector(Resolver(), allow_private=False)
    for host in ("127.0.0.1", "[::ffff:127.0.0.1]", "[::1]"):
        with pytest.raises(aiohttp.ClientConnectorError) as caught:
            await connector.reach(Destination(URL(f"http://{host}:{internal.port}")))
        assert isinstance(caught.value.os_error, BlockedAddress)
    await connector.close()
    assert internal.connections == 0


def test_the_final_address_is_judged_once_more_just_before_it_is_connected() -> None:
    for address in ("127.0.0.1", "169.254.169.254"):
        info = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80))
        with pytest.raises(BlockedAddress):
            guarded_socket(info, allow_private=False)
    with guarded_socket(
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (PUBLIC, 80)), allow_private=False
    ) as made:
        assert made.family is socket.AF_INET
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


async def test_a_name_is_looked_up_once_for_all_who_ask_and_remembered_for_a_short_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    answers = resolving(PUBLIC)

    def getaddrinfo(host: str, *_: object) -> list[Any]:
        asked.append(host)
        return answers(host)

    resolver = Resolver(getaddrinfo=getaddrinfo)
    found = await asyncio.gather(*(resolver.resolve("a.example", 443) for _ in range(20)))
    assert {(result["host"], result["port"]) for (result,) in found} == {(PUBLIC, 443)}
    await resolver.resolve("a.example", 80)
    assert asked == ["a.example"]
    monkeypatch.setattr("noonday.executors.addresses.KEPT_SEC", 0)
    await resolver.resolve("b.example")
    await resolver.resolve("b.example")
    assert asked == ["a.example", "b.example", "b.example"]


async def test_a_name_that_turns_to_an_internal_address_is_refused_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("noonday.executors.addresses.KEPT_SEC", 0)
    addresses = iter([PUBLIC, "127.0.0.1"])
    resolver = Resolver(getaddrinfo=lambda host, *_: resolving(next(addresses))(host))
    await resolver.resolve("rebound.example")
    with pytest.raises(BlockedAddress):
        await resolver.resolve("rebound.example")


async def test_slow_names_end_at_their_deadline_and_hold_up_no_other_domain(
    receiver: RecordingReceiver,
) -> None:
    answer_now = threading.Event()
    asked: list[str] = []

    def getaddrinfo(host: str, *_: object) -> list[Any]:
        asked.append(host)
        if host.endswith("slow.example"):
            answer_now.wait(20)
        return resolving("127.0.0.1")(host)

    executor = HttpExecutor(allow_private=True, ports=None, getaddrinfo=getaddrinfo)
    await executor.open()
    try:
        slow = [
            asyncio.create_task(
                executor.execute(attempt(f"http://n{place}.slow.example/", timeout_sec=0.3), Sent())
            )
            for place in range(200)
        ]
        await asyncio.sleep(0)
        quick = await executor.execute(
            attempt(f"http://quick.test:{receiver.port}/", timeout_sec=0.3), Sent()
        )
        assert quick.kind is OutcomeKind.SUCCESS
        expected = Outcome(
            OutcomeKind.TIMEOUT, error="timed out after 0.3 s before anything was sent"
        )
        assert set(await asyncio.gather(*slow)) == {expected}
        assert len(asked) == AT_ONCE_PER_DOMAIN + 1
        answer_now.set()
        last = await executor.execute(attempt(f"http://last.slow.example:{receiver.port}/"), Sent())
        assert last.kind is OutcomeKind.SUCCESS
        assert len(asked) == AT_ONCE_PER_DOMAIN + 2  # nobody waits for the others any more
    finally:
        answer_now.set()
        await executor.close()


async def test_a_lookup_that_one_gives_up_on_still_serves_the_others() -> None:
    answer_now = threading.Event()

    def getaddrinfo(host: str, *_: object) -> list[Any]:
        answer_now.wait(20)
        return resolving(PUBLIC)(host)

    resolver = Resolver(getaddrinfo=getaddrinfo)
    first = asyncio.create_task(resolver.resolve("a.example"))
    second = asyncio.create_task(resolver.resolve("a.example"))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    third = asyncio.create_task(resolver.resolve("a.example"))
    answer_now.set()
    assert await second == await third
