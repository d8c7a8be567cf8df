"""Faults that hit users of other schedulers, one by one, against real receivers."""

from __future__ import annotations

import asyncio
import email.utils
import errno
import hashlib
import hmac
import itertools
import socket
import struct
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest

from noonday import receiver as library
from noonday.domain.model import Attempt, Outcome, OutcomeKind, RetryPolicy
from noonday.domain.retry import JITTER, RETRY_AFTER_SLACK, backoff, delay
from noonday.drill.checks.received import Received
from noonday.executors import Sent, wire
from noonday.executors.http import HttpExecutor
from tests.executors.attempts import OLDER_SECRET, SECRET, attempt
from tests.executors.names import resolving
from tests.executors.raw import Handler, read_request, saying, serving
from tests.executors.test_signing import BODIES, verify_standard
from tests.receiver.requests import shown
from tests.support.receivers import Answer, RecordingReceiver

SECOND = timedelta(seconds=1)
POLICY = RetryPolicy(base_sec=5, factor=3)


def ahead(seconds: float) -> str:
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


# --- RTY-01: Retry-After ----------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("values", "shortest", "longest"),
    [
        (["120"], 120, 120),
        (["9999999999"], 7_205, 7_205),
        (["9" * 5_000], 5, 5),
        (["-5"], 5, 5),
        (["0"], 5, 5),
        (["soon"], 5, 5),
        (["1.5"], 5, 5),
        ([ahead(3_600)], 3_000, 3_600),
        ([ahead(-3_600)], 5, 5),
        (["Thu, 31 Dec 2099 23:59:59 GMT"], 7_205, 7_205),
        (["Thu, 31 Dec 99999 23:59:59 GMT"], 5, 5),
        (["60", "7"], 60, 60),
        (["soon", "60"], 60, 60),
        ([""], 5, 5),
        (["\x00"], None, None),
        ([], 5, 5),
    ],
)
async def test_the_next_attempt_is_never_earlier_than_the_backoff_nor_two_hours_later(
    executor: HttpExecutor,
    status: int,
    values: list[str],
    shortest: int | None,
    longest: int | None,
) -> None:
    """RTY-01: all legal forms are honoured, hostile ones end at a ceiling."""
    lines = "".join(f"Retry-After: {value}\r\n" for value in values)
    raw = f"HTTP/1.1 {status} Later\r\n{lines}Content-Length: 0\r\n\r\n".encode()
    async with serving(saying(raw)) as server:
        outcome = await executor.execute(attempt(server.url), Sent())
    assert outcome.kind is OutcomeKind.TRANSIENT
    if shortest is None or longest is None:
        assert (outcome.http_status, outcome.retry_after) == (None, None)
        return
    for chance in (0.0, 0.5, 0.999):
        wait = delay(POLICY, 1, outcome.retry_after, chance)
        own = backoff(POLICY, 1) * (1 + JITTER * chance)
        assert own <= wait <= own + RETRY_AFTER_SLACK
        assert wait >= shortest * SECOND
    assert delay(POLICY, 1, outcome.retry_after, 0.0) <= longest * SECOND


# --- RTY-03: redirects ------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_login_page_behind_a_redirect_is_no_success_and_sees_no_header_of_ours(
    receiver: RecordingReceiver, status: int
) -> None:
    """RTY-03: another host, by name, is not even looked up."""
    asked: list[str] = []

    def getaddrinfo(host: str, *rest: object) -> list[object]:
        asked.append(host)
        return resolving("127.0.0.1")(host, *rest)

    executor = HttpExecutor(allow_private=True, ports=None, getaddrinfo=getaddrinfo)
    await executor.open()
    to = f"http://login.example:{receiver.port}/login"
    receiver.answer("/hook", Answer(status, (("Location", to), ("Refresh", f"0; url={to}"))))
    made = attempt(
        f"http://hooks.example:{receiver.port}/hook", headers={"Authorization": "Bearer abc"}
    )
    outcome = await executor.execute(made, Sent())
    await executor.close()
    assert (outcome.kind, outcome.unknown) == (OutcomeKind.TRANSIENT, False)
    assert "redirect" in str(outcome.error)
    assert [request.path for request in receiver.requests] == ["/hook"]
    assert asked == ["hooks.example"]


# --- RTY-04: one deadline ---------------------------------------------------------------------


