"""Limits of a tenant's hosts and concurrency keys: set by people, looked up by runs."""

from __future__ import annotations

from typing import Final, NamedTuple

from noonday.domain.caps import host_cap, key_cap
from noonday.store import Row, Tx
from noonday.store.caps import USES

MOST_COUNTED: Final = 10_000
"""More than this are not counted for a list."""

_CAP: Final = {"host": host_cap, "key": key_cap}
_COUNT: Final = "(SELECT count(*) FROM (SELECT FROM runs WHERE {0} LIMIT {1}) AS n)"


class Limit(NamedTuple):
    """What a host or a key is limited to; None is no limit."""

    max_running: int | None
    rate_per_sec: float | None = None


def _shown(cap: str, uses: str) -> str:
    """The columns that show a limit: who has a slot, and who waits for one."""
    return f"""{_COUNT.format(uses, MOST_COUNTED)} AS used, {
        _COUNT.format(f"hold_key = {cap} AND hold = 'cap'", MOST_COUNTED)
    } AS waiting"""


OWN: Final = f"""
SELECT 'tenant' AS kind, t.name, t.max_running, NULL::float8 AS rate_per_sec, {
    _shown("'tenant:' || t.id", USES["tenant"].format(cap="'tenant:' || t.id"))
}
FROM tenants AS t WHERE t.id = $1
"""


async def own(tx: Tx, tenant_id: int) -> Row:
    """A tenant's cap on all its runs, as the limits are shown."""
    return await tx.one(OWN, tenant_id)


PUT_OWN: Final = """
UPDATE tenants SET max_running = $2, caps_changed_at = coalesce($3, now()) WHERE id = $1
"""


async def put_own(tx: Tx, tenant_id: int, max_running: int | None) -> None:
    """Set a tenant's cap on all its runs; None takes it away."""
    await tx.execute(PUT_OWN, tenant_id, max_running, tx.now)


_ROW: Final = f"""SELECT l.kind, l.name, l.max_running, l.rate_per_sec, CASE WHEN l.kind = 'host'
           THEN {_COUNT.format(USES["host"].format(cap="l.key"), MOST_COUNTED)}
           ELSE {_COUNT.format(USES["key"].format(cap="l.key"), MOST_COUNTED)} END AS used,
       {_COUNT.format("hold_key = l.key AND hold = 'cap'", MOST_COUNTED)} AS waiting
FROM limits AS l"""

PAGE: Final = f"""
{_ROW} WHERE l.tenant_id = $1 AND (l.kind, l.name) > ($2, $3)
ORDER BY l.kind, l.name LIMIT $4
"""


async def page(tx: Tx, tenant_id: int, after: tuple[str, str], limit: int) -> list[Row]:
    """A tenant's limits: those of hosts, then those of keys, by name."""
    return await tx.rows(PAGE, tenant_id, *after, limit)


ONE: Final = f"{_ROW} WHERE l.key = $1"


async def one(tx: Tx, tenant_id: int, kind: str, name: str) -> Row | None:
    """The limit of a host or a key; None when none was set."""
    return await tx.row(ONE, _CAP[kind](tenant_id, name))


PUT: Final = """
INSERT INTO limits (key, tenant_id, kind, name, max_running, rate_per_sec, changed_at)
VALUES ($1, $2, $3, $4, $5, $6, coalesce($7, now()))
ON CONFLICT (key) DO UPDATE
SET max_running = excluded.max_running, rate_per_sec = excluded.rate_per_sec,
    changed_at = excluded.changed_at
"""
# Its runs are gone through for those to which a cap is new.
NOTE_CHANGE: Final = "UPDATE tenants SET caps_changed_at = coalesce($2, now()) WHERE id = $1"


async def put(tx: Tx, tenant_id: int, kind: str, name: str, limit: Limit) -> None:
    """Set the limit of a host or a key."""
    cap = _CAP[kind](tenant_id, name)
    await tx.execute(PUT, cap, tenant_id, kind, name, *limit, tx.now)
    await tx.execute(NOTE_CHANGE, tenant_id, tx.now)


DELETE: Final = "DELETE FROM limits WHERE key = $1"


async def delete(tx: Tx, tenant_id: int, kind: str, name: str) -> bool:
    """Take a limit away: a host has none then, a key is carried out one at a time; whether there
    was one."""
    if not await tx.execute(DELETE, _CAP[kind](tenant_id, name)):
        return False
    await tx.execute(NOTE_CHANGE, tenant_id, tx.now)
    return True
