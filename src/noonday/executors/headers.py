"""What a request says about its attempt, and the customer's headers underneath."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from multidict import CIMultiDict

from noonday import __version__
from noonday.domain.model import Attempt, Outcome, OutcomeKind
from noonday.domain.target import header_fault, is_reserved, value_fault
from noonday.executors.answers import clean

_ALWAYS: Final = {
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "User-Agent": f"Noonday/{__version__}",
}


class Refused(Exception):
    """The attempt cannot be made into a request, or not into one that may be sent."""

    def __init__(self, kind: OutcomeKind, error: str) -> None:
        super().__init__(error)
        self.outcome = Outcome(kind, error=clean(error))


def describe(attempt: Attempt) -> dict[str, str]:
    """Our own headers, all but the signatures: those are made when the request is sent."""
    run_id = str(attempt.run)
    described = {
        "X-Job-Id": str(attempt.run.job_id),
        "X-Run-Id": run_id,
        "X-Occurrence": occurrence_text(attempt.run.occurrence_at),
        "X-Attempt": str(attempt.number),
        "X-Lease-Version": str(attempt.lease_version),
        "Idempotency-Key": run_id,
        "webhook-id": run_id,
    }
    if attempt.traceparent is not None:
        described["traceparent"] = attempt.traceparent
    if attempt.body or attempt.target.method not in ("GET", "DELETE"):
        described["Content-Type"] = attempt.content_type
    return described


def occurrence_text(at: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, or with microseconds where only those are exact."""
    timespec = "microseconds" if at.microsecond % 1000 else "milliseconds"
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"


def merge(attempt: Attempt, described: dict[str, str]) -> CIMultiDict[str]:
    """The customer's headers with ours laid over them, whatever the case of the names.

    Raises:
        Refused: a header cannot be sent; the text holds its name, never its value.
    """
    for name in ("Content-Type", "traceparent"):
        if fault := value_fault(described.get(name, "")):
            raise Refused(OutcomeKind.BAD_PAYLOAD, f"the header {name} {fault}")
    headers: CIMultiDict[str] = CIMultiDict(_ALWAYS)
    for name, value in attempt.headers.items():
        if is_reserved(name):
            continue
        if fault := header_fault(name, value):
            raise Refused(OutcomeKind.BAD_PAYLOAD, f"the header {name} {fault}")
        headers[name] = value
    headers.update(described)
    return headers
