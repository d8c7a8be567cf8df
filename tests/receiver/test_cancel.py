"""A call of a cancel_url is told apart from a delivery by what is signed, not by a header."""

from __future__ import annotations

import pytest

from noonday.executors.cancelling import cancel_attempt, cancel_headers
from noonday.executors.signing import sign
from noonday.receiver import (
    DedupeStore,
    InvalidSignature,
    MemoryStore,
    Receiver,
    Verdict,
    verify,
    verify_cancel,
)
from tests.executors.attempts import JOB, OCCURRENCE, OLDER_SECRET, attempt
from tests.receiver.requests import BODY, NOW, WHSEC, headers, shown

FOREVER = 10.0**12
EVENT = {"X-Noonday-Event": "cancel"}


def cancellation(reason: str = "", lease_version: int = 4) -> tuple[dict[str, str], bytes]:
    cut_off = attempt("http://example.com/", number=2, lease_version=lease_version)
    made = cancel_attempt(cut_off, "http://example.com/cancel", reason)
    own = cancel_headers(made)
    return own | sign(made, own, NOW), made.body


@pytest.fixture
def receiver(store: DedupeStore) -> Receiver:
    return Receiver(WHSEC, store, tolerance_sec=FOREVER)


def test_a_verified_cancellation_says_which_attempt_was_cut_off_and_why() -> None:
    notice = verify_cancel(*cancellation("a\0 😀 reason"), WHSEC, now=NOW)
    assert (notice.job_id, notice.occurrence) == (str(JOB), OCCURRENCE)
    assert notice.run_id == str(attempt("http://example.com/").run)
    assert (notice.attempt, notice.lease_version, notice.timestamp) == (2, 4, NOW)
    assert notice.reason == "a\0 😀 reason"


def test_a_cancellation_is_never_taken_for_a_delivery() -> None:
    said, body = cancellation()
    stripped = {name: value for name, value in said.items() if name != "X-Noonday-Event"}
    for given in (said, stripped):
        with pytest.raises(InvalidSignature, match="a cancellation, not a delivery"):
            verify(given, body, WHSEC, now=NOW)
    run_id = said["X-Run-Id"]
    for forged in (
        {"webhook-id": run_id},
        {"webhook-id": run_id, "Idempotency-Key": run_id},
        {"X-Run-Id": f"{run_id}-cancel"},
    ):
        with pytest.raises(InvalidSignature):
            verify(stripped | forged, body, WHSEC, now=NOW)


def test_a_delivery_is_never_taken_for_a_cancellation() -> None:
    sent = headers()
    run_id = sent["X-Run-Id"]
    for forged in (
        EVENT,
        EVENT | {"webhook-id": f"{run_id}-cancel"},
        EVENT | {"webhook-id": f"{run_id}-cancel", "Idempotency-Key": f"{run_id}-cancel"},
        EVENT | {"X-Run-Id": run_id.removesuffix("-cancel")},
    ):
        with pytest.raises(InvalidSignature):
            verify_cancel(sent | forged, BODY, WHSEC, now=NOW)


@pytest.mark.parametrize(
    ("name", "forged"),
    [
        ("X-Attempt", "9"),
        ("X-Lease-Version", "9"),
        ("X-Occurrence", "2026-11-29T12:00:00.251Z"),
        ("X-Run-Id", "019390f0000070008000000000000001-s1795953600250001"),
        ("X-Job-Id", "019390f0-0000-7000-8000-000000000002"),
        ("webhook-timestamp", str(NOW + 1)),
        ("Idempotency-Key", "another"),
    ],
)
def test_whatever_is_forged_of_a_cancellation_is_refused(name: str, forged: str) -> None:
    said, body = cancellation()
    with pytest.raises(InvalidSignature):
        verify_cancel(said | {name: forged}, body, WHSEC, now=NOW)


def test_an_old_one_one_of_another_tenant_and_a_changed_one_are_refused() -> None:
    said, body = cancellation()
    with pytest.raises(InvalidSignature):
        verify_cancel(said, body, WHSEC, now=NOW + 301)
    with pytest.raises(InvalidSignature):
        verify_cancel(said, body, shown(OLDER_SECRET), now=NOW)
    with pytest.raises(InvalidSignature):
        verify_cancel(said, body.replace(b'"attempt":2', b'"attempt":3'), WHSEC, now=NOW)


def test_a_receiver_knows_it_by_its_event_and_the_store_never_hears_of_it(
    receiver: Receiver,
) -> None:
    said, body = cancellation(lease_version=9)
    lowered = {name.lower(): value for name, value in said.items()}
    for given in (said, lowered):
        notice = receiver.cancelled(given, body)
        assert notice is not None
        assert notice.lease_version == 9
        with pytest.raises(InvalidSignature):
            receiver.accept(given, body)
    assert receiver.cancelled(headers(), BODY) is None
    assert receiver.accept(headers(), BODY).verdict is Verdict.NEW


def test_a_delivery_with_the_event_of_a_cancellation_stops_nothing(receiver: Receiver) -> None:
    with pytest.raises(InvalidSignature):
        receiver.cancelled(headers() | EVENT, BODY)


def test_a_receiver_answers_as_it_judged() -> None:
    receiver = Receiver(WHSEC, MemoryStore(), tolerance_sec=FOREVER)
    first = receiver.accept(headers(), BODY)
    assert (first.status, first.headers) == (200, {})
    again = receiver.accept(headers(), BODY)
    assert (again.status, again.headers) == (425, {})
    assert receiver.done(first.delivery)
    later = receiver.accept(headers(number=2, lease_version=2), BODY)
    assert (later.status, later.headers) == (200, {"X-Noonday-Duplicate": "1"})
    stale = receiver.accept(headers(), BODY)
    assert (stale.status, stale.headers) == (409, {})
