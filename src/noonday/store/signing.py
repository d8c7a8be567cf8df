"""The keys that deliveries are signed with, and the credentials they carry, opened for a worker."""

from __future__ import annotations

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

    async def of(self, tenant_id: int) -> tuple[bytes, ...]:
        """A tenant's signing keys, newest first.

        Raises ``SecretUnreadable`` when one does not open with the key at hand.
        """
        known = self._known.get(tenant_id)
        if known is None or time.monotonic() - known[0] > FRESH_SEC:
            if len(self._known) >= MOST_TENANTS:
                self._known.clear()
            known = time.monotonic(), await self._read(tenant_id)
            self._known[tenant_id] = known
        return known[1]

    async def _read(self, tenant_id: int) -> tuple[bytes, ...]:
        async with self._store.transaction() as tx:
            sealed = (await tenants.signing_keys(tx, [tenant_id])).get(tenant_id, [])
        return tuple(self._box.open(secret, tenant_id, SIGNING) for secret in sealed)

    def headers(self, tenant_id: int, sealed: bytes | None) -> dict[str, str]:
        """The credential headers of a job; raises ``SecretUnreadable``."""
        if sealed is None:
            return {}
        return _headers.decode(self._box.open(sealed, tenant_id, HEADERS))
