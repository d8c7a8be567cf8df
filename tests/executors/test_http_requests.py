from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from noonday import __version__
from noonday.domain.model import Attempt, Outcome, OutcomeKind
from noonday.drill.checks.received import read_log
from noonday.executors import EXECUTORS, Executor, Sent
from noonday.executors.http import HttpExecutor
from tests.executors.attempts import JOB, attempt
from tests.executors.names import resolving
from tests.executors.raw import serving
from tests.support.receivers import Answer, RecordingReceiver

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def deliver(executor: HttpExecutor, made: Attempt) -> None:
    assert (await executor.execute(made, Sent())).kind is OutcomeKind.SUCCESS


async def test_a_request_says_what_it_is_about(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    made = attempt(
        f"{receiver.url}/a/../b?x=%7E&y[]=1", number=3, lease_version=5, traceparent=TRACE
    )
    await deliver(executor, made)
    (request,) = receiver.requests
    assert (request.method, request.path) == ("POST", "/a/../b?x=%7E&y[]=1")
    assert request.body == made.body
    expected = {
        "X-Job-Id": str(JOB),
        "X-Run-Id": str(made.run),
        "X-Occurrence": "2026-11-29T12:00:00.250Z",
        "X-Attempt": "3",
        "X-Lease-Version": "5",
        "webhook-id": str(made.run),
        "Idempotency-Key": str(made.run),
        "traceparent": TRACE,
        "Content-Type": "application/json",
        "Content-Length": str(len(made.body)),
        "User-Agent": f"Noonday/{__version__}",
    }
    assert {name: request[name] for name in expected} == expected
    assert request.all("Cookie") == []


async def test_a_request_is_written_in_one_way(executor: HttpExecutor) -> None:
    heads: list[bytes] = []

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with serving(keep) as server:
        made = attempt(server.url, headers={"x-Team": "a  b"})
        await deliver(executor, made)
    first, *lines = heads[0].decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
    assert first == "POST /hook HTTP/1.1"
    names = [line.partition(": ")[0] for line in lines]
    assert names == [
        "Host", "Accept", "Accept-Encoding", "x-Team", "X-Job-Id", "X-Run-Id", "X-Occurrence",
        "X-Attempt", "X-Lease-Version", "Idempotency-Key", "webhook-id", "User-Agent",
        "Content-Type", "Content-Length", "X-Scheduler-Signature", "webhook-timestamp",
        "webhook-signature",
    ]  # fmt: skip
    assert lines[:4] == [
        f"Host: 127.0.0.1:{server.port}", "Accept: */*", "Accept-Encoding: identity", "x-Team: a  b"
    ]  # fmt: skip


async def test_a_trace_is_continued_only_where_there_is_one(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    await deliver(executor, attempt(f"{receiver.url}/hook"))
    assert receiver.requests[0].all("traceparent") == []


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_method_without_content_sends_none(
    executor: HttpExecutor, receiver: RecordingReceiver, method: str
) -> None:
    await deliver(executor, attempt(f"{receiver.url}/hook", method=method, body=b""))
    (request,) = receiver.requests
    assert (request.method, request.body) == (method, b"")
    assert request.all("Content-Type") == []
    assert request.all("Content-Length") in ([], ["0"])
    assert request.all("Transfer-Encoding") == []


async def test_the_customers_headers_are_sent_as_given(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    headers = {"Authorization": "Bearer abc", "x-team": "payments", "Accept": "text/plain"}
    await deliver(executor, attempt(f"{receiver.url}/hook", headers=headers))
    (request,) = receiver.requests
    assert {name: request[name] for name in headers} == headers


async def test_a_header_that_is_given_twice_by_another_case_is_sent_once(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    headers = {"X-Team": "a", "ACCEPT": "text/plain", "x-team": "b", "Accept-encoding": "gzip"}
    await deliver(executor, attempt(f"{receiver.url}/hook", headers=headers))
    (request,) = receiver.requests
    assert request.all("X-Team") == ["b"]
    assert request.all("Accept") == ["text/plain"]
    assert request.all("Accept-Encoding") == ["gzip"]


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 3_000_000])
async def test_a_long_body_arrives_whole_and_its_connection_is_used_again(
    executor: HttpExecutor, receiver: RecordingReceiver, size: int
) -> None:
    body = bytes(range(256)) * (size // 256) + b"." * (size % 256)
    for _ in range(2):
        await deliver(executor, attempt(f"{receiver.url}/hook", body=body))
    assert [request.body == body for request in receiver.requests] == [True, True]
    assert receiver.connections == 1


async def test_the_customers_headers_never_replace_ours(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    made = attempt(f"{receiver.url}/hook", traceparent=TRACE)
    await deliver(executor, made)
    ours = [name for name, _ in receiver.requests[0].headers if name not in ("Accept",)]
    ours.remove("Accept-Encoding")
    evil = {form(name): "evil" for name in ours for form in (str.lower, str.upper, str.title)}
    evil |= {"transfer-encoding": "chunked", "Connection": "close", "EXPECT": "100-continue"}
    evil |= {"Content-length": "0", "WebHook-Anything": "evil", "x-noonday-duplicate": "1"}
    await deliver(executor, attempt(f"{receiver.url}/hook", traceparent=TRACE, headers=evil))
    plain, attacked = receiver.requests
    assert "evil" not in dict(attacked.headers).values()
    assert [name for name, _ in attacked.headers] == [name for name, _ in plain.headers]
    assert attacked.body == plain.body
    assert all(len(attacked.all(name)) == 1 for name in ours)


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"X-Team": "a\r\nX-Run-Id: forged"}, "the header X-Team has a value that is not"),
        ({"X-Team": "SECRET\0"}, "the header X-Team has a value that is not"),
        ({"X-Team": "é"}, "the header X-Team has a value that is not"),
        ({"X Team": "a"}, "the header X Team is not a valid header name"),
        ({"X\r\nEvil: a": "a"}, "the header X  Evil: a is not a valid header name"),
    ],
)
async def test_a_header_that_cannot_be_sent_is_a_bad_payload_and_connects_nowhere(
    executor: HttpExecutor, receiver: RecordingReceiver, headers: dict[str, str], error: str
) -> None:
    sent = Sent()
    outcome = await executor.execute(attempt(receiver.url, headers=headers), sent)
    assert (outcome.kind, outcome.unknown, sent.maybe) == (OutcomeKind.BAD_PAYLOAD, False, False)
    assert str(outcome.error).startswith(error)
    assert "SECRET" not in str(outcome.error)
    assert receiver.connections == 0


