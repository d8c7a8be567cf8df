"""Merge patches (RFC 7396) of jobs: read, and laid over what a job was asked to be."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from noonday.api.problems import invalid
from noonday.api.reading import Fault, Faults, at
from noonday.api.texts import MOST_MEMBERS, overfull, pairs, unreadable
from noonday.domain.dependencies import NOTHING, After
from noonday.domain.model import JobSpec
from noonday.store import Row

PAYLOAD: Final = frozenset(("payload", "payload_base64", "content_type"))
"""Members that are replaced together, and never merged."""
_TYPED: Final = ("schedule", "target")
"""Members that are replaced where the patch names another ``type``."""


def has_payload(patch: dict[str, Any]) -> bool:
    """Whether a patch is about the payload. (No type by itself is one that is taken away.)"""
    return bool(patch.keys() & {"payload", "payload_base64"}) or bool(patch.get("content_type"))


_read_after: Final = msgspec.json.Decoder(After).decode
_encode: Final = msgspec.json.Encoder().encode

Patch = dict[str, Any]
"""Members of a patch by name; a payload stands there as it was sent."""


def read(document: bytes) -> Patch:
    """A patch; raises a problem with all that is wrong with its form. What it makes of a job is
    judged with that."""
    faults = Faults()
    if (reason := unreadable(document)) is not None:
        faults.add("", *reason)
    elif not document.lstrip().startswith(b"{"):
        faults.add("", "wrong_type", "must be an object")
    else:
        _check_members(Raw(document), "", faults)
    if found := faults.all():
        raise invalid(found)
    patch: Patch = {}
    for name, raw in pairs(document):
        value = msgspec.json.decode(raw)
        patch[name] = raw if name == "payload" and value is not None else value
    return patch


def _check_members(raw: Raw, pointer: str, faults: Faults) -> None:
    """Note names that are given twice, but in a payload."""
    if overfull(raw):
        faults.add(pointer, "wrong_length", f"has more than {MOST_MEMBERS} members")
        return
    seen: set[str] = set()
    for name, value in pairs(raw):
        place = at(pointer, name)
        if name in seen:
            faults.add(place, "duplicate_field", "is given more than once")
        seen.add(name)
        if bytes(value).lstrip().startswith(b"{") and place != "/payload":
            _check_members(value, place, faults)


def laid_over(patch: Patch, base: dict[str, Any]) -> bytes:
    """The body of a job that the patch makes of ``base``."""
    wanted = dict(base)
    for name, value in patch.items():
        if value is None:
            wanted.pop(name, None)
        elif name in PAYLOAD:
            wanted[name] = value
        else:
            wanted[name] = _merged(_below(name, value, base), value)
    return _encode(wanted)


def _below(name: str, value: Any, base: dict[str, Any]) -> Any:
    """What a member is merged with."""
    was = base.get(name)
    if not (isinstance(was, dict) and isinstance(value, dict)):
        return was
    if name in _TYPED and value.get("type", was["type"]) != was["type"]:
        return {}
    if name == "schedule" and value.get("delay") is not None:
        return {member: each for member, each in was.items() if member != "run_at"}
    headers = value.get("headers")
    if name == "target" and isinstance(headers, dict):
        return was | {"headers": _spelt_as(headers, was["headers"])}
    return was


def _spelt_as(wanted: dict[str, Any], headers: dict[str, str]) -> dict[str, str]:
    """Headers, those that ``wanted`` has as well spelt as there: case means nothing in them."""
    names = {name.lower(): name for name in wanted}
    return {names.get(name.lower(), name): value for name, value in headers.items()}


def _merged(base: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    wanted = dict(base) if isinstance(base, dict) else {}
    for name, value in patch.items():
        if value is None:
            wanted.pop(name, None)
        else:
            wanted[name] = _merged(wanted.get(name), value)
    return wanted


def body_of(job: Row, spec: JobSpec, secret_headers: dict[str, str]) -> dict[str, Any]:
    """What a job was asked to be, as it is posted; but for its payload."""
    target = msgspec.to_builtins(spec.target)
    schedule = {"jitter_sec": spec.schedule.jitter_sec} | msgspec.to_builtins(spec.schedule)
    after = NOTHING if job["after"] is None else _read_after(job["after"])
    return {
        "schedule": schedule,
        "target": target | {"headers": {**spec.target.headers, **secret_headers}},
        "name": job["name"],
        "priority": job["priority"],
        "lane": job["lane"],
        "retry_policy": msgspec.to_builtins(spec.retry_policy),
        "lease_sec": spec.lease_sec,
        "on_unknown": spec.on_unknown,
        "cancel_url": spec.cancel_url,
        "after": {
            "jobs": [str(parent) for parent in after.jobs],
            "on": after.on,
            "cascade_cancel": after.cascade_cancel,
        },
        "concurrency_key": job["concurrency_key"],
        "labels": msgspec.json.decode(job["labels"]),
    }


IMMUTABLE: Final = Fault("/after", "immutable", "never changes")
