"""How long runs take, by whose they are and whom they call: what ranks expect of the next one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from noonday.store import Tx, columns

KEPT: Final = timedelta(days=7)
"""How long a cost is kept that does not change; a worker that still sees it tells it anew."""
MOST: Final = 100_000
"""The newest that are kept."""
HALF: Final = 0.5
"""What part of a cost is that of the worker that told of it last: others tell of theirs as well."""

# In the order of keys, so that two workers never wait for each other in a circle.
TELL: Final = """
INSERT INTO costs AS c (tenant_id, target_host, seconds, changed_at)
SELECT tenant_id, target_host, seconds, coalesce($5, now())
FROM unnest($1::int[], $2::text[], $3::float8[]) AS t(tenant_id, target_host, seconds)
ORDER BY tenant_id, target_host
ON CONFLICT (tenant_id, target_host) DO UPDATE
SET seconds = c.seconds + $4 * (excluded.seconds - c.seconds), changed_at = excluded.changed_at
"""


async def tell(tx: Tx, seen: Sequence[tuple[int, str, float]]) -> None:
    """What runs have lately taken: tenant, target host, seconds."""
    if seen:
        await tx.execute(TELL, *columns(seen, 3), HALF, tx.now)


FORGET: Final = """
DELETE FROM costs WHERE changed_at < greatest(
    coalesce($1, now()) - $2::interval,
    (SELECT changed_at FROM costs ORDER BY changed_at DESC OFFSET $3 LIMIT 1))
"""


async def forget(tx: Tx) -> int:
    """Delete what has not changed for long, and the oldest of too many."""
    return await tx.execute(FORGET, tx.now, KEPT, MOST)
