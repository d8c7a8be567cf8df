"""The forecast: what it is made from, and what is kept of it.

Recurring jobs are counted along their index, slice by slice, those alike together. One-off jobs are
counted by their timers: of a partition that is big a part of its pages is read, and of many timers
some jobs are looked up, so that ten million cost no more than a million.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from noonday.domain.errors import StoreUnavailable
from noonday.domain.forecast import Part
from noonday.store import Copy, Row, Store, Tx, partitions

PAGES: Final = 10_000
"""Of one partition of timers so many pages are read at most; a page has about 100."""
LOOKED_UP: Final = 10_000
"""Of the timers of one partition about so many jobs are looked up, and more only to have some of
each minute."""
OF_EACH_MINUTE: Final = 5
AT_ONCE: Final = 60
"""Minutes that are written at once: others of the process have a turn in between."""
FRESH_SEC: Final = 60.0
"""What a process knows of hot minutes is read again after this long."""

# --- recurring jobs ---------------------------------------------------------------------------

# Those are needed one by one whose expression draws numbers by their id (`H`), and those of which
# there are only so many: how many are left is known by their timers.
GROUPS: Final = """
WITH slice AS MATERIALIZED (
    SELECT id, tenant_id, lane, target_host, spec ->> 'schedule' AS schedule FROM jobs
    WHERE schedule_type <> 'once' AND state = 'ACTIVE' AND id > $1 ORDER BY id LIMIT $2
)
SELECT schedule, tenant_id, lane, target_host, count(*)::int AS jobs,
       CASE WHEN schedule ~* '"cron":"([^"]*([^a-z"]|\\\\t))?h([^a-z]|$)'
              OR schedule ~ '"max_occurrences": *[0-9]'
            THEN array_agg(id) END AS ids,
       (SELECT id FROM slice ORDER BY id DESC LIMIT 1) AS last_id
FROM slice GROUP BY schedule, tenant_id, lane, target_host
"""


class Groups(NamedTuple):
    """Some recurring jobs, those together that have the same schedule and stream."""

    rows: list[Row]
    jobs: int
    ends_at: UUID | None
    """Where to go on; None: there are no more."""


async def groups(tx: Tx, after: UUID, limit: int) -> Groups:
    """The next ``limit`` recurring jobs after one."""
    rows = await tx.rows(GROUPS, after, limit)
    jobs = sum(row["jobs"] for row in rows)
    return Groups(rows, jobs, rows[0]["last_id"] if jobs == limit else None)


# --- one-off jobs -----------------------------------------------------------------------------


class Span(NamedTuple):
    """A part of the time ahead that lies in one partition of timers."""

    partition: str
    starts_at: datetime
    ends_at: datetime


async def spans(tx: Tx, start: datetime, end: datetime) -> list[Span]:
    """The time from ``start`` to ``end``, by partition."""
    return [
        Span(part.name, max(part.starts_at, start), min(part.ends_at, end))
        for part in await partitions.existing(tx, "timers")
        if part.starts_at < end and part.ends_at > start
    ]


SIZE: Final = """
SELECT (pg_relation_size($1::text::regclass) / current_setting('block_size')::int)::float8
"""

# The same pages are read twice: to count the timers of each minute, and to look up some of them.
# (A lot is a hash of the id: drawn in the join, lots would be drawn for whole minutes.) Timers of
# recurring jobs are one row for each minute.
ONE_OFF: Final = """
WITH minutes AS MATERIALIZED (
    SELECT date_bin('1 minute', due_at, $1) AS at, count(*) AS timers
    FROM timers TABLESAMPLE SYSTEM ($3) REPEATABLE (1)
    WHERE due_at >= $1 AND due_at < $2 GROUP BY 1
), drawn AS (
    SELECT at, timers, least(1, greatest($4::float8 / sum(timers) OVER (), $5::float8 / timers))
           * 65536 AS odds
    FROM minutes
), found AS MATERIALIZED (
    SELECT d.at, d.timers, d.odds, t.job_id
    FROM timers AS t TABLESAMPLE SYSTEM ($3) REPEATABLE (1)
    JOIN drawn AS d ON d.at = date_bin('1 minute', t.due_at, $1)
    WHERE t.due_at >= $1 AND t.due_at < $2 AND (uuid_hash(t.job_id) & 65535) < d.odds
), shares AS (
    SELECT f.at, j.tenant_id, j.lane, j.target_host, j.one_off, bool_or(f.odds < 65536) AS drawn,
           f.timers * count(*) / sum(count(*)) OVER (PARTITION BY f.at) * 100 / $3::float8
               AS occurrences
    FROM found AS f CROSS JOIN LATERAL (
        SELECT one_off, CASE WHEN one_off THEN tenant_id END AS tenant_id,
               CASE WHEN one_off THEN lane END AS lane,
               CASE WHEN one_off THEN target_host END AS target_host
        FROM (SELECT *, schedule_type = 'once' AS one_off FROM jobs WHERE id = f.job_id LIMIT 1)
             AS job
    ) AS j
    GROUP BY f.at, f.timers, j.tenant_id, j.lane, j.target_host, j.one_off
)
SELECT at, tenant_id, lane, target_host, one_off, drawn, occurrences::float8 FROM shares
"""


class OneOff(NamedTuple):
    """One-off jobs that are due in a span, by minute and stream."""

    rows: list[Row]
    exact: bool
    """False when they are estimated."""


async def one_off(tx: Tx, span: Span) -> OneOff:
    """What timers of one-off jobs will bring."""
    pages = await tx.value(SIZE, span.partition)
    part = min(1.0, PAGES / max(pages, 1.0))
    rows = await tx.rows(
        ONE_OFF, span.starts_at, span.ends_at, 100 * part, LOOKED_UP, OF_EACH_MINUTE
    )
    exact = part == 1 and not any(row["drawn"] for row in rows)
    return OneOff([row for row in rows if row["one_off"]], exact)


# --- what is kept -----------------------------------------------------------------------------


class Made(NamedTuple):
    """A forecast as a whole."""

    computed_at: datetime
    took_sec: float
    starts_at: datetime
    ends_at: datetime
    jobs: int
    estimated: bool
    hot_from: float


class Minute(NamedTuple):
    """A minute in which something is due."""

    at: datetime
    parts: Sequence[Part]
    occurrences: float
    hot: bool


MADE: Final = f"SELECT {', '.join(Made._fields)} FROM forecasts"


async def made(tx: Tx) -> Made | None:
    """The forecast that there is."""
    row = await tx.row(MADE)
    return None if row is None else Made(*row.values())


# Of two that were made at once, the one that was begun later stays.
PUT: Final = f"""
INSERT INTO forecasts AS f ({", ".join(Made._fields)}) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (only_row) DO UPDATE
SET computed_at = excluded.computed_at, took_sec = excluded.took_sec,
    starts_at = excluded.starts_at, ends_at = excluded.ends_at, jobs = excluded.jobs,
    estimated = excluded.estimated, hot_from = excluded.hot_from
