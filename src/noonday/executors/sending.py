"""Whether a request may have left, and when."""

from __future__ import annotations

import time

from noonday.domain.model import Attempt


class Sent:
    """Tells an attempt that may have reached its receiver from one that surely did not."""

    __slots__ = ("maybe",)

    def __init__(self) -> None:
        self.maybe = False
        """Becomes True just before the first byte of a request may leave, and stays so."""


def now(attempt: Attempt) -> float:
    """The time, in seconds since 1970: a receiver must not be told what a wrong clock shows."""
    wall = time.time()
    return wall if attempt.clock is None else attempt.clock.now(wall, time.monotonic())
