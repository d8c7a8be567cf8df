"""The keys that deliveries are signed with, and the credentials they carry, opened for a worker."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import msgspec

from noonday.store import Store, tenants
from noonday.store.secretbox import HEADERS, SIGNING, SecretBox

FRESH_SEC: Final = 10.0
"""A rotated secret is signed with after this long at the latest."""
MOST_TENANTS: Final = 10_000

_headers = msgspec.json.Decoder(dict[str, str])


class SigningKeys:
    """Opens sealed secrets; a tenant's keys are read again after ``FRESH_SEC``."""

    def __init__(self, store: Store, box: SecretBox) -> None:
        self._store = store
        self._box = box
        self._known: dict[int, tuple[float, tuple[bytes, ...]]] = {}
        self._reading = asyncio.Lock()

    async def of(self, tenant_id: int) -> tuple[bytes, ...]:
        """A tenant's signing keys, newest first.

        Raises ``SecretUnreadable`` when one does not open with the key at hand.
        """
        keys = self._fresh(tenant_id)
        if keys is None:
            # One reads, the others wait for what it finds: a pool is soon empty.
            async with self._reading:
                keys = self._fresh(tenant_id)
                if keys is None:
                    keys = await self._read(tenant_id)
                    if len(self._known) >= MOST_TENANTS:
                        self._known.clear()
                    self._known[tenant_id] = time.monotonic(), keys
        return keys

    def _fresh(self, tenant_id: int) -> tuple[bytes, ...] | None:
        read_at, keys = self._known.get(tenant_id, (-FRESH_SEC, None))
        return keys if time.monotonic() - read_at < FRESH_SEC else None

    async def _read(self, tenant_id: int) -> tuple[bytes, ...]:
        async with self._store.transaction() as tx:
            sealed = (await tenants.signing_keys(tx, [tenant_id])).get(tenant_id, [])
        return tuple(self._box.open(secret, tenant_id, SIGNING) for secret in sealed)

    def headers(self, tenant_id: int, sealed: bytes | None) -> dict[str, str]:
        """The credential headers of a job; raises ``SecretUnreadable``."""
        if sealed is None:
            return {}
        return _headers.decode(self._box.open(sealed, tenant_id, HEADERS))
