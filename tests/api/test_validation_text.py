"""Bodies as text: what is not JSON, goes too deep, or says a thing twice."""

from __future__ import annotations

import json

import pytest

from noonday.api.problems import invalid
from noonday.api.reading import Fault
from noonday.api.schemas import read_job
from noonday.api.texts import DEEPEST
from tests.support.bodies import GOOD, changed, faults

DOCUMENT = json.dumps(GOOD).encode()


@pytest.mark.parametrize(
    "document",
    [
        *(b"", b" ", b"\n", b"{", b"}", b"[", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,}', b"{,}"),
        *(b"nul", b"NaN", b"Infinity", b"-Infinity", b"01", b"1.", b".5", b"+1", b"0x1", b"1e"),
        *(b"{'a':1}", b"{a:1}", b'{"a":1 "b":2}', b"{} {}", b"{}x", b"// x\n{}", b"{}\0", b"\0"),
        *(b'"\t"', b'"\n"', b'"\\x"', b'"\\u12"', b'"\\u12G4"', b'"', b'"\\', b'"\0"'),
        *(b"\xef\xbb\xbf{}", b"\xff\xfe{\0}\0", b"\xff", b'"\xc0\xaf"', b'"\xed\xa0\x80"'),
        *(b'"\\ud800"', b'"\\udc00"', b'"\\ud800x"', b'"\\ud800\\u0041"', b'"\\udc00\\ud800"'),
        *(DOCUMENT[:n] for n in range(0, len(DOCUMENT), 7)),
        DOCUMENT + b",",
        DOCUMENT.replace(b'"eu"', b"NaN"),
        DOCUMENT.replace(b'"eu"', b'"\xff"'),
        DOCUMENT.replace(b'"eu"', b'"\\ud800"'),
        DOCUMENT.replace(b'"nightly-billing"', b'"\\ud800"'),
        DOCUMENT.replace(b'"name"', b'"\\udfff"'),
        DOCUMENT.replace(b'"eu"', b"01"),
    ],
)  # fmt: skip
def test_what_is_not_json_is_one_fault_of_the_whole_body(document: bytes) -> None:
    assert faults(document) == {"": "malformed"}


@pytest.mark.parametrize("document", [b"null", b"[]", b"5", b'"x"', b"true", b"[{}]"])
def test_json_that_is_no_object_is_of_a_wrong_type(document: bytes) -> None:
    assert faults(document) == {"": "wrong_type"}


