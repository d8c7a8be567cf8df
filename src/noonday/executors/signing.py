"""How a worker signs an attempt: twice, so that standard libraries verify it, and fences hold."""

from __future__ import annotations

import hashlib
import hmac
from binascii import b2a_base64
from functools import lru_cache

from noonday.domain.model import Attempt


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
    fences = [f"v1={_digest(key, fenced).hex()}" for key in keyed]
    standard = [f"v1,{_base64(_digest(key, content))}" for key in keyed]
    return {
        "X-Scheduler-Signature": ",".join((f"t={timestamp}", *fences)),
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(standard),
    }


@lru_cache(1_024)
def _keyed(key: bytes) -> hmac.HMAC:
    """HMAC-SHA-256 with a key that has been taken in already: half the work."""
    return hmac.new(key, digestmod="sha256")


def _digest(keyed: hmac.HMAC, message: bytes) -> bytes:
    signing = keyed.copy()
    signing.update(message)
    return signing.digest()


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")
