"""What it takes to say how many slots are wanted, and what was said last.

What timers will bring is read without counting them all: few are read by their index, of many a
sample of pages, and of those the lanes of a sample of jobs. A million due at the same minute cost
no more than a thousand.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from noonday.domain.flow import SLICE_SEC, Work
from noonday.store import Row, Tx, columns
from noonday.store.workers import ALIVE

FEW: Final = 500
"""So many timers are read as they are."""
SAMPLED_PAGES: Final = 30
"""Of more timers so many pages are read; a page has about 100."""
LOOKED_UP: Final = 200
"""The jobs of a sample that are asked for their lane; more only to have some of each slice."""
OF_EACH_SLICE: Final = 4

# --- what workers did -------------------------------------------------------------------------

WORKS: Final = """
SELECT id, vitals -> 'works' AS works FROM workers
WHERE role = 'worker' AND seen_at >= coalesce($1, now()) - $2::interval
"""


async def works(tx: Tx) -> dict[UUID, dict[str, Work]]:
    """What each living worker did in its lanes since it started, as far as it has said so."""
    rows = await tx.rows(WORKS, tx.now, ALIVE)
    return {
        row["id"]: msgspec.json.decode(row["works"], type=dict[str, Work])
        for row in rows
        if row["works"] is not None
    }


# --- what is due ------------------------------------------------------------------------------

COUNT_FEW: Final = """
SELECT count(*) FROM (SELECT FROM timers WHERE due_at >= $1 AND due_at < $2 LIMIT $3) AS few
"""

# A span of minutes lies in one partition, or in two.
PAGES: Final = """
SELECT coalesce(sum(pg_relation_size(part) / current_setting('block_size')::int), 0)::float8
FROM (
    (SELECT tableoid AS part FROM timers WHERE due_at >= $1 AND due_at < $2
     ORDER BY due_at LIMIT 1)
    UNION
    (SELECT tableoid FROM timers WHERE due_at >= $1 AND due_at < $2 ORDER BY due_at DESC LIMIT 1)
) AS parts
"""

# The runs of a slice are shared out among the lanes as the jobs that are looked up are.
# (The lots are drawn once for each timer: drawn in the join, they would be drawn for whole slices.)
_BY_LANE: Final = """
), slices AS (
    SELECT slice, count(*) AS runs,
           least(1, greatest($5::float8 / sum(count(*)) OVER (), $6::float8 / count(*))) AS odds
    FROM due GROUP BY slice
), found AS MATERIALIZED (
    SELECT slice, runs, (SELECT lane FROM jobs WHERE id = job_id) AS lane
    FROM due JOIN slices USING (slice) WHERE lot < odds
)
SELECT slice, lane, (runs * count(*) / sum(count(*)) OVER (PARTITION BY slice))::float8
       * $4::float8 AS runs
FROM found WHERE lane IS NOT NULL GROUP BY slice, lane, runs
"""
_DUE: Final = f"""
    SELECT floor(extract(epoch FROM due_at) / {SLICE_SEC})::bigint AS slice, job_id,
           random() AS lot
"""

DUE: Final = f"""
WITH due AS MATERIALIZED ({_DUE}
    FROM timers WHERE due_at >= $1 AND due_at < $2 LIMIT $3::int
{_BY_LANE}"""
SAMPLED: Final = f"""
WITH due AS MATERIALIZED ({_DUE}
    FROM timers TABLESAMPLE SYSTEM ($3) WHERE due_at >= $1 AND due_at < $2
{_BY_LANE}"""


class Outlook(NamedTuple):
    """Runs that timers will bring, by slice and lane."""

    runs: dict[int, dict[str, float]]
    exact: bool
    """False when it is estimated from a sample, another one each time."""


async def due(tx: Tx, start: datetime, end: datetime) -> Outlook:
    """What is due from ``start`` until before ``end``, some minutes later."""
    found: dict[int, dict[str, float]] = {}
    exact = await tx.value(COUNT_FEW, start, end, FEW + 1) <= FEW
    if exact:
        rows = await tx.rows(DUE, start, end, FEW, 1.0, FEW, OF_EACH_SLICE)
    else:
        part = min(SAMPLED_PAGES / max(await tx.value(PAGES, start, end), 1.0), 1.0)
        rows = await tx.rows(SAMPLED, start, end, 100 * part, 1 / part, LOOKED_UP, OF_EACH_SLICE)
    for row in rows:
        found.setdefault(row["slice"], {})[row["lane"]] = row["runs"]
    return Outlook(found, exact)


# --- what is wanted ---------------------------------------------------------------------------


class Wanted(NamedTuple):
    """How many slots a lane needs, and why. ``service_sec`` is how long a run kept its slot."""

    lane: str
    slots: int
    reason: str
    service_sec: float


EVERY: Final = "SELECT lane, slots, reason, service_sec, changed_at FROM wanted_slots"


async def every(tx: Tx) -> dict[str, Row]:
    """What is wanted, and since when, by lane."""
    return {row["lane"]: row for row in await tx.rows(EVERY)}


NOTE: Final = """
INSERT INTO wanted_slots AS w (lane, slots, reason, service_sec, changed_at)
SELECT lane, slots, reason, service_sec, coalesce($5, now())
FROM unnest($1::text[], $2::int[], $3::text[], $4::float8[])
     AS n(lane, slots, reason, service_sec)
ORDER BY lane
ON CONFLICT (lane) DO UPDATE
SET slots = excluded.slots, reason = excluded.reason, service_sec = excluded.service_sec,
    changed_at = excluded.changed_at
WHERE w.slots <> excluded.slots
"""


async def note(tx: Tx, wanted: Iterable[Wanted]) -> None:
    """Another number of slots is wanted in these lanes."""
    await tx.execute(NOTE, *columns(list(wanted), 4), tx.now)
