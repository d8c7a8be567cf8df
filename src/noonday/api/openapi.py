"""The OpenAPI 3.1 document, made from the route table and from the structs of bodies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from noonday import __version__
from noonday.api import problems
from noonday.api.deliveries import DELIVERY
from noonday.api.problems import ProblemDocument
from noonday.api.routes import (
    ETAG,
    RATE_LIMIT,
    RATE_LIMIT_POLICY,
    Answer,
    Parameter,
    Route,
)
from noonday.api.wire import EXAMPLE, JobBody

REF: Final = "#/components/schemas/{name}"

ABOUT: Final = """\
Noonday makes jobs durable, fires them in time and sees them through: claimed under a lease,
called, retried, and finished or dead-lettered.

* **Times** are RFC 3339. Those given need an offset; those answered are UTC with milliseconds.
* **Errors** are `application/problem+json` (RFC 9457). A program reads `code`, and for each fault
  of a body its `pointer` (RFC 6901) and `code`; all faults are named at once.
* **Fields** that are not known are refused by name. What is known but not carried out in this
  release is refused as `not_supported`. Answers may grow fields and words: ignore what you do
  not know.
* **Lists** come in pages: ask again with `next_cursor` while `has_more` is true.
* **Keys** go into `Authorization: Bearer nd_…`. The roles are viewer, submitter, operator and
  admin, each with all that the one before it may do. What belongs to another tenant is answered
  with 404.