WHERE f.computed_at < excluded.computed_at
"""
CLEAR_MINUTES: Final = "DELETE FROM forecast_minutes"
CLEAR_PARTS: Final = "DELETE FROM forecast_parts"
MINUTES: Final = Copy("forecast_minutes", ("at", "occurrences", "hot"))
PARTS: Final = Copy(
    "forecast_parts", ("at", "tenant_id", "lane", "target_host", "occurrences", "unspread")
)


async def put(tx: Tx, made: Made, minutes: Sequence[Minute]) -> bool:
    """Keep a forecast in place of the one before; False when there is a later one."""
    if not await tx.execute(PUT, *made):
        return False
    await tx.execute(CLEAR_MINUTES)
    await tx.execute(CLEAR_PARTS)
    await tx.copy(MINUTES, [(each.at, each.occurrences, each.hot) for each in minutes])
    for start in range(0, len(minutes), AT_ONCE):
        await tx.copy(PARTS, list(_rows(minutes[start : start + AT_ONCE])))
    return True


def _rows(minutes: Sequence[Minute]) -> Iterator[tuple[object, ...]]:
    for each in minutes:
        for part in each.parts:
            yield each.at, *part.stream, part.occurrences, part.unspread


# --- what is asked ----------------------------------------------------------------------------

SNAPSHOT: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
"""Opens a transaction that reads all of one forecast, though the next one may come meanwhile."""

TOTALS: Final = """
SELECT at, occurrences, hot FROM forecast_minutes WHERE at >= $1 AND at < $2 ORDER BY at
"""


async def totals(tx: Tx, start: datetime, end: datetime) -> list[Row]:
    """What is due in each minute of the whole service."""
    return await tx.rows(TOTALS, start, end)


class Which(NamedTuple):
    """What a forecast is narrowed to; None does not narrow."""

    tenant_id: int | None = None
    lane: str | None = None
    target_host: str | None = None


_CHOSEN: Final = """p.at >= $1 AND p.at < $2 AND ($3::int IS NULL OR p.tenant_id = $3)
  AND ($4::text IS NULL OR p.lane = $4) AND ($5::text IS NULL OR p.target_host = $5)"""

CHOSEN: Final = f"""
SELECT p.at, sum(p.occurrences) AS occurrences, sum(p.unspread) AS unspread
FROM forecast_parts AS p WHERE {_CHOSEN} GROUP BY p.at ORDER BY p.at
"""


async def chosen(tx: Tx, start: datetime, end: datetime, which: Which) -> list[Row]:
    """What is due in each minute of what is asked for, and how much of it could be spread."""
    return await tx.rows(CHOSEN, start, end, *which)


PARTS_OF: Final = f"""
SELECT p.at, t.name AS tenant, nullif(p.lane, '') AS lane,
       nullif(p.target_host, '') AS target_host, p.occurrences
FROM forecast_parts AS p LEFT JOIN tenants AS t ON t.id = p.tenant_id
WHERE p.at = ANY($6::timestamptz[]) AND {_CHOSEN}
"""


async def parts_of(
    tx: Tx, start: datetime, end: datetime, which: Which, minutes: Sequence[datetime]
) -> list[Row]:
    """What some minutes consist of; a name that is null is all that is too small to be listed."""
    return await tx.rows(PARTS_OF, start, end, *which, minutes)


FOLDED: Final = """
SELECT count(DISTINCT at) FROM forecast_parts
WHERE at >= $1 AND at < $2 AND lane = '' AND ($3::int IS NULL OR tenant_id IN ($3, 0))
"""


async def folded(tx: Tx, start: datetime, end: datetime, tenant_id: int | None) -> int:
    """In how many minutes something was too small to be listed by itself."""
    count: int = await tx.value(FOLDED, start, end, tenant_id)
    return count


HOT: Final = "SELECT at FROM forecast_minutes WHERE hot"


class HotMinutes:
    """The hot minutes as a process knows them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: Set[datetime] = frozenset()
        self._read_at = float("-inf")

    async def known(self) -> Set[datetime]:
        """Those of ``FRESH_SEC`` ago or later. One that asks reads them, others do not wait for it;
        nothing fails for want of them."""
        if time.monotonic() - self._read_at >= FRESH_SEC:
            self._read_at = time.monotonic()
            with suppress(StoreUnavailable):
                async with self._store.singly() as tx:
                    self._known = frozenset(row["at"] for row in await tx.rows(HOT))
        return self._known
