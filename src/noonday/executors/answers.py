"""What an answer, or the lack of one, means for an attempt."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterable
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

import aiohttp
from aiohttp.http import HttpProcessingError
from multidict import CIMultiDictProxy

from noonday.domain.model import Outcome, OutcomeKind
from noonday.executors.addresses import BlockedAddress
from noonday.executors.wire import TooMuch

MAX_ERROR: Final = 500
DUPLICATE: Final = "X-Noonday-Duplicate"
"""A receiver answers with this, and 1, when it had done the work already."""
_CENTURY: Final = timedelta(days=36_525)
_RETRIED_4XX: Final = frozenset((408, 425, 429))
_TEXTS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (
        aiohttp.ClientConnectorCertificateError,
        "the certificate of {origin} does not verify: {detail}",
    ),
    (aiohttp.ClientConnectorDNSError, "the host of {origin} cannot be resolved: {detail}"),
    (aiohttp.ClientConnectorSSLError, "no TLS connection to {origin}: {detail}"),
    (aiohttp.ClientConnectorError, "cannot connect to {origin}: {detail}"),
    (aiohttp.ServerDisconnectedError, "{origin} closed the connection without an answer"),
    (HttpProcessingError, "{origin} answered with something that is not HTTP"),
    (aiohttp.ClientPayloadError, "the answer of {origin} broke off"),
    (TooMuch, "{origin} answered with more than is ever read"),
    (OSError, "the connection to {origin} was lost: {detail}"),
    (aiohttp.ClientConnectionError, "the connection to {origin} was lost"),
)
"""The faults that are foreseen, narrow classes before wide ones."""


def answered(status: int, headers: CIMultiDictProxy[str], now: Callable[[], float]) -> Outcome:
    """The outcome that a final status means; ``now`` tells seconds since 1970. Redirects are never
    followed: they have failed."""
    if 200 <= status < 300:
        repeated = set(headers.getall(DUPLICATE, ())) == {"1"}
        return Outcome(OutcomeKind.SUCCESS, http_status=status, duplicate=repeated)
    error = f"answered {status}"
    if 300 <= status < 400:
        error += ": a redirect, which is not followed"
    if status == 410:
        return Outcome(OutcomeKind.GONE, http_status=status, error=error)
    if 400 <= status < 500 and status not in _RETRIED_4XX:
        return Outcome(OutcomeKind.PERMANENT, http_status=status, error=error)
    return Outcome(
        OutcomeKind.TRANSIENT,
        http_status=status,
        error=error,
        retry_after=parse_retry_after(headers.getall("Retry-After", ()), now()),
    )


def parse_retry_after(values: Iterable[str], now: float) -> timedelta | None:
    """The first valid ``Retry-After``: seconds or a date (RFC 9110 §10.2.3), at most a century.

    The value comes from a stranger; what is neither form is as good as none.
    """
    return next((wait for value in values if (wait := _parse_wait(value, now)) is not None), None)


def _parse_wait(value: str, now: float) -> timedelta | None:
    value = value.strip()
    if len(value) > 64 or not value.isascii():
        return None
    if value.isdigit():
        return timedelta(seconds=min(int(value), _CENTURY.total_seconds()))
    if not value[:1].isalpha():
        return None  # All forms of an HTTP date begin with a weekday.
    try:
        at = parsedate_to_datetime(value)
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, OverflowError):
        return None
    return timedelta(seconds=min(max(seconds, 0.0), _CENTURY.total_seconds()))


def timed_out(timeout_sec: float, answer: Outcome | None, *, maybe_sent: bool) -> Outcome:
    """The outcome when all the time of an attempt is used up."""
    when = "before anything was sent"
    if maybe_sent:
        when = "without an answer" if answer is None else "while the answer was still coming"
    return Outcome(
        OutcomeKind.TIMEOUT,
        http_status=None if answer is None else answer.http_status,
        error=f"timed out after {timeout_sec:g} s {when}",
        unknown=maybe_sent,
    )


def failed(
    error: Exception, origin: str, answer: Outcome | None, *, maybe_sent: bool
) -> Outcome | None:
    """The outcome of a fault, or None when it is none that was foreseen.

    Whether something was sent is never read from the kind of fault: only ``maybe_sent`` tells.
    """
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
    if isinstance(cause, BlockedAddress):
        return Outcome(OutcomeKind.BLOCKED, error=f"blocked: the address is not allowed ({cause})")
    text = _describe(error, origin)
    if text is None:
        return None
    permanent = isinstance(error, aiohttp.ClientConnectorCertificateError)
    return Outcome(
        OutcomeKind.PERMANENT if permanent else OutcomeKind.TRANSIENT,
        http_status=None if answer is None else answer.http_status,
        error=clean(text),
        unknown=maybe_sent,
    )


def crashed(error: Exception, *, maybe_sent: bool) -> Outcome:
    """The outcome of a fault that nobody foresaw: it lands in a known state all the same."""
    text = clean(f"unforeseen fault: {type(error).__name__}")
    return Outcome(OutcomeKind.TRANSIENT, error=text, unknown=maybe_sent)


def _describe(error: Exception, origin: str) -> str | None:
    for kind, text in _TEXTS:
        if isinstance(error, kind):
            return text.format(origin=origin, detail=_detail(error))
    return None


def _detail(error: Exception) -> str:
    """The system's word for a fault, never the client's: that one can hold the whole URL."""
    fault = getattr(error, "os_error", None) or error.__cause__ or error
    if isinstance(fault, ssl.SSLCertVerificationError):
        return fault.verify_message
    if isinstance(fault, ssl.SSLError):
        return fault.reason or "refused"
    if isinstance(fault, socket.gaierror):
        return str(fault.strerror)
    if isinstance(fault, OSError) and fault.errno is not None:
        return os.strerror(fault.errno)
    return type(fault).__name__


def clean(text: str) -> str:
    """Text that may be stored and shown: no control, escape or invisible characters, cut."""
    return "".join(mark if mark.isprintable() else " " for mark in text[:MAX_ERROR])
