"""The description is complete, valid, and says what the service does."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from noonday.api import documents, openapi, reference
from noonday.api.app import ROUTES
from noonday.api.problems import HANDLERS, Problem, ProblemDocument, document, invalid
from noonday.api.reading import Fault
from noonday.api.wire import EXAMPLE, JobBody
from noonday.domain.dependencies import After
from noonday.domain.model import Cron, HttpTarget, Interval, Once, RetryPolicy, Schedule
from noonday.domain.roles import Role
from tests.support.bodies import GONE, GOOD, changed, every, faults, once

DESCRIPTION: dict[str, Any] = json.loads(openapi.document(ROUTES))
SCHEMAS: dict[str, Any] = DESCRIPTION["components"]["schemas"]


def validator(name: str) -> Draft202012Validator:
    """Checks values against one of the description's schemas."""
    root = {"$ref": f"#/components/schemas/{name}", "components": DESCRIPTION["components"]}
    return Draft202012Validator(root, format_checker=Draft202012Validator.FORMAT_CHECKER)


def operations() -> dict[str, dict[str, Any]]:
    return {
        operation["operationId"]: operation
        for operations in DESCRIPTION["paths"].values()
        for operation in operations.values()
    }


def resolved(response: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in response:
        return response
    found: dict[str, Any] = DESCRIPTION["components"]["responses"][
        response["$ref"].rpartition("/")[2]
    ]
    return found


def test_the_description_is_valid_openapi_3_1() -> None:
    assert DESCRIPTION["openapi"].startswith("3.1.")
    validate(DESCRIPTION)
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)


def test_every_route_is_described_by_its_name() -> None:
    assert set(operations()) == {route.name for route in ROUTES}
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    for route in ROUTES:
        assert re.fullmatch("[a-z]+(_[a-z]+)*", route.name)
        operation = DESCRIPTION["paths"][route.path][route.method.lower()]
        assert operation["operationId"] == route.name
        assert str(route.answer.status) in operation["responses"]
        named = {each["name"] for each in operation["parameters"]}
        assert named >= {each.name for each in route.parameters}
        assert named >= set(re.findall(r"\{(\w+)\}", route.path))


def test_every_error_is_a_problem_of_one_schema_and_every_route_lists_its_own() -> None:
    for route in ROUTES:
        responses = operations()[route.name]["responses"]
        errors = {int(status) for status in responses if status >= "400"}
        assert errors >= {500, 503, *route.problems}
        assert ({401, 403} <= errors) == (route.role is not None)
        assert (404 in errors) >= ("{" in route.path)
        assert ({400, 413, 415, 422} <= errors) or route.request is None
        for status in errors:
            content = resolved(responses[str(status)])["content"]
            schema = content["application/problem+json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ProblemDocument"}


def test_the_headers_that_matter_are_described() -> None:
    create = operations()["create_job"]
    assert {"Idempotency-Key", "traceparent"} <= {each["name"] for each in create["parameters"]}
    responses = {status: resolved(each) for status, each in create["responses"].items()}
    assert {"Location", "Idempotent-Replayed", "X-Request-Id"} <= set(responses["202"]["headers"])
    assert "WWW-Authenticate" in responses["401"]["headers"]
    assert "Retry-After" in responses["409"]["headers"]
    assert "Retry-After" in responses["503"]["headers"]
    show = operations()["get_job"]["responses"]
    assert "ETag" in show["200"]["headers"]
    assert "ETag" in show["304"]["headers"]
    for operation in operations().values():
        for response in operation["responses"].values():
            assert "X-Request-Id" in resolved(response)["headers"]


def test_only_what_is_open_to_all_needs_no_key() -> None:
    for route in ROUTES:
        assert ("security" in operations()[route.name]) == (route.role is None)
    assert {route.name for route in ROUTES if route.role is None} == {"healthz", "openapi", "docs"}
    assert DESCRIPTION["security"] == [{"key": []}]
    assert min(Role).word in operations()["list_jobs"]["description"]


def test_tagged_unions_have_discriminators() -> None:
    for name in ("JobBody", "JobDocument"):
        fields = SCHEMAS[name]["properties"]
        assert set(fields["schedule"]["discriminator"]["mapping"]) == {"once", "cron", "interval"}
        assert set(fields["target"]["discriminator"]["mapping"]) == {"http"}
        assert len(fields["schedule"]["oneOf"]) == 3
        assert len(fields["target"]["oneOf"]) == 1


def test_defaults_and_limits_are_shown() -> None:
    job = SCHEMAS["JobBody"]["properties"]
    assert job["priority"] | {"description": ""} == {
        "type": "integer",
        "minimum": 0,
        "maximum": 9,
        "default": 5,
        "description": "",
    }
    assert job["retry_policy"]["default"] == json.loads(msgspec.json.encode(RetryPolicy()))
    assert SCHEMAS["CronBody"]["properties"]["timezone"]["default"] == "UTC"
    assert SCHEMAS["OnceBody"]["properties"]["delay"]["anyOf"][0]["format"] == "duration"
    optional = set(job) - set(SCHEMAS["JobBody"]["required"])
    undefined = {"payload", "payload_base64", "content_type", "lane"}
    assert all("default" in job[name] for name in optional - undefined)


def test_the_delivery_describes_the_headers_of_a_webhook() -> None:
    delivery = DESCRIPTION["webhooks"]["delivery"]["post"]
    assert {each["name"] for each in delivery["parameters"]} == {
        *("X-Job-Id", "X-Run-Id", "X-Occurrence", "X-Attempt", "X-Lease-Version"),
        *("X-Scheduler-Signature", "webhook-id", "webhook-timestamp", "webhook-signature"),
        *("Idempotency-Key", "traceparent"),
    }


