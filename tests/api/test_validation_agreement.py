"""Whatever comes in: both ways of reading agree, nothing is raised, nothing is made up."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from noonday.api.reading import MOST_FAULTS, Fault, Faults, read_quickly, read_slowly
from noonday.api.schemas import JobRequest, read_batch, read_job
from noonday.api.wire import JobBody
from tests.support.bodies import GONE, GOOD, changed, every, once

NOW = datetime(2027, 3, 1, tzinfo=UTC)
FULL = GOOD | {
    "target": GOOD["target"] | {"method": "PUT", "headers": {"x-a": "b"}, "timeout_sec": 3},
    "priority": 3,
    "lane": "default",
    "retry_policy": {"max_attempts": 3, "base_sec": 1, "max_age_sec": None},
    "lease_sec": 30,
    "after": [],
    "on_unknown": "dead_letter",
    "cancel_url": "https://example.com/cancel?token=a",
    "labels": {"a": "b", "c:d": "e"},
}
POINTERS = [
    *("", "/name", "/schedule", "/target", "/payload", "/payload_base64", "/content_type"),
    *("/priority", "/lane", "/lease_sec", "/on_unknown", "/cancel_url", "/after", "/labels"),
    *("/concurrency_key", "/labels/a", "/labels/", "/retry_policy", "/retry_policy/max_attempts"),
    *("/retry_policy/base_sec", "/retry_policy/factor", "/retry_policy/cap_sec"),
    *("/retry_policy/max_age_sec", "/schedule/type", "/schedule/cron", "/schedule/timezone"),
    *("/schedule/jitter_sec", "/schedule/grace_sec", "/schedule/overlap", "/schedule/run_at"),
    *("/schedule/delay", "/schedule/interval_sec", "/schedule/starts_at", "/schedule/ends_at"),
    *("/target/type", "/target/url", "/target/method", "/target/headers", "/target/headers/x-a"),
    *("/target/headers/Host", "/target/timeout_sec", "/unknown", "/a~1b", "/schedule/unknown"),
]
WORDS = [
    *("", "\0", "😀", "ä", "http"),
    *(
        "once",
        "cron",
        "interval",
        "default",
        "long",
        "critical",
        "retry",
        "dead_letter",
        "skip",
        "queue",
        "POST",
        "UTC",
    ),
    *("Europe/Paris", "0 0 * * *", "0 0 30 2 *", "H H * * *", "@daily", "PT30S", "P1M", "YQ=="),
    *("2027-03-02T00:00:00Z", "2027-03-02T00:00:00", "2199-12-31T23:59:59.9999999Z"),
    *("https://a.b/", "http://127.1/", "https://a.b:x/", "text/plain", "Bearer x", "a\r\nb"),
]
NUMBERS = [0, -1, 1, 5, 9, 60, 2**31, 2**63, 10**400, 0.5, 1e300, 5e-324, -0.0]

plain = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(NUMBERS),
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
)
values = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
bodies = st.sampled_from([GOOD, FULL, once(), once(delay="PT1S"), every(60, starts_at=None)])
edits = st.lists(
    st.tuples(st.sampled_from(POINTERS[1:]), st.just(GONE) | values), min_size=0, max_size=4
)
FRAGMENTS = [
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b"0", b"1e999", b"NaN"),
    *(b"\xff", b"\\u0000", b"\\ud800", b"\0", b'"name":"x",', b'"type":"once",', b'"a":1,"a":2,'),
    *(
        b"null",
        b'"payload":{"a":1,"a":2},',
        b'"labels":{"a":"b","a":"b"},',
        b"[" * 70,
        b'{"a":' * 70,
    ),
]
cuts = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 3), st.sampled_from(FRAGMENTS)), max_size=3
)


def edited(body: dict[str, Any], changes: list[tuple[str, Any]]) -> dict[str, Any]:
    for pointer, value in changes:
        try:
            body = changed(pointer, value, body)
        except (AttributeError, TypeError):  # the way there was replaced by something plain
            continue
    return body


def cut(document: bytes, places: list[tuple[float, int, bytes]]) -> bytes:
    for where, gone, fragment in places:
        at = int(where * len(document))
        document = document[:at] + fragment + document[at + gone :]
    return document


def check(document: bytes) -> None:
    quick = read_quickly(document, JobBody)
    faults = Faults()
    slow = read_slowly(document, JobBody, faults)
    if quick is not None:
        assert not faults.all()
        assert slow == quick
    elif not faults.all():
        assert b"\\u0000" in document

    result = read_job(document, allow_private=False)
    if isinstance(result, JobRequest):
        assert quick is not None or b"\\u0000" in document
        _check_request(result, document)
    else:
        assert 1 <= len(result) <= MOST_FAULTS
        assert all(isinstance(fault, Fault) for fault in result)
        assert all(fault.pointer == "" or fault.pointer[0] == "/" for fault in result)
        assert len({fault.pointer for fault in result}) == len(result)


def _check_request(request: JobRequest, document: bytes) -> None:
    request.schedule(NOW)
    # What was taken is JSON to others too, and says to them what it says to us.
    seen = json.loads(document, parse_constant=_refuse, parse_int=str, parse_float=str)
    assert request.name == seen.get("name", "")
    assert request.labels == seen.get("labels", {})
    headers = request.target.headers | request.secret_headers
    assert headers == seen["target"].get("headers", {})
    if "payload" in seen:
        payload = json.loads(request.payload, parse_int=str, parse_float=str)
        assert payload == seen["payload"]
        assert request.payload in document


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")


@settings(derandomize=True, max_examples=300, deadline=None, database=None)
@given(bodies, edits)
def test_changed_bodies_are_read_alike_both_ways(
    body: dict[str, Any], changes: list[tuple[str, Any]]
) -> None:
    check(json.dumps(edited(body, changes), ensure_ascii=False).encode())


@settings(derandomize=True, max_examples=300, deadline=None, database=None)
@given(bodies, edits, cuts)
def test_damaged_texts_are_read_alike_both_ways(
    body: dict[str, Any],
    changes: list[tuple[str, Any]],
    places: list[tuple[float, int, bytes]],
) -> None:
    check(cut(json.dumps(edited(body, changes)).encode(), places))


@settings(derandomize=True, max_examples=300, deadline=None, database=None)
@given(st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode()))
@example(b"{" * 100_000)
@example(b'"' + b'\\"' * 50_000)
@example(b'{"a":' * 60_000 + b"1" + b"}" * 60_000)
@example(b"[" + b"[]," * 100_000 + b"[]]")
@example(b"{" + b'"a":1,' * 50_000 + b'"a":1}')
def test_anything_at_all_is_answered_with_faults(document: bytes) -> None:
    check(document)
    batch = read_batch(document, allow_private=False)
    assert isinstance(batch, list)
    assert batch


def test_pieces_of_good_bodies_put_together_anyhow_are_read_alike_both_ways() -> None:
    pieces = json.dumps(FULL).encode().split(b",")
    for left in range(len(pieces)):
        for right in range(len(pieces)):
            check(b",".join(pieces[:left] + pieces[right:]))
