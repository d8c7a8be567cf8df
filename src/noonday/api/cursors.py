"""Cursors: an opaque position in a list that holds for one list, one tenant and one filter."""

from __future__ import annotations

import base64
import binascii
from hashlib import sha256
from typing import Any, Final, TypeVar

import msgspec

from noonday.api.problems import Problem
from noonday.store.secretbox import SecretBox

T = TypeVar("T")

_PURPOSE: Final = "cursor"
_MAC_BYTES: Final = 16
_OF_BYTES: Final = 8


def encode(box: SecretBox, of: tuple[Any, ...], position: tuple[Any, ...]) -> str:
    """A cursor for ``position`` in the list that ``of`` describes."""
    body = _digest(of) + msgspec.json.encode(position)
    return base64.urlsafe_b64encode(box.sign(body, _PURPOSE) + body).decode().rstrip("=")


def decode(box: SecretBox, of: tuple[Any, ...], cursor: str, position: type[T]) -> T:
    """The position; a 400 for a cursor that is not ours, or belongs to another list."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _invalid() from None
    mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
    if not box.verify(mac, body, _PURPOSE):
        raise _invalid()
    if body[:_OF_BYTES] != _digest(of):
        raise Problem(
            400, "cursor_mismatch", "The cursor belongs to another list or filter; start again."
        )
    try:
        return msgspec.json.decode(body[_OF_BYTES:], type=position)
    except msgspec.DecodeError:  # of another release
        raise _invalid() from None


def _digest(of: tuple[Any, ...]) -> bytes:
    return sha256(msgspec.json.encode(of)).digest()[:_OF_BYTES]


def _invalid() -> Problem:
    return Problem(400, "cursor_invalid", "The cursor is not one that was given out; start again.")