async def _never_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def _trickled_line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    for mark in itertools.chain(b"HTTP/1.1 200 OK\r\nX: ", itertools.repeat(120)):
        writer.write(bytes([mark]))
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("handle", "size"), [(_never_read, 20_000_000), (_never_read, 10), (_trickled_line, 10)]
)
async def test_an_upload_that_nobody_takes_and_a_line_that_never_ends_stop_at_the_deadline(
    executor: HttpExecutor, handle: Handler, size: int
) -> None:
    """RTY-04: sending spends the same budget as connecting and reading."""
    async with serving(handle) as server:
        sent = Sent()
        made = attempt(server.url, body=b"x" * size, timeout_sec=0.3)
        outcome = await executor.execute(made, sent)
    assert outcome == Outcome(
        OutcomeKind.TIMEOUT, error="timed out after 0.3 s without an answer", unknown=True
    )
    assert sent.maybe


async def test_receivers_that_hang_keep_no_slot_and_hold_up_nobody_else(
    receiver: RecordingReceiver,
) -> None:
    """RTY-04: 200 that never answer; another one is answered meanwhile, and afterwards all are."""
    executor = HttpExecutor(allow_private=True, ports=None, limit=210, limit_per_host=200)
    await executor.open()
    async with serving(_never_read) as silent:
        hung = [
            asyncio.create_task(executor.execute(attempt(silent.url, timeout_sec=2), Sent()))
            for _ in range(200)
        ]
        quick = await executor.execute(attempt(f"{receiver.url}/hook"), Sent())
        assert quick.kind is OutcomeKind.SUCCESS
        assert not any(task.done() for task in hung)
        kinds = {outcome.kind for outcome in await asyncio.gather(*hung)}
        assert kinds == {OutcomeKind.TIMEOUT}
        made = [attempt(f"{receiver.url}/hook") for _ in range(210)]
        again = await asyncio.gather(*(executor.execute(one, Sent()) for one in made))
        assert {outcome.kind for outcome in again} == {OutcomeKind.SUCCESS}
    await executor.close()


# --- RTY-06 and RTY-07: signatures ------------------------------------------------------------


def verify_by_hand(request: Received, secret: bytes) -> None:
    """The scheduler's signature, by the words of the documentation and not by our code."""
    fields = dict(
        part.partition("=")[::2] for part in request["X-Scheduler-Signature"].split(",")[:2]
    )
    names = ("X-Run-Id", "X-Attempt", "X-Lease-Version", "X-Occurrence")
    content = ".".join(
        [fields["t"], *(request[name] for name in names), hashlib.sha256(request.body).hexdigest()]
    )
    assert hmac.new(secret, content.encode(), hashlib.sha256).hexdigest() == fields["v1"]


@pytest.mark.parametrize("body", [*BODIES, b"\xff\x00 binary", b"x" * 2_000_000])
async def test_every_attempt_sends_the_same_bytes_and_each_verifies(
    executor: HttpExecutor, receiver: RecordingReceiver, body: bytes
) -> None:
    """RTY-06: what is signed is what is sent, over all attempts and a replay."""
    receiver.answer("/hook", 500, 500, 200)
    for number in (1, 2, 3, 4):
        made = attempt(f"{receiver.url}/hook", body=body, number=number, lease_version=2 * number)
        await executor.execute(made, Sent())
    assert {request.body for request in receiver.requests} == {body}
    for request in receiver.requests:
        verify_by_hand(request, SECRET)
        assert library.verify(dict(request.headers), request.body, shown(SECRET))


