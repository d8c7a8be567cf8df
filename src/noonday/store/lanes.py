"""Lanes: their settings, whether they are claimed, and how many of their runs may start.

Whoever changes a lane has its lock exclusively; a claim has it shared, from before it reads the
lane until it is committed. So when a change is answered, no claim goes by what was before. Of the
claims of a lane with a cap, one at a time has a second lock, and counts what those before it have
taken. Both are only tried: no claim waits for another. Slots in use are RUNNING rows, so nothing
that dies leaks one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from noonday.domain.lanes import MOST_LANES, READY_MADE, Lane
from noonday.domain.ranking import QUEUE, Band
from noonday.store import Row, Store, Tx, columns, locks
from noonday.store.runs import ENTERED, ENTERED_BY, LANE_IS_OPEN, Taken

FRESH_SEC: Final = 1.0
"""What is known of lanes is read again after this long."""
SPARE: Final = timedelta(seconds=0.25)
"""A span is made so much longer than it must be, so that not every claim writes it."""

LONG: Final = timedelta(seconds=10)
"""A span that begins so much earlier than it must is made shorter."""

_COLUMNS: Final = ", ".join(Lane._fields)


# --- what there is ----------------------------------------------------------------------------

EVERY: Final = f"SELECT {_COLUMNS} FROM lanes ORDER BY name"


async def every(tx: Tx) -> list[Lane]:
    """All lanes, by name."""
    return [Lane(*row.values()) for row in await tx.rows(EVERY)]


ONE: Final = f"SELECT {_COLUMNS} FROM lanes WHERE name = $1"


async def one(tx: Tx, name: str) -> Lane | None:
    """A lane."""
    row = await tx.row(ONE, name)
    return None if row is None else Lane(*row.values())


class Lanes:
    """The lanes as a process knows them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Lane] = {}
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    @property
    def cached(self) -> Mapping[str, Lane]:
        """Those that there were when it was last asked, by name."""
        return self._known

    async def known(self, within_sec: float = FRESH_SEC) -> Mapping[str, Lane]:
        """All lanes, by name and in its order, as they were ``within_sec`` ago or later."""
        if time.monotonic() - self._read_at >= within_sec:
            # One reads, the others wait for what it finds: a pool is soon empty.
            async with self._reading:
                if time.monotonic() - self._read_at >= within_sec:
                    await self._read()
        return self._known

    async def read(self) -> Mapping[str, Lane]:
        """All lanes as they are now."""
        async with self._reading:
            await self._read()
        return self._known

    def forget(self) -> None:
        """They have changed."""
        self._read_at = float("-inf")

    async def _read(self) -> None:
        asked = time.monotonic()
        async with self._store.singly() as tx:
            self._known = {lane.name: lane for lane in await every(tx)}
        self._read_at = asked


# --- people -----------------------------------------------------------------------------------

SHARE: Final = "SELECT pg_advisory_xact_lock_shared(key) FROM unnest($1::bigint[]) AS key"
MISSING: Final = """
SELECT i.name FROM unnest($1::text[]) AS i(name)
WHERE NOT EXISTS (SELECT FROM lanes AS l WHERE l.name = i.name)
"""


async def missing(tx: Tx, names: Set[str]) -> set[str]:
    """Which of the lanes that jobs are to be made in are not there. Until the transaction ends,
    none of the others is deleted."""
    own = sorted(names - set(READY_MADE))
    if not own:
        return set()
    await tx.rows(SHARE, sorted(map(_lock, own)))
    return {row["name"] for row in await tx.rows(MISSING, own)}


async def own(tx: Tx, name: str) -> None:
    """Keep claims and new jobs off a lane until the transaction ends: for changing it."""
    await locks.own_key(tx, _lock(name))


CREATE: Final = """
INSERT INTO lanes (name, created_at) SELECT $1, coalesce($3, now())
WHERE (SELECT count(*) FROM lanes) < $2
ON CONFLICT DO NOTHING
"""


async def create(tx: Tx, name: str) -> bool:
    """A lane with all defaults; False when there are ``MOST_LANES``, or it is there."""
    return await tx.execute(CREATE, name, MOST_LANES, tx.now) == 1


CHANGE: Final = """
UPDATE lanes SET weight = $2, max_running = $3, ageing_sec = $4, objective_sec = $5,
       sheddable = $6, jitter_sec = $7, version = version + 1,
       shed_at = CASE WHEN $6 THEN shed_at END, shed_reason = CASE WHEN $6 THEN shed_reason END
WHERE name = $1
"""
UNCAP: Final = "DELETE FROM lane_spans WHERE lane = $1"
# Nothing of the lane is being claimed meanwhile.
CAP: Final = """
INSERT INTO lane_spans (lane, priority, band, low, high)
SELECT lane, priority, (rank >= $2)::int, min(rank), max(rank) FROM runs
WHERE lane = $1 AND claimable AND state = 'RUNNING'
GROUP BY lane, priority, (rank >= $2)::int
"""


