"""How a receiver is told that a request of ours was cut off, because its run was cancelled."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from noonday.domain.model import Attempt, HttpTarget
from noonday.executors.headers import occurrence_text, own_headers

TIMEOUT_SEC: Final = 10.0
EVENT: Final = "X-Noonday-Event"
CANCEL: Final = "cancel"


class _Notice(msgspec.Struct, frozen=True):
    job_id: str
    run_id: str
    attempt: int
    lease_version: int
    occurrence_at: str
    reason: str
    event: str = CANCEL


def cancel_attempt(attempt: Attempt, url: str, reason: str) -> Attempt:
    """The request to ``url`` about ``attempt``: its headers and secrets, not its payload."""
    run = attempt.run
    notice = _Notice(
        str(run.job_id),
        str(run),
        attempt.number,
        attempt.lease_version,
        occurrence_text(run.occurrence_at),
        reason,
    )
    return replace(
        attempt,
        target=HttpTarget(url, timeout_sec=TIMEOUT_SEC),
        body=msgspec.json.encode(notice),
        content_type="application/json",
    )


def cancel_headers(attempt: Attempt) -> dict[str, str]:
    """Our own headers, with an id that no delivery has: a dedupe must not take it for one.

    Raises:
        Refused: the attempt has something to say that cannot stand in a header.
    """
    message_id = f"{attempt.run}-{CANCEL}"
    named = {"webhook-id": message_id, "Idempotency-Key": message_id, EVENT: CANCEL}
    return own_headers(attempt) | named
