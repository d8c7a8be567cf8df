"""What a worker delivers a tenant's runs by: keys to sign with, credentials, what may be kept."""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple

import msgspec

from noonday.store import Store, tenants
from noonday.store.secretbox import HEADERS, SIGNING, SecretBox

FRESH_SEC: Final = 10.0
"""A rotated secret is signed with after this long at the latest."""
MOST_TENANTS: Final = 10_000

_headers = msgspec.json.Decoder(dict[str, str])


class Terms(NamedTuple):
    """What holds for a tenant's deliveries."""

    keys: tuple[bytes, ...]
    """To sign with, newest first."""
    keep_responses: bool
    """Whether an excerpt of each answer is kept."""


class SigningKeys:
    """Opens sealed secrets; a tenant's terms are read again after ``FRESH_SEC``."""

    def __init__(self, store: Store, box: SecretBox) -> None:
        self._store = store
        self._box = box
        self._known: dict[int, tuple[float, Terms]] = {}
        self._reading = asyncio.Lock()

    async def of(self, tenant_id: int) -> Terms:
        """A tenant's terms.

        Raises ``SecretUnreadable`` when a key does not open with the one at hand.
        """
        terms = self._fresh(tenant_id)
        if terms is None:
            # One reads, the others wait for what it finds: a pool is soon empty.
            async with self._reading:
                terms = self._fresh(tenant_id)
                if terms is None:
                    terms = await self._read(tenant_id)
                    if len(self._known) >= MOST_TENANTS:
                        self._known.clear()
                    self._known[tenant_id] = time.monotonic(), terms
        return terms

    def _fresh(self, tenant_id: int) -> Terms | None:
        read_at, terms = self._known.get(tenant_id, (-FRESH_SEC, None))
        return terms if time.monotonic() - read_at < FRESH_SEC else None

    async def _read(self, tenant_id: int) -> Terms:
        async with self._store.transaction() as tx:
            sealed = (await tenants.signing_keys(tx, [tenant_id])).get(tenant_id, [])
            keep = await tenants.keeps_responses(tx, tenant_id)
        return Terms(tuple(self._box.open(secret, tenant_id, SIGNING) for secret in sealed), keep)

    def headers(self, tenant_id: int, sealed: bytes | None) -> dict[str, str]:
        """The credential headers of a job; raises ``SecretUnreadable``."""
        if sealed is None:
            return {}
        return _headers.decode(self._box.open(sealed, tenant_id, HEADERS))
