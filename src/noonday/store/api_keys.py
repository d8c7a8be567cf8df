"""API keys: who calls, for which tenant, with which role. Only a hash of the secret is kept.

A token is ``nd_<key id>_<secret>``. The key id holds no underscore; the secret is 256 random
bits, so that one round of SHA-256 is as good as a slow hash.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import datetime
from typing import Final, NamedTuple

from noonday.domain.roles import Role
from noonday.store import Row, Tx

_PREFIX: Final = "nd_"
_SECRET_LENGTH: Final = 43


class Token(NamedTuple):
    """A token taken apart."""

    key_id: str
    secret: str

    def __str__(self) -> str:
        return f"{_PREFIX}{self.key_id}_{self.secret}"


def parse(text: str) -> Token | None:
    """Take a token apart; None for what cannot be one."""
    head, _, secret = text.removeprefix(_PREFIX).partition("_")
    if not text.startswith(_PREFIX) or not text.isascii() or len(secret) != _SECRET_LENGTH:
        return None
    return Token(head, secret) if 0 < len(head) <= 64 and head.isalnum() else None


def id_of(text: str) -> str:
    """The id of the key that a token belongs to."""
    return text.removeprefix(_PREFIX).partition("_")[0]


def matches(token: Token, secret_hash: bytes) -> bool:
    """Whether the token's secret is the one that was hashed, in constant time."""
    return hmac.compare_digest(_hash(token.secret), secret_hash)


CREATE: Final = """
INSERT INTO api_keys (id, tenant_id, role, name, secret_hash, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, coalesce($6, now()), $7)
"""


async def create(
    tx: Tx, tenant_id: int, role: Role, name: str, expires_at: datetime | None = None
) -> str:
    """A new key's token, which is known only now; :func:`id_of` tells its id."""
    token = Token(secrets.token_hex(8), secrets.token_urlsafe(32))
    await tx.execute(
        CREATE, token.key_id, tenant_id, role.word, name, _hash(token.secret), tx.now, expires_at
    )
    return str(token)


FIND: Final = """
SELECT k.id, k.tenant_id, k.role, k.secret_hash, t.name AS tenant, t.max_payload_bytes,
       t.creates_per_sec, t.creates_burst, t.create_bytes_per_sec, t.max_pending_jobs,
       t.jitter_sec,
       k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > coalesce($2, now()))
       AS valid
FROM api_keys AS k JOIN tenants AS t ON t.id = k.tenant_id WHERE k.id = $1
"""


async def find(tx: Tx, key_id: str) -> Row | None:
    """A key with its tenant and whether it may still be used; the caller compares the hash."""
    return await tx.row(FIND, key_id, tx.now)


_SHOWN: Final = """SELECT k.id, k.tenant_id, t.name AS tenant, k.role, k.name, k.created_at,
       k.expires_at, k.revoked_at
FROM api_keys AS k JOIN tenants AS t ON t.id = k.tenant_id"""

ONE: Final = f"{_SHOWN} WHERE k.id = $1"


async def one(tx: Tx, key_id: str) -> Row | None:
    """A key as it is shown."""
    return await tx.row(ONE, key_id)


PAGE: Final = f"""{_SHOWN}
WHERE k.id > $1 AND ($2::text IS NULL OR t.name = $2) ORDER BY k.id LIMIT $3
"""


async def page(tx: Tx, after_id: str, tenant: str | None, limit: int) -> list[Row]:
    """Keys in the order of their ids, of all tenants or of one, from just after a position."""
    return await tx.rows(PAGE, after_id, tenant, limit)


# All admin keys in order, so that two that are revoked at once do not both count on the other. (A
# WHERE outside would be carried out within: each would lock the other's key, and wait in a circle.)
OTHER_ADMINS: Final = """
SELECT count(*) FILTER (WHERE id <> $1) FROM (
    SELECT id FROM api_keys
    WHERE role = 'admin' AND revoked_at IS NULL
      AND (expires_at IS NULL OR expires_at > coalesce($2, now()))
    ORDER BY id FOR UPDATE
) AS admin
"""


async def other_admins(tx: Tx, key_id: str) -> int:
    """How many admin keys there are beside one, kept as they are until the transaction ends."""
    count: int = await tx.value(OTHER_ADMINS, key_id, tx.now)
    return count


REVOKE: Final = """
UPDATE api_keys SET revoked_at = coalesce($2, now()) WHERE id = $1 AND revoked_at IS NULL
"""


async def revoke(tx: Tx, key_id: str) -> bool:
    """End a key for good; False when it was ended before or never was."""
    return await tx.execute(REVOKE, key_id, tx.now) == 1


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
