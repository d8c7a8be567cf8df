"""From options to the documents that are sent."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from noonday.cli.failures import Code, fail

NONE: Final = "none"
"""What an option is given that takes a setting away."""


def given(**settings: Any) -> dict[str, Any]:
    """The settings that were given; ``none`` is null."""
    found = {name: value for name, value in settings.items() if value is not None}
    return {name: None if value == NONE else value for name, value in found.items()}


@dataclass(frozen=True)
class Wishes:
    """The options of ``jobs create``, as given; None where not."""

    target: str | None = None
    name: str | None = None
    at: str | None = None
    delay: str | None = None
    cron: str | None = None
    timezone: str | None = None
    every: int | None = None
    misfire: str | None = None
    overlap: str | None = None
    starts_at: str | None = None
    ends_at: str | None = None
    max_occurrences: int | None = None
    jitter_sec: int | None = None
    method: str | None = None
    headers: list[str] | None = None
    timeout_sec: float | None = None
    payload: str | None = None
    max_attempts: int | None = None
    priority: int | None = None
    on_unknown: str | None = None
    cancel_url: str | None = None
    lane: str | None = None
    concurrency_key: str | None = None
    labels: list[str] | None = None
    after: list[str] | None = None
    after_on: str | None = None
    cascade_cancel: bool | None = None


def job_document(wishes: Wishes, file: Path | None) -> dict[str, Any] | bytes:
    """The body of ``POST /v1/jobs``; whether its values are good is for the server to say."""
    if file is not None:
        if wishes != Wishes():
            fail(Code.USAGE, "--file holds the whole job: give no other options about it")
        return _read(file)
    if wishes.target is None:
        fail(Code.USAGE, "give the URL to call, or a whole job with --file")
    attempts = wishes.max_attempts
    document = {
        "name": wishes.name,
        "schedule": _schedule(wishes),
        "target": _given(
            type="http",
            url=wishes.target,
            method=wishes.method,
            headers=_pairs("--header", wishes.headers, ":"),
            timeout_sec=wishes.timeout_sec,
        ),
        "priority": wishes.priority,
        "on_unknown": wishes.on_unknown,
        "cancel_url": wishes.cancel_url,
        "lane": wishes.lane,
        "concurrency_key": wishes.concurrency_key,
        "labels": _pairs("--label", wishes.labels, "="),
        "after": _after(wishes),
        "retry_policy": None if attempts is None else {"max_attempts": attempts},
        **_payload(wishes.payload),
    }
    return _given(**document)


def patch_document(
    settings: list[str] | None, payload: str | None, file: Path | None
) -> dict[str, Any] | bytes:
    """The body of ``PATCH /v1/jobs/{id}``."""
    if file is not None:
        if settings or payload is not None:
            fail(Code.USAGE, "--file holds the whole patch: give no other changes")
        return _read(file)
    document: dict[str, Any] = _payload(payload)
    for path, text in (_pairs("--set", settings, "=") or {}).items():
        *outer, name = path.split(".")
        place = document
        for member in outer:
            place = place.setdefault(member, {})
            if not isinstance(place, dict):
                fail(Code.USAGE, f"--set {path}: {member} was given a value itself")
        place[name] = _value(text)
    if not document:
        fail(Code.USAGE, "say what to change, with --set, --payload or --file")
    return document


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _schedule(wishes: Wishes) -> dict[str, Any]:
    kinds = {
        "--at": wishes.at,
        "--delay": wishes.delay,
        "--cron": wishes.cron,
        "--every": wishes.every,
    }
    chosen = [option for option, value in kinds.items() if value is not None]
    if len(chosen) > 1:
        fail(Code.USAGE, f"only one of {' and '.join(chosen)} can be meant")
    kind = {"--cron": "cron", "--every": "interval"}.get("".join(chosen), "once")
    return _given(
        type=kind,
        run_at=wishes.at,
        delay=wishes.delay,
        cron=wishes.cron,
        timezone=wishes.timezone,
        interval_sec=wishes.every,
        misfire=wishes.misfire,
        overlap=wishes.overlap,
        starts_at=wishes.starts_at,
        ends_at=wishes.ends_at,
        max_occurrences=wishes.max_occurrences,
        jitter_sec=wishes.jitter_sec,
    )


def _after(wishes: Wishes) -> dict[str, Any] | None:
    rules = _given(on=wishes.after_on, cascade_cancel=wishes.cascade_cancel)
    if not wishes.after:
        if rules:
            fail(
                Code.USAGE, "--after-on and --cascade-cancel say how to wait: give --after as well"
            )
        return None
    return {"jobs": wishes.after, **rules}


def _payload(text: str | None) -> dict[str, Any]:
    """The payload, byte for byte as it was given."""
    if text is None:
        return {}
    data = _read(Path(text[1:])) if text.startswith("@") else text.encode()
    try:
        json.loads(data)
    except ValueError as error:
        fail(Code.USAGE, f"--payload is no JSON: {error}")
    return {"payload_base64": b64encode(data).decode(), "content_type": "application/json"}


def _pairs(option: str, texts: list[str] | None, separator: str) -> dict[str, str] | None:
    if not texts:
        return None
    pairs = {}
    for text in texts:
        name, found, value = text.partition(separator)
        if not found:
            fail(Code.USAGE, f"{option} {text!r}: name and value are separated by {separator!r}")
        pairs[name.strip()] = value.strip()
    return pairs


def _read(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        fail(Code.USAGE, f"{file}: {error.strerror}")


def _given(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
