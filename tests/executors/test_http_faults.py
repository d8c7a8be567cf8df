from __future__ import annotations

import asyncio
import socket
import time
import tracemalloc

import pytest
from msgspec.structs import replace

from noonday.domain.model import Outcome, OutcomeKind
from noonday.executors import Sent
from noonday.executors.http import HttpExecutor
from tests.executors.attempts import attempt
from tests.executors.raw import Handler, dripping, read_request, saying, serving
from tests.support.receivers import Answer, RecordingReceiver

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
MIB = 1024 * 1024


async def call(
    executor: HttpExecutor, handle: Handler, *, timeout_sec: float = 3.0, method: str = "POST"
) -> Outcome:
    """Call a receiver that has read the request; checks that it was called once."""
    sent = Sent()
    async with serving(handle) as server:
        outcome = await executor.execute(
            attempt(server.url, timeout_sec=timeout_sec, method=method), sent
        )
        assert server.connections == 1
    assert sent.maybe
    assert "hook" not in str(outcome.error)
    return outcome


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\x01\x02\r\n\r\n",
        b"<html>an answer of HTTP/0.9</html>",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 1000 Big\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX-Nul: a\x00b\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX-Big: " + b"a" * MIB + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-Many: a\r\n" * 1_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\n" + (b"X-Big: " + b"a" * 100_000 + b"\r\n") * 50 + b"\r\n",
    ],
)
async def test_what_is_no_http_answer_is_transient_and_unknown(
    executor: HttpExecutor, answer: bytes
) -> None:
    outcome = await call(executor, saying(answer))
    assert (outcome.kind, outcome.http_status) == (OutcomeKind.TRANSIENT, None)
    assert outcome.unknown
    assert outcome.error


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort",
        CHUNKED + b"5\r\nhello\r\n",
        CHUNKED + b"nothing\r\nhello\r\n",
    ],
)
async def test_a_success_that_breaks_off_is_unknown(executor: HttpExecutor, answer: bytes) -> None:
    outcome = await call(executor, saying(answer))
    assert (outcome.kind, outcome.http_status) == (OutcomeKind.TRANSIENT, 200)
    assert outcome.unknown
    assert str(outcome.error).endswith("broke off")


async def test_a_broken_chunk_that_comes_later_does_not_hold_the_worker(
    executor: HttpExecutor,
) -> None:
    outcome = await call(executor, dripping(CHUNKED, b"nothing\r\n", 0.01))
    assert (outcome.kind, outcome.unknown) == (OutcomeKind.TRANSIENT, True)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\nbut a body", 204),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", 204),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", 200),
        (b"HTTP/1.0 200 OK\r\n\r\nold", 200),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nlies", 200),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + OK, 200),
        (b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + OK, 200),
        (b"HTTP/1.1 200 OK\r\nX-Big: " + b"a" * 200_000 + b"\r\nContent-Length: 2\r\n\r\nok", 200),
        (b"HTTP/1.1 200 \xff\x1b[31m\r\nX: \xff\r\nContent-Length: 2\r\n\r\nok", 200),
    ],
)
async def test_an_odd_success_is_a_success(
    executor: HttpExecutor, answer: bytes, status: int
) -> None:
    outcome = await call(executor, saying(answer))
    assert replace(outcome, response=None) == Outcome(OutcomeKind.SUCCESS, http_status=status)


async def test_a_final_answer_of_the_1xx_kind_is_transient(executor: HttpExecutor) -> None:
    switching = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n..."
    outcome = await call(executor, saying(switching))
    assert (outcome.kind, outcome.http_status) == (OutcomeKind.TRANSIENT, 101)


@pytest.mark.parametrize(
    ("start", "drop", "status"),
    [
        (b"", b"", None),
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x", None),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", b"x", 200),
        (CHUNKED, b"1\r\nx\r\n", 200),
    ],
)
async def test_one_deadline_covers_the_whole_exchange_however_bytes_drip(
    executor: HttpExecutor, start: bytes, drop: bytes, status: int | None
) -> None:
    began = time.monotonic()
    outcome = await call(executor, dripping(start, drop, 0.02), timeout_sec=0.3)
    assert time.monotonic() - began < 1.3
    assert (outcome.kind, outcome.http_status) == (OutcomeKind.TIMEOUT, status)
    assert outcome.unknown
    assert str(outcome.error).startswith("timed out after 0.3 s w")


async def test_a_failure_stands_however_its_body_ends(executor: HttpExecutor) -> None:
    dripped = dripping(b"HTTP/1.1 422 No\r\nContent-Length: 5000\r\n\r\n", b"x", 0.02)
    outcome = await call(executor, dripped, timeout_sec=0.3)
    assert (outcome.kind, outcome.http_status) == (OutcomeKind.PERMANENT, 422)
    cut = await call(executor, saying(b"HTTP/1.1 410 Gone\r\nContent-Length: 5000\r\n\r\n"))
    assert (cut.kind, cut.unknown) == (OutcomeKind.GONE, False)