async def change(tx: Tx, before: Lane, after: Lane) -> None:
    """Give a lane that this transaction owns other settings."""
    await tx.execute(
        CHANGE, after.name, after.weight, after.max_running, after.ageing_sec,
        after.objective_sec, after.sheddable, after.jitter_sec,
    )  # fmt: skip
    if (before.max_running is None) != (after.max_running is None):
        await tx.execute(UNCAP, after.name)
        if after.max_running is not None:
            await tx.execute(CAP, after.name, QUEUE)


PAUSE: Final = """
UPDATE lanes SET paused_at = coalesce($4, now()), paused_by = $2, pause_reason = $3,
       version = version + 1
WHERE name = $1 AND paused_at IS NULL
"""


async def pause(tx: Tx, name: str, by: str, reason: str) -> bool:
    """Claim nothing of a lane that this transaction owns; whether anything has changed."""
    return await tx.execute(PAUSE, name, by, reason, tx.now) == 1


RESUME: Final = """
UPDATE lanes SET paused_at = NULL, paused_by = NULL, pause_reason = NULL, version = version + 1
WHERE name = $1 AND paused_at IS NOT NULL
"""


async def resume(tx: Tx, name: str) -> bool:
    """Claim a lane again; whether anything has changed."""
    return await tx.execute(RESUME, name) == 1


# (Runs of a backfill need not be in the lane of their job.)
USED: Final = """
SELECT EXISTS (SELECT FROM jobs WHERE lane = $1) OR EXISTS (SELECT FROM runs WHERE lane = $1)
    OR EXISTS (SELECT FROM operations WHERE state = 'RUNNING' AND request ->> 'lane' = $1)
"""
DELETE: Final = """
WITH spans AS (DELETE FROM lane_spans WHERE lane = $1),
     gauges AS (DELETE FROM lane_gauges WHERE lane = $1),
     wanted AS (DELETE FROM wanted_slots WHERE lane = $1)
DELETE FROM lanes WHERE name = $1
"""


async def used(tx: Tx, name: str) -> bool:
    """Whether any job, run or backfill belongs to a lane. (This reads all jobs when none does.)"""
    return bool(await tx.value(USED, name))


async def delete(tx: Tx, name: str) -> None:
    """Delete a lane that this transaction owns."""
    await tx.execute(DELETE, name)


# --- claims -----------------------------------------------------------------------------------


class Span(NamedTuple):
    """Ranks of one priority between which all that is RUNNING lies."""

    priority: int
    band: int
    low: datetime
    high: datetime


class Entry(NamedTuple):
    """What a claim of a lane may take."""

    version: int
    ageing_sec: float
    room: int
    """How many runs may start now."""
    spans: Sequence[tuple[Span, datetime | None]] | None = None
    """Where it was counted, each with the lowest rank that is RUNNING; None without a cap."""

    @property
    def is_capped(self) -> bool:
        """Whether the lane has a cap."""
        return self.spans is not None


class Refused(NamedTuple):
    """Nothing may be claimed."""

    soon: bool
    """Whether to try again at once: the lane is not closed, only in somebody's hands."""


ENTER: Final = f"""
SELECT version, ageing_sec, max_running, {LANE_IS_OPEN} AS open, {ENTERED} AS entered
FROM lanes WHERE name = $1
"""
COUNT: Final = """
SELECT s.priority, s.band, s.low, s.high, running.count, running.low AS running_low
FROM lane_spans AS s CROSS JOIN LATERAL (
    SELECT count(*) AS count, min(rank) AS low FROM (
        SELECT r.rank FROM runs AS r
        WHERE r.lane = $1 AND r.priority = s.priority AND r.claimable
          AND r.rank >= s.low AND r.rank <= s.high AND r.state = 'RUNNING'
        ORDER BY r.rank LIMIT $2
    ) AS found
) AS running
WHERE s.lane = $1
"""


def entering(name: str) -> str:
    """Opens a transaction that is to claim of a lane: takes its lock, if nobody changes it."""
    return (
        f"SELECT set_config('{ENTERED_BY}',"
        f" pg_try_advisory_xact_lock_shared({_lock(name)})::text, true)"
    )


