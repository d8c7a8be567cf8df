"""How much there is: in each lane, on hold, for the metrics of one process; and of connections."""

from __future__ import annotations

from typing import Final

from noonday.store import Row, Tx

LANES: Final = """
SELECT lane, count(*) FILTER (WHERE ready) AS ready,
       coalesce(extract(epoch FROM max(now - ready_at) FILTER (WHERE ready)), 0)::float8
           AS oldest_age_sec,
       count(*) FILTER (WHERE running) AS running,
       count(*) FILTER (WHERE running AND locked_until < now) AS past_lease,
       greatest(coalesce(extract(epoch FROM max(now - locked_until) FILTER (WHERE running)), 0),
                0)::float8 AS past_lease_sec
FROM (SELECT *, state = 'READY' AND claimable AS ready, state = 'RUNNING' AS running,
             coalesce($1, now()) AS now FROM runs) AS run
GROUP BY lane
"""


async def lanes(tx: Tx) -> list[Row]:
    """Depth and oldest runnable age of each lane that has unfinished runs."""
    return await tx.rows(LANES, tx.now)


# (`reserved_connections` came with Postgres 16.)
CONNECTIONS: Final = """
SELECT current_setting('max_connections')::int
     - current_setting('superuser_reserved_connections')::int
     - coalesce(current_setting('reserved_connections', true), '0')::int
"""


async def connections(tx: Tx) -> int:
    """How many connections the database gives in all to those who are not superusers."""
    count: int = await tx.value(CONNECTIONS)
    return count


HELD: Final = "SELECT hold, count(*) AS runs FROM runs WHERE hold_key IS NOT NULL GROUP BY hold"


async def held(tx: Tx) -> dict[str, int]:
    """How many runs are held, by the kind of hold."""
    return {row["hold"]: row["runs"] for row in await tx.rows(HELD)}
