"""How a worker signs an attempt: twice, so that standard libraries verify it, and fences hold."""

from __future__ import annotations

import base64
import hashlib
import hmac

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
    fenced = (
        f"{timestamp}.{message_id}.{own['X-Attempt']}.{own['X-Lease-Version']}"
        f".{own['X-Occurrence']}.{digest}"
    ).encode()
    content = f"{message_id}.{timestamp}.".encode() + attempt.body
    fences = (f"v1={hmac.digest(key, fenced, 'sha256').hex()}" for key in attempt.secrets)
    standard = (f"v1,{_base64(hmac.digest(key, content, 'sha256'))}" for key in attempt.secrets)
    return {
        "X-Scheduler-Signature": ",".join((f"t={timestamp}", *fences)),
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(standard),
    }


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
