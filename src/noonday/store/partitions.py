"""Partitions by time: made ahead, indexed late, split while small, dropped when old.

No request ever waits for this: a new partition is built beside its parent and attached, an old
one is detached concurrently and then dropped, each with a lock timeout of 200 ms and another try
at the next pass. (``CREATE TABLE ... PARTITION OF`` would wait behind any open reader of the
parent, and every insert behind it.)

Ranges are days, months, years and decades, aligned to the calendar in UTC and named after it:
``timers_d20270314``, ``timers_m202703``, ``timers_y2027``, ``timers_c2030``. Timers cover every
accepted date from the first migration on; as a coarse range comes near it is split into finer
ones while it is still small. The due index of a timer partition is built days before its time:
random inserts into an index over a big far future would cost kilobytes of WAL each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from noonday.store import DirectConnection, Tx

LAST_YEAR: Final = 2200
"""Dates from 1 January of this year on are not accepted."""

LEDGER_DAYS: Final = 400
INDEX_AHEAD: Final = timedelta(days=2)
SPLIT_ROWS: Final = 50_000
"""A bigger range is left as it is: moving its rows would hold its inserts up."""


class Step(StrEnum):
    """How long a partition's range is; the value is the letter in its name."""

    DAY = "d"
    MONTH = "m"
    YEAR = "y"
    DECADE = "c"


@dataclass(frozen=True)
class Range:
    """One partition: ``[starts_at, ends_at)`` of ``table``."""

    table: str
    step: Step
    starts_at: datetime

    @property
    def ends_at(self) -> datetime:
        """Where the next range begins."""
        return _next(self.step, self.starts_at)

    @property
    def name(self) -> str:
        """The partition's table name."""
        width = {Step.DAY: "%Y%m%d", Step.MONTH: "%Y%m", Step.YEAR: "%Y", Step.DECADE: "%Y"}[
            self.step
        ]
        return f"{self.table}_{self.step}{self.starts_at.strftime(width)}"


def _floor(step: Step, at: datetime) -> datetime:
    day = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if step is Step.DAY:
        return day
    if step is Step.MONTH:
        return day.replace(day=1)
    year = day.year if step is Step.YEAR else day.year // 10 * 10
    return day.replace(year=year, month=1, day=1)


def _next(step: Step, start: datetime) -> datetime:
    if step is Step.DAY:
        return start + timedelta(days=1)
    if step is Step.MONTH:
        return _floor(Step.MONTH, start + timedelta(days=32))
    return start.replace(year=start.year + (1 if step is Step.YEAR else 10))


def cover(table: str, step: Step, start: datetime, end: datetime) -> Iterator[Range]:
    """The ranges of one step from the one that holds ``start`` up to ``end``."""
    at = _floor(step, start)
    while at < end:
        yield Range(table, step, at)
        at = _next(step, at)


def cover_future(start: datetime) -> list[Range]:
    """Timers from ``start`` to the last accepted date: 35 days at least, then 24 months, then
    years to the decade's end, then decades."""
    last = datetime(LAST_YEAR, 1, 1, tzinfo=UTC)
    months = _next(Step.MONTH, _floor(Step.MONTH, start + timedelta(days=35)))
    years = _next(Step.YEAR, _floor(Step.YEAR, start + timedelta(days=730)))
    decades = _next(Step.DECADE, _floor(Step.DECADE, years))
    return [
        *cover("timers", Step.DAY, start, months),
        *cover("timers", Step.MONTH, months, years),
        *cover("timers", Step.YEAR, years, decades),
        *cover("timers", Step.DECADE, decades, last),
    ]


# What is made ahead, from a week back (for what was posted with a past date) to a while ahead.
AHEAD: Final = (
    ("occurrences", Step.MONTH, timedelta(days=31), timedelta(days=62)),
    ("executions", Step.DAY, timedelta(days=1), timedelta(days=4)),
    ("audit_log", Step.MONTH, timedelta(days=1), timedelta(days=62)),
)
STORAGE: Final = {
    "timers": "",
    "occurrences": " WITH (fillfactor = 85)",
    "executions": "",
    "audit_log": "",
}

EXISTING: Final = """
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = $1::text::regclass ORDER BY c.relname
"""
SHORT_LOCKS: Final = (
    "SELECT set_config('lock_timeout', '200ms', true), set_config('statement_timeout', '0', true)"
)
LEDGER_START: Final = "SELECT starts_at FROM ledger_start"
RAISE_LEDGER_START: Final = """
INSERT INTO ledger_start (starts_at) VALUES ($1)
ON CONFLICT (only_row) DO UPDATE SET starts_at = greatest(ledger_start.starts_at, excluded.starts_at)
"""
DUE_INDEXES: Final = """
SELECT c.relname, coalesce(bool_or(x.indisvalid), false) AS ready
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
LEFT JOIN (pg_index x JOIN pg_class d ON d.oid = x.indexrelid AND d.relname LIKE '%\\_due')
       ON x.indrelid = c.oid
WHERE i.inhparent = 'timers'::regclass GROUP BY c.relname
"""


async def existing(source: Tx | DirectConnection, table: str) -> list[Range]:
    """The attached partitions of ``table``, in order of time."""
    found = [parse(row["relname"]) for row in await source.rows(EXISTING, table)]
    return sorted(found, key=lambda part: part.starts_at)