"""

_PAGE: Final = re.compile(r"Page_(\w+?)(?:Document)?_")
_PATH_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")

EXAMPLES: Final[dict[Any, Any]] = {JobBody: EXAMPLE}

REQUEST_ID: Final = Parameter(
    "X-Request-Id", "header", "The id of this request in logs; one that is given is kept."
)
RETRY_AFTER: Final = Parameter(
    "Retry-After",
    "header",
    "Seconds to wait before another try.",
    {"type": "integer", "minimum": 0},
)
CHALLENGE: Final = Parameter("WWW-Authenticate", "header", "`Bearer`: what is asked for.")

PROBLEMS: Final[dict[int, tuple[str, tuple[Parameter, ...]]]] = {
    400: ("Cannot be read: not JSON, nested too deep, or a cursor of another list.", ()),
    401: ("No API key, or none that is in force.", (CHALLENGE,)),
    403: ("The key's role is not enough.", ()),
    404: ("Not there, or somebody else's.", ()),
    408: ("The body did not come to its end in time.", ()),
    409: (
        "In conflict with the state of things, or with an earlier use of the key.",
        (RETRY_AFTER,),
    ),
    412: ("It is not at the version that the change is meant for.", ()),
    413: ("Too large; the limit is in `detail`.", ()),
    415: ("The body is not of the type that is read here.", ()),
    422: ("Understood, but wrong: `errors` names every fault.", ()),
    428: ("`If-Match` is required.", ()),
    429: (
        "A quota of the tenant is used up: `violated-policies` says which.",
        (RETRY_AFTER, RATE_LIMIT, RATE_LIMIT_POLICY),
    ),
    500: ("A fault on this side.", ()),
    503: ("Cannot be made durable right now.", (RETRY_AFTER,)),
}


def document(routes: Sequence[Route]) -> bytes:
    """The whole document as JSON."""
    return msgspec.json.encode(describe(routes))


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    """The whole document as plain data."""
    bodies = _bodies(routes)
    schemas, components = msgspec.json.schema_components(bodies, ref_template=REF)
    of_body = dict(zip(map(repr, bodies), map(_polish, schemas), strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        path = _PATH_PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, of_body)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Noonday",
            "version": __version__,
            "description": ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "paths": paths,
        "webhooks": {"delivery": {"post": DELIVERY}},
        "components": {
            "schemas": {_name(name): _polish(schema) for name, schema in components.items()},
            "responses": {f"Problem{status}": _problem(status) for status in PROBLEMS},
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, `nd_<id>_<secret>`, of a tenant and with a role.",
                }
            },
        },
    }


def statuses(route: Route) -> list[int]:
    """Every error status that a route can give."""
    found = {500, 503, *route.problems}
    if route.role is not None:
        found |= {401, 403, 422}
    if "{" in route.path:
        found.add(404)
    if route.request is not None:
        found |= {400, 408, 413, 415, 422}
    return sorted(found)


def _bodies(routes: Iterable[Route]) -> list[Any]:
    kinds: dict[str, Any] = {repr(ProblemDocument): ProblemDocument}
    for route in routes:
        for kind in (route.request, route.answer.body, *(each.body for each in route.also)):
            if kind is not None:
                kinds.setdefault(repr(kind), kind)
    return list(kinds.values())


def _operation(route: Route, of_body: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": [*_path_parameters(route), *map(_parameter, route.parameters)],
        "responses": {
            **_answers(route, of_body),
            **({"304": _NOT_MODIFIED} if _is_conditional(route) else {}),
            **{str(status): _problem_ref(status) for status in statuses(route)},
        },
    }
    if route.role is None:
        operation["security"] = []
    else:
        operation["description"] = f"Needs a key with the role {route.role.word}, or a higher one."
    if route.request is not None:
        content: dict[str, Any] = {"schema": of_body[repr(route.request)]}
        if route.request in EXAMPLES:
            content["example"] = EXAMPLES[route.request]
        operation["requestBody"] = {
            "required": not route.body_optional,
            "content": dict.fromkeys(route.body_types, content),
        }
    return operation


def _is_conditional(route: Route) -> bool:
    return any(parameter.name == "If-None-Match" for parameter in route.parameters)


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PATH_PARAMETER.findall(route.path)
    ]


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "description": parameter.description,
        "required": parameter.required,
        "schema": parameter.schema,
    }


def _headers(headers: Iterable[Parameter]) -> dict[str, Any]:
    return {
        header.name: {"description": header.description, "schema": header.schema}
        for header in (*headers, REQUEST_ID)
    }


def _answers(route: Route, of_body: dict[str, Any]) -> dict[str, Any]:
    """Success answers by their status; where two share one, the body is either."""
    described: dict[str, Any] = {}
    for answer in (route.answer, *route.also):
        other = described.setdefault(str(answer.status), _answer(answer, route, of_body))
        if answer is not route.answer and answer.status == route.answer.status:
            content = other["content"][route.media_type]
            content["schema"] = {"oneOf": [content["schema"], of_body[repr(answer.body)]]}
    return described


def _answer(answer: Answer, route: Route, of_body: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "description": answer.description,
        "headers": _headers(answer.headers),
    }
    if answer.body is not None:
        described["content"] = {route.media_type: {"schema": of_body[repr(answer.body)]}}
    elif route.media_type != "application/json":
        described["content"] = {route.media_type: {"schema": {"type": "string"}}}
    return described


_NOT_MODIFIED: Final = {
    "description": "Nothing has changed since that version.",
    "headers": _headers((ETAG,)),
}


def _problem_ref(status: int) -> dict[str, Any]:
    return {"$ref": f"#/components/responses/Problem{status}"}


def _problem(status: int) -> dict[str, Any]:
    meaning, headers = PROBLEMS[status]
    return {
        "description": f"{HTTPStatus(status).phrase}. {meaning}",
        "headers": _headers(headers),
        "content": {problems.MEDIA_TYPE: {"schema": {"$ref": REF.format(name="ProblemDocument")}}},
    }


def _name(name: str) -> str:
    """A schema's name, or a reference to it, as it is published."""
    return _PAGE.sub(r"\1Page", name)


def _polish(schema: Any) -> Any:
    """Say what the generator leaves out: exactly one of a union's kinds, told by its tag."""
    if isinstance(schema, list):
        return [_polish(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    polished = {key: _polish(value) for key, value in schema.items()}
    if "discriminator" in polished and "anyOf" in polished:
        polished["oneOf"] = polished.pop("anyOf")
    if isinstance(polished.get("description"), str):
        polished["description"] = polished["description"].replace("``", "`")
    if "$ref" in polished:
        polished["$ref"] = _name(polished["$ref"])
    target = polished.get("properties", {}).get("target", {})
    if "$ref" in target:
        polished["properties"]["target"] = {
            "oneOf": [target],
            "discriminator": {"propertyName": "type", "mapping": {"http": target["$ref"]}},
        }
    return polished