async def enter(tx: Tx, name: str, wanted: int) -> Entry | Refused:
    """Begin a claim of up to ``wanted`` runs of a lane. A later statement than the one that took
    the lock reads it, so nobody changes what it reads until the transaction ends."""
    await tx.open_with(entering(name))
    row = await tx.row(ENTER, name)
    if row is None or not row["open"]:
        return Refused(soon=False)
    if not row["entered"]:
        return Refused(soon=True)
    version, ageing, cap = row["version"], row["ageing_sec"], row["max_running"]
    if cap is None:
        return Entry(version, ageing, wanted)
    if not all(await locks.try_keys(tx, [locks.hashed("claims of a lane", name)])):
        return Refused(soon=True)
    found = await tx.rows(COUNT, name, cap)
    room = min(wanted, max(0, cap - sum(each["count"] for each in found)))
    spans = [
        (Span(each["priority"], each["band"], each["low"], each["high"]), each["running_low"])
        for each in found
    ]
    return Entry(version, ageing, room, spans)


SPAN: Final = """
INSERT INTO lane_spans AS s (lane, priority, band, low, high)
SELECT $1, i.* FROM unnest($2::int[], $3::int[], $4::timestamptz[], $5::timestamptz[])
     AS i(priority, band, low, high)
ON CONFLICT (lane, priority, band) DO UPDATE SET low = excluded.low, high = excluded.high
"""


async def note_claimed(tx: Tx, name: str, entry: Entry, taken: Mapping[Band, Taken]) -> None:
    """Keep the spans of a capped lane around what was claimed."""
    if entry.spans is None or not taken:
        return
    known = {(span.priority, span.band): (span, lowest) for span, lowest in entry.spans}
    spans = []
    for band, ranks in taken.items():
        key = (band.priority, int(band.queued))
        spans.append(_around(key, ranks, *known.get(key, (None, None))))
    changed = [span for span in spans if span is not None]
    if changed:
        await tx.execute(SPAN, name, *columns(sorted(changed), 4))


def _around(
    key: tuple[int, int], taken: Taken, old: Span | None, lowest: datetime | None
) -> Span | None:
    """The span with what was claimed in it; None when the one that is known will do."""
    low, high = taken
    if old is None:
        return Span(*key, low, high + SPARE)
    low = min(low, lowest or low)
    if old.low <= low <= old.low + LONG and high <= old.high:
        return None
    return Span(*key, low, old.high if high <= old.high else high + SPARE)


# --- what the leader keeps --------------------------------------------------------------------

NOTE: Final = """
INSERT INTO lane_gauges AS g (lane, ready, oldest_age_sec, running, objective_sec, counted_at)
SELECT i.*, coalesce($6, now())
FROM unnest($1::text[], $2::bigint[], $3::float8[], $4::bigint[], $5::float8[])
     AS i(lane, ready, oldest_age_sec, running, objective_sec)
WHERE EXISTS (SELECT FROM lanes AS l WHERE l.name = i.lane)
ORDER BY i.lane
ON CONFLICT (lane) DO UPDATE
SET ready = excluded.ready, oldest_age_sec = excluded.oldest_age_sec, running = excluded.running,
    objective_sec = excluded.objective_sec, counted_at = excluded.counted_at
"""


class Gauge(NamedTuple):
    """How much stands in a lane."""

    lane: str
    ready: int
    oldest_age_sec: float
    running: int
    objective_sec: float


async def note(tx: Tx, counted: Sequence[Gauge]) -> None:
    """Keep what was counted, for those who ask."""
    await tx.execute(NOTE, *columns(counted, 5), tx.now)


COUNTED: Final = """
SELECT lane, ready, oldest_age_sec, running, objective_sec, counted_at FROM lane_gauges
"""


async def counted(tx: Tx) -> dict[str, Row]:
    """What was counted last, by lane."""
    return {row["lane"]: row for row in await tx.rows(COUNTED)}


SHED: Final = """
UPDATE lanes SET shed_at = coalesce($3, now()), shed_reason = $2
WHERE name = ANY($1::text[]) AND shed_at IS NULL AND sheddable
RETURNING name
"""


async def shed(tx: Tx, names: Sequence[str], reason: str) -> list[str]:
    """Claim nothing of these lanes for now; those of them that were claimed."""
    return [row["name"] for row in await tx.rows(SHED, names, reason, tx.now)]


RELEASE: Final = """
UPDATE lanes AS l SET shed_at = NULL, shed_reason = NULL
FROM unnest($1::text[], $2::timestamptz[]) AS i(name, shed_at)
WHERE l.name = i.name AND l.shed_at = i.shed_at
RETURNING l.name
"""


async def release(tx: Tx, shed: Sequence[tuple[str, datetime]]) -> list[str]:
    """Claim lanes again that were shed at these times; those of them that still were."""
    return [row["name"] for row in await tx.rows(RELEASE, *columns(shed, 2))]


def _lock(name: str) -> int:
    return locks.hashed("lane", name)
