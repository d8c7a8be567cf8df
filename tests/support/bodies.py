"""Bodies of jobs to try: a good one, and ways to change it at a JSON pointer."""

from __future__ import annotations

import copy
import json
from typing import Any

from noonday.api.schemas import JobRequest, read_job

GOOD: dict[str, Any] = {
    "name": "nightly-billing",
    "schedule": {"type": "cron", "cron": "0 0 * * *", "timezone": "Europe/Paris"},
    "target": {"type": "http", "url": "https://billing.example/run"},
    "payload": {"ledger": "eu"},
}

GONE = object()
"""In place of a value: take the field away."""


def changed(pointer: str, value: Any, base: dict[str, Any] = GOOD) -> dict[str, Any]:
    """``base`` with another value at ``pointer``; the way there is made where it is missing."""
    body = copy.deepcopy(base)
    *way, last = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    place = body
    for step in way:
        place = place.setdefault(step, {})
    if value is GONE:
        place.pop(last, None)
    else:
        place[last] = value
    return body


def once(**fields: Any) -> dict[str, Any]:
    """A good job with a one-off schedule."""
    return GOOD | {"schedule": {"type": "once", **fields}}


def every(interval_sec: Any, **fields: Any) -> dict[str, Any]:
    """A good job with an interval."""
    return GOOD | {"schedule": {"type": "interval", "interval_sec": interval_sec, **fields}}


def faults(body: Any, *, allow_private: bool = False) -> dict[str, str]:
    """The codes of a body's faults by their pointers; empty when it is good."""
    document = body if isinstance(body, bytes) else json.dumps(body).encode()
    result = read_job(document, allow_private=allow_private)
    return {fault.pointer: fault.code for fault in result} if isinstance(result, list) else {}


def job(body: Any, *, allow_private: bool = False) -> JobRequest:
    """A good body, read."""
    document = body if isinstance(body, bytes) else json.dumps(body).encode()
    result = read_job(document, allow_private=allow_private)
    assert isinstance(result, JobRequest), result
    return result