def parse(name: str) -> Range:
    """Read a partition's name back."""
    table, _, tail = name.rpartition("_")
    step, digits = Step(tail[0]), tail[1:]
    start = datetime(int(digits[:4]), int(digits[4:6] or 1), int(digits[6:8] or 1), tzinfo=UTC)
    return Range(table, step, start)


async def create_first(tx: Tx) -> None:
    """All partitions that must exist before the first job; nothing that is there already."""
    now = await tx.clock()
    if not await tx.rows(EXISTING, "timers"):
        for part in cover_future(now - timedelta(days=1)):
            await attach_new(tx, part)
            if part.starts_at < now + INDEX_AHEAD:
                await tx.execute(due_index(part, concurrently=False))
    for part in await missing(tx, now):
        await attach_new(tx, part)
    ledger = await existing(tx, "occurrences")
    await tx.execute(RAISE_LEDGER_START, ledger[0].starts_at)


async def missing(tx: Tx, now: datetime) -> list[Range]:
    """The partitions that should exist by now and do not. The ledger never grows backwards."""
    wanted: list[Range] = []
    ledger_start = await tx.value(LEDGER_START)
    for table, step, behind, ahead in AHEAD:
        have = {part.name for part in await existing(tx, table)}
        for part in cover(table, step, now - behind, now + ahead):
            closed = table == "occurrences" and ledger_start and part.starts_at < ledger_start
            if part.name not in have and not closed:
                wanted.append(part)
    return wanted


async def attach_new(tx: Tx, part: Range) -> None:
    """Build an empty partition beside its parent and attach it."""
    await tx.execute(
        f"CREATE TABLE IF NOT EXISTS {part.name} "
        f"(LIKE {part.table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS){STORAGE[part.table]}"
    )
    await tx.execute(attach(part))


def attach(part: Range) -> str:
    """The statement that makes a table a partition of its parent."""
    return (
        f"ALTER TABLE {part.table} ATTACH PARTITION {part.name} "
        f"FOR VALUES FROM ('{part.starts_at.isoformat()}') TO ('{part.ends_at.isoformat()}')"
    )


def due_index(part: Range, *, concurrently: bool = True) -> str:
    """The statement that builds a timer partition's due index."""
    how = "CONCURRENTLY " if concurrently else ""
    return f"CREATE INDEX {how}IF NOT EXISTS {part.name}_due ON {part.name} (due_at, shard)"


async def indexed_until(tx: Tx) -> datetime:
    """Up to when every timer partition has its due index: a tick never scans one without."""
    ready = {row["relname"]: row["ready"] for row in await tx.rows(DUE_INDEXES)}
    horizon = None
    for part in await existing(tx, "timers"):
        if not ready.get(part.name):
            return part.starts_at
        horizon = part.ends_at
    return horizon or await tx.clock()


async def index_due(connection: DirectConnection, now: datetime) -> list[str]:
    """Build the due indexes of the partitions whose time comes near; an invalid one anew."""
    built = []
    ready = {row["relname"]: row["ready"] for row in await connection.rows(DUE_INDEXES)}
    for part in await existing(connection, "timers"):
        if part.starts_at < now + INDEX_AHEAD and not ready[part.name]:
            await connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {part.name}_due")
            await connection.execute(due_index(part))
            built.append(part.name)
    return built


def split_of(part: Range, now: datetime) -> list[Range]:
    """The finer ranges that ``part`` should consist of by now; empty when it is fine as it is."""
    finer = {
        Step.DECADE: (Step.YEAR, timedelta(days=900)),
        Step.YEAR: (Step.MONTH, timedelta(days=400)),
        Step.MONTH: (Step.DAY, timedelta(days=32)),
    }
    if part.table != "timers" or part.step not in finer:
        return []
    step, near = finer[part.step]
    if not now < part.starts_at <= now + near:
        return []
    return list(cover(part.table, step, part.starts_at, part.ends_at))


async def split(tx: Tx, part: Range, finer: list[Range]) -> bool:
    """Replace a coarse timer partition by finer ones, moving its rows; False when it is too big.

    Holds the partition (and, for an instant, the parent) exclusively: bounded by ``SPLIT_ROWS``.
    """
    await tx.execute(SHORT_LOCKS)
    count = await tx.value(
        f"SELECT count(*) FROM (SELECT 1 FROM {part.name} LIMIT {SPLIT_ROWS + 1}) AS few"
    )
    if count > SPLIT_ROWS:
        return False
    await tx.execute(f"ALTER TABLE {part.table} DETACH PARTITION {part.name}")
    for piece in finer:
        await attach_new(tx, piece)
    await tx.execute(f"INSERT INTO {part.table} SELECT * FROM {part.name}")
    await tx.execute(f"DROP TABLE {part.name}")
    return True


async def detach(connection: DirectConnection, part: Range) -> None:
    """Take a partition off its parent without stopping anybody; finishes one left half-done."""
    await connection.execute("SELECT set_config('lock_timeout', '200ms', false)")
    pending = await connection.value(
        "SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = to_regclass($1)", part.name
    )
    if pending is not None:
        how = "FINALIZE" if pending else "CONCURRENTLY"
        await connection.execute(f"ALTER TABLE {part.table} DETACH PARTITION {part.name} {how}")