@pytest.mark.parametrize(
    ("start", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65_536),
        (CHUNKED, b"10000\r\n" + b"\0" * 65_536 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 314572800\r\n\r\n", b"x" * 65_536),
    ],
)
async def test_a_success_with_an_endless_body_is_a_success_and_takes_little_memory(
    executor: HttpExecutor, start: bytes, drop: bytes
) -> None:
    tracemalloc.start()
    try:
        outcome = await call(executor, dripping(start, drop, 0))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert replace(outcome, response=None) == Outcome(OutcomeKind.SUCCESS, http_status=200)
    assert outcome.response is not None
    assert outcome.response.truncated
    assert len(outcome.response.body) <= 1_000
    assert peak < 2 * MIB


async def test_a_body_that_is_too_long_by_its_own_word_is_not_waited_for(
    executor: HttpExecutor,
) -> None:
    start = b"HTTP/1.1 200 OK\r\nContent-Length: 314572800\r\n\r\n"
    outcome = await call(executor, dripping(start, b"", 1))
    assert outcome == Outcome(OutcomeKind.SUCCESS, http_status=200)


@pytest.mark.parametrize(
    "flood", [b"HTTP/1.1 100 Continue\r\n\r\n" * 500, b"X-More: of the same\r\n" * 500]
)
async def test_an_endless_head_is_cut_off_before_the_deadline(
    executor: HttpExecutor, flood: bytes
) -> None:
    outcome = await call(executor, dripping(b"HTTP/1.1 100 Continue\r\n", flood, 0))
    assert (outcome.kind, outcome.unknown) == (OutcomeKind.TRANSIENT, True)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "GET", "DELETE"])
async def test_a_request_whose_connection_drops_is_unknown_and_is_not_sent_again_by_itself(
    executor: HttpExecutor, receiver: RecordingReceiver, method: str
) -> None:
    receiver.answer("/hook", 200, Answer(drop="before"), 200)
    warm_up = await executor.execute(attempt(f"{receiver.url}/hook", method=method), Sent())
    assert warm_up.kind is OutcomeKind.SUCCESS
    outcome = await executor.execute(attempt(f"{receiver.url}/hook", method=method), Sent())
    assert (outcome.kind, outcome.unknown) == (OutcomeKind.TRANSIENT, True)
    assert str(outcome.error).endswith("closed the connection without an answer")
    assert len(receiver.requests) == 2


async def test_an_answer_to_half_a_body_stands_and_costs_the_connection(
    executor: HttpExecutor,
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
        while await reader.read(65_536):
            pass

    async with serving(refuse) as server:
        for _ in range(2):
            outcome = await executor.execute(attempt(server.url, body=bytes(20 * MIB)), Sent())
            assert (outcome.kind, outcome.http_status) == (OutcomeKind.PERMANENT, 413)
        assert server.connections == 2


async def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next_one(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    asked, said = asyncio.Event(), asyncio.Event()

    async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await asked.wait()
        writer.write(OK)
        said.set()
        await read_request(reader)
        await asyncio.Event().wait()

    async with serving(twice) as server:
        first = await executor.execute(attempt(server.url), Sent())
        asked.set()
        await said.wait()
        # Loopback has delivered it by now; another exchange makes the loop read what it has.
        await executor.execute(attempt(f"{receiver.url}/other"), Sent())
        sent = Sent()
        second = await executor.execute(attempt(server.url, timeout_sec=0.3), sent)
    assert first.kind is OutcomeKind.SUCCESS
    assert (second.kind, second.unknown, sent.maybe) == (OutcomeKind.TRANSIENT, False, False)


async def test_a_refused_connection_is_transient_and_was_sent_nothing(
    executor: HttpExecutor,
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        sent = Sent()
        outcome = await executor.execute(attempt(f"http://127.0.0.1:{port}/hook"), sent)
    assert (outcome.kind, outcome.unknown, sent.maybe) == (OutcomeKind.TRANSIENT, False, False)
    assert outcome.error == f"cannot connect to http://127.0.0.1:{port}: Connection refused"


async def test_waiting_for_a_connection_spends_the_deadline_and_sends_nothing(
    receiver: RecordingReceiver,
) -> None:
    executor = HttpExecutor(allow_private=True, ports=None, limit_per_host=1)
    await executor.open()
    receiver.answer("/held", Answer(hold=True))
    first = asyncio.create_task(executor.execute(attempt(f"{receiver.url}/held"), Sent()))
    await receiver.wait_for(1)
    sent = Sent()
    outcome = await executor.execute(attempt(f"{receiver.url}/other", timeout_sec=0.2), sent)
    assert (outcome.kind, outcome.unknown, sent.maybe) == (OutcomeKind.TIMEOUT, False, False)
    receiver.release()
    assert (await first).kind is OutcomeKind.SUCCESS
    await executor.close()
