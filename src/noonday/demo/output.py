"""What the demo prints."""

from __future__ import annotations

import sys
from datetime import UTC, datetime


def say(line: str, *, passing: bool = False) -> None:
    """Print; on a terminal the next line takes the place of one that is ``passing``."""
    if sys.stdout.isatty():
        print(f"\r\033[K{line}", end="" if passing else "\n", flush=True)
    else:
        print(line, flush=True)


def clock(at: datetime) -> str:
    """The time of day in UTC."""
    return f"{at.astimezone(UTC):%H:%M:%S}.{at.microsecond // 1000:03d}Z"
