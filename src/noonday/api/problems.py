"""Errors as the API answers them (RFC 9457), and the only place with error statuses.

A handler raises a :class:`Problem`; whatever else goes wrong on the way is turned into one by
``HANDLERS``, so that every error has the same form. Nothing of an exception's text gets out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final, NamedTuple, cast

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from noonday.api.reading import MALFORMED, Fault
from noonday.domain.errors import StoreUnavailable
from noonday.domain.roles import Role

MEDIA_TYPE: Final = "application/problem+json"

Handler = Callable[[Request, Exception], Awaitable[Response]]


class Exceeded(NamedTuple):
    """What a 429 tells beside: the names of the policies, and when to come back."""

    policies: list[str]
    retry_after_sec: int
    drain_sec: float | None = None


class Problem(Exception):
    """An error to answer with. ``detail`` is for people; a program reads ``code``."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[Fault] = (),
        headers: Mapping[str, str] | None = None,
        exceeded: Exceeded | None = None,
    ) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = list(errors)
        self.headers = dict(headers or {})
        self.exceeded = exceeded


QUOTA_EXCEEDED: Final = "https://iana.org/assignments/http-problem-types#quota-exceeded"


class ProblemDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of every error: RFC 9457, with ``code``, ``request_id`` and ``errors`` added; for a
    quota that is used up also which one, and when there is room again."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: list[Fault] = []
    violated_policies: Annotated[
        list[str], Meta(description="By their names in RateLimit-Policy.")
    ] = msgspec.field(default_factory=list, name="violated-policies")
    retry_after_sec: Annotated[int | None, Meta(description="As in Retry-After.")] = None
    drain_sec: Annotated[
        float | None,
        Meta(
            description="Seconds until enough pending jobs have ended, at the rate at which the "
            "tenant's ended in the last minute."
        ),
    ] = None


def document(problem: Problem, request_id: str) -> ProblemDocument:
    """The problem as it is written down, also as an item of a batch's answer."""
    exceeded = problem.exceeded
    type_, title = f"urn:noonday:problem:{problem.code}", problem.code.replace("_", " ")
    if exceeded is not None:  # draft-ietf-httpapi-ratelimit-headers-10 §6
        type_, title = QUOTA_EXCEEDED, "request cannot be satisfied as assigned quota is exceeded"
    return ProblemDocument(
        type=type_,
        title=title.capitalize(),
        status=problem.status,
        detail=problem.detail,
        code=problem.code,
        request_id=request_id,
        errors=problem.errors,
        violated_policies=exceeded.policies if exceeded else [],
        retry_after_sec=exceeded.retry_after_sec if exceeded else None,
        drain_sec=exceeded.drain_sec if exceeded else None,
    )


def respond(problem: Problem, request_id: str) -> Response:
    """The answer to a request that failed."""
    body = msgspec.json.encode(document(problem, request_id))
    return Response(body, problem.status, problem.headers, MEDIA_TYPE)


def invalid(faults: Sequence[Fault]) -> Problem:
    """A body with faults: 400 if it cannot be read as JSON, else 422 with every fault in it."""
    if faults[0].code in MALFORMED:
        return Problem(400, faults[0].code, f"The body {faults[0].detail}.", errors=faults)
    later = all(fault.code == "not_supported" for fault in faults)
    count = "one fault" if len(faults) == 1 else f"{len(faults)} faults"
    return Problem(
        422,
        "not_supported" if later else "invalid",
        f"The body has {count}; see errors.",
        errors=faults,
    )


def job_cancelled() -> Problem:
    """Nothing can be done to a job any more."""
    return Problem(409, "job_cancelled", "The job is cancelled; nothing of it runs any more.")


def unauthorized(detail: str = "A valid API key is needed: Authorization: Bearer nd_…") -> Problem:
    """No key, or none that is known and in force (RFC 6750 §3)."""
    challenge = {"WWW-Authenticate": 'Bearer realm="noonday"'}
    return Problem(401, "unauthorized", detail, headers=challenge)


def forbidden(needed: Role) -> Problem:
    """The key is good, but its role is not enough."""
    return Problem(403, "forbidden", f"This needs a key with the role {needed.word}.")


def not_found(what: str = "Nothing") -> Problem:
    """There is no such thing, or it belongs to somebody else: the same answer for both."""
    return Problem(404, "not_found", f"{what} was found here under this name.")


def too_large(limit: int, what: str = "body") -> Problem:
    """More bytes than are taken."""
    return Problem(413, "too_large", f"The {what} is larger than {limit} bytes.")


def unsupported_media_type(wanted: str) -> Problem:
    """The body is not of the type that is read here (RFC 9110 §15.5.16)."""
    return Problem(
        415,
        "unsupported_media_type",
        f"The body must be {wanted}, and say so in Content-Type.",
        headers={"Accept": wanted.replace(" or ", ", ")},
    )


def unavailable() -> Problem:
    """Nothing can be made durable right now."""
    return Problem(
        503,
        "unavailable",
        "The database cannot be reached; nothing was promised. Try again.",
        headers={"Retry-After": "1"},
    )


def request_id(request: Request) -> str:
    """The id that a request goes by in answers and logs; empty before it was given one."""
    return cast("str", request.scope.get("state", {}).get("request_id", ""))


async def _on_problem(request: Request, error: Exception) -> Response:
    return respond(cast("Problem", error), request_id(request))


async def _on_refusal(request: Request, error: Exception) -> Response:
    """What the framework refuses by itself: no such path, no such method on it."""
    refusal = cast("HTTPException", error)
    status = HTTPStatus(refusal.status_code)
    code = status.phrase.lower().replace(" ", "_")
    problem = Problem(
        status, code, f"{status.description or status.phrase}.", headers=refusal.headers
    )
    return respond(problem, request_id(request))


async def _on_unavailable(request: Request, _: Exception) -> Response:
    return respond(unavailable(), request_id(request))


def crashed() -> Problem:
    """A handler has failed in a way that nobody has foreseen."""
    return Problem(500, "internal", "Something is wrong on this side; it was logged.")


HANDLERS: Final[dict[Any, Handler]] = {
    Problem: _on_problem,
    HTTPException: _on_refusal,
    StoreUnavailable: _on_unavailable,
}
"""By what is raised. Whatever else is, is a mistake of ours; see ``requests.py``."""
