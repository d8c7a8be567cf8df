"""Everything the contract speaks of is either carried out or refused as not supported."""

from __future__ import annotations

import json
from typing import Any

import pytest

from noonday.api.wire import EXAMPLE
from noonday.domain.lanes import READY_MADE
from tests.support.bodies import GOOD, changed, every, faults, job, once

CONTRACT: dict[str, Any] = {
    "name": "nightly-billing",
    "schedule": {
        "type": "cron",
        "cron": "0 0 * * *",
        "timezone": "Europe/Paris",
        "jitter_sec": 300,
        "misfire": "one",
        "overlap": "skip",
        "grace_sec": 86400,
        "dst_gap": "run",
        "dst_fold": "first",
        "starts_at": None,
        "ends_at": None,
        "max_occurrences": None,
    },
    "target": {
        "type": "http",
        "url": "https://billing.internal/run",
        "method": "POST",
        "headers": {"x-team": "payments"},
        "timeout_sec": 30,
    },
    "payload": {"ledger": "eu"},
    "priority": 2,
    "lane": "critical",
    "retry_policy": {
        "max_attempts": 8,
        "base_sec": 2,
        "factor": 2,
        "cap_sec": 3600,
        "max_age_sec": 86400,
    },
    "lease_sec": 60,
    "on_unknown": "retry",
    "cancel_url": "https://billing.internal/cancel",
    "after": [],
    "concurrency_key": "billing-eu",
    "labels": {"env": "prod"},
}

LATER = "not_supported"
FIELDS: list[tuple[str, dict[Any, str | None]]] = [
    ("/schedule/misfire", {"one": None, "skip": None, "all": None}),
    ("/schedule/overlap", dict.fromkeys(("allow", "skip", "queue", "replace"))),
    ("/schedule/dst_gap", {"run": None, "skip": None}),
    ("/schedule/dst_fold", {"first": None, "second": None, "both": None}),
    ("/schedule/starts_at", {None: None, "2027-01-01T00:00:00Z": None}),
    ("/schedule/ends_at", {None: None, "2027-01-01T00:00:00Z": None, 5: "wrong_type"}),
    ("/schedule/max_occurrences", {None: None, 1: None, 0: "out_of_range", "x": "wrong_type"}),
    ("/target/type", {"http": None, "script": LATER, "container": LATER, "pull": LATER}),
    ("/target/method", dict.fromkeys(("POST", "PUT", "PATCH", "GET", "DELETE"))),
    ("/priority", dict.fromkeys(range(10))),
    ("/lane", {**dict.fromkeys(READY_MADE), "own": "unknown_lane", "Default": "unknown_lane"}),
    ("/on_unknown", {"retry": None, "dead_letter": None}),
    ("/cancel_url", {None: None, "https://example.com/cancel": None}),
    (
        "/concurrency_key",
        {
            **dict.fromkeys((None, "billing-eu", "a b/c", "ü", "k" * 200)),
            **dict.fromkeys(("", "k" * 201), "wrong_length"),
            **dict.fromkeys(("a\n", "\x7f", "a\u2028"), "invalid"),
            5: "wrong_type",
        },
    ),
]


def test_the_example_of_the_contract_is_refused_for_what_is_not_carried_out_alone() -> None:
    assert faults(CONTRACT) == {}


def test_without_that_it_is_carried_out_as_it_says() -> None:
    request = job(CONTRACT)
    assert request.concurrency_key == "billing-eu"
    assert request.payload == b'{"ledger": "eu"}'
    assert request.labels == CONTRACT["labels"]


@pytest.mark.parametrize(
    ("pointer", "value", "code"),
    [(pointer, value, code) for pointer, values in FIELDS for value, code in values.items()],
)
def test_each_value_of_the_contract_is_carried_out_or_refused_by_name(
    pointer: str, value: Any, code: str | None
) -> None:
    assert faults(changed(pointer, value)) == ({} if code is None else {pointer: code})


@pytest.mark.parametrize("field", ["misfire", "overlap", "ends_at", "max_occurrences"])
def test_intervals_know_the_same_fields_as_expressions(field: str) -> None:
    taken = {"misfire": "all", "overlap": "queue", "ends_at": "2027-01-01T00:00:00Z"}.get(field, 5)
    assert faults(every(60, **{field: taken})) == {}
    assert faults(every(60, **{field: []})) == {f"/schedule/{field}": "wrong_type"}


@pytest.mark.parametrize(
    "body",
    [
        once(),
        once(run_at="2027-01-01T00:00:00Z"),
        once(delay="PT30S"),
        once(jitter_sec=5, grace_sec=60),
        every(5),
        GOOD,
        EXAMPLE,
    ],
)
def test_each_kind_of_schedule_is_carried_out(body: dict[str, Any]) -> None:
    assert faults(body) == {}


def test_every_field_of_the_contract_is_known_on_its_own() -> None:
    def walk(value: Any, pointer: str) -> list[str]:
        if not isinstance(value, dict) or pointer in ("/payload", "/labels", "/target/headers"):
            return [pointer]
        return [at for key in value for at in walk(value[key], f"{pointer}/{key}")]

    for pointer in walk(CONTRACT, ""):
        place: Any = CONTRACT
        for step in pointer.split("/")[1:]:
            place = place[step]
        code = faults(json.dumps(changed(pointer, place)).encode()).get(pointer)
        assert code in (None, LATER), (pointer, code)
