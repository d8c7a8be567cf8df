"""Rates, kept by the generic cell rate algorithm: one instant per key, moved on by what is taken.

The instant says when the next one conforms. It is moved in the database, by the database's time, so
that any number of processes share a rate; each takes small blocks, and what it does not use of a
block is lost with it. (ITU-T I.371, virtual scheduling.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from noonday.store import Row, Tx, columns


class Wanted(NamedTuple):
    """What to take of a rate. ``burst`` is how many conform at once after a pause, at least 1;
    ``ahead_sec`` how far in the future the last of them may lie."""

    key: str
    per_sec: float
    burst: float
    ahead_sec: float
    number: int


class Block(NamedTuple):
    """What was taken: the ``n``-th of ``number`` conforms at ``first_at + n * spacing``."""

    number: int
    first_at: datetime
    spacing: timedelta
    now: datetime

    @property
    def next_at(self) -> datetime:
        """When the first one conforms that is not in this block."""
        return self.first_at + self.number * self.spacing


def quota_key(name: str, tenant_id: int) -> str:
    """What the rate of a tenant's quota goes by."""
    return f"{name}:{tenant_id}"


# A rate that was slowed down comes back by itself, step by step. What is stored is what it stood at
# when it was slowed down last.
SLOWED: Final = """CASE WHEN slowed_at IS NULL THEN slowed ELSE least(1, slowed + floor(
    extract(epoch FROM coalesce({now}, clock_timestamp()) - slowed_at)::float8 / 10) / 16) END"""

PUT: Final = """
INSERT INTO rates (key, next_at)
SELECT key, coalesce($2, now()) - interval '1 day' FROM unnest($1::text[]) AS key
ORDER BY key ON CONFLICT DO NOTHING
"""

# Locked in the order of keys, so that two takers never wait for each other in a circle.
TAKE: Final = f"""
WITH wanted AS (
    SELECT * FROM unnest($1::text[], $2::float8[], $3::float8[], $4::float8[], $5::int[])
         AS w(key, per_sec, burst, ahead_sec, number)
), locked AS MATERIALIZED (
    SELECT key, next_at, {SLOWED.format(now="$6")} AS slowed
    FROM rates WHERE key = ANY($1::text[]) ORDER BY key FOR UPDATE
), paced AS MATERIALIZED (
    SELECT w.*, 1 / (w.per_sec * l.slowed) AS spacing_sec, coalesce($6, clock_timestamp()) AS now,
           greatest(l.next_at, coalesce($6, clock_timestamp())
                    - (w.burst - 1) / (w.per_sec * l.slowed) * interval '1 second') AS first_at
    FROM locked AS l JOIN wanted AS w ON w.key = l.key
), granted AS (
    SELECT key, spacing_sec, now, first_at, greatest(0, least(number, 1 + floor(
               (extract(epoch FROM now - first_at)::float8 + ahead_sec + 1e-6) / spacing_sec)))::int
               AS number
    FROM paced
), moved AS (
    UPDATE rates AS r SET next_at = g.first_at + g.number * g.spacing_sec * interval '1 second'
    FROM granted AS g WHERE r.key = g.key AND g.number > 0
)
SELECT key, number, first_at, spacing_sec * interval '1 second' AS spacing, now FROM granted
"""


async def take(tx: Tx, wanted: Sequence[Wanted]) -> dict[str, Block]:
    """Take of each rate what conforms, at most what is wanted. The rates stay locked until the
    transaction ends. One that was slowed down gives accordingly less."""
    if not wanted:
        return {}
    rows = await tx.rows(TAKE, *columns(wanted, 5), tx.now)
    if len(rows) < len(wanted):
        await tx.execute(PUT, [each.key for each in wanted], tx.now)
        rows = await tx.rows(TAKE, *columns(wanted, 5), tx.now)
    return {
        row["key"]: Block(row["number"], row["first_at"], row["spacing"], row["now"])
        for row in rows
    }


GIVE_BACK: Final = """
UPDATE rates AS r SET next_at = r.next_at - b.seconds * interval '1 second'
FROM unnest($1::text[], $2::float8[]) AS b(key, seconds) WHERE r.key = b.key
"""


async def give_back(tx: Tx, unused: Sequence[tuple[str, float]]) -> None:
    """Undo a part of what :func:`take` took in the same transaction: seconds of the rate by key."""
    if unused:
        await tx.execute(GIVE_BACK, *columns(unused, 2))


# What was used lies back in time, or as far ahead as one token of the rate that was: a faster rate
# does not wait for that.
RESTART: Final = """
UPDATE rates SET next_at = least(next_at, coalesce($2, now())) WHERE key = ANY($1::text[])
"""


async def restart(tx: Tx, keys: Sequence[str]) -> None:
    """The rates were changed: what follows does not wait for what was taken before."""
    await tx.execute(RESTART, keys, tx.now)


# --- deliveries -------------------------------------------------------------------------------

