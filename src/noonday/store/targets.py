"""What is called, and whether it is left alone: one row for each breaker that ever opened.

A row is written when it changes, guarded by its state and, where somebody writes of what he saw, by
its generation or by how long it has stood so. A target without a row is CLOSED.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from noonday.domain.breaker import ASK_AGAIN, HALF_OPEN_RUNS, TRIPS_FORGOTTEN, Target
from noonday.store import Row, Tx
from noonday.store.rates import SLOWED

# --- what workers report ----------------------------------------------------------------------

# All of $7 was seen of the target as it stands: it has been CLOSED for longer.
OPEN: Final = """
INSERT INTO targets AS t (hold_key, tenant_id, host, port, state, reason, since, probe_at,
                          released_at)
VALUES ($1, $2, $3, $4, 'OPEN', $5, coalesce($9, now()), coalesce($9, now()) + ($6::interval[])[1],
        coalesce($9, now()))
ON CONFLICT (hold_key) DO UPDATE
SET state = 'OPEN', reason = excluded.reason, since = excluded.since, released_at = excluded.since,
    generation = t.generation + 1,
    trips = CASE WHEN t.since < excluded.since - $8::interval THEN 1 ELSE t.trips + 1 END,
    probe_at = excluded.since + ($6::interval[])[CASE
        WHEN t.since < excluded.since - $8::interval THEN 1
        ELSE least(t.trips + 1, cardinality($6::interval[])) END]
WHERE t.state = 'CLOSED' AND t.since <= excluded.since - $7::interval
RETURNING generation
"""


async def open(
    tx: Tx,
    tenant_id: int,
    target: Target,
    reason: str,
    seen_for: timedelta,
    pauses: Sequence[timedelta],
) -> bool:
    """CLOSED → OPEN for the pause that its trips have come to; whether it was CLOSED.

    ``seen_for`` is how long ago the first of what speaks for it began: a breaker that has closed
    since then stays as it is.
    """
    opened = await tx.value(
        OPEN, target.key, tenant_id, target.host, target.port, reason, pauses, seen_for,
        TRIPS_FORGOTTEN, tx.now,
    )  # fmt: skip
    return opened is not None


SUSPEND: Final = """
INSERT INTO targets AS t (hold_key, tenant_id, host, port, url, state, reason, since, released_at)
VALUES ($1, $2, $3, $4, $5, 'SUSPENDED', $6, coalesce($8, now()), coalesce($8, now()))
ON CONFLICT (hold_key) DO UPDATE
SET state = 'SUSPENDED', reason = excluded.reason, since = excluded.since,
    released_at = excluded.since, generation = t.generation + 1, permits = 0, probe_at = NULL
WHERE t.state = 'CLOSED' AND t.since <= excluded.since - $7::interval
RETURNING generation
"""


async def suspend(tx: Tx, tenant_id: int, target: Target, reason: str, seen_for: timedelta) -> bool:
    """One URL, CLOSED → SUSPENDED until somebody resumes it; whether it was CLOSED.

    ``seen_for`` is how long ago the call that says so began.
    """
    suspended = await tx.value(
        SUSPEND, target.url_key, tenant_id, target.host, target.port, target.url, reason, seen_for,
        tx.now,
    )  # fmt: skip
    return suspended is not None


# Never waits for another claim: whose permits are being taken by others gets none.
PERMIT: Final = """
WITH wanted AS (
    SELECT * FROM unnest($1::text[], $2::int[]) AS w(hold_key, runs)
), given AS MATERIALIZED (
    SELECT t.ctid AS row, t.hold_key, t.generation, least(t.permits, w.runs) AS runs
    FROM wanted AS w JOIN targets AS t ON t.hold_key = w.hold_key
    WHERE t.state = 'HALF_OPEN' AND t.permits > 0 AND w.runs > 0
    FOR UPDATE OF t SKIP LOCKED
), taken AS (
    UPDATE targets AS t SET permits = t.permits - g.runs
    FROM given AS g WHERE t.ctid = g.row
    RETURNING t.hold_key
)
SELECT t.hold_key, t.state, coalesce(g.generation, t.generation) AS generation,
       CASE WHEN taken.hold_key IS NULL THEN 0 ELSE g.runs END AS permits
