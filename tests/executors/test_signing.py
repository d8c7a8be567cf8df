from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import time
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from noonday.executors import Sent
from noonday.executors.headers import occurrence_text, own_headers
from noonday.executors.http import HttpExecutor
from noonday.executors.signing import sign
from tests.executors.attempts import OLDER_SECRET, SECRET, attempt
from tests.support.receivers import Answer, RecordingReceiver

BODIES = [
    b"",
    b"{}",
    b'{"b": 1, "a": 2}',
    '{"name": "Zoë 🙂 \u202e", "slash": "/", "tag": "<b>"}'.encode(),
    b'{"one": 1.0, "big": 1e21, "exact": 9007199254740993}',
    b'{"line": "ends"}\n',
    b"  [1,  2]  ",
]


def shown(secret: bytes) -> str:
    return "whsec_" + base64.b64encode(secret).decode()


def verify_standard(secret: bytes, body: bytes, headers: dict[str, str]) -> None:
    Webhook(shown(secret)).verify(body, headers, json_parse=False)


def test_the_example_of_the_standard_is_signed_as_it_says() -> None:
    """The vector of the Standard Webhooks libraries."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    made = attempt("http://example.com/", body=b'{"test": 2432232314}', secrets=(key,))
    own = own_headers(made) | {"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek"}
    headers = sign(made, own, 1614265330)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(st.binary(max_size=200).filter(lambda body: body.decode("utf-8", "ignore").encode() == body))
def test_a_standard_webhooks_library_verifies_any_body(body: bytes) -> None:
    made = attempt("http://example.com/", body=body)
    own = own_headers(made)
    verify_standard(SECRET, body, own | sign(made, own, int(time.time())))


def test_while_a_secret_rotates_both_verify_and_no_other() -> None:
    made = attempt("http://example.com/", secrets=(SECRET, OLDER_SECRET))
    own = own_headers(made)
    headers = own | sign(made, own, int(time.time()))
    verify_standard(SECRET, made.body, headers)
    verify_standard(OLDER_SECRET, made.body, headers)
    with pytest.raises(WebhookVerificationError):
        verify_standard(b"x" * 32, made.body, headers)
    assert headers["webhook-signature"].count("v1,") == 2
    assert headers["X-Scheduler-Signature"].count(",v1=") == 2


def test_the_schedulers_signature_covers_all_that_fences() -> None:
    made = attempt("http://example.com/", number=7, lease_version=9)
    own = own_headers(made)
    headers = sign(made, own, 1_800_000_000)
    digest = hashlib.sha256(made.body).hexdigest()
    content = f"1800000000.{made.run}.7.9.2026-11-29T12:00:00.250Z.{digest}"
    expected = hmac.new(SECRET, content.encode(), "sha256").hexdigest()
    assert headers["X-Scheduler-Signature"] == f"t=1800000000,v1={expected}"


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_the_signature_covers_exactly_the_bytes_that_arrive(
    executor: HttpExecutor, receiver: RecordingReceiver, body: bytes, method: str
) -> None:
    for number in (1, 2):
        made = attempt(f"{receiver.url}/hook", body=body, number=number, method=method)
        await executor.execute(made, Sent())
    for request in receiver.requests:
        assert request.body == body
        names = ("webhook-id", "webhook-timestamp", "webhook-signature")
        verify_standard(SECRET, request.body, {name: request[name] for name in names})


async def test_a_big_body_arrives_whole_and_signed(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    body = b"0123456789" * 300_000
    await executor.execute(attempt(f"{receiver.url}/hook", body=body), Sent())
    (request,) = receiver.requests
    assert request.body == body
    assert request["Content-Length"] == str(len(body))
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    verify_standard(SECRET, request.body, {name: request[name] for name in names})


async def test_each_attempt_is_signed_with_the_time_of_its_sending_and_keeps_its_id(
    executor: HttpExecutor, receiver: RecordingReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(time.time(), 3_600)
    monkeypatch.setattr("noonday.executors.sending.time", SimpleNamespace(time=lambda: next(clock)))
    for number in range(1, 4):
        await executor.execute(attempt(f"{receiver.url}/hook", number=number), Sent())
    stamps = [int(request["webhook-timestamp"]) for request in receiver.requests]
    assert [later - stamps[0] for later in stamps] == [0, 3_600, 7_200]
    assert len({request["webhook-id"] for request in receiver.requests}) == 1
    assert len({request["webhook-signature"] for request in receiver.requests}) == 3
    assert [request.attempt for request in receiver.requests] == [1, 2, 3]
    for request in receiver.requests:
        assert request["X-Scheduler-Signature"].startswith(f"t={request['webhook-timestamp']},v1=")


async def test_an_attempt_that_waits_long_for_its_connection_is_signed_when_it_is_sent(
    receiver: RecordingReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(time=lambda: 1_800_000_000.0)
    monkeypatch.setattr("noonday.executors.sending.time", clock)
    executor = HttpExecutor(allow_private=True, ports=None, limit_per_host=1)
    await executor.open()
    receiver.answer("/held", Answer(hold=True))
    first = asyncio.create_task(executor.execute(attempt(f"{receiver.url}/held"), Sent()))
    await receiver.wait_for(1)
    second = asyncio.create_task(executor.execute(attempt(f"{receiver.url}/next"), Sent()))
    await asyncio.sleep(0)
    clock.time = lambda: 1_800_000_060.0
    receiver.release()
    await asyncio.gather(first, second)
    stamps = [request["webhook-timestamp"] for request in receiver.requests]
    assert stamps == ["1800000000", "1800000060"]
    await executor.close()


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=200))
def test_a_signature_is_hmac_sha_256_whatever_the_length_of_its_key(
    key: bytes, body: bytes
) -> None:
    made = attempt("https://a.example/", body=body, secrets=(key,))
    signed = sign(made, own_headers(made), 1_800_000_000)["webhook-signature"]
    content = f"{made.run}.1800000000.".encode() + body
    expected = hmac.digest(key, content, "sha256")
    assert signed == "v1," + base64.b64encode(expected).decode()


def test_an_occurrence_is_written_in_utc_with_as_many_digits_as_are_exact() -> None:
    noon = datetime(2026, 11, 29, 12, tzinfo=UTC)
    assert occurrence_text(noon) == "2026-11-29T12:00:00.000Z"
    assert occurrence_text(noon.replace(microsecond=250_000)) == "2026-11-29T12:00:00.250Z"
    assert occurrence_text(noon.replace(microsecond=1)) == "2026-11-29T12:00:00.000001Z"
    assert occurrence_text(noon.astimezone(timezone(timedelta(hours=2)))) == (
        "2026-11-29T12:00:00.000Z"
    )
