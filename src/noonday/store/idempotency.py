"""Idempotency keys: the answer that was given, kept in the transaction of what it answers.

Whoever holds the key's advisory lock looks here in a *later* statement: the one before has
committed or rolled back by then. A key and its job stand or fall together.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from noonday.store import Tx, columns, locks


class KeyId(NamedTuple):
    """What a key is looked up by: never by itself alone, or one tenant would see another's."""

    key: str
    tenant_id: int
    route: str

    @property
    def lock(self) -> int:
        """The advisory lock of the key: its holder may execute."""
        return locks.hashed(self.tenant_id, self.route, self.key)

    def lock_of(self, fingerprint: bytes) -> int:
        """The lock of the key with one request: tells others what its holder is doing."""
        return locks.hashed(self.tenant_id, self.route, self.key, fingerprint.hex())


class Stored(NamedTuple):
    """A key with the request it was used for and the answer that request got."""

    id: KeyId
    fingerprint: bytes
    status: int
    location: str | None
    body: bytes


FIND: Final = """
SELECT k.key, k.tenant_id, k.route, k.fingerprint, k.status, k.location, k.body
FROM unnest($1::text[], $2::int[], $3::text[]) AS w(key, tenant_id, route)
JOIN idempotency_keys AS k USING (key, tenant_id, route)
"""


async def find(tx: Tx, ids: Sequence[KeyId]) -> dict[KeyId, Stored]:
    """Which of ``ids`` were used, and how that was answered."""
    if not ids:
        return {}
    found = [
        Stored(KeyId(row["key"], row["tenant_id"], row["route"]), row["fingerprint"],
               row["status"], row["location"], row["body"])
        for row in await tx.rows(FIND, *columns(ids, 3))
    ]  # fmt: skip
    return {stored.id: stored for stored in found}


STORE: Final = """
INSERT INTO idempotency_keys (key, tenant_id, route, fingerprint, status, location, body,
                              created_at)
SELECT *, $8::timestamptz
FROM unnest($1::text[], $2::int[], $3::text[], $4::bytea[], $5::int[], $6::text[], $7::bytea[])
"""


async def store(tx: Tx, answers: Sequence[Stored], now: datetime) -> None:
    """Keep answers, beside what they answer; the caller holds the keys' locks."""
    if answers:
        rows = [(*answer.id, *answer[1:]) for answer in answers]
        await tx.execute(STORE, *columns(rows, 7), now)


PRUNE: Final = """
DELETE FROM idempotency_keys WHERE (key, tenant_id, route) IN (
    SELECT key, tenant_id, route FROM idempotency_keys
    WHERE created_at < coalesce($2, now()) - $1::interval ORDER BY created_at LIMIT $3)
"""


async def prune(tx: Tx, older_than: timedelta, limit: int) -> int:
    """Forget keys that were used longer ago than they are kept; how many."""
    return await tx.execute(PRUNE, older_than, tx.now, limit)
