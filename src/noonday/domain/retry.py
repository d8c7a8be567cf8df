"""How long to wait before another attempt. Pure; chance is handed in."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Final

from noonday.domain.model import RetryPolicy

JITTER: Final = 0.2
"""A backoff is stretched by up to a fifth: what failed together does not return together."""

SHORTEST_SEC: Final = 0.001
LONGEST_SEC: Final = 366 * 86_400.0
"""No wait lies outside these, whatever a policy says that was not checked when it came."""

RETRY_AFTER_SLACK: Final = timedelta(hours=2)
"""``Retry-After`` may lengthen a backoff by at most this much, whatever a stranger asks for."""


def backoff(policy: RetryPolicy, failures: int) -> timedelta:
    """``base * factor**(failures - 1)``, at most ``cap``; safe for any policy and any number."""
    base, cap = _within(policy.base_sec), _within(policy.cap_sec)
    exponent = max(failures - 1, 0) * math.log(max(policy.factor, 1.0))
    room = math.log(cap / base) if base < cap else 0.0
    return timedelta(seconds=cap if exponent >= room else base * math.exp(exponent))


def _within(wait_sec: float) -> float:
    return min(max(wait_sec, SHORTEST_SEC), LONGEST_SEC)


def delay(
    policy: RetryPolicy, failures: int, retry_after: timedelta | None, chance: float
) -> timedelta:
    """The wait after failure number ``failures``.

    ``chance`` in ``[0, 1)`` spreads it. ``retry_after``, the receiver's wish (RFC 9110, 10.2.3),
    can only lengthen the wait, by ``RETRY_AFTER_SLACK`` at most.
    """
    own = backoff(policy, failures) * (1 + JITTER * chance)
    if retry_after is None:
        return own
    return max(own, min(retry_after, own + RETRY_AFTER_SLACK))
