"""How much there is: in each lane, on hold, of connections, and of what keeps dead rows."""

from __future__ import annotations

from typing import Final

from noonday.store import Row, Tx, rates

LANES: Final = """
SELECT l.name AS lane, coalesce($1, now()) AS counted_at, l.objective_sec,
       l.paused_at IS NOT NULL AS paused,
       l.shed_at IS NOT NULL AS shed, coalesce(ready, 0) AS ready,
       coalesce(oldest_age_sec, 0) AS oldest_age_sec, coalesce(running, 0) AS running,
       coalesce(past_lease, 0) AS past_lease, coalesce(past_lease_sec, 0) AS past_lease_sec
FROM lanes AS l LEFT JOIN (
    SELECT lane, count(*) FILTER (WHERE ready) AS ready,
           extract(epoch FROM max(now - ready_at) FILTER (WHERE ready))::float8 AS oldest_age_sec,
           count(*) FILTER (WHERE running) AS running,
           count(*) FILTER (WHERE running AND locked_until < now) AS past_lease,
           greatest(extract(epoch FROM max(now - locked_until) FILTER (WHERE running)),
                    0)::float8 AS past_lease_sec
    FROM (SELECT *, state = 'READY' AND claimable AS ready, state = 'RUNNING' AS running,
                 coalesce($1, now()) AS now FROM runs) AS run
    GROUP BY lane
) AS counted ON counted.lane = l.name
ORDER BY l.name
"""


async def lanes(tx: Tx) -> list[Row]:
    """Depth and oldest runnable age of each lane, with its own objective and whether it waits."""
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


SLOWED: Final = f"""
SELECT count(*) FROM rates WHERE slowed < 1 AND {rates.SLOWED.format(now="$1")} < 1
"""


async def slowed(tx: Tx) -> int:
    """How many hosts are called more slowly than their rates say, since they asked for it."""
    count: int = await tx.value(SLOWED, tx.now)
    return count


# What was deleted since any of these began is still there for it to see, and every scan passes it.
# (Of a replication slot it is not known since when. A vacuum holds nobody up.)
HORIZON: Final = """
SELECT coalesce(extract(epoch FROM max(clock_timestamp() - since)), 0)::float8 AS age_sec,
       coalesce(max(age(xid)), 0)::int AS transactions
FROM (
    SELECT xact_start AS since, x.xid
    FROM pg_stat_activity AS a, LATERAL (VALUES (backend_xmin), (backend_xid)) AS x(xid)
    WHERE x.xid IS NOT NULL AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'
      AND (datname = current_database() OR datname IS NULL)
    UNION ALL
    SELECT prepared, transaction FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT NULL, xmin FROM pg_replication_slots WHERE xmin IS NOT NULL
) AS holder
"""


async def horizon(tx: Tx) -> Row:
    """The age of the oldest transaction that keeps dead rows from being cleaned up: in seconds,
    and in transactions that were begun since."""
    return await tx.one(HORIZON)
