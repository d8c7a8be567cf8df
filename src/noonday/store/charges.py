"""What ranks are made of, beside the clock: lanes, weights, and what other processes have charged.

Read once a second by each process that makes runs claimable; see ``domain/fair.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from noonday.domain.fair import Told
from noonday.domain.ranking import Caps
from noonday.store import Row, Tx

AGEING: Final = "SELECT name, ageing_sec FROM lanes"


async def ageing(tx: Tx) -> dict[str, float]:
    """How far priorities lie apart, in seconds, for each lane."""
    return {row["name"]: row["ageing_sec"] for row in await tx.rows(AGEING)}


WEIGHTS: Final = "SELECT id, weight FROM tenants WHERE weight <> 1"


async def weights(tx: Tx) -> dict[int, float]:
    """The weights of tenants, where they are not 1."""
    return {row["id"]: row["weight"] for row in await tx.rows(WEIGHTS)}


# (A key without a row has a limit of 1.)
CAPPED: Final = """
SELECT 'tenant' AS kind, id AS tenant_id, '' AS name FROM tenants WHERE max_running IS NOT NULL
UNION ALL
SELECT kind, tenant_id, name FROM limits WHERE kind = 'host' AND max_running IS NOT NULL
UNION ALL
SELECT kind, tenant_id, name FROM limits WHERE kind = 'key' AND max_running IS NULL
"""


async def capped(tx: Tx) -> Caps:
    """Which tenants and hosts are capped, and which concurrency keys are not."""
    found: dict[str, set[tuple[int, str]]] = {"tenant": set(), "host": set(), "key": set()}
    for row in await tx.rows(CAPPED):
        found[row["kind"]].add((row["tenant_id"], row["name"]))
    return Caps({tenant_id for tenant_id, _ in found["tenant"]}, found["host"], found["key"])


PUT: Final = """
INSERT INTO charges (process, lane, charged, changed_at)
VALUES ($1, $2, $3, coalesce($4, now()))
ON CONFLICT (process, lane) DO UPDATE
SET charged = excluded.charged, changed_at = excluded.changed_at
"""


async def put(tx: Tx, process: UUID, lane: str, told: Told) -> None:
    """Tell the others what this process has charged in a lane."""
    await tx.execute(PUT, process, lane, msgspec.json.encode(told).decode(), tx.now)


OTHERS: Final = """
SELECT process, lane, charged FROM charges WHERE process <> $1 AND changed_at >= $2
"""


async def others(tx: Tx, process: UUID, since: datetime) -> list[tuple[str, str, Told]]:
    """What other processes have told since then: process, lane, and what it has charged."""
    return [_told(row) for row in await tx.rows(OTHERS, process, since)]


def _told(row: Row) -> tuple[str, str, Told]:
    told: Mapping[str, list[tuple[int, float, float]]] = msgspec.json.decode(
        row["charged"], type=dict[str, list[tuple[int, float, float]]]
    )
    return str(row["process"]), row["lane"], {int(tenant): each for tenant, each in told.items()}


FORGET: Final = """
DELETE FROM charges AS c
WHERE c.changed_at < coalesce($1, now()) - interval '1 minute'
  AND NOT EXISTS (SELECT FROM workers AS w WHERE w.id = c.process)
"""


async def forget(tx: Tx) -> int:
    """Delete what processes have told that are gone."""
    return await tx.execute(FORGET, tx.now)
