"""Reading a body with all its faults at once: what its fields are is told by structs.

msgspec decodes and checks a good body in one go, but stops at the first fault and keeps the last
of two equal keys. So :func:`read` looks for equal keys apart, and a body that is refused is gone
over field by field by a :class:`Reader`, which has msgspec decode each field by its own type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Raw

from noonday.api.shapes import Shape, shape_of

T = TypeVar("T")

DEEPEST: Final = 64
"""How many objects and arrays may lie in each other, a payload's own among them."""

MOST_FAULTS: Final = 100
LONGEST_NAME: Final = 100

MALFORMED: Final = frozenset(("malformed", "too_deep"))
"""The codes of a body that cannot be read at all: 400. All others are 422."""

_STRING: Final = re.compile(rb'"(?:[^"\\]+|\\.)*"', re.DOTALL)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_SURROGATE: Final = re.compile(rb"\\u[dD][89abAB]")


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong with a request."""

    pointer: str
    """Where (RFC 6901); empty for the body as a whole."""
    code: str
    detail: str


class Faults:
    """What is wrong with a body: at most one fault a place, and not without end."""

    def __init__(self) -> None:
        self._by_pointer: dict[str, Fault] = {}

    def add(self, pointer: str, code: str, detail: str, *rests_on: str) -> None:
        """Note a fault, unless its place or a place it ``rests_on`` has one already."""
        known = self._by_pointer
        if len(known) < MOST_FAULTS and not any(at in known for at in (pointer, *rests_on)):
            known[pointer] = Fault(pointer, code, detail)

    def all(self) -> list[Fault]:
        """Every fault, in the order of the body."""
        return list(self._by_pointer.values())


def at(pointer: str, name: str | int) -> str:
    """The pointer to a member of what ``pointer`` leads to (RFC 6901 §3)."""
    text = str(name)
    text = text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…"
    return f"{pointer}/{text.replace('~', '~0').replace('/', '~1')}"


# --- The text as a whole ----------------------------------------------------------------------


def unreadable(document: bytes) -> Fault | None:
    """Why a document is not JSON that is taken here, or None (RFC 8259, UTF-8 without a mark)."""
    try:
        document.decode()
        msgspec.json.decode(document, type=Raw)
    except UnicodeDecodeError as error:
        return Fault("", "malformed", f"is not UTF-8 (byte {error.start})")
    except RecursionError:
        return _too_deep()
    except msgspec.DecodeError as error:
        return Fault("", "malformed", _malformed(document, str(error)))
    return _too_deep() if _deeper(document, DEEPEST) else None


def _too_deep() -> Fault:
    return Fault("", "too_deep", f"has more than {DEEPEST} objects and arrays in each other")


def _malformed(document: bytes, error: str) -> str:
    if not document.strip():
        return "is empty"
    reason = error.removeprefix("JSON is malformed: ").removeprefix("Input data was ")
    if _SURROGATE.search(document):
        reason += "; half of a surrogate pair is no character"
    return f"is not JSON ({reason})"


def _deeper(document: bytes, limit: int) -> bool:
    """Whether a well-formed document is nested deeper than ``limit``."""
    if document.count(b"{") + document.count(b"[") <= limit:
        return False
    brackets = _STRING.sub(b"", document).translate(None, _NOT_BRACKETS)
    for _ in range(limit):  # each round takes the innermost away
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return bool(brackets)


# --- Equal keys -------------------------------------------------------------------------------


class _Key:
    """A key as it stands in the text: told apart from an equal one, because it has no ``__eq__``."""

    __slots__ = ("text",)

    def __init__(self, _: type, text: str) -> None:
        self.text = text


_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])
_PAIRS: Final = msgspec.json.Decoder(dict[_Key, Raw], dec_hook=_Key)


def pairs(raw: bytes | Raw) -> list[tuple[str, Raw]]:
    """The members of an object, equal keys among them, each value as it stands in the text."""
    return [(key.text, value) for key, value in _PAIRS.decode(raw).items()]


def has_equal_keys(raw: bytes, shape: Shape) -> bool:
    """Whether an object, or one of those in it that its type names, has a key twice."""
    members = _MEMBERS.decode(raw)
    # Each member has one colon of its own; a member that was overwritten leaves one over. So does
    # a colon within a key, which is worth a closer look.
    colons = len(members) + b"".join(cast("Mapping[str, bytes]", members).values()).count(b":")
    if raw.count(b":") != colons and len(pairs(raw)) != len(members):
        return True
    return any(
        has_equal_keys(bytes(members[name]), inner)
        for name, inner in shape.objects.items()
        if name in members
    )


# --- Field by field ---------------------------------------------------------------------------


def read(document: bytes, kind: type[T]) -> T | list[Fault]:
    """A body as a ``kind``, or everything that is wrong with it. Raises nothing."""
    if (value := read_quickly(document, kind)) is not None:
        return value
    faults = Faults()
    value = read_slowly(document, kind, faults)
    return faults.all() or value


def read_quickly(document: bytes, kind: type[T]) -> T | None:
    """A body that has no fault; None if it has, or if that is not certain at a glance."""
    if document.count(b"{") + document.count(b"[") > DEEPEST and _deeper(document, DEEPEST):
        return None
    shape = shape_of(kind)
    try:
        document.decode()
        value = shape.decoder.decode(document)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return None
    if b"\\u0000" in document or has_equal_keys(document, shape):
        return None
    return cast("T", value)


def read_slowly(document: bytes, kind: type[T], faults: Faults) -> T:
    """A body with a stand-in for whatever is at fault, so that the rest can still be judged."""
    fault = unreadable(document)
    if fault is not None:
        faults.add(*msgspec.structs.astuple(fault))
        return cast("T", shape_of(kind).stand_in())
    return cast("T", Reader(faults).read(Raw(document), shape_of(kind), ""))


class _Missing(NamedTuple):
    """A field that is not there, or is at fault: its default is used."""


class Reader:
    """Reads values by their shapes and notes what is wrong with them."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def read(self, raw: Raw, shape: Shape, pointer: str) -> Any:
        """The value, or a stand-in with its faults noted."""
        if shape.structs or shape.entries:
            return self._object(raw, shape, pointer)
        if shape.items:
            return self._array(raw, shape, pointer)
        return self._plain(raw, shape, pointer)
