"""Requests as a worker sends them."""

from __future__ import annotations

import base64

from noonday.executors.headers import own_headers
from noonday.executors.signing import sign
from tests.executors.attempts import SECRET, attempt

NOW = 1_800_000_000
BODY = '{"ledger": "eu", "name": "Zoë"}'.encode()


def shown(secret: bytes) -> str:
    """A secret as a tenant gets to see it."""
    return "whsec_" + base64.b64encode(secret).decode()


WHSEC = shown(SECRET)


def headers(
    *,
    number: int = 1,
    lease_version: int = 1,
    body: bytes = BODY,
    secrets: tuple[bytes, ...] = (SECRET,),
    at: int = NOW,
) -> dict[str, str]:
    """The headers of a signed attempt."""
    made = attempt(
        "http://example.com/",
        number=number,
        lease_version=lease_version,
        body=body,
        secrets=secrets,
    )
    own = own_headers(made)
    return own | sign(made, own, at)
