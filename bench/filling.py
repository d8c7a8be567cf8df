"""Jobs, runs and timers to measure with: through the API, or by SQL where there are millions."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TypeAlias

from bench import wire
from bench.harness import Service
from bench.progress import say
from bench.role import NOOP
from noonday.domain.model import SHARDS
from noonday.store import DirectConnection, Store

Schedule: TypeAlias = dict[str, object]
PAYLOAD = {"pad": "x" * 348}
"""360 bytes on the wire."""
LATER: Schedule = {"type": "once", "delay": "P30D"}
NOW: Schedule = {"type": "once"}
SOON: Schedule = {"type": "once", "delay": "PT1S"}
AT_ONCE = 50_000
"""Rows of a statement that fills."""
BODY_BYTES = 400

assert 256 % SHARDS == 0


def job(url: str, schedule: dict[str, object], **fields: object) -> dict[str, object]:
    """The body of a job."""
    target = {"type": "http", "url": url}
    return {"name": "bench", "schedule": schedule, "target": target, "payload": PAYLOAD} | fields


def body_of_400(url: str, schedule: dict[str, object]) -> tuple[dict[str, object], int]:
    """A job whose whole body has :data:`BODY_BYTES`, and how many of them are its payload."""
    empty = job(url, schedule, payload={"pad": ""})
    pad = {"pad": "x" * (BODY_BYTES - len(json.dumps(empty)))}
    return empty | {"payload": pad}, len(json.dumps(pad))


def batch(token: str, one: dict[str, object], count: int) -> bytes:
    """A request for ``count`` equal jobs."""
    return wire.post(token, "/v1/jobs:batch", {"atomic": False, "jobs": [{"job": one}] * count})


async def fill(running: Service, one: dict[str, object], count: int, token: str = "") -> None:
    """``count`` jobs, posted by 1,000."""
    caller = running.caller(token)
    whole, rest = divmod(count, 1_000)
    raw = batch(caller.token, one, 1_000)
    for _ in range(whole):
        await caller.ask(raw)
    if rest:
        await caller.ask(batch(caller.token, one, rest))
    caller.close()


async def drained(store: Store) -> None:
    """Wait until no run is left. (Looking costs the server, too: it steps over dead rows.)"""
    while True:
        async with store.transaction() as tx:
            if not await tx.value("SELECT EXISTS (SELECT FROM runs)"):
                return
        await asyncio.sleep(0.1)


async def pause(running: Service, lane: str = "default") -> None:
    """Have nothing of a lane claimed, so that a backlog can be made."""
    caller = running.caller()
    await caller.call("POST", f"/v1/lanes/{lane}/pause", {"reason": "bench"})
    caller.close()


async def resume(running: Service, lane: str = "default") -> None:
    """Let it go."""
    caller = running.caller()
    await caller.call("POST", f"/v1/lanes/{lane}/resume", {})
    caller.close()


COLUMNS = """
SELECT attname::text AS name FROM pg_attribute
WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


async def clone(
    running: Service,
    store: Store,
    one: dict[str, object],
    count: int,
    due: str,
    *,
    offset: int = 0,
    seed: int = 1,
) -> None:
    """``count`` jobs with their timers, copied in the database from one made through the API.

    ``due`` is SQL for the due time of row ``n``, from ``offset`` + 1 on. The API's own one goes.
    """
    caller = running.caller()
    made = await caller.call("POST", "/v1/jobs", one | {"schedule": _in_future(one)})
    caller.close()
    template = str(made["id"])
    async with store.direct() as connection:
        await connection.value("SELECT setseed($1)", (seed % 1_000) / 1_000)
        statement = await _statement(connection, due)
        began = time.monotonic()
        for start in range(offset, offset + count, AT_ONCE):
            until = min(start + AT_ONCE, offset + count)
            await connection.execute(statement, start + 1, until, template)
            if time.monotonic() - began > 5:
                began = time.monotonic()
                say(f"{until - offset:,} of {count:,} timers")
        await connection.execute("DELETE FROM timers WHERE job_id = $1::text::uuid", template)
        await connection.execute("DELETE FROM jobs WHERE id = $1::text::uuid", template)


def _in_future(one: dict[str, object]) -> dict[str, object]:
    schedule = one["schedule"]
    assert isinstance(schedule, dict)
    return LATER if schedule["type"] == "once" else schedule


async def _statement(connection: DirectConnection, due: str) -> str:
    def selected(names: list[str], own: dict[str, str]) -> str:
        return ", ".join(own.get(name, f"t.{name}") for name in names)

    jobs = [str(row["name"]) for row in await connection.rows(COLUMNS, "jobs")]
    timers = [str(row["name"]) for row in await connection.rows(COLUMNS, "timers")]
    own = {
        "job_id": "m.id",
        "occurrence_at": "m.due",
        "due_at": "m.due",
        "shard": f"(get_byte(uuid_send(m.id), 15) % {SHARDS})::smallint",
    }
    return f"""
    WITH made AS MATERIALIZED (
        SELECT uuidv7() AS id, {due} AS due FROM generate_series($1::bigint, $2::bigint) AS n
    ), job AS (
        INSERT INTO jobs ({", ".join(jobs)})
        SELECT {selected(jobs, {"id": "m.id", "first_at": "m.due"})}
        FROM made AS m, jobs AS t WHERE t.id = $3::text::uuid
    )
    INSERT INTO timers ({", ".join(timers)})
    SELECT {selected(timers, own)} FROM made AS m, timers AS t WHERE t.job_id = $3::text::uuid
    """


def future(days: float = 30) -> str:
    """Due times of timers that are not to fire while anything is measured."""
    return f"now() + interval '3 hours' + random() * interval '{days} days'"


async def settle_down(store: Store) -> None:
    """What autovacuum would do some time after a fill, done now."""
    async with store.direct() as connection:
        for table in ("jobs", "timers", "runs", "occurrences", "executions"):
            await connection.execute(f"VACUUM ANALYZE {table}")


async def disk_mb(store: Store) -> float:
    """The size of the database."""
    async with store.transaction() as tx:
        size: int = await tx.value("SELECT pg_database_size(current_database())")
    return size / 1e6


NARROW = job(NOOP, LATER, payload=None)
"""As little as a job can be."""
