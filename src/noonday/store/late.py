"""How much is late: few timers are counted, of many a sample of pages is."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from noonday.store import Tx, partitions

FEW: Final = 10_000
"""So many timers are counted one by one."""
SAMPLED_PAGES: Final = 300
"""Of more timers so many pages are read; a page has about 100."""

COUNT: Final = """
SELECT count(*) AS count, min(due_at) AS oldest_at
FROM (SELECT due_at FROM timers WHERE due_at < $1 ORDER BY due_at LIMIT $2) AS few
"""
PAGES: Final = """
SELECT coalesce(sum(pg_relation_size(to_regclass(name)) / current_setting('block_size')::int), 0)
       ::float8
FROM unnest($1::text[]) AS name
"""
SAMPLED: Final = "SELECT count(*) FROM timers TABLESAMPLE SYSTEM ($2) WHERE due_at < $1"


class Late(NamedTuple):
    """Timers that are due before an instant."""

    number: int
    exact: bool
    """False when it is estimated from a sample, another one each time."""
    oldest_at: datetime | None


async def count(tx: Tx, before: datetime) -> Late:
    """How many timers are due before an instant that is past."""
    few = await tx.one(COUNT, before, FEW + 1)
    if few["count"] <= FEW:
        return Late(few["count"], True, few["oldest_at"])
    parts = [
        part.name for part in await partitions.existing(tx, "timers") if part.starts_at < before
    ]
    part = min(SAMPLED_PAGES / max(await tx.value(PAGES, parts), 1.0), 1.0)
    sampled = await tx.value(SAMPLED, before, 100.0 * part)
    return Late(max(round(sampled / part), FEW + 1), False, few["oldest_at"])
