"""How a worker signs an attempt: twice, so that standard libraries verify it, and fences hold."""

from __future__ import annotations

import hashlib
from binascii import b2a_base64
from functools import lru_cache
from typing import Final

from noonday.domain.model import Attempt

_BLOCK: Final = 64
_INNER: Final = bytes(mark ^ 0x36 for mark in range(256))
_OUTER: Final = bytes(mark ^ 0x5C for mark in range(256))


def sign(attempt: Attempt, own: dict[str, str], timestamp: int) -> dict[str, str]:
    """The headers that sign one sending, with a signature for each of the tenant's secrets.

    ``webhook-signature`` follows Standard Webhooks 1.0: it covers id, timestamp and body.
    ``X-Scheduler-Signature`` covers the attempt, the lease version and the occurrence as well:
    a fencing token that anybody could write would fence nothing.

    Args:
        attempt: Gives the secrets, and exactly the bytes that are sent.
        own: The headers that say what is signed, just as they are sent. The id is ``webhook-id``:
            that of a delivery is the run's.
        timestamp: Now, in seconds since 1970.
    """
    message_id = own["webhook-id"]
    digest = hashlib.sha256(attempt.body).hexdigest()
    keyed = [_keyed(key) for key in attempt.secrets]
    fenced = (
        f"{timestamp}.{message_id}.{own['X-Attempt']}.{own['X-Lease-Version']}"
        f".{own['X-Occurrence']}.{digest}"
    ).encode()
    content = f"{message_id}.{timestamp}.".encode() + attempt.body
    fences = [f"v1={key.digest(fenced).hex()}" for key in keyed]
    standard = [f"v1,{_base64(key.digest(content))}" for key in keyed]
    return {
        "X-Scheduler-Signature": ",".join((f"t={timestamp}", *fences)),
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(standard),
    }


class _Keyed:
    """HMAC-SHA-256 (RFC 2104) with a key that has been taken in already: half the work."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = (key if len(key) <= _BLOCK else hashlib.sha256(key).digest()).ljust(_BLOCK, b"\0")
        self._inner = hashlib.sha256(block.translate(_INNER))
        self._outer = hashlib.sha256(block.translate(_OUTER))

    def digest(self, message: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        return outer.digest()


_keyed = lru_cache(1_024)(_Keyed)


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")
