"""Tenants: whose jobs they are, and the secrets that their webhooks are signed with."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from noonday.domain.quotas import BYTES, CREATES, Quotas
from noonday.store import Row, Tx, pending, rates
from noonday.store.secretbox import SIGNING, SecretBox

SECRET_BYTES: Final = 32
MAX_PAYLOAD_BYTES: Final = 1_048_576
OVERLAP: Final = timedelta(hours=24)
"""How long the secrets before a rotation are still signed with."""
MOST_SECRETS: Final = 5
"""That many are signed with at once, however often a rotation is tried again."""


def written(secret: bytes) -> str:
    """A signing secret as people see it (Standard Webhooks 1.0)."""
    return f"whsec_{base64.b64encode(secret).decode()}"


NEXT_ID: Final = "SELECT nextval(pg_get_serial_sequence('tenants', 'id'))::int"
CREATE: Final = """
INSERT INTO tenants (id, name, signing_secrets, max_payload_bytes, secrets_rotated_at, created_at)
OVERRIDING SYSTEM VALUE
SELECT $1, $2, ARRAY[$3::bytea], $4, now, now FROM coalesce($5, now()) AS now
ON CONFLICT (name) DO NOTHING
"""


async def create(
    tx: Tx, box: SecretBox, name: str, max_payload_bytes: int = MAX_PAYLOAD_BYTES
) -> tuple[int, bytes] | None:
    """A new tenant's id and its signing secret; None when the name is taken."""
    tenant_id: int = await tx.value(NEXT_ID)
    secret = os.urandom(SECRET_BYTES)
    sealed = box.seal(secret, tenant_id, SIGNING)
    made = await tx.execute(CREATE, tenant_id, name, sealed, max_payload_bytes, tx.now)
    return (tenant_id, secret) if made else None


_SHOWN: Final = (
    "id, name, max_payload_bytes, keep_responses, cardinality(signing_secrets) AS secrets, "
    "secrets_rotated_at, created_at, max_running, weight, deliveries_per_sec, "
    "creates_per_sec, creates_burst, create_bytes_per_sec, max_pending_jobs, jitter_sec"
)

ONE: Final = f"SELECT {_SHOWN} FROM tenants WHERE name = $1"


async def one(tx: Tx, name: str) -> Row | None:
    """The tenant of that name."""
    return await tx.row(ONE, name)


PAGE: Final = f"SELECT {_SHOWN} FROM tenants WHERE id > $1 ORDER BY id LIMIT $2"


async def page(tx: Tx, after_id: int, limit: int) -> list[Row]:
    """Tenants in the order of their creation, from just after a position."""
    return await tx.rows(PAGE, after_id, limit)


CHANGE: Final = """
UPDATE tenants SET max_payload_bytes = coalesce($2, max_payload_bytes),
       keep_responses = coalesce($3, keep_responses), weight = coalesce($4, weight),
       jitter_sec = coalesce($5, jitter_sec)
WHERE id = $1
"""


async def change(
    tx: Tx,
    tenant_id: int,
    *,
    max_payload_bytes: int | None = None,
    keep_responses: bool | None = None,
    weight: float | None = None,
    jitter_sec: int | None = None,
) -> None:
    """Set what is given; None leaves it as it is."""
    await tx.execute(CHANGE, tenant_id, max_payload_bytes, keep_responses, weight, jitter_sec)


SET_QUOTAS: Final = """
UPDATE tenants SET creates_per_sec = $2, creates_burst = $3, create_bytes_per_sec = $4,
       max_pending_jobs = $5
WHERE id = $1
"""


async def set_quotas(tx: Tx, tenant_id: int, quotas: Quotas) -> None:
    """Set all of a tenant's quotas. Who has one of pending jobs for the first time has them
    counted."""
    await tx.execute(SET_QUOTAS, tenant_id, *quotas)
    await rates.restart(tx, [rates.quota_key(name, tenant_id) for name in (CREATES, BYTES)])
    if quotas.max_pending_jobs is None:
        await pending.unwatch(tx, tenant_id)
    else:
        await pending.watch(tx, tenant_id)


LIMIT_DELIVERIES: Final = "UPDATE tenants SET deliveries_per_sec = $2 WHERE id = $1"


async def limit_deliveries(tx: Tx, tenant_id: int, per_sec: float | None) -> None:
    """How many requests a second are sent for a tenant; None is without limit."""
    await tx.execute(LIMIT_DELIVERIES, tenant_id, per_sec)


KEEPS_RESPONSES: Final = "SELECT keep_responses FROM tenants WHERE id = $1"


async def keeps_responses(tx: Tx, tenant_id: int) -> bool:
    """Whether excerpts of what a tenant's receivers answer may be kept."""
    return bool(await tx.value(KEEPS_RESPONSES, tenant_id))


# Those that were still signed with stay: one whose answer was lost is known to nobody, and rotating
# again must not take away the one that receivers know.
ROTATE: Final = """
UPDATE tenants
SET signing_secrets = ARRAY[$2::bytea] || signing_secrets[1:CASE
        WHEN secrets_rotated_at > coalesce($3, now()) - $4::interval THEN $5::int - 1 ELSE 1 END],
    secrets_rotated_at = coalesce($3, now())
WHERE id = $1
"""


async def rotate(tx: Tx, box: SecretBox, tenant_id: int) -> bytes:
    """Give a tenant a new signing secret; those before are signed with for 24 hours more."""
    secret = os.urandom(SECRET_BYTES)
    sealed = box.seal(secret, tenant_id, SIGNING)
    await tx.execute(ROTATE, tenant_id, sealed, tx.now, OVERLAP, MOST_SECRETS)
    return secret


SIGNING_KEYS: Final = """
SELECT id, CASE WHEN secrets_rotated_at > coalesce($2, now()) - $3::interval
                THEN signing_secrets ELSE signing_secrets[1:1] END AS secrets
FROM tenants WHERE id = ANY($1::int[])
"""


async def signing_keys(tx: Tx, tenant_ids: Sequence[int]) -> dict[int, list[bytes]]:
    """By tenant, the sealed secrets to sign with now, newest first; a tenant may be missing.

    They open with purpose ``secretbox.SIGNING``.
    """
    rows = await tx.rows(SIGNING_KEYS, list(tenant_ids), tx.now, OVERLAP)
    return {row["id"]: list(row["secrets"]) for row in rows}
