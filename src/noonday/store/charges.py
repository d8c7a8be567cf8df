"""What ranks are made of, beside the clock: lanes, weights, and what other processes have charged.

Read once a second by each process that makes runs claimable; see ``domain/fair.py``.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from noonday.domain.fair import Told
from noonday.domain.lane_clock import LaneReport
from noonday.domain.ranking import Caps
from noonday.store import Row, Tx
from noonday.store.costs import MOST as MOST_COSTS
from noonday.store.workers import ALIVE


class Rules(NamedTuple):
    """What people have set."""

    ageing: dict[str, float]
    """How far priorities lie apart, in seconds, for each lane."""
    weights: dict[int, float]
    """The weights of tenants, where they are not 1."""
    caps: Caps
    """Which tenants and hosts are capped, and which concurrency keys are not."""


PUT: Final = """
INSERT INTO charges (process, lane, charged, changed_at)
VALUES ($1, $2, $3, coalesce($4, now()))
ON CONFLICT (process, lane) DO UPDATE
SET charged = excluded.charged, changed_at = excluded.changed_at
"""


async def put(tx: Tx, process: UUID, lane: str, told: Told) -> None:
    """Tell the others what this process has charged in a lane."""
    await tx.execute(PUT, process, lane, msgspec.json.encode(told).decode(), tx.now)


# All by one statement, since each process asks each second. (A key without a row has a limit of 1.)
NEWS: Final = """
SELECT 'now' AS what, coalesce($1, now()) AS at, NULL AS process, NULL AS name, NULL AS document,
       NULL::int AS tenant_id, NULL::float8 AS number
UNION ALL
SELECT 'ageing', NULL, NULL, name, NULL, NULL, ageing_sec FROM lanes
UNION ALL
SELECT 'weight', NULL, NULL, NULL, NULL, id, weight FROM tenants WHERE weight <> 1
UNION ALL
SELECT 'tenant', NULL, NULL, NULL, NULL, id, NULL FROM tenants WHERE max_running IS NOT NULL
UNION ALL
SELECT kind, NULL, NULL, name, NULL, tenant_id, NULL FROM limits
WHERE kind = 'host' AND max_running IS NOT NULL
UNION ALL
SELECT kind, NULL, NULL, name, NULL, tenant_id, NULL FROM limits
WHERE kind = 'key' AND max_running IS NULL
UNION ALL
SELECT 'report', NULL, NULL, NULL, lanes::text, NULL, NULL FROM workers
WHERE lanes IS NOT NULL AND NOT stopping AND seen_at >= coalesce($1, now()) - $4::interval
UNION ALL
SELECT 'charged', NULL, process::text, lane, charged::text, NULL, NULL FROM charges
WHERE process <> $2 AND changed_at >= $3
UNION ALL
(SELECT 'cost', NULL, NULL, target_host, NULL, tenant_id, seconds FROM costs
WHERE changed_at >= $3 ORDER BY changed_at DESC LIMIT $5)
"""


class News(NamedTuple):
    """What processes have said and people have set, and when that was read."""

    now: datetime
    rules: Rules
    reports: list[dict[str, LaneReport]]
    """How their lanes stand for each of the living workers."""
    charged: list[tuple[str, str, Told]]
    """What other processes have charged: process, lane, and how much."""
    costs: list[tuple[int, str, float]]
    """How long runs take, by tenant and target host, the oldest first."""


async def news(tx: Tx, process: UUID, since: datetime) -> News:
    """All that ranks are made of. Of charges, those that others than ``process`` have told of since
    then; of costs, those that anybody has."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in await tx.rows(NEWS, tx.now, process, since, ALIVE, MOST_COSTS):
        found[row["what"]].append(row)
    return News(
        found["now"][0]["at"],
        Rules(
            {row["name"]: row["number"] for row in found["ageing"]},
            {row["tenant_id"]: row["number"] for row in found["weight"]},
            Caps(
                {row["tenant_id"] for row in found["tenant"]},
                {(row["tenant_id"], row["name"]) for row in found["host"]},
                {(row["tenant_id"], row["name"]) for row in found["key"]},
            ),
        ),
        [_lanes.decode(row["document"]) for row in found["report"]],
        [(row["process"], row["name"], _told(row["document"])) for row in found["charged"]],
        [(row["tenant_id"], row["name"], row["number"]) for row in reversed(found["cost"])],
    )


_lanes = msgspec.json.Decoder(dict[str, LaneReport])
_charged = msgspec.json.Decoder(dict[str, list[tuple[int, float, float]]])


def _told(document: str) -> Told:
    return {int(tenant): each for tenant, each in _charged.decode(document).items()}


FORGET: Final = """
DELETE FROM charges AS c
WHERE c.changed_at < coalesce($1, now()) - interval '1 minute'
  AND NOT EXISTS (SELECT FROM workers AS w WHERE w.id = c.process)
"""


async def forget(tx: Tx) -> int:
    """Delete what processes have told that are gone."""
    return await tx.execute(FORGET, tx.now)
