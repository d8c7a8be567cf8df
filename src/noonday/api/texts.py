"""JSON as text: whether it can be read at all, how deep it goes, and keys given twice."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import accumulate
from typing import Final, cast

import msgspec
from msgspec import Raw

from noonday.api.shapes import Shape

DEEPEST: Final = 64
"""How many objects and arrays may lie in each other, a payload's own among them."""

MOST_MEMBERS: Final = 1_000
"""Far more than any object has that is ours to read."""

_STEPS: Final = bytes.maketrans(b"{}[]", b"\x01\xff\x01\xff")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b'[]{}"'))
_TOO_DEEP: Final = ("too_deep", f"has more than {DEEPEST} objects and arrays in each other")
_SURROGATE: Final = re.compile(rb"\\u[dD][89abAB]")


def unreadable(document: bytes) -> tuple[str, str] | None:
    """A code and a text for what is not JSON that is taken here, or None.

    That is RFC 8259 in UTF-8 without a byte order mark, and no half of a surrogate pair.
    """
    try:
        document.decode()
        msgspec.json.decode(document, type=Raw)
    except UnicodeDecodeError as error:
        return "malformed", f"is not UTF-8 (byte {error.start})"
    except RecursionError:
        return _TOO_DEEP
    except msgspec.DecodeError as error:
        return "malformed", _malformed(document, str(error))
    return _TOO_DEEP if too_deep(document) else None


def _malformed(document: bytes, error: str) -> str:
    if not document.strip():
        return "is empty"
    reason = error.removeprefix("JSON is malformed: ").removeprefix("Input data was ")
    if _SURROGATE.search(document):
        reason += "; half of a surrogate pair is no character"
    return f"is not JSON ({reason})"


def too_deep(document: bytes) -> bool:
    """Whether a well-formed document is nested deeper than is taken."""
    if document.count(b"{") + document.count(b"[") <= DEEPEST:
        return False
    without_escapes = document
    if b"\\" in document:
        without_escapes = document.replace(rb"\\", b"").replace(rb"\"", b"")
    # Strings without brackets go, whatever stands next to them: the others keep their two quotes.
    quoted = without_escapes.translate(None, _NOT_BRACKETS).replace(b'""', b"")
    steps = b"".join(quoted.split(b'"')[::2]).translate(_STEPS)
    return max(accumulate(memoryview(steps).cast("b"))) > DEEPEST


def has_escape(document: bytes, *escapes: bytes) -> bool:
    """Whether one of them may stand in a document. (Most have no backslash, which is soon seen.)"""
    return b"\\" in document and any(escape in document for escape in escapes)


class _Key:
    """A key as it stands in the text; without ``__eq__``, so that equal keys stay apart."""

    __slots__ = ("text",)

    def __init__(self, _: type, text: str) -> None:
        self.text = text


_encode: Final = msgspec.json.Encoder().encode
_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])
_PAIRS: Final = msgspec.json.Decoder(dict[_Key, Raw], dec_hook=_Key)


def pairs(raw: bytes | Raw) -> list[tuple[str, Raw]]:
    """The members of an object, equal keys among them, each value as it stands in the text."""
    return [(key.text, value) for key, value in _PAIRS.decode(raw).items()]


def overfull(raw: bytes | Raw) -> bool:
    """Whether an object has far more members than any of ours, overwritten ones included."""
    values = cast("Iterable[bytes]", _MEMBERS.decode(raw).values())
    return bytes(raw).count(b":") - b"".join(values).count(b":") > MOST_MEMBERS


def has_equal_keys(raw: bytes, shape: Shape) -> bool:
    """Whether an object that the shape names has a key twice; the text is sound otherwise."""
    # Every member has a colon of its own, so what was overwritten by a later one of its name leaves
    # a colon over when the rest is written again. (Nothing adds one, but an escape in a key.)
    kept = _encode(shape.outline_decoder.decode(raw))
    escaped = has_escape(raw, b"\\u003a", b"\\u003A")
    return (escaped or raw.count(b":") != kept.count(b":")) and _repeats(raw, shape)


def _repeats(raw: bytes | Raw, shape: Shape) -> bool:
    if shape.items:
        elements: list[Raw] = shape.decoder.decode(raw)
        return any(_repeats(element, shape.items) for element in elements)
    if overfull(raw):
        return True
    members = pairs(raw)
    if len(dict(members)) != len(members):
        return True
    return any(
        form.holds_objects and _repeats(value, form)
        for name, value in members
        if name in shape.containers
        for form in (shape.containers[name].form_of(value),)
    )