# --- The schema and the service have the same idea of a job -----------------------------------


@pytest.mark.parametrize(
    "body",
    [
        GOOD,
        EXAMPLE,
        once(),
        once(delay="P1DT2H"),
        once(run_at="2027-03-01T00:00:00+01:00", grace_sec=None),
        every(60, starts_at=None, max_occurrences=None),
        changed("/payload", GONE) | {"payload_base64": "YQ==", "content_type": "text/plain"},
        GOOD | {"labels": {"a": "b"}, "after": [], "retry_policy": {"max_age_sec": None}},
    ],
)
def test_what_is_taken_fits_the_schema(body: dict[str, Any]) -> None:
    assert faults(body) == {}
    validator("JobBody").validate(body)


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        *(("/name", value) for value in (None, 5, "x" * 256)),
        *(("/priority", value) for value in (-1, 10, "5", True, 1.5)),
        *(("/schedule", value) for value in (None, {}, {"type": "yearly"}, {"type": "cron"})),
        *(("/schedule/misfire", value) for value in ("none", 1, None)),
        *(("/schedule/ends_at", value) for value in ("soon", 5)),
        *(("/target/type", value) for value in ("script", None, GONE)),
        *(("/target/method", value) for value in ("HEAD", "post")),
        *(("/target/timeout_sec", value) for value in (0, 86_401, "30")),
        ("/labels", {"": "x"}),
        ("/labels", {"k" * 64: "x"}),
        ("/labels", {"a": 1}),
        ("/labels", []),
        *(("/lane", value) for value in ("", "l" * 64, None)),
        *(("/after", value) for value in (["x"], None)),
        *(("/concurrency_key", value) for value in (5, "", "k" * 201, "a\nb")),
        ("/unknown", 1),
        ("/schedule/unknown", 1),
        ("/target/unknown", 1),
        ("/retry_policy/unknown", 1),
    ],
)
def test_what_is_refused_does_not_fit_the_schema(pointer: str, value: Any) -> None:
    body = changed(pointer, value)
    assert faults(body)
    assert not validator("JobBody").is_valid(body)


def test_answers_fit_their_schemas() -> None:
    at = datetime(2027, 3, 28, 1, tzinfo=UTC)
    schedules: list[Schedule] = [Once(at), Cron("0 0 * * *", starts_at=at), Interval(60, at)]
    for schedule in schedules:
        job = documents.JobDocument(
            id="01890a5d-ac96-774b-bcce-b302099a8057",
            name="",
            status="PENDING",
            state_reason=None,
            schedule=documents.schedule_document(schedule),
            target=documents.target_document(HttpTarget("https://a.b/"), ["Cookie"]),
            priority=5,
            lane="default",
            retry_policy=RetryPolicy(),
            lease_sec=60,
            labels={},
            payload_bytes=0,
            content_type="application/json",
            version=1,
            created_at=documents.stamp(at),
            created_by="key",
            next_run_at=None,
            next_fires=[documents.stamp(at)],
            attempts=0,
            last_error=None,
            on_unknown="dead_letter",
            cancel_url="https://a.b/cancel",
            after=documents.after_document(After()),
            waits_for=[],
        )
        validator("JobDocument").validate(json.loads(msgspec.json.encode(job)))
    problem = document(invalid([Fault("/name", "wrong_type", "must be string")]), "r1")
    validator("ProblemDocument").validate(json.loads(msgspec.json.encode(problem)))


def test_a_problem_without_faults_has_no_list_of_them() -> None:
    encoded = json.loads(msgspec.json.encode(document(Problem(404, "not_found", "No job."), "r1")))
    assert encoded == {
        "type": "urn:noonday:problem:not_found",
        "title": "Not found",
        "status": 404,
        "detail": "No job.",
        "code": "not_found",
        "request_id": "r1",
    }
    assert set(encoded) <= set(ProblemDocument.__struct_fields__)
    assert Problem in HANDLERS


def test_instants_are_written_in_utc_with_three_digits() -> None:
    east = datetime.fromisoformat("2027-03-28T03:00:00.999999+02:00")
    assert documents.stamp(east) == "2027-03-28T01:00:00.999Z"
    assert documents.stamp(datetime(1970, 1, 1, tzinfo=UTC)) == "1970-01-01T00:00:00.000Z"
    assert documents.maybe(None) is None


# --- The page ---------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """Notes what a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def page() -> Page:
    parsed = Page()
    parsed.feed(reference.page(ROUTES).decode())
    return parsed


def test_the_page_is_whole_and_needs_nothing_else(page: Page) -> None:
    assert page.open == []
    assert {"script", "link", "img", "iframe", "form", "object"}.isdisjoint(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "style"]
    links = [value for name, value in page.attributes if name in ("href", "src")]
    assert all(link.startswith(("#", "/")) for link in links)
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)


def test_the_page_shows_every_route_field_and_header(page: Page) -> None:
    for route in ROUTES:
        assert f"{route.method} {route.path}" in page.text
        assert route.summary in page.text
    for name in (*msgspec.structs.fields(JobBody), *msgspec.structs.fields(documents.JobDocument)):
        assert name.encode_name in page.text
    assert "X-Lease-Version" in page.text
    assert "<" not in re.sub(r"<(seconds|hex|id|secret|base64)>", "", page.text.partition("}\n")[2])


def test_the_page_is_sent_with_a_policy_that_fits_it() -> None:
    text = reference.page(ROUTES).decode()
    style = text.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = reference.HEADERS["Content-Security-Policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'")
    assert "unsafe" not in policy
