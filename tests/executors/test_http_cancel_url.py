"""A receiver is told that a request was cut off: signed like a delivery, taken for none."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from noonday import receiver as library
from noonday.domain.model import Attempt, OutcomeKind
from noonday.executors import Sent
from noonday.executors.cancelling import TIMEOUT_SEC, cancel_attempt
from noonday.executors.http import HttpExecutor
from tests.executors.attempts import JOB, OLDER_SECRET, SECRET, attempt
from tests.executors.test_signing import verify_standard
from tests.receiver.requests import shown
from tests.support.receivers import Answer, RecordingReceiver


def cut_off(url: str) -> Attempt:
    return attempt(
        url,
        method="GET",
        number=3,
        lease_version=5,
        body=b"the payload",
        content_type="text/plain",
        headers={"Authorization": "Bearer abc", "x-team": "payments"},
        secrets=(SECRET, OLDER_SECRET),
        timeout_sec=3_600,
    )


async def test_a_cancellation_says_what_was_cut_off_and_is_no_delivery(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    made = cut_off(f"{receiver.url}/hook")
    outcome = await executor.cancel(made, f"{receiver.url}/cancel?a=b", "asked for by support")
    assert outcome.kind is OutcomeKind.SUCCESS
    (request,) = receiver.requests
    assert (request.method, request.path) == ("POST", "/cancel?a=b")
    assert json.loads(request.body) == {
        "event": "cancel",
        "job_id": str(JOB),
        "run_id": str(made.run),
        "attempt": 3,
        "lease_version": 5,
        "occurrence_at": "2026-11-29T12:00:00.250Z",
        "reason": "asked for by support",
    }
    expected = {
        "X-Noonday-Event": "cancel",
        "X-Job-Id": str(JOB),
        "X-Run-Id": str(made.run),
        "X-Attempt": "3",
        "X-Lease-Version": "5",
        "webhook-id": f"{made.run}-cancel",
        "Idempotency-Key": f"{made.run}-cancel",
        "Content-Type": "application/json",
        "Authorization": "Bearer abc",
        "x-team": "payments",
    }
    assert {name: request[name] for name in expected} == expected


async def test_a_cancellation_is_signed_both_ways_with_every_secret(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    await executor.cancel(cut_off(f"{receiver.url}/hook"), f"{receiver.url}/cancel")
    (request,) = receiver.requests
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    for secret in (SECRET, OLDER_SECRET):
        verify_standard(secret, request.body, {name: request[name] for name in names})
        notice = library.verify_cancel(dict(request.headers), request.body, shown(secret))
        assert (notice.attempt, notice.lease_version, notice.reason) == (3, 5, "")


async def test_a_delivery_says_nothing_of_an_event(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    made = attempt(f"{receiver.url}/hook", headers={"x-noonday-event": "cancel"})
    await executor.execute(made, Sent())
    (request,) = receiver.requests
    assert request.all("X-Noonday-Event") == []
    assert library.verify(dict(request.headers), request.body, shown(SECRET)).attempt == 1


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://169.254.169.254/", OutcomeKind.BLOCKED),
        ("ftp://example.com/", OutcomeKind.BAD_PAYLOAD),
        ("https://u:p@example.com/", OutcomeKind.BAD_PAYLOAD),
        ("", OutcomeKind.BAD_PAYLOAD),
    ],
)
async def test_an_address_that_may_not_be_called_is_not_called(
    executor: HttpExecutor, url: str, kind: OutcomeKind
) -> None:
    assert (await executor.cancel(cut_off("https://example.com/"), url)).kind is kind


async def test_a_guarded_executor_guards_this_call_too(receiver: RecordingReceiver) -> None:
    executor = HttpExecutor(ports=None)
    await executor.open()
    outcome = await executor.cancel(cut_off("https://example.com/"), f"{receiver.url}/cancel")
    assert outcome.kind is OutcomeKind.BLOCKED
    assert receiver.connections == 0
    await executor.close()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(404), OutcomeKind.PERMANENT),
        (Answer(410), OutcomeKind.GONE),
        (Answer(503), OutcomeKind.TRANSIENT),
        (Answer(302, (("Location", "/elsewhere"),)), OutcomeKind.TRANSIENT),
        (Answer(drop="before"), OutcomeKind.TRANSIENT),
    ],
)
async def test_however_it_goes_it_ends_in_an_outcome(
    executor: HttpExecutor, receiver: RecordingReceiver, answer: Answer, kind: OutcomeKind
) -> None:
    receiver.answer("/cancel", answer)
    made = cut_off(f"{receiver.url}/hook")
    assert (await executor.cancel(made, f"{receiver.url}/cancel")).kind is kind


def test_it_has_its_own_deadline_whatever_the_jobs_is() -> None:
    told = cancel_attempt(cut_off("https://example.com/"), "https://example.com/cancel", "")
    assert told.target.timeout_sec == TIMEOUT_SEC == 10


async def test_a_receiver_that_hangs_is_given_up_at_the_deadline(
    executor: HttpExecutor, receiver: RecordingReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noonday.executors.cancelling.TIMEOUT_SEC", 0.1)
    receiver.answer("/cancel", Answer(hold=True))
    made = cut_off(f"{receiver.url}/hook")
    outcome = await executor.cancel(made, f"{receiver.url}/cancel")
    assert (outcome.kind, outcome.unknown) == (OutcomeKind.TIMEOUT, True)
    await receiver.wait_for_hang_up()


async def test_it_can_be_cancelled_itself(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    receiver.answer("/cancel", Answer(hold=True))
    made = cut_off(f"{receiver.url}/hook")
    telling = asyncio.create_task(executor.cancel(made, f"{receiver.url}/cancel"))
    await receiver.wait_for(1)
    telling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await telling
    await receiver.wait_for_hang_up()


async def test_a_receiver_verifies_it_on_the_same_address_without_a_trace_in_its_store(
    executor: HttpExecutor, receiver: RecordingReceiver
) -> None:
    made = cut_off(f"{receiver.url}/hook")
    await executor.execute(made, Sent())
    await executor.cancel(made, f"{receiver.url}/hook", "why not")
    delivered, cancelled = ((dict(request.headers), request.body) for request in receiver.requests)
    customer = library.Receiver(shown(SECRET), library.MemoryStore())
    assert customer.cancelled(*delivered) is None
    notice = customer.cancelled(*cancelled)
    assert notice is not None
    assert (notice.run_id, notice.reason) == (str(made.run), "why not")
    assert abs(notice.timestamp - time.time()) < 60
    accepted = customer.accept(*delivered)
    assert accepted.verdict is library.Verdict.NEW
    assert customer.done(accepted.delivery)
