"""Idempotency keys: the answer that was given, kept in the transaction of what it answers.

Whoever holds the key's advisory lock looks here in a *later* statement: the one before has
committed or rolled back by then. A key and its job stand or fall together.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
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


class Use(NamedTuple):
    """A key with the request it is used for."""

    id: KeyId
    fingerprint: bytes


class Grip(StrEnum):
    """What came of reaching for a key."""

    MINE = "mine"
    """Nobody else executes under it until the transaction ends."""
    SAME = "same"
    """The same request is being executed, or reached for, elsewhere."""
    OTHER = "other"
    """Somebody else holds it, for another request."""


# Never waits: a connection that waits is one that does not work. The holder has two locks, the
# key's and the one of the key with its request, by which others see what it is doing.
TAKE: Final = """
SELECT CASE
    WHEN pg_try_advisory_xact_lock(t.key) THEN
        CASE WHEN pg_try_advisory_xact_lock(t.request) THEN 'mine' ELSE 'same' END
    WHEN pg_try_advisory_xact_lock_shared(t.request) THEN 'other'
    ELSE 'same' END AS grip
FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS t(key, request, n) ORDER BY n
"""


async def take(tx: Tx, uses: Sequence[Use]) -> list[Grip]:
    """Reach for keys, each at most once in a call."""
    if not uses:
        return []
    keys = [(use.id.lock, use.id.lock_of(use.fingerprint)) for use in uses]
    return [Grip(row["grip"]) for row in await tx.rows(TAKE, *columns(keys, 2))]


class Stored(NamedTuple):
    """A key with the request it was used for and the answer that request got."""

    id: KeyId
    fingerprint: bytes
    status: int
    location: str | None
    body: bytes


# Row by row on purpose: a plain join is planned as a hash over the whole table.
FIND: Final = """
SELECT k.* FROM unnest($1::text[], $2::int[], $3::text[]) AS w(key, tenant_id, route)
CROSS JOIN LATERAL (
    SELECT key, tenant_id, route, fingerprint, status, location, body FROM idempotency_keys AS k
    WHERE k.key = w.key AND k.tenant_id = w.tenant_id AND k.route = w.route LIMIT 1
) AS k
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
