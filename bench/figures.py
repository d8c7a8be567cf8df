"""Figures of a part: what was used per job, and how long things took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Figures: TypeAlias = dict[str, float]
"""By name; the unit is the end of the name."""
Rows: TypeAlias = dict[str, Figures]
"""The rows of a part, by what is measured."""


@dataclass(frozen=True)
class Usage:
    """What was consumed up to a moment, to be subtracted from a later one."""

    postgres_sec: float = 0.0
    noonday_sec: float = 0.0
    generator_sec: float = 0.0
    """By the bench itself and its receivers: on the same cores, but not ours to count."""
    wal_bytes: int = 0
    commits: int = 0


def per_job(count: int, seconds: float, before: Usage, after: Usage) -> Figures:
    """What ``count`` jobs have used, each."""
    each = max(count, 1)
    postgres = (after.postgres_sec - before.postgres_sec) / each * 1e6
    noonday = (after.noonday_sec - before.noonday_sec) / each * 1e6
    return {
        "count": float(count),
        "seconds": seconds,
        "per_sec": count / seconds if seconds else 0.0,
        "postgres_us": postgres,
        "noonday_us": noonday,
        "cpu_us": postgres + noonday,
        "generator_us": (after.generator_sec - before.generator_sec) / each * 1e6,
        "wal_bytes": (after.wal_bytes - before.wal_bytes) / each,
        "commits": (after.commits - before.commits) / each,
    }


def percentile(ordered: Sequence[float], part: float) -> float:
    """Of values in order: the one that ``part`` of them do not exceed; 0 of none."""
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0


def spread(seconds: Iterable[float], prefix: str = "") -> Figures:
    """Percentiles in milliseconds; nothing for no values."""
    ordered = sorted(seconds)
    if not ordered:
        return {}
    return {
        f"{prefix}p50_ms": percentile(ordered, 0.5) * 1e3,
        f"{prefix}p99_ms": percentile(ordered, 0.99) * 1e3,
    }


def median(found: Sequence[Figures]) -> Figures:
    """The middle of each figure of several rows."""
    return {key: sorted(each[key] for each in found)[len(found) // 2] for key in found[0]}
