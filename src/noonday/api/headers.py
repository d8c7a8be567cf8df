"""Request headers that mean something, read strictly or not at all."""

from __future__ import annotations

import random
import re
from typing import Final

from starlette.requests import Request
from starlette.types import Scope

from noonday.api.problems import Problem

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_VISIBLE: Final = re.compile(r"[!-~]{1,255}")
# A string of RFC 9651 §3.3.3: in double quotes, with a backslash before a quote or a backslash.
_QUOTED: Final = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
# What follows the version tells how the thing stood, which is not what a change is about. A weak
# tag never matches.
_VERSION: Final = re.compile(r'"v([0-9]{1,9})(?:-[0-9a-f]+)?"')
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)


def fields(scope: Scope) -> dict[bytes, bytes]:
    """The headers of a request, the first of each name (in lower case); made once."""
    found: dict[bytes, bytes] | None = scope.get("noonday.fields")
    if found is None:
        found = scope["noonday.fields"] = dict(reversed(scope["headers"]))
    return found


def field(request: Request, name: bytes) -> str | None:
    """The first header of a name, or None; quicker than ``request.headers``."""
    value = fields(request.scope).get(name)
    return None if value is None else value.decode("latin-1")


def request_id(given: str | None) -> str:
    """The caller's own id for a request if it is fit to be repeated, else a new one."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return f"{random.getrandbits(128):032x}"


def idempotency_key(request: Request) -> str | None:
    """The ``Idempotency-Key``, bare or as a structured string; a problem when it cannot be one."""
    if field(request, b"idempotency-key") is None:
        return None
    given = request.headers.getlist("idempotency-key")
    key = given[0].strip()
    quoted = _QUOTED.fullmatch(key)
    if quoted:
        key = re.sub(r'\\(["\\])', r"\1", quoted[1])
    half_quoted = quoted is None and key.startswith('"')
    if len(given) > 1 or half_quoted or not _VISIBLE.fullmatch(key):
        raise Problem(
            400,
            "idempotency_key_invalid",
            "Idempotency-Key must be given once, as 1 to 255 visible ASCII characters.",
        )
    return key


def if_match(request: Request) -> frozenset[int] | None:
    """The versions of a thing that a change is meant for (``If-Match``, RFC 9110 §13.1.1); None: of
    whichever it is. A problem when nothing says that."""
    given = [tag.strip() for one in request.headers.getlist("if-match") for tag in one.split(",")]
    if not given:
        raise Problem(
            428,
            "precondition_required",
            "If-Match is required: the ETag of what is to be changed, or * for any.",
        )
    if "*" in given:
        return None
    found = (_VERSION.fullmatch(tag) for tag in given)
    return frozenset(int(tag[1]) for tag in found if tag)


def traceparent(request: Request) -> str | None:
    """The trace that a request belongs to (W3C Trace Context), or None for anything else."""
    given = field(request, b"traceparent")
    return given if given is not None and _TRACEPARENT.fullmatch(given) else None