def nested(levels: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """A good job whose document is nested so deep, its payload's part included."""
    inner = opening * (levels - 1) + b"1" + closing * (levels - 1)
    return DOCUMENT.replace(b'{"ledger": "eu"}', inner)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_is_taken_to_its_limit_and_no_further(opening: bytes, closing: bytes) -> None:
    assert faults(nested(DEEPEST, opening, closing)) == {}
    assert faults(nested(DEEPEST + 1, opening, closing)) == {"": "too_deep"}
    assert faults(nested(200, opening, closing)) == {"": "too_deep"}
    assert faults(nested(100_000, opening, closing)) == {"": "too_deep"}


def test_many_brackets_side_by_side_or_in_strings_are_not_deep() -> None:
    side_by_side = b"[" + b",".join([b'[{"a":"]{[\\"["}]'] * 1000) + b"]"
    assert faults(DOCUMENT.replace(b'{"ledger": "eu"}', side_by_side)) == {}
    assert faults(DOCUMENT.replace(b'"eu"', b'"' + b"[{" * 500 + b'"')) == {}


def test_a_field_nested_too_deep_elsewhere_is_found_as_well() -> None:
    assert faults(DOCUMENT[:-1] + b',"x":' + b"[" * 80 + b"]" * 80 + b"}") == {"": "too_deep"}


def doubled(inner: bytes, key: bytes, value: bytes) -> bytes:
    """The good document with a member put in front of the object that begins with ``inner``."""
    assert DOCUMENT.count(inner) == 1
    return DOCUMENT.replace(inner, b"{" + key + b":" + value + b", " + inner[1:])


@pytest.mark.parametrize(
    ("inner", "key", "pointer"),
    [
        (b'{"name"', b'"name"', "/name"),
        (b'{"name"', b'"schedule"', "/schedule"),
        (b'{"name"', b'"payload"', "/payload"),
        (b'{"name"', b'"na\\u006de"', "/name"),
        (b'{"name"', b'"\\u0070ayload"', "/payload"),
        (b'{"type": "cron"', b'"cron"', "/schedule/cron"),
        (b'{"type": "cron"', b'"type"', "/schedule/type"),
        (b'{"type": "http"', b'"url"', "/target/url"),
        (b'{"type": "http"', b'"type"', "/target/type"),
    ],
)
def test_a_key_given_twice_is_refused_whatever_its_spelling(
    inner: bytes, key: bytes, pointer: str
) -> None:
    for value in (b'"x"', b'{"type": "once"}', b"null", b'":::"'):
        assert faults(doubled(inner, key, value))[pointer] == "duplicate_field"


@pytest.mark.parametrize(
    ("field", "value", "pointer"),
    [
        (b"labels", b'{"a":"1","a":"1"}', "/labels/a"),
        (b"labels", b'{"a:b":"1","a:b":"1"}', "/labels/a:b"),
        (b"labels", b'{"a":"1","\\u0061":"2"}', "/labels/a"),
        (b"retry_policy", b'{"factor":2,"factor":2}', "/retry_policy/factor"),
        (
            b"target",
            b'{"type":"http","url":"https://a.b/","headers":{"x":"1","x":"2"}}',
            "/target/headers/x",
        ),
    ],
)
def test_a_key_given_twice_is_refused_in_every_object_of_ours(
    field: bytes, value: bytes, pointer: str
) -> None:
    document = json.dumps({key: GOOD[key] for key in GOOD if key.encode() != field}).encode()
    document = document[:-1] + b', "' + field + b'":' + value + b"}"
    assert faults(document) == {pointer: "duplicate_field"}


def test_colons_in_keys_and_values_make_no_duplicates() -> None:
    body = GOOD | {"labels": {"a:b": ":", ":": "::", "::": ""}, "name": ":::", "payload": {":": 1}}
    assert faults(body) == {}


@pytest.mark.parametrize("colon", [b"\\u003a", b"\\u003A"])
def test_an_escaped_colon_hides_no_duplicate(colon: bytes) -> None:
    document = DOCUMENT[:-1] + b', "labels":{"a' + colon + b'b":"1"}, "priority":1,"priority":2}'
    assert faults(document) == {"/priority": "duplicate_field"}


def test_brackets_in_strings_are_told_from_others_whatever_stands_between() -> None:
    inside = b'["",' + b'"[\\\\","[\\"{",' * 70 + b"0]"
    assert faults(DOCUMENT.replace(b'{"ledger": "eu"}', inside)) == {}
    deep = b'["", "]", "\\"]"' + b',["}", ""' * 70 + b"]" * 71
    assert faults(DOCUMENT.replace(b'{"ledger": "eu"}', deep)) == {"": "too_deep"}


def test_a_payload_may_say_a_thing_twice() -> None:
    assert faults(DOCUMENT.replace(b'{"ledger"', b'{"ledger":1,"ledger"')) == {}


def test_a_nul_in_a_payload_is_left_alone() -> None:
    assert faults(changed("/payload", "\0")) == {}


def test_unreadable_bodies_are_answered_with_400_and_wrong_ones_with_422() -> None:
    def status(document: bytes) -> tuple[int, str]:
        result = read_job(document, allow_private=False)
        assert isinstance(result, list)
        problem = invalid(result)
        assert problem.errors == result
        return problem.status, problem.code

    assert status(b"{") == (400, "malformed")
    assert status(b"[" * 100 + b"]" * 100) == (400, "too_deep")
    assert status(b"[]") == (422, "invalid")
    later = changed("/target/type", "script")
    assert status(json.dumps(later).encode()) == (422, "not_supported")
    assert status(json.dumps(GOOD | {"after": ["x"], "name": 1}).encode()) == (422, "invalid")


def test_a_fault_says_where_the_text_breaks_off() -> None:
    assert read_job(b'{"a" 1}', allow_private=False) == [
        Fault("", "malformed", "is not JSON (expected ':' (byte 5))")
    ]
    assert read_job(b"", allow_private=False) == [Fault("", "malformed", "is empty")]
