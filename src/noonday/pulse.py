"""Pauses that end together: what a process does by itself once a second, it does at one go.

To wake up costs more than most of what is looked at then. So pauses of the same length end at the
same instants, and those of a multiple of it at some of these; each process has its own.
"""

from __future__ import annotations

import random
import time
from typing import Final

_PHASE: Final = random.random()  # noqa: S311


def left(pause_sec: float, least_sec: float = 0.0) -> float:
    """How long to sleep now so as to wake with the others: ``pause_sec`` at most, and at least
    ``least_sec`` if that is less."""
    return max(pause_sec - (time.monotonic() - _PHASE) % pause_sec, min(least_sec, pause_sec))
