"""Alerts: what is looked at to evaluate them, how each stands, and the notices that are due.

Each write is guarded by the version that was read, so two evaluators do no harm. A notice is
claimed before it is posted, which puts its next try off, and confirmed afterwards: one whose
sender died in between is posted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from noonday.domain.alerts import Alert, AlertState, Changes, Key
from noonday.domain.vitals import LONGEST_SAMPLE, MOST_SAMPLES, WINDOW, Letters
from noonday.store import Row, Tx, columns

MOST_LETTERS: Final = 100_000
"""Dead letters of one tenant that are counted, the newest first: no flood makes it slow."""
FORGOTTEN_AFTER: Final = timedelta(days=7)
FIRST_RETRY: Final = timedelta(seconds=30)
LONGEST_RETRY: Final = timedelta(minutes=5)

# --- what is looked at ------------------------------------------------------------------------

# Tenant by tenant, since that is how the index goes. The texts are those that came most often.
LETTERS: Final = """
SELECT reason, sum(n)::bigint AS count,
       coalesce((array_agg(error ORDER BY n DESC, error) FILTER (WHERE error IS NOT NULL))[:$4],
                '{}') AS samples
FROM (SELECT d.reason, left(d.error, $5) AS error, count(*) AS n
      FROM tenants AS t, LATERAL (
          SELECT reason, error FROM dead_letters
          WHERE tenant_id = t.id AND dead_at > coalesce($1, now()) - $2::interval
          ORDER BY dead_at DESC LIMIT $3) AS d
      GROUP BY 1, 2) AS texts
GROUP BY reason
"""


async def letters(tx: Tx) -> list[Letters]:
    """The dead letters of the last ``WINDOW``, by reason."""
    rows = await tx.rows(LETTERS, tx.now, WINDOW, MOST_LETTERS, MOST_SAMPLES, 5 * LONGEST_SAMPLE)
    return [Letters(row["reason"], row["count"], row["samples"]) for row in rows]


UNOWNED: Final = """
SELECT count(*) FROM shards WHERE owner_id IS NULL OR leased_until < coalesce($1, now())
"""


async def unowned(tx: Tx) -> int:
    """How many shards have no living owner."""
    count: int = await tx.value(UNOWNED, tx.now)
    return count


# --- how each stands --------------------------------------------------------------------------

EVERY: Final = """
SELECT name, subject, state, version, since, seen_at, fired_at, resolved_at, times, value, samples,
       tell_at, tries, told_at
FROM alerts ORDER BY name, subject
"""


async def every(tx: Tx) -> list[Row]:
    """All alerts."""
    return await tx.rows(EVERY)


def alert_of(row: Row) -> Alert:
    """A row as the rules know it."""
    return Alert(*(row[name] for name in Alert._fields))._replace(state=AlertState(row["state"]))


OPEN: Final = """
INSERT INTO alerts (name, subject, state, version, since, seen_at, fired_at, resolved_at, times,
                    value, samples, tell_at)
SELECT i.name, i.subject, i.state, i.version, i.since, i.seen_at, i.fired_at, i.resolved_at,
       i.times, i.value, string_to_array(i.samples, E'\\n'),
       CASE WHEN i.state = 'FIRING' THEN i.seen_at END
FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::timestamptz[], $6::timestamptz[],
            $7::timestamptz[], $8::timestamptz[], $9::int[], $10::float8[], $11::text[])
     AS i(name, subject, state, version, since, seen_at, fired_at, resolved_at, times, value,
          samples)
ON CONFLICT DO NOTHING RETURNING name, subject
"""
# A notice that is due stays due while the alert is PENDING again, and tells how that ended.
MOVE: Final = """
UPDATE alerts AS a
SET state = i.state, version = i.version, since = i.since, seen_at = i.seen_at,
    fired_at = i.fired_at, resolved_at = i.resolved_at, times = i.times, value = i.value,
    samples = string_to_array(i.samples, E'\\n'),
    tries = CASE WHEN i.state = 'PENDING' OR a.state = 'PENDING' AND i.state = 'RESOLVED'
                 THEN a.tries ELSE 0 END,
    tell_at = CASE WHEN i.state = 'FIRING' THEN i.seen_at
                   WHEN i.state = 'RESOLVED' AND a.state = 'FIRING'
                   THEN CASE WHEN a.announced THEN i.resolved_at END
                   ELSE a.tell_at END
FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::timestamptz[], $6::timestamptz[],
            $7::timestamptz[], $8::timestamptz[], $9::int[], $10::float8[], $11::text[])
     AS i(name, subject, state, version, since, seen_at, fired_at, resolved_at, times, value,
          samples)
WHERE a.name = i.name AND a.subject = i.subject AND a.version = i.version - 1
RETURNING a.name, a.subject
"""
REFRESH: Final = """
UPDATE alerts AS a
SET seen_at = i.seen_at, value = i.value, samples = string_to_array(i.samples, E'\\n')
FROM unnest($1::text[], $2::text[], $3::int[], $4::timestamptz[], $5::float8[], $6::text[])
     AS i(name, subject, version, seen_at, value, samples)
WHERE a.name = i.name AND a.subject = i.subject AND a.version = i.version
"""
DROP: Final = """
DELETE FROM alerts AS a USING unnest($1::text[], $2::text[], $3::int[])
     AS i(name, subject, version)
WHERE a.name = i.name AND a.subject = i.subject AND a.version = i.version
"""
FORGET: Final = """
DELETE FROM alerts
WHERE state = 'RESOLVED' AND tell_at IS NULL AND resolved_at < coalesce($1, now()) - $2::interval
"""


async def write(tx: Tx, changes: Changes) -> set[Key]:
    """Write what was judged, where nothing has changed meanwhile; what was opened or moved."""
    done = []
    if changes.opened:
        done += await tx.rows(OPEN, *columns([_columns(one) for one in changes.opened], 11))
    if changes.moved:
        done += await tx.rows(MOVE, *columns([_columns(one) for one in changes.moved], 11))
    if changes.refreshed:
        rows = [
            (one.name, one.subject, one.version, one.seen_at, one.value, "\n".join(one.samples))
            for one in changes.refreshed
        ]
        await tx.execute(REFRESH, *columns(rows, 6))
    if changes.dropped:
        rows_gone = [(one.name, one.subject, one.version) for one in changes.dropped]
        await tx.execute(DROP, *columns(rows_gone, 3))
    await tx.execute(FORGET, tx.now, FORGOTTEN_AFTER)
    await checked(tx)
    return {(row["name"], row["subject"]) for row in done}


def _columns(alert: Alert) -> tuple[object, ...]:
    return (*alert[:-1], "\n".join(alert.samples))


CHECKED: Final = "UPDATE alert_checks SET checked_at = coalesce($1, now())"


async def checked(tx: Tx) -> None:
    """All alerts were evaluated."""
    await tx.execute(CHECKED, tx.now)


CHECKED_AT: Final = "SELECT checked_at FROM alert_checks"


async def checked_at(tx: Tx) -> datetime:
    """When the alerts were last evaluated."""
    at: datetime = await tx.value(CHECKED_AT)
    return at


# --- notices ----------------------------------------------------------------------------------

# The next try is written before this one: nobody has to come back to say that it failed.
CLAIM: Final = """
UPDATE alerts
SET tries = tries + 1, announced = announced OR state = 'FIRING',
    tell_at = coalesce($1, now()) + least($2::interval * 2 ^ least(tries, 20), $3::interval)
WHERE tell_at <= coalesce($1, now()) AND state IN ('FIRING', 'RESOLVED')
RETURNING name, subject, state, version, since, seen_at, fired_at, resolved_at, times, value,
          samples, tries
"""


async def claim(tx: Tx) -> list[Row]:
    """The notices that are due, which nobody else takes for the next half minute."""
    return await tx.rows(CLAIM, tx.now, FIRST_RETRY, LONGEST_RETRY)


CONFIRM: Final = """
UPDATE alerts AS a
SET told_at = coalesce($4, now()), tries = 0, announced = a.state = 'FIRING',
    tell_at = CASE WHEN a.state = 'FIRING' THEN coalesce($4, now()) + $5::interval END
FROM unnest($1::text[], $2::text[], $3::int[]) AS i(name, subject, version)
WHERE a.name = i.name AND a.subject = i.subject AND a.version = i.version
"""


async def confirm(tx: Tx, told: Sequence[Alert], repeat: timedelta) -> int:
    """These notices were taken; those of firing alerts are due again after ``repeat``."""
    rows = [(one.name, one.subject, one.version) for one in told]
    return await tx.execute(CONFIRM, *columns(rows, 3), tx.now, repeat)
