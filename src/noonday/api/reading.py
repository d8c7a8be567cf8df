"""Reading a body with all its faults at once: what its fields are is told by structs.

msgspec decodes and checks a good body in one go, but stops at the first fault. A body that it
refuses is gone over by a :class:`Reader`, which has it decode each field by that field's own type,
so that both ways have the same idea of what is good.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from difflib import get_close_matches
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec
from msgspec import Meta, Raw

from noonday.api.shapes import Shape, Struct, shape_of
from noonday.api.texts import (
    MOST_MEMBERS,
    has_equal_keys,
    has_escape,
    overfull,
    pairs,
    too_deep,
    unreadable,
)

T = TypeVar("T")

MOST_FAULTS: Final = 100
LONGEST_NAME: Final = 100

MALFORMED: Final = frozenset(("malformed", "too_deep"))
"""The codes of a body that cannot be read at all: 400. All others are 422."""


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong with a request."""

    pointer: Annotated[str, Meta(description="Where (RFC 6901); empty for the body as a whole.")]
    code: Annotated[
        str,
        Meta(
            description="Among others `missing`, `unknown_field`, `duplicate_field`, `wrong_type`, "
            "`wrong_length`, `out_of_range`, `unknown_value`, `invalid`, `conflict`, `naive_time`, "
            "`nul`, `unknown_lane`, `unknown_job`, `reserved_header`, `forbidden_target`, "
            "`before_ledger`, `not_supported`; for a body that cannot be read, `malformed` or "
            "`too_deep`."
        ),
    ]
    detail: Annotated[str, Meta(description="For people.")]


class Faults:
    """What is wrong with a body: at most one fault a place, and not without end."""

    def __init__(self) -> None:
        self._by_pointer: dict[str, Fault] = {}

    def add(self, pointer: str, code: str, detail: str, *rests_on: str) -> None:
        """Note a fault, unless its place or a place it ``rests_on`` has one already."""
        known = self._by_pointer
        if not self.full and not any(place in known for place in (pointer, *rests_on)):
            known[pointer] = Fault(pointer, code, detail)

    @property
    def full(self) -> bool:
        """Whether no more are taken."""
        return len(self) >= MOST_FAULTS

    def __len__(self) -> int:
        return len(self._by_pointer)

    def all(self) -> list[Fault]:
        """Every fault, in the order of the body."""
        return list(self._by_pointer.values())


def at(pointer: str, name: str | int) -> str:
    """The pointer to a member of what ``pointer`` leads to (RFC 6901 §3)."""
    text = str(name)
    text = text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…"
    return f"{pointer}/{text.replace('~', '~0').replace('/', '~1')}"


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
    shape = shape_of(cast("Hashable", kind))
    try:
        document.decode()
        value = shape.decoder.decode(document)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return None
    doubtful = (
        has_escape(document, b"\\u0000") or too_deep(document) or has_equal_keys(document, shape)
    )
    return None if doubtful else cast("T", value)


def read_slowly(document: bytes, kind: type[T], faults: Faults) -> T:
    """A body with a stand-in for whatever is at fault, so that the rest can still be judged."""
    shape = shape_of(cast("Hashable", kind))
    if (reason := unreadable(document)) is not None:
        faults.add("", *reason)
        return cast("T", shape.stand_in())
    value = Reader(faults).read(Raw(document), shape, "")
    return cast("T", shape.stand_in() if value is _AT_FAULT else value)


_AT_FAULT: Final = object()