FROM wanted AS w JOIN targets AS t ON t.hold_key = w.hold_key
LEFT JOIN given AS g ON g.hold_key = t.hold_key
LEFT JOIN taken ON taken.hold_key = t.hold_key
WHERE t.state <> 'CLOSED'
"""


async def permit(tx: Tx, wanted: Mapping[str, int]) -> dict[str, Row]:
    """Those of the targets that are not CLOSED, by key; of HALF_OPEN ones with as many permits as
    are wanted and left, which are taken by this."""
    rows = await tx.rows(PERMIT, list(wanted), list(wanted.values()))
    return {row["hold_key"]: row for row in rows}


GIVE_BACK: Final = """
UPDATE targets SET permits = permits + 1
WHERE hold_key = $1 AND generation = $2 AND state = 'HALF_OPEN'
"""


async def give_back(tx: Tx, hold_key: str, generation: int) -> bool:
    """A permit that was taken in this transaction is not used after all; whether it still was."""
    return await tx.execute(GIVE_BACK, hold_key, generation) == 1


PROBE_SUCCEEDED: Final = """
UPDATE targets AS t
SET successes = successes + $3,
    state = CASE WHEN successes + $3 >= $4 THEN 'CLOSED' ELSE state END,
    reason = CASE WHEN successes + $3 >= $4 THEN $5 ELSE reason END,
    since = CASE WHEN successes + $3 >= $4 THEN coalesce($6, now()) ELSE since END,
    released_at = CASE WHEN successes + $3 >= $4 THEN coalesce($6, now()) ELSE released_at END,
    probe_at = CASE WHEN successes + $3 >= $4 THEN NULL ELSE probe_at END,
    permits = CASE WHEN successes + $3 >= $4 THEN 0 ELSE permits END,
    generation = generation + (successes + $3 >= $4)::int
WHERE hold_key = $1 AND generation = $2 AND state = 'HALF_OPEN'
RETURNING state
"""


async def probe_succeeded(tx: Tx, hold_key: str, generation: int, count: int = 1) -> bool:
    """Runs that were let through went well: HALF_OPEN → CLOSED with the last one that it takes;
    whether that was it."""
    reason = f"{HALF_OPEN_RUNS} runs that were let through went well"
    state = await tx.value(
        PROBE_SUCCEEDED, hold_key, generation, count, HALF_OPEN_RUNS, reason, tx.now
    )
    return bool(state == "CLOSED")


PROBE_FAILED: Final = """
UPDATE targets AS t
SET state = 'OPEN', reason = $3, since = coalesce($5, now()), released_at = coalesce($5, now()),
    generation = t.generation + 1, trips = t.trips + 1, permits = 0, successes = 0,
    probe_at = coalesce($5, now())
        + ($4::interval[])[least(t.trips + 1, cardinality($4::interval[]))]
WHERE hold_key = $1 AND generation = $2 AND state = 'HALF_OPEN'
"""


async def probe_failed(
    tx: Tx, hold_key: str, generation: int, reason: str, pauses: Sequence[timedelta]
) -> bool:
    """A run that was let through failed: HALF_OPEN → OPEN for a longer pause; whether it was."""
    args = (hold_key, generation, reason, pauses, tx.now)
    return await tx.execute(PROBE_FAILED, *args) == 1


NOT_CLOSED: Final = """
SELECT hold_key FROM targets WHERE state <> 'CLOSED' ORDER BY hold_key LIMIT $1
"""


async def not_closed(tx: Tx, limit: int = 10_000) -> set[str]:
    """The keys of targets that are left alone, or tried; should there be more than ``limit``, the
    others are called as if they were CLOSED."""
    return {row["hold_key"] for row in await tx.rows(NOT_CLOSED, limit)}


# --- what the admission does ------------------------------------------------------------------

# Of the keys under which runs are held, and of the targets whose pause is over, those for which
# there is something to do.
TO_DO: Final = """
SELECT k.hold_key FROM unnest($1::text[]) AS k(hold_key)
LEFT JOIN targets AS t ON t.hold_key = k.hold_key
WHERE coalesce(t.state, 'CLOSED') = 'CLOSED'
   OR (t.state = 'HALF_OPEN' AND t.released_at <= coalesce($2, now()) - $3::interval
       AND (t.permits > 0 OR t.probe_at <= coalesce($2, now())))
