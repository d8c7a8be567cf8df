"""What a request says about its attempt, over the headers that the customer adds."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from noonday import __version__
from noonday.domain.model import Attempt, Outcome, OutcomeKind
from noonday.domain.target import header_fault, is_reserved, value_fault
from noonday.executors.answers import clean

_USER_AGENT: Final = f"Noonday/{__version__}"
_DEFAULTS: Final = "Accept: */*\r\nAccept-Encoding: identity\r\n"


class Refused(Exception):
    """The attempt cannot be made into a request, or not into one that may be sent."""

    def __init__(self, kind: OutcomeKind, error: str) -> None:
        super().__init__(error)
        self.outcome = Outcome(kind, error=clean(error))


def own_headers(attempt: Attempt) -> dict[str, str]:
    """Our own headers, all but the signatures: those are made when the request is sent.

    Raises:
        Refused: the attempt has something to say that cannot stand in a header.
    """
    run_id = str(attempt.run)
    own = {
        "X-Job-Id": str(attempt.run.job_id),
        "X-Run-Id": run_id,
        "X-Occurrence": occurrence_text(attempt.run.occurrence_at),
        "X-Attempt": str(attempt.number),
        "X-Lease-Version": str(attempt.lease_version),
        "Idempotency-Key": run_id,
        "webhook-id": run_id,
        "User-Agent": _USER_AGENT,
    }
    if attempt.traceparent is not None:
        own["traceparent"] = _checked("traceparent", attempt.traceparent)
    if attempt.body or attempt.target.method not in ("GET", "DELETE"):
        own["Content-Type"] = _checked_type(attempt.content_type)
        own["Content-Length"] = str(len(attempt.body))
    return own


def lines(headers: dict[str, str]) -> str:
    """The headers as they stand in a request."""
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


def occurrence_text(at: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, or with microseconds where only those are exact."""
    timespec = "microseconds" if at.microsecond % 1000 else "milliseconds"
    return at.astimezone(UTC).isoformat(timespec=timespec).removesuffix("+00:00") + "Z"


def customer_headers(attempt: Attempt) -> str:
    """What the customer adds, as lines. Names that are ours are left out: ours win in any case.

    Raises:
        Refused: a header cannot be sent; the text holds its name, never its value.
    """
    if not attempt.headers:
        return _DEFAULTS
    found = {"accept": ("Accept", "*/*"), "accept-encoding": ("Accept-Encoding", "identity")}
    for name, value in attempt.headers.items():
        if is_reserved(name):
            continue
        if fault := header_fault(name, value):
            raise Refused(OutcomeKind.BAD_PAYLOAD, f"the header {name} {fault}")
        found[name.lower()] = name, value
    return lines(dict(found.values()))


def _checked(name: str, value: str) -> str:
    if fault := value_fault(value):
        raise Refused(OutcomeKind.BAD_PAYLOAD, f"the header {name} {fault}")
    return value


@lru_cache(1_024)
def _checked_type(content_type: str) -> str:
    return _checked("Content-Type", content_type)
