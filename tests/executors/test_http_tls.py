from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from noonday.domain.model import Outcome, OutcomeKind
from noonday.executors import Sent
from noonday.executors.http import HttpExecutor
from tests.executors.attempts import attempt
from tests.executors.authority import Authority
from tests.executors.raw import saying, serving
from tests.support.receivers import RecordingReceiver


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
async def trusting(authority: Authority) -> AsyncIterator[HttpExecutor]:
    opened = HttpExecutor(allow_private=True, ports=None, ssl_context=authority.trusted())
    await opened.open()
    yield opened
    await opened.close()


async def call(executor: HttpExecutor, receiver: RecordingReceiver) -> tuple[Outcome, bool]:
    sent = Sent()
    outcome = await executor.execute(
        attempt(f"{receiver.url}/hook?token=TOKEN", timeout_sec=2), sent
    )
    return outcome, sent.maybe


async def test_a_certificate_of_a_trusted_authority_for_the_right_host_is_accepted(
    authority: Authority, trusting: HttpExecutor
) -> None:
    async with RecordingReceiver(tls=authority.serve_as("localhost")) as receiver:
        outcome, _ = await call(trusting, receiver)
        assert outcome == Outcome(OutcomeKind.SUCCESS, http_status=200)
        assert receiver.requests[0]["Host"] == f"localhost:{receiver.port}"


@pytest.mark.parametrize(
    ("host", "until", "self_signed", "named"),
    [
        ("localhost", -timedelta(hours=1), False, "certificate has expired"),
        ("localhost", timedelta(days=30), False, "certificate is not yet valid"),
        ("localhost", timedelta(days=1), True, "self-signed certificate"),
        ("other.example", timedelta(days=1), False, "Hostname mismatch"),
    ],
)
async def test_a_certificate_that_does_not_verify_is_permanent_named_and_sends_nothing(
    authority: Authority,
    trusting: HttpExecutor,
    host: str,
    until: timedelta,
    self_signed: bool,
    named: str,
) -> None:
    tls = authority.serve_as(host, until=until, self_signed=self_signed)
    async with RecordingReceiver(tls=tls) as receiver:
        outcome, sent = await call(trusting, receiver)
        assert outcome.kind is OutcomeKind.PERMANENT
        assert named in str(outcome.error)
        assert "TOKEN" not in str(outcome.error)
        assert (outcome.unknown, sent, receiver.requests) == (False, False, [])


async def test_verification_is_on_by_default(authority: Authority, executor: HttpExecutor) -> None:
    async with RecordingReceiver(tls=authority.serve_as("localhost")) as receiver:
        outcome, sent = await call(executor, receiver)
        assert (outcome.kind, sent, receiver.requests) == (OutcomeKind.PERMANENT, False, [])


async def test_a_receiver_without_tls_is_transient_and_was_sent_nothing(
    trusting: HttpExecutor,
) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    async with serving(plain) as server:
        sent = Sent()
        url = server.url.replace("http:", "https:")
        outcome = await trusting.execute(attempt(url, timeout_sec=2), sent)
        assert (outcome.kind, outcome.unknown) == (OutcomeKind.TRANSIENT, False)
        assert str(outcome.error).startswith("no TLS connection to https://127.0.0.1:")
        assert not sent.maybe


async def test_a_slow_handshake_ends_at_the_deadline_and_was_sent_nothing(
    trusting: HttpExecutor,
) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with serving(silent) as server:
        sent = Sent()
        url = server.url.replace("http:", "https:")
        outcome = await trusting.execute(attempt(url, timeout_sec=0.3), sent)
        assert outcome == Outcome(
            OutcomeKind.TIMEOUT, error="timed out after 0.3 s before anything was sent"
        )
        assert not sent.maybe


async def test_a_hang_up_during_the_handshake_is_transient_and_was_sent_nothing(
    trusting: HttpExecutor,
) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)

    async with serving(hang_up) as server:
        sent = Sent()
        url = server.url.replace("http:", "https:")
        outcome = await trusting.execute(attempt(url, timeout_sec=2), sent)
        assert (outcome.kind, outcome.unknown) == (OutcomeKind.TRANSIENT, False)
        assert not sent.maybe


async def test_an_answer_broken_off_after_the_handshake_is_unknown(
    authority: Authority, trusting: HttpExecutor
) -> None:
    async with serving(saying(b""), tls=authority.serve_as("localhost")) as server:
        sent = Sent()
        url = server.url.replace("http://127.0.0.1", "https://localhost")
        outcome = await trusting.execute(attempt(url, timeout_sec=2), sent)
        assert (outcome.kind, outcome.unknown) == (OutcomeKind.TRANSIENT, True)
        assert sent.maybe
