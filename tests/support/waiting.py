"""Wait for a condition, with a deadline, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], deadline_sec: float = 15) -> None:
    """Return as soon as ``condition`` holds; fails the test when it does not in time."""
    until = time.monotonic() + deadline_sec
    while not condition():
        assert time.monotonic() < until, f"not within {deadline_sec:g} s: {condition}"
        time.sleep(0.01)