UNION
SELECT hold_key FROM targets WHERE state <> 'CLOSED' AND state = 'OPEN'
   AND probe_at <= coalesce($2, now())
ORDER BY hold_key
"""


async def to_do(tx: Tx, hold_keys: Sequence[str]) -> list[str]:
    """Which targets to look at: of ``hold_keys``, or OPEN for long enough."""
    rows = await tx.rows(TO_DO, hold_keys, tx.now, ASK_AGAIN)
    return [row["hold_key"] for row in rows]


ONE: Final = """
SELECT state, generation, extract(epoch FROM coalesce($2, now()) - since)::float8 AS since_sec,
       extract(epoch FROM coalesce($2, now()) - released_at)::float8 AS released_sec
FROM targets WHERE hold_key = $1
"""


async def one(tx: Tx, hold_key: str) -> Row | None:
    """How a target stands, and for how many seconds; None when it never was other than CLOSED."""
    return await tx.row(ONE, hold_key, tx.now)


HALF_OPEN: Final = """
UPDATE targets
SET state = 'HALF_OPEN', since = coalesce($4, now()), released_at = coalesce($4, now()),
    generation = generation + 1, permits = $2, successes = 0,
    probe_at = coalesce($4, now()) + $3::interval
WHERE hold_key = $1 AND state = 'OPEN' AND probe_at <= coalesce($4, now())
"""


async def half_open(tx: Tx, hold_key: str, pause: timedelta) -> int:
    """OPEN, its pause over → HALF_OPEN; how many runs to let through. Should nothing be heard of
    them, others are let through after ``pause``."""
    changed = await tx.execute(HALF_OPEN, hold_key, HALF_OPEN_RUNS, pause, tx.now)
    return HALF_OPEN_RUNS if changed else 0


# What was taken and came to nothing (its worker died, or the answer says nothing) is given again.
# Results of before still count: they tell of the same time.
REFILL: Final = """
UPDATE targets
SET permits = CASE WHEN probe_at <= coalesce($4, now()) THEN $2 - successes ELSE permits END,
    probe_at = CASE WHEN probe_at <= coalesce($4, now()) THEN coalesce($4, now()) + $3::interval
               ELSE probe_at END,
    released_at = coalesce($4, now())
WHERE hold_key = $1 AND state = 'HALF_OPEN' AND released_at <= coalesce($4, now()) - $5::interval
  AND (permits > 0 OR probe_at <= coalesce($4, now()))
RETURNING permits
"""


async def refill(tx: Tx, hold_key: str, pause: timedelta) -> int:
    """Permits of a HALF_OPEN target that nobody has taken, or that came to nothing: how many runs
    to let through once more."""
    found = await tx.value(REFILL, hold_key, HALF_OPEN_RUNS, pause, tx.now, ASK_AGAIN)
    return found or 0


RELEASED: Final = """
UPDATE targets SET released_at = coalesce($3, now())
WHERE hold_key = $1 AND generation = $2 AND state = 'CLOSED' AND released_at < coalesce($3, now())
"""


async def released(tx: Tx, hold_key: str, generation: int) -> bool:
    """Held runs flow back up to this moment; whether nobody has let them meanwhile."""
    return await tx.execute(RELEASED, hold_key, generation, tx.now) == 1


FORGET: Final = """
DELETE FROM targets AS t
WHERE t.state = 'CLOSED' AND t.since < coalesce($1, now()) - interval '7 days'
  AND NOT EXISTS (SELECT FROM runs AS r WHERE r.hold_key = t.hold_key)
