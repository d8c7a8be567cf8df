"""The table of a run, and the same as a document."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from bench import goals
from bench.figures import Figures, Rows

UNIT = {
    "ms": " ms", "us": " µs", "sec": " s", "mb": " MB", "kb": " kB", "bytes": " B",
}  # fmt: skip
IN_COLUMNS = {
    *("count", "seconds", "per_sec", "postgres_us", "noonday_us", "cpu_us", "generator_us"),
    *("wal_bytes", "commits", "p50_ms", "p99_ms", "memory_mb", "api_mb", "scheduler_mb"),
    *("worker_mb",),
}
NOT_HERE = "not here"


def table(found: Mapping[str, Rows]) -> Table:
    """All parts, one below the other. The last column has each goal with what was found, and what
    has no column of its own."""
    made = Table("what", pad_edge=False, expand=False)
    for name in (
        *("count", "per second", "Postgres µs", "Noonday µs", "bench µs", "WAL B", "commits"),
        *("p50 ms", "p99 ms", "MB"),
    ):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("goals, and more", overflow="fold")
    for part, rows in found.items():
        made.add_section()
        made.add_row(f"[bold]{part}")
        for name, row in rows.items():
            made.add_row(f"  {name}", *_cells(row), _last(part, name, row))
    return made


def _cells(row: Figures) -> list[str]:
    return [
        _cell(row, "count", ",.0f"), _cell(row, "per_sec", ",.0f"),
        _cell(row, "postgres_us", ",.1f"), _cell(row, "noonday_us", ",.1f"),
        _cell(row, "generator_us", ",.1f"), _cell(row, "wal_bytes", ",.0f"),
        _cell(row, "commits", ".3f"), _cell(row, "p50_ms", ",.1f"), _cell(row, "p99_ms", ",.1f"),
        _cell(row, "memory_mb", ",.0f"),
    ]  # fmt: skip


def _cell(row: Figures, name: str, how: str) -> str:
    return format(row[name], how) if name in row else ""


def _last(part: str, name: str, row: Figures) -> str:
    if not row:
        return NOT_HERE
    lines, told = [], set(IN_COLUMNS)
    for goal in goals.of(part, name):
        reached = goal.reached(row)
        told.add(goal.figure)
        if reached is None:
            lines.append(f"[dim]{goal}: {NOT_HERE}[/]")
        else:
            sign = "[green]✓[/]" if reached else "[red]✗[/]"
            lines.append(f"{sign} {goal}: {shown(goal.figure, row[goal.figure])}")
    more = [f"{key} {shown(key, value)}" for key, value in row.items() if key not in told]
    if more:
        lines.append(f"[dim]{', '.join(more)}[/]")
    return "\n".join(lines)


def shown(name: str, value: float) -> str:
    """A figure with its unit, as many digits as say something."""
    unit = "/s" if name.endswith("per_sec") else UNIT.get(name.rpartition("_")[2], "")
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}{unit}"


def document(found: Mapping[str, Rows]) -> dict[str, dict[str, object]]:
    """The parts with their rows, each with its figures and goals."""
    return {
        part: {
            name: {
                **row,
                "goals": {str(goal): goal.reached(row) for goal in goals.of(part, name)},
            }
            if row
            else NOT_HERE
            for name, row in rows.items()
        }
        for part, rows in found.items()
    }