class Reader:
    """Reads values by their shapes, and notes what is wrong with them."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def read(self, raw: Raw, shape: Shape, pointer: str) -> Any:
        """The value; where it is at fault, as much of it as will do to judge the rest."""
        shape = shape.form_of(raw)
        if shape.struct or shape.tagged or shape.entries:
            return self._object(raw, shape, pointer)
        if shape.items:
            return self._array(raw, shape, shape.items, pointer)
        return self._plain(raw, shape, pointer)

    def _object(self, raw: Raw, shape: Shape, pointer: str) -> Any:
        members = self._members(raw, pointer)
        if members is None:
            return _AT_FAULT
        if shape.entries:
            return self._map(raw, members, shape, pointer)
        struct = shape.struct or self._tagged(members, shape, pointer)
        return _AT_FAULT if struct is None else self._struct(members, struct, pointer)

    def _members(self, raw: Raw, pointer: str) -> dict[str, Raw] | None:
        try:
            members = None if overfull(raw) else pairs(raw)
        except msgspec.ValidationError as error:
            self._faults.add(pointer, *_explain(str(error)))
            return None
        if members is None:
            self._faults.add(pointer, "wrong_length", f"has more than {MOST_MEMBERS} members")
            return None
        distinct: dict[str, Raw] = {}
        for name, value in members:
            if name in distinct:
                self._faults.add(at(pointer, name), "duplicate_field", "is given more than once")
            distinct[name] = value
        return distinct

    def _tagged(self, members: dict[str, Raw], shape: Shape, pointer: str) -> Struct | None:
        pointer = at(pointer, shape.tag_field)
        if shape.tag_field not in members:
            self._faults.add(pointer, "missing", "is required")
            return None
        tag = _value(members.pop(shape.tag_field))
        struct = shape.tagged.get(tag) if isinstance(tag, str) else None
        if struct is None:
            self._faults.add(pointer, "unknown_value", _choices(tuple(shape.tagged)))
        return struct

    def _struct(self, members: dict[str, Raw], struct: Struct, pointer: str) -> Any:
        values: dict[str, Any] = {}
        for name, raw in members.items():
            if self._faults.full:
                break
            if (shape := struct.fields.get(name)) is None:
                self._faults.add(at(pointer, name), "unknown_field", _unknown(name, struct))
            elif (value := self.read(raw, shape, at(pointer, name))) is not _AT_FAULT:
                values[name] = value
        for name in struct.required:
            if name not in members:
                self._faults.add(at(pointer, name), "missing", "is required")
            if name not in values:
                values[name] = struct.fields[name].stand_in()
        return struct.made_of(values)

    def _map(self, raw: Raw, members: dict[str, Raw], shape: Shape, pointer: str) -> Any:
        keys, values = shape.entries or (shape, shape)
        if self._plain(raw, shape, pointer) is _AT_FAULT:  # too many, or too few
            return _AT_FAULT
        entries = {}
        for name, value in members.items():
            key = self._plain(Raw(msgspec.json.encode(name)), keys, at(pointer, name))
            entry = self.read(value, values, at(pointer, name))
            if key is not _AT_FAULT and entry is not _AT_FAULT:
                entries[key] = entry
        return entries

    def _array(self, raw: Raw, shape: Shape, items: Shape, pointer: str) -> Any:
        elements = self._plain(raw, shape, pointer)
        if elements is _AT_FAULT:
            return _AT_FAULT
        values = [self.read(element, items, at(pointer, i)) for i, element in enumerate(elements)]
        return [value for value in values if value is not _AT_FAULT]

    def _plain(self, raw: Raw, shape: Shape, pointer: str) -> Any:
        try:
            value = shape.decoder.decode(raw)
        except msgspec.ValidationError as error:
            self._faults.add(pointer, *_refused(raw, shape, str(error)))
            return _AT_FAULT
        if isinstance(value, str) and "\0" in value:
            self._faults.add(pointer, "nul", "has a NUL character (U+0000), which no text can hold")
            return _AT_FAULT
        return value


_NAMES: Final = {
    "int": "integer",
    "float": "number",
    "str": "string",
    "bool": "boolean",
    "bytes": "string",
    "datetime": "string",
}
_REFUSALS: Final = (
    ("of length", "wrong_length", ""),
    ("` >", "out_of_range", ""),
    ("` <", "out_of_range", ""),
    ("out of range", "out_of_range", "is a number beyond all limits"),
    ("with a timezone", "naive_time", "needs an offset from UTC, such as Z or +01:00"),
    ("RFC3339", "invalid", "must be a time that exists, as 2027-03-28T02:30:00+01:00"),
    ("base64", "invalid", "must be base64 with its padding (RFC 4648 §4)"),
    (", got `", "wrong_type", ""),
)
"""How the decoder's refusals are told apart, their codes, and a text where its own is not used."""


def _refused(raw: Raw, shape: Shape, error: str) -> tuple[str, str]:
    """The code and the text for a plain value that its decoder refused."""
    value = _value(raw)
    if shape.is_later(value):
        only = f"; it {_choices(shape.words)}" if shape.words else ""
        return "not_supported", f"is not carried out in this release{only}"
    if shape.words and isinstance(value, str):
        return "unknown_value", _choices(shape.words)
    return _explain(error)


def _value(raw: Raw) -> Any:
    """Whatever a value is; infinity for a number that is beyond all limits."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:
        return math.inf


def _explain(error: str) -> tuple[str, str]:
    """A code and a text for one of the decoder's refusals. Neither repeats the value."""
    found = (refusal for refusal in _REFUSALS if refusal[0] in error)
    _, code, text = next(found, ("", "invalid", ""))
    if not text:
        text = re.sub(r"`(\w+)", lambda match: _NAMES.get(match[1], match[1]), error)
        text = text.replace("`", "").replace("Expected ", "must be ").replace(", got ", ", not ")
    return code, text


def _choices(words: tuple[str, ...]) -> str:
    return f"must be {words[0]}" if len(words) == 1 else f"must be one of {', '.join(words)}"


def _unknown(name: str, struct: Struct) -> str:
    close = get_close_matches(name[:LONGEST_NAME], struct.fields, 1)
    return f"is no field here{f'; {close[0]} is' if close else ''}"