"""


async def forget(tx: Tx) -> int:
    """Delete those that have been CLOSED for a week; how many."""
    return await tx.execute(FORGET, tx.now)


# --- people -----------------------------------------------------------------------------------

_SHOWN: Final = "t.hold_key, t.host, t.port, t.url, t.state, t.reason, t.since, t.trips, t.probe_at"
MOST_COUNTED: Final = 10_000
"""More held runs than this are not counted for a list."""

# A host with a rate is there even if no breaker of it has ever opened.
PAGE: Final = f"""
WITH found AS MATERIALIZED (
    SELECT {_SHOWN} FROM targets AS t
    WHERE t.tenant_id = $1 AND (t.host, t.hold_key) > ($2, $3)
      AND ($4::text IS NULL OR t.state = $4)
    UNION ALL
    SELECT l.key, l.name, NULL, NULL, 'CLOSED', $7, l.changed_at, 0, NULL FROM limits AS l
    WHERE l.tenant_id = $1 AND l.kind = 'host' AND l.rate_per_sec IS NOT NULL
      AND (l.name, l.key) > ($2, $3) AND ($4 IS NULL OR $4 = 'CLOSED')
      AND NOT EXISTS (SELECT FROM targets AS t WHERE t.tenant_id = $1 AND t.host = l.name)
    ORDER BY host, hold_key LIMIT $5
)
SELECT t.*, (
    SELECT count(*) FROM (SELECT FROM runs AS r WHERE r.hold_key = t.hold_key LIMIT $6) AS held
) AS held, (
    SELECT count(*) FROM (SELECT FROM runs AS r WHERE r.hold_key = 'rate:' || l.key LIMIT $6) AS w
) AS waiting, l.rate_per_sec, {SLOWED.format(now="$8")} AS slowed
FROM found AS t
LEFT JOIN limits AS l ON l.key = 'host:' || $1 || ':' || t.host AND l.rate_per_sec IS NOT NULL
LEFT JOIN rates AS r ON r.key = l.key
ORDER BY t.host, t.hold_key
"""
LIMITED: Final = "its rate is limited"


class TargetPosition(NamedTuple):
    """Just after this target; the default is the beginning."""

    host: str = ""
    hold_key: str = ""


async def page(
    tx: Tx, tenant_id: int, after: TargetPosition, state: str | None, limit: int
) -> list[Row]:
    """A tenant's targets and hosts with a rate, in the order of their hosts, each with the runs
    that it holds up and with those that wait for the rate."""
    return await tx.rows(PAGE, tenant_id, *after, state, limit, MOST_COUNTED, LIMITED, tx.now)


RESUME: Final = f"""
UPDATE targets AS t
SET state = 'CLOSED', reason = $3, since = coalesce($4, now()), released_at = coalesce($4, now()),
    generation = generation + 1, permits = 0, successes = 0, probe_at = NULL
WHERE tenant_id = $1 AND host = $2 AND state <> 'CLOSED'
RETURNING {_SHOWN}
"""
OF_HOST: Final = "SELECT EXISTS (SELECT FROM targets WHERE tenant_id = $1 AND host = $2)"


async def resume(tx: Tx, tenant_id: int, host: str, reason: str) -> list[Row] | None:
    """A person lets the runs of a host go on, those to its suspended URLs too: OPEN, HALF_OPEN and
    SUSPENDED → CLOSED. What was changed; None when nothing is known of the host."""
    rows = await tx.rows(RESUME, tenant_id, host, reason, tx.now)
    if rows or await tx.value(OF_HOST, tenant_id, host):
        return rows
    return None
