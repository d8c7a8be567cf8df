"""How long a case lasts: as a report from the field has it, or shortened for every day."""

from __future__ import annotations

import os
from typing import TypeVar

FULL = os.environ.get("NOONDAY_TEST_FULL") == "1"
"""``make soak-cases``: the durations and sizes of the reports."""

T = TypeVar("T")


def scaled(short: T, full: T) -> T:
    """``full`` in a soak, else ``short``."""
    return full if FULL else short
