"""Who calls: bearer tokens (RFC 6750), looked up in the database and remembered for seconds."""

from __future__ import annotations

import asyncio
import time
from hashlib import sha256
from typing import Final, NamedTuple

from starlette.requests import Request

from noonday.api.context import Caller
from noonday.api.headers import field
from noonday.api.problems import forbidden, unauthorized
from noonday.domain.quotas import Quotas
from noonday.domain.roles import Role, role_named
from noonday.store import Store, api_keys
from noonday.store.api_keys import Token

KNOWN_SEC: Final = 5.0
"""A key that is revoked elsewhere works for so long at most."""
UNKNOWN_SEC: Final = 1.0
MOST: Final = 10_000


class _Known(NamedTuple):
    until: float
    caller: Caller | None


class Gate:
    """Lets known keys in."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[bytes, _Known] = {}
        self._asking: dict[bytes, asyncio.Task[Caller | None]] = {}

    async def admit(self, request: Request, role: Role) -> Caller:
        """Who calls; raises a problem unless a valid key with at least ``role`` is given."""
        scheme, _, token = (field(request, b"authorization") or "").partition(" ")
        if scheme.lower() != "bearer":
            raise unauthorized()
        caller = await self._caller(token.strip())
        if caller is None:
            raise unauthorized()
        if caller.role < role:
            raise forbidden(role)
        return caller

    def forget(self) -> None:
        """Look every key up again: one was revoked here."""
        self._known.clear()

    async def _caller(self, text: str) -> Caller | None:
        digest = sha256(text.encode()).digest()
        known = self._known.get(digest)
        if known is not None and time.monotonic() < known.until:
            return known.caller
        token = api_keys.parse(text)
        if token is None:
            return None
        asking = self._asking.get(digest)
        if asking is None:
            asking = asyncio.create_task(self._ask(digest, token))
            self._asking[digest] = asking
            asking.add_done_callback(lambda _: self._asking.pop(digest, None))
        # Shielded, so that one caller who goes away does not fail the others.
        return await asyncio.shield(asking)

    async def _ask(self, digest: bytes, token: Token) -> Caller | None:
        asked_at = time.monotonic()
        caller = await self._look_up(token)
        if len(self._known) >= MOST:
            self._known.clear()
        lasts = UNKNOWN_SEC if caller is None else KNOWN_SEC
        self._known[digest] = _Known(asked_at + lasts, caller)
        return caller

    async def _look_up(self, token: Token) -> Caller | None:
        async with self._store.transaction() as tx:
            row = await api_keys.find(tx, token.key_id)
        if row is None or not api_keys.matches(token, row["secret_hash"]) or not row["valid"]:
            return None
        role = role_named(row["role"]) or Role.VIEWER
        quotas = Quotas(
            row["creates_per_sec"],
            row["creates_burst"],
            row["create_bytes_per_sec"],
            row["max_pending_jobs"],
        )
        return Caller(
            row["id"], row["tenant_id"], row["tenant"], role, row["max_payload_bytes"],
            quotas if any(quota is not None for quota in quotas) else None, row["jitter_sec"],
        )  # fmt: skip
