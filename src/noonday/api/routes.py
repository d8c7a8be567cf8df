"""What a route is. The table of them all is in ``app.py``; the OpenAPI document is made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from noonday.domain.roles import Role

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Parameter:
    """A query parameter or a header, of a request or of an answer."""

    name: str
    where: str
    """``query`` or ``header``."""
    description: str
    schema: dict[str, Any] = field(default_factory=lambda: {"type": "string"})
    required: bool = False


@dataclass(frozen=True)
class Answer:
    """A success answer: its status, what it means, its body's type, and its headers."""

    status: int
    description: str
    body: Any = None
    """A type from ``documents.py``; None is an answer without a body."""
    headers: tuple[Parameter, ...] = ()


@dataclass(frozen=True)
class Route:
    """One line of the API: ``role`` None means that no key is needed."""

    method: str
    path: str
    name: str
    """The operationId: stable, in snake case."""
    role: Role | None
    summary: str
    handler: Handler
    answer: Answer
    request: Any = None
    """The body's type from ``schemas.py``; None is a request without a body."""
    parameters: tuple[Parameter, ...] = ()
    problems: tuple[int, ...] = ()
    """Error statuses beside the ones every route can give (with a role 401, 403, 422; 500, 503).

    A path with ``{…}`` can always give 404, and a route with a body 400, 413, 415 and 422."""
    media_type: str = "application/json"
    """Of the answer."""
    body_types: tuple[str, ...] = ("application/json",)
    body_optional: bool = False
    also: tuple[Answer, ...] = ()
    """What else it may answer with, when it went well."""


IDEMPOTENCY_KEY: Final = Parameter(
    "Idempotency-Key",
    "header",
    "Makes a retry of this request safe: 1 to 255 visible ASCII characters, a UUID for instance, "
    "bare or as a quoted string. The same key with the same request gets the first answer again; "
    "with another request, 409. Kept for at least 24 hours.",
    {"type": "string", "minLength": 1, "maxLength": 255},
)
LOCATION: Final = Parameter(
    "Location",
    "header",
    "Where the thing that was made is found.",
    {"type": "string", "format": "uri-reference"},
)
REPLAYED: Final = Parameter(
    "Idempotent-Replayed",
    "header",
    "`true` when this is the stored answer of an earlier request with the same key.",
    {"type": "string", "const": "true"},
)
RATE_LIMIT: Final = Parameter(
    "RateLimit",
    "header",
    "For tenants with quotas: what is left (`r`) of each, and the seconds (`t`) until it is whole "
    "again, or until what was refused fits (draft-ietf-httpapi-ratelimit-headers-10).",
)
RATE_LIMIT_POLICY: Final = Parameter(
    "RateLimit-Policy",
    "header",
    "The quotas: `creates` (jobs and triggers), `bytes` (of payload) and `pending` (jobs that have "
    "not ended), each with its quota `q` and window `w`.",
)
ETAG: Final = Parameter("ETag", "header", 'The version, as in `"v3"`.')
LIMIT: Final = Parameter(
    "limit",
    "query",
    "Items on a page.",
    {"type": "integer", "minimum": 1, "maximum": 200, "default": 50},
)
CURSOR: Final = Parameter(
    "cursor",
    "query",
    "`next_cursor` of the page before. It holds for the same filter only; otherwise 400.",
)
