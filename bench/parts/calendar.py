"""Calendars: the next fire of an expression, a tick over many due crons, six hours of outage."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from uuid import uuid4

from bench import filling, harness
from bench.figures import Figures, Rows
from bench.harness import Service
from bench.options import Options
from bench.progress import say
from bench.role import NOOP
from noonday.domain import cron
from noonday.domain.schedule import HORIZON
from noonday.loops.scheduler import Scheduler
from noonday.store import Store
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics

ZONE = "America/New_York"
EXPRESSIONS = (
    *("* * * * *", "*/5 * * * *", "0 * * * *", "0 9 * * 1-5", "30 2 * * *", "0 0 1 * *"),
    *("0 0 L * *", "*/10 * * * * *"),
)
RARE = ("0 0 * * 5#2", "59 23 29 2 *")
SHARED = ("0 * * * *", "*/5 * * * *", "0 */2 * * *", "*/15 * * * *")
"""What crons that are due together have: all of these fire at a full hour of even number."""
OUTAGE = timedelta(hours=6)


async def calendar(options: Options) -> Rows:
    """The CPU of the next fire, asked for the first time; what a scheduler's process uses for each
    of many due crons that share few expressions; and how long it takes to be through with what
    minutely jobs missed in six hours."""
    found: Rows = {
        f"{what}: {text}": _next_fire(text, options.pick(2_000, 300))
        for what, texts in (("next fire", EXPRESSIONS), ("rare fire", RARE))
        for text in texts
    }
    async with harness.service(options, "api") as running:
        store = await running.store()
        count = options.pick(10_000, 4_000)
        found[f"tick: {count:,} due crons"] = await _due(running, store, count)
        count = options.pick(5_000, 500)
        found[f"6 h off: {count:,} minutely"] = await _missed(running, store, count)
        await store.close()
    return found


def _next_fire(text: str, count: int) -> Figures:
    """From ``count`` instants of a year, none asked for before."""
    expression, zone = cron.parse(text, uuid4()), cron.zone_named(ZONE)
    start, step = datetime(2027, 1, 1, tzinfo=UTC), timedelta(days=365) / count
    cron.next_instant.cache_clear()
    used = time.process_time()
    for n in range(count):
        cron.next_instant(expression, zone, start + n * step)
    each = (time.process_time() - used) / count * 1e6
    used = time.process_time()
    later = takewhile(lambda at: at < HORIZON, cron.instants(expression, zone, start))
    in_a_row = sum(1 for _ in islice(later, count))
    return {
        "count": float(count),
        "next_us": each,
        "in_a_row_us": (time.process_time() - used) / in_a_row * 1e6,
    }


async def _due(running: Service, store: Store, count: int) -> Figures:
    """All ticks over ``count`` crons that have just come due."""
    now = datetime.now(UTC)
    at = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=now.hour % 2)
    for text in SHARED:
        await _crons(running, store, text, count // len(SHARED), at)
    store.now = at + timedelta(seconds=1)
    return await _through(running, store, count, at, "due crons")


async def _missed(running: Service, store: Store, count: int) -> Figures:
    """All ticks after an outage; per nominal time."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    await _crons(running, store, "* * * * *", count, now - OUTAGE)
    store.now = None
    times = count * (OUTAGE // timedelta(minutes=1) + 1)
    return await _through(running, store, times, now, "6 h off")


BEHIND = "SELECT EXISTS (SELECT FROM timers WHERE occurrence_at <= $1)"
LINES = """
SELECT (SELECT count(*) FROM occurrences) + (SELECT count(*) FROM occurrence_ranges)
"""


async def _crons(running: Service, store: Store, text: str, count: int, at: datetime) -> None:
    schedule: filling.Schedule = {"type": "cron", "cron": text, "timezone": ZONE}
    one = filling.job(NOOP, schedule, payload=None)
    await filling.clone(running, store, one, count, f"to_timestamp({at.timestamp():.0f})")
    await filling.settle_down(store)


async def _through(
    running: Service, store: Store, count: int, until: datetime, name: str
) -> Figures:
    """Tick by hand until all up to an instant is decided; the CPU of this process is that of a
    scheduler's."""
    say(name)
    scheduler = Scheduler(store, uuid4(), "bench", Metrics(), Wakeups(store))
    await scheduler.keep_shards()
    ticks = 0
    async with running.measuring(store, name) as section:
        used, kept = time.process_time(), time.monotonic()
        while True:
            if time.monotonic() - kept > 2:
                await scheduler.keep_shards()
                kept = time.monotonic()
            ticks += 1
            if await scheduler.tick():
                continue
            async with store.transaction() as tx:
                if not await tx.value(BEHIND, until):
                    break
            await asyncio.sleep(0.01)
        used = time.process_time() - used
    await scheduler.leave()
    row = section.figures(count)
    row.pop("memory_mb")  # it is not a process of its own
    row = row | {"noonday_us": used / count * 1e6, "generator_us": 0.0, "ticks": float(ticks)}
    row["cpu_us"] = row["postgres_us"] + row["noonday_us"]
    async with store.transaction() as tx:
        row["lines_of_times"] = await tx.value(LINES) / count
        for table in ("runs", "timers", "occurrences", "occurrence_ranges"):  # for what comes next
            await tx.execute(f"DELETE FROM {table}")
    return row