async def test_retries_hours_apart_and_a_rotation_between_them_verify_within_five_minutes(
    executor: HttpExecutor, receiver: RecordingReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RTY-07: each attempt has its own time and signature, the id stays, both secrets sign."""
    receiver.answer("/hook", *([500] * 5), 200)
    now = time.time()
    clock = SimpleNamespace(time=lambda: now)
    monkeypatch.setattr("noonday.executors.sending.time", clock)
    rotated = (OLDER_SECRET, SECRET)
    secrets = [(SECRET,), (SECRET,), rotated, rotated, (OLDER_SECRET,), (OLDER_SECRET,)]
    times = []
    for number, keys in enumerate(secrets, 1):
        now += (0, 1, 60, 600, 3_600, 86_400)[number - 1]
        times.append(int(now))
        made = attempt(f"{receiver.url}/hook", number=number, lease_version=number, secrets=keys)
        await executor.execute(made, Sent())
    requests = receiver.requests
    assert [int(request["webhook-timestamp"]) for request in requests] == times
    assert len({request["webhook-id"] for request in requests}) == 1
    assert [request.attempt for request in requests] == [1, 2, 3, 4, 5, 6]
    for request, keys, at in zip(requests, secrets, times, strict=True):
        for key in keys:
            said = dict(request.headers)
            assert library.verify(said, request.body, shown(key), now=at, tolerance_sec=5)
            with pytest.raises(library.InvalidSignature):
                library.verify(said, request.body, shown(key), now=at + 301)
    with pytest.raises(library.InvalidSignature):
        library.verify(dict(requests[-1].headers), requests[-1].body, shown(SECRET), now=times[-1])
    verify_standard_now(requests[0], at=times[0])


def verify_standard_now(request: Received, *, at: int) -> None:
    if abs(time.time() - at) < 250:  # that library reads the clock by itself
        names = ("webhook-id", "webhook-timestamp", "webhook-signature")
        verify_standard(SECRET, request.body, {name: request[name] for name in names})


# --- RTY-08: sorting failures -----------------------------------------------------------------


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    writer.transport.abort()


async def _reset_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    _reset(writer)


async def _reset_when_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    _reset(writer)


async def _reset_within(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    _reset(writer)


@pytest.mark.parametrize("handle", [_reset_at_once, _reset_when_read, _reset_within])
@pytest.mark.parametrize("size", [10, 20_000_000])
async def test_a_reset_is_transient_and_unknown_as_soon_as_a_byte_may_have_left(
    executor: HttpExecutor, handle: Handler, size: int
) -> None:
    """RTY-08: reset before, while and after the request is written."""
    async with serving(handle) as server:
        sent = Sent()
        outcome = await executor.execute(attempt(server.url, body=b"x" * size), sent)
    assert outcome.kind is OutcomeKind.TRANSIENT
    assert outcome.error
    assert outcome.unknown == sent.maybe
    assert outcome.response is None


async def test_an_answer_given_before_the_whole_request_was_read_counts(
    executor: HttpExecutor,
) -> None:
    """RTY-08: a 413 that comes within a long upload is a 413, and no lost connection."""

    async def too_large(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await writer.drain()
        while await reader.read(1_000_000):
            pass

    async with serving(too_large) as server:
        made = attempt(server.url, body=b"x" * 20_000_000)
        outcome = await executor.execute(made, Sent())
    assert (outcome.kind, outcome.http_status) == (OutcomeKind.PERMANENT, 413)
    assert outcome.response is not None
    assert outcome.response.body == "big"


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ENETUNREACH", "Network is unreachable"),
        ("EHOSTUNREACH", "No route to host"),
        ("ETIMEDOUT", "Connection timed out"),
    ],
)
async def test_an_address_without_a_way_to_it_is_transient_and_named(
    executor: HttpExecutor, monkeypatch: pytest.MonkeyPatch, name: str, number: str
) -> None:
    """RTY-08: unreachable IPv6, which depends on the network, as the kernel would say it."""

    def refuse(*_: object, **__: object) -> socket.socket:
        raise OSError(getattr(errno, name), number)

    monkeypatch.setattr(wire, "guarded_socket", refuse)
    guarded = HttpExecutor(ports=None)
    await guarded.open()
    sent = Sent()
    outcome = await guarded.execute(attempt("http://[2a00:1450::1]/hook"), sent)
    await guarded.close()
    assert (outcome.kind, outcome.unknown, sent.maybe) == (OutcomeKind.TRANSIENT, False, False)
    assert outcome.error == f"cannot connect to http://[2a00:1450::1]: {number}"


async def test_no_task_dies_of_any_failure_and_the_executor_works_on(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    """RTY-08: after every kind of fault at once, the next attempt is an ordinary one."""
    raws = [b"", b"\xff\xfe", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"]
    raws += [b"HTTP/1.1 200 OK\r\nX: " + b"a" * 1_048_576 + b"\r\n\r\n", b"HTTP/0.9\r\n\r\n"]
    raws += [
        b"HTTP/1.1 999 \xff\r\nContent-Length: 9\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 99,
    ]

    async def one(handle: Handler) -> Outcome:
        async with serving(handle) as server:
            return await executor.execute(made(server.url), Sent())

    def made(url: str) -> Attempt:
        return attempt(url, timeout_sec=2)

    handles = [*map(saying, raws), _reset_at_once, _reset_when_read]
    outcomes = await asyncio.gather(*(one(handle) for handle in handles))
    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.TRANSIENT}
    after = await executor.execute(made(f"{receiver.url}/hook"), Sent())
    assert after.kind is OutcomeKind.SUCCESS
