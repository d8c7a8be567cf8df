from __future__ import annotations

import pytest

from noonday.domain.fingerprint import fingerprint

ALIKE = [
    ("timed out after 30 s without an answer", "timed out after 2.5 s without an answer"),
    (
        "cannot connect to http://10.0.0.1:8080: refused",
        "cannot connect to http://10.0.0.7: refused",
    ),
    (
        "no job 0190a3b2-7c4d-7e8f-9a0b-1c2d3e4f5a6b",
        "no job 0190ffff-7c4d-7e8f-9a0b-1c2d3e4f5a6b",
    ),
    ("KeyError: 'alice'", "KeyError: 'bob'"),
    ("at 0xdeadbeef", "at 0x1"),
    ("digest 0123456789abcdef0123", "digest ffffffffffffffffffff"),
    ("two  words", "two words"),
    (None, ""),
]
DIFFERENT = [
    (("transient", 500, "answered 500"), ("transient", 503, "answered 503")),
    (("transient", None, "refused"), ("transient", None, "reset")),
    (("transient", None, "refused"), ("timeout", None, "refused")),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_what_varies_between_errors_of_one_kind_does_not_count(
    one: str | None, other: str | None
) -> None:
    assert fingerprint("transient", None, one) == fingerprint("transient", None, other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_errors_of_different_kinds_differ(
    one: tuple[str, int | None, str], other: tuple[str, int | None, str]
) -> None:
    assert fingerprint(*one) != fingerprint(*other)


@pytest.mark.parametrize("text", ["half \ud800 a pair", "\x00", "x" * 10_000])
def test_any_text_has_one(text: str) -> None:
    assert len(fingerprint("transient", 500, text)) == 16
