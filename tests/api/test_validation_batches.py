"""Batches, and the small bodies: the envelope is one thing, each job in it another."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from noonday.api.reading import Fault, read
from noonday.api.schemas import (
    MOST_JOBS,
    ApiKeyBody,
    Batch,
    JobRequest,
    TenantBody,
    TriggerBody,
    read_batch,
)
from tests.support.bodies import GOOD, changed


def batch(body: Any) -> Batch | list[Fault]:
    document = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_batch(document, allow_private=False)


def codes(result: Any) -> dict[str, str]:
    assert isinstance(result, list)
    return {fault.pointer: fault.code for fault in result}


def test_good_and_bad_jobs_stand_side_by_side_in_their_order() -> None:
    result = batch(
        {
            "jobs": [
                {"job": GOOD, "idempotency_key": "a"},
                {"job": changed("/priority", 77)},
                {"idempotency_key": None, "job": GOOD},
                {"job": 5},
            ]
        }
    )
    assert isinstance(result, Batch)
    assert result.atomic is False
    assert [item.idempotency_key for item in result.items] == ["a", None, None, None]
    assert isinstance(result.items[0].job, JobRequest)
    assert codes(result.items[1].job) == {"/priority": "out_of_range"}
    assert isinstance(result.items[2].job, JobRequest)
    assert codes(result.items[3].job) == {"": "wrong_type"}


def test_a_job_of_a_batch_is_known_by_its_bytes() -> None:
    raw = json.dumps(GOOD, indent=3).encode()
    result = batch(b'{"atomic" : true, "jobs":[ {"job":' + raw + b"} ] }")
    assert isinstance(result, Batch)
    assert result.atomic is True
    assert result.items[0].raw == raw


def test_keys_given_twice_are_found_in_the_envelope_and_in_each_job() -> None:
    twice = b'{"name":"a","name":"b",' + json.dumps(GOOD | {"name": 1}).encode()[12:]
    result = batch(b'{"jobs":[{"job":' + twice + b"}]}")
    assert isinstance(result, Batch)
    assert codes(result.items[0].job)["/name"] == "duplicate_field"
    assert codes(batch(b'{"jobs":[{"job":{},"job":{}}]}')) == {"/jobs/0/job": "duplicate_field"}
    assert codes(batch(b'{"jobs":[{"job":{}}],"jobs":[{"job":{}}]}')) == {
        "/jobs": "duplicate_field"
    }


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ([], {"": "wrong_type"}),
        ({}, {"/jobs": "missing"}),
        ({"jobs": []}, {"/jobs": "wrong_length"}),
        ({"jobs": [{"job": {}}] * (MOST_JOBS + 1)}, {"/jobs": "wrong_length"}),
        ({"jobs": {}}, {"/jobs": "wrong_type"}),
        ({"jobs": [GOOD]}, None),
        ({"jobs": [None, 5]}, {"/jobs/0": "wrong_type", "/jobs/1": "wrong_type"}),
        ({"jobs": [{}], "atomic": "no"}, {"/jobs/0/job": "missing", "/atomic": "wrong_type"}),
        ({"jobs": [{"job": {}}], "atomic": None}, {"/atomic": "wrong_type"}),
        ({"jobs": [{"job": {}}], "x": 1}, {"/x": "unknown_field"}),
        ({"jobs": [{"job": {}, "key": "a"}]}, {"/jobs/0/key": "unknown_field"}),
        *(
            ({"jobs": [{"job": {}, "idempotency_key": key}]}, {"/jobs/0/idempotency_key": code})
            for key, code in (
                ("", "wrong_length"),
                ("k" * 256, "wrong_length"),
                (5, "wrong_type"),
                ("a b", "invalid"),
                ("ä", "invalid"),
                ("a\n", "invalid"),
                ("\0", "invalid"),
            )
        ),
    ],
)
def test_a_fault_of_the_envelope_refuses_the_batch(
    body: Any, expected: dict[str, str] | None
) -> None:
    result = batch(body)
    if expected is None:
        assert codes(result)["/jobs/0/job"] == "missing"
    else:
        assert codes(result) == expected


@pytest.mark.parametrize("document", [b"", b"{", b'{"jobs":[{"job":{"a":NaN}}]}', b"\xff"])
def test_a_batch_that_is_not_json_is_refused_as_a_whole(document: bytes) -> None:
    assert codes(batch(document)) == {"": "malformed"}


def test_a_full_batch_is_read() -> None:
    result = batch({"jobs": [{"job": GOOD, "idempotency_key": f"k{n}"} for n in range(MOST_JOBS)]})
    assert isinstance(result, Batch)
    assert all(isinstance(item.job, JobRequest) for item in result.items)


def test_small_bodies_are_read_the_same_way() -> None:
    assert read(b"{}", TriggerBody) == TriggerBody()
    assert read(b'{"reason":"by hand"}', TriggerBody) == TriggerBody("by hand")
    assert codes(read(b'{"reason":5,"x":1}', TriggerBody)) == {
        "/reason": "wrong_type",
        "/x": "unknown_field",
    }
    assert read(b'{"name":"payments"}', TenantBody) == TenantBody("payments")
    for name in ("", "A", "-a", "a-", "a" * 64, "a_b", "a\\n", "\\u0000"):
        document = b'{"name":"' + name.encode() + b'"}'
        assert codes(read(document, TenantBody)) == {"/name": "invalid"}, name
    key = b'{"tenant":"payments","role":"viewer","expires_at":"2027-01-01T00:00:00+01:00"}'
    expires_at = datetime(2026, 12, 31, 23, tzinfo=UTC)
    assert read(key, ApiKeyBody) == ApiKeyBody("payments", "viewer", expires_at=expires_at)
    assert codes(read(b'{"role":"root","expires_at":"2027-01-01T00:00:00"}', ApiKeyBody)) == {
        "/tenant": "missing",
        "/role": "unknown_value",
        "/expires_at": "naive_time",
    }