LIMITED: Final = """
SELECT key, rate_per_sec AS per_sec FROM limits WHERE rate_per_sec IS NOT NULL
UNION ALL
SELECT 'tenant:' || id, deliveries_per_sec FROM tenants WHERE deliveries_per_sec IS NOT NULL
"""


async def limited(tx: Tx) -> dict[str, float]:
    """Whose deliveries have a rate, by key: how many a second."""
    return {row["key"]: row["per_sec"] for row in await tx.rows(LIMITED)}


LIMITS_OF: Final = """
SELECT key, rate_per_sec AS per_sec FROM limits
WHERE key = ANY($1::text[]) AND rate_per_sec IS NOT NULL
UNION ALL
SELECT 'tenant:' || id, deliveries_per_sec FROM tenants
WHERE id = ANY($2::int[]) AND deliveries_per_sec IS NOT NULL
"""


async def limits_of(tx: Tx, keys: Sequence[str]) -> dict[str, float]:
    """The same of these keys only."""
    ids = [int(key.removeprefix("tenant:")) for key in keys if key.startswith("tenant:")]
    return {row["key"]: row["per_sec"] for row in await tx.rows(LIMITS_OF, keys, ids)}


LOCK: Final = f"""
WITH locked AS MATERIALIZED (
    SELECT * FROM rates WHERE key = ANY($1::text[]) ORDER BY key FOR UPDATE
)
SELECT key, next_at, let_go_at, {SLOWED.format(now="$2")} AS slowed,
       coalesce($2, clock_timestamp()) AS now
FROM locked
"""


async def lock(tx: Tx, keys: Sequence[str]) -> list[Row]:
    """How rates stand, and the time at which that was read; they are locked, in the order of
    their keys, until the transaction ends."""
    rows = await tx.rows(LOCK, keys, tx.now)
    if len(rows) < len(keys):
        await tx.execute(PUT, keys, tx.now)
        rows = await tx.rows(LOCK, keys, tx.now)
    return rows


MOVE: Final = """
UPDATE rates AS r SET next_at = m.next_at
FROM unnest($1::text[], $2::timestamptz[]) AS m(key, next_at)
WHERE r.key = m.key AND r.key = ANY($1::text[])
"""


async def move(tx: Tx, next_at: Mapping[str, datetime]) -> None:
    """Instants of locked rates were given out, up to these."""
    await tx.execute(MOVE, list(next_at), list(next_at.values()))


SLOW: Final = f"""
WITH one AS MATERIALIZED (
    SELECT *, {SLOWED.format(now="$5")} AS stands, coalesce($5, clock_timestamp()) AS now,
           slowed_at IS NULL OR slowed_at <= coalesce($5, clock_timestamp()) - $4::interval AS due
    FROM rates WHERE key = $1 FOR UPDATE
)
UPDATE rates AS r
SET slowed = CASE WHEN one.due THEN greatest(one.stands / 2, $3) ELSE r.slowed END,
    slowed_at = CASE WHEN one.due THEN one.now ELSE r.slowed_at END,
    next_at = greatest(r.next_at, one.now + $2::interval)
FROM one WHERE r.key = one.key AND (one.due OR r.next_at < one.now + $2::interval)
RETURNING one.due
"""


async def slow(tx: Tx, key: str, wait: timedelta, least: float, again: timedelta) -> bool:
    """A receiver said that this is too fast: half of it, ``least`` of the whole rate or more, and
    nothing for ``wait``; whether it was slowed down, which it is not sooner than ``again`` after
    the last time."""
    return bool(await tx.value(SLOW, key, wait, least, again, tx.now))


# --- what waits for a rate --------------------------------------------------------------------

STAND: Final = f"""
SELECT key, next_at, let_go_at, {SLOWED.format(now="$2")} AS slowed,
       coalesce($2, clock_timestamp()) AS now
FROM rates WHERE key = ANY($1::text[])
"""


async def stand(tx: Tx, keys: Sequence[str]) -> dict[str, Row]:
    """How rates stand, by key; one that nobody has used is not there."""
    return {row["key"]: row for row in await tx.rows(STAND, keys, tx.now)}


class LetGo(NamedTuple):
    """Runs on hold for a rate were let go up to an instant; the next one that it gives out lies no
    further ahead than ``latest``."""

    key: str
    up_to: datetime
    latest: datetime


LET_GO: Final = """
WITH locked AS MATERIALIZED (
    SELECT r.key, m.up_to, m.latest
    FROM rates AS r
    JOIN unnest($1::text[], $2::timestamptz[], $3::timestamptz[]) AS m(key, up_to, latest)
      ON m.key = r.key
    WHERE r.key = ANY($1::text[])
    ORDER BY r.key FOR UPDATE OF r
)
UPDATE rates AS r SET let_go_at = l.up_to, next_at = least(r.next_at, l.latest)
FROM locked AS l WHERE r.key = l.key AND r.key = ANY($1::text[])
"""


async def let_go(tx: Tx, rates: Sequence[LetGo]) -> None:
    """Note what was let go."""
    await tx.execute(LET_GO, *columns(rates, 3))
