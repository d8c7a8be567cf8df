"""The processes of the service: who is alive, and what each serves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from noonday.domain.catch_up import Report as CatchUp
from noonday.domain.lane_clock import LaneReport
from noonday.domain.ranking import Band
from noonday.domain.vitals import Vitals
from noonday.store import Row, Tx
from noonday.store.connections import host_name

ALIVE: Final = timedelta(seconds=15)
"""A process that was not seen for so long counts as gone."""

REPORT: Final = """
INSERT INTO workers (id, role, name, host, pid, slots, in_flight, granted, stopping, lanes,
                     catch_up, started_at, seen_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $12, coalesce($11, now()), coalesce($11, now()))
ON CONFLICT (id) DO UPDATE
SET in_flight = excluded.in_flight, granted = excluded.granted, stopping = excluded.stopping,
    lanes = excluded.lanes, catch_up = excluded.catch_up, seen_at = excluded.seen_at
"""


async def report(
    tx: Tx,
    worker_id: UUID,
    role: str,
    name: str,
    *,
    slots: int = 0,
    in_flight: int = 0,
    granted: Mapping[str, datetime] | None = None,
    stopping: bool = False,
    lanes: Mapping[str, LaneReport] | None = None,
    catch_up: CatchUp | None = None,
) -> None:
    """Say that a process is alive. ``granted``: highest ranks claimed, by :func:`granted_key`;
    ``lanes``: those that it serves, and how each stands; ``catch_up``: how a scheduler does."""
    document = msgspec.json.encode(granted).decode() if granted else None
    await tx.execute(
        REPORT, worker_id, role, name, host_name(), os.getpid(), slots, in_flight, document,
        stopping, _encoded(lanes), tx.now,
        None if catch_up is None else msgspec.json.encode(catch_up).decode(),
    )  # fmt: skip


def _encoded(lanes: Mapping[str, LaneReport] | None) -> str | None:
    return msgspec.json.encode(lanes).decode() if lanes else None


NOTE_LANES: Final = "UPDATE workers SET lanes = $2 WHERE id = $1"


async def note_lanes(tx: Tx, worker_id: UUID, lanes: Mapping[str, LaneReport]) -> None:
    """Keep how the lanes of a worker stand, once it has reported that it is alive."""
    await tx.execute(NOTE_LANES, worker_id, _encoded(lanes))


LANES: Final = """
SELECT lanes FROM workers
WHERE lanes IS NOT NULL AND NOT stopping AND seen_at >= coalesce($1, now()) - $2::interval
"""


async def lanes(tx: Tx) -> list[dict[str, LaneReport]]:
    """How their lanes stand for each of the living workers."""
    rows = await tx.rows(LANES, tx.now, ALIVE)
    return [msgspec.json.decode(row["lanes"], type=dict[str, LaneReport]) for row in rows]


def granted_key(lane: str, band: Band) -> str:
    """Under which name the highest rank that was claimed of a lane is reported."""
    return f"{lane}:{band.priority}:queue" if band.queued else f"{lane}:{band.priority}"


def granted_in(key: str) -> tuple[str, Band]:
    """The lane, and the band of it, that go by the name of :func:`granted_key`."""
    lane, priority, *queue = key.split(":")
    return lane, Band(int(priority), bool(queue))


GONE: Final = "DELETE FROM workers WHERE id = $1"


async def gone(tx: Tx, worker_id: UUID) -> None:
    """A process leaves in an orderly way."""
    await tx.execute(GONE, worker_id)


EVERY: Final = """
SELECT id, role, name, host, pid, slots, in_flight, stopping, started_at, seen_at,
       seen_at >= coalesce($1, now()) - $2::interval AS alive
FROM workers ORDER BY role, started_at, id
"""


async def every(tx: Tx) -> list[Row]:
    """All processes that are registered, alive or not seen lately."""
    return await tx.rows(EVERY, tx.now, ALIVE)


COUNT: Final = """
SELECT count(*) FROM workers
WHERE role = $1 AND NOT stopping AND seen_at >= coalesce($2, now()) - $3::interval
"""


async def alive(tx: Tx, role: str, within: timedelta = ALIVE) -> int:
    """How many processes of a role were seen within that time and are not about to stop."""
    count: int = await tx.value(COUNT, role, tx.now, within)
    return count


NOTE_VITALS: Final = "UPDATE workers SET vitals = $2 WHERE id = $1"


async def note_vitals(tx: Tx, worker_id: UUID, vitals: Vitals) -> None:
    """Keep what a process says of itself, once it has reported that it is alive."""
    await tx.execute(NOTE_VITALS, worker_id, msgspec.json.encode(vitals).decode())


VITALS: Final = """
SELECT vitals FROM workers
WHERE vitals IS NOT NULL AND seen_at >= coalesce($1, now()) - $2::interval
"""


async def vitals(tx: Tx) -> list[Vitals]:
    """What each living process says of itself."""
    rows = await tx.rows(VITALS, tx.now, ALIVE)
    return [msgspec.json.decode(row["vitals"], type=Vitals) for row in rows]


CATCH_UPS: Final = """
SELECT catch_up FROM workers
WHERE catch_up IS NOT NULL AND seen_at >= coalesce($1, now()) - $2::interval
"""


async def catch_ups(tx: Tx) -> list[CatchUp]:
    """How each living scheduler catches up on what is late."""
    rows = await tx.rows(CATCH_UPS, tx.now, ALIVE)
    return [msgspec.json.decode(row["catch_up"], type=CatchUp) for row in rows]


ABSENT: Final = """
SELECT role FROM workers WHERE role <> 'scheduler'
GROUP BY role HAVING max(seen_at) < coalesce($1, now()) - $2::interval ORDER BY role
"""


async def absent(tx: Tx) -> list[str]:
    """Roles of which processes were lost and none is alive; those that left in order are not."""
    return [row["role"] for row in await tx.rows(ABSENT, tx.now, ALIVE)]


HOSTS: Final = """
SELECT DISTINCT host FROM workers
WHERE role = 'worker' AND seen_at >= coalesce($1, now()) - $2::interval
"""


async def hosts(tx: Tx) -> set[str]:
    """The machines that living worker processes run on."""
    return {row["host"] for row in await tx.rows(HOSTS, tx.now, ALIVE)}


SERVED: Final = """
SELECT DISTINCT json_object_keys(lanes) AS lane FROM workers
WHERE role = 'worker' AND NOT stopping AND seen_at >= coalesce($1, now()) - $2::interval
"""


async def served(tx: Tx) -> set[str]:
    """The lanes that living workers serve."""
    return {row["lane"] for row in await tx.rows(SERVED, tx.now, ALIVE)}


GRANTED: Final = "SELECT granted FROM workers WHERE granted IS NOT NULL"


async def granted(tx: Tx) -> dict[str, datetime]:
    """The highest rank that was ever claimed, by :func:`granted_key`, as far as reported."""
    highest: dict[str, datetime] = {}
    for row in await tx.rows(GRANTED):
        for key, rank in msgspec.json.decode(row["granted"], type=dict[str, datetime]).items():
            highest[key] = max(rank, highest.get(key, rank))
    return highest


FORGET: Final = "DELETE FROM workers WHERE seen_at < coalesce($1, now()) - interval '1 day'"


async def forget(tx: Tx) -> int:
    """Delete processes that were not seen for a day."""
    return await tx.execute(FORGET, tx.now)
