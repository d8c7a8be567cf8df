"""Rates, kept by the generic cell rate algorithm: one instant per key, moved on by what is taken.

The instant says when the next one conforms. It is moved in the database, by the database's time, so
that any number of processes share a rate; each takes small blocks, and what it does not use of a
block is lost with it. (ITU-T I.371, virtual scheduling.)
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from noonday.store import Tx, columns


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


PUT: Final = """
INSERT INTO rates (key, next_at)
SELECT key, coalesce($2, now()) - interval '1 day' FROM unnest($1::text[]) AS key
ORDER BY key ON CONFLICT DO NOTHING
"""

# Locked in the order of keys, so that two takers never wait for each other in a circle.
TAKE: Final = """
WITH wanted AS (
    SELECT * FROM unnest($1::text[], $2::float8[], $3::float8[], $4::float8[], $5::int[])
         AS w(key, per_sec, burst, ahead_sec, number)
), locked AS MATERIALIZED (
    SELECT key, next_at, slowed FROM rates WHERE key = ANY($1::text[]) ORDER BY key FOR UPDATE
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