async def test_a_content_type_or_trace_that_would_break_the_head_is_a_bad_payload(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    bad = "text/plain\r\nX-Run-Id: forged"
    for made in (
        attempt(receiver.url, content_type=bad),
        attempt(receiver.url, traceparent=bad),
    ):
        outcome = await executor.execute(made, Sent())
        assert outcome.kind is OutcomeKind.BAD_PAYLOAD
    assert receiver.connections == 0


async def test_an_attempt_without_a_secret_is_not_sent_unsigned(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    outcome = await executor.execute(attempt(receiver.url, secrets=()), Sent())
    assert outcome == Outcome(OutcomeKind.BAD_PAYLOAD, error="there is no secret to sign with")
    assert receiver.connections == 0


async def test_connections_are_used_again_also_after_failures(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    receiver.answer("/hook", Answer(503, body=b"x" * 10_000), Answer(404), Answer(200, body=b"y"))
    for _ in range(6):
        await executor.execute(attempt(f"{receiver.url}/hook"), Sent())
    assert receiver.connections == 1


async def test_cookies_of_a_receiver_are_not_kept(receiver: RecordingReceiver) -> None:
    executor = HttpExecutor(allow_private=True, ports=None, getaddrinfo=resolving("127.0.0.1"))
    await executor.open()
    receiver.answer("/hook", Answer(200, (("Set-Cookie", "a=b; Path=/"),)))
    for _ in range(2):
        await deliver(executor, attempt(f"http://hooks.example:{receiver.port}/hook"))
    assert receiver.requests[1].all("Cookie") == []
    await executor.close()


async def test_proxies_of_the_environment_are_not_used(
    receiver: RecordingReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RecordingReceiver() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        executor = HttpExecutor(allow_private=True, ports=None)
        await executor.open()
        await deliver(executor, attempt(f"{receiver.url}/hook"))
        await executor.close()
        assert proxy.connections == 0


async def test_every_executor_keeps_the_promises_of_the_seam() -> None:
    for kind in EXECUTORS.values():
        executor: Executor = kind()
        await executor.open()
        await executor.close()


async def test_the_witness_has_written_a_request_before_it_answers(
    executor: HttpExecutor, tmp_path: Path
) -> None:
    log = tmp_path / "requests.jsonl"
    async with RecordingReceiver(log=log) as receiver:
        receiver.answer("/hook", Answer(drop="before"))
        await executor.execute(attempt(f"{receiver.url}/hook", number=2, body=b"\0\xff"), Sent())
        (request,) = receiver.requests
    (written,) = read_log(log)
    assert (written.attempt, written.run_id, written.body) == (2, request.run_id, b"\0\xff")
    assert written.headers == request.headers
