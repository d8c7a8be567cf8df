"""What an answer says of quotas: ``RateLimit``, ``RateLimit-Policy``, and a 429's problem.

As in draft-ietf-httpapi-ratelimit-headers-10: lists of structured fields (RFC 9651). A 429 has a
``Retry-After`` as well, which is never earlier than ``t`` and differs from one answer to the next,
so that not everybody comes back in the same second.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from noonday.api.problems import Exceeded, Problem
from noonday.domain.quotas import BYTES, CREATES, PENDING, Lease

LONGEST_WAIT_SEC: Final = 300
"""Nobody is sent away for longer."""
UNKNOWN_WAIT_SEC: Final = 60
"""For when nothing has ended of late, so that nobody can tell."""
CODES: Final = {
    CREATES: "create_rate_exceeded",
    BYTES: "create_bytes_exceeded",
    PENDING: "pending_jobs_exceeded",
}


class Limit(NamedTuple):
    """A quota as it is told of, and how it stands."""

    name: str
    quota: int
    window_sec: int | None
    unit: str | None
    remaining: int
    reset_sec: float | None
    """Seconds until it is whole again, or until what was refused fits; None if that is unknown."""


def of_lease(lease: Lease, now: float) -> Limit:
    """A rate, as far as this process knows."""
    rate = lease.rate
    unit = "content-bytes" if rate.name == BYTES else None
    return Limit(
        rate.name, lease.quota, lease.window_sec, unit, lease.remaining(now), lease.full_sec(now)
    )


def headers(limits: Sequence[Limit]) -> dict[str, str]:
    """The two headers; none without quotas."""
    if not limits:
        return {}
    return {
        "RateLimit-Policy": ", ".join([_policy(*limit[:4]) for limit in limits]),
        "RateLimit": ", ".join(map(_standing, limits)),
    }


@lru_cache(10_000)
def _policy(name: str, quota: int, window_sec: int | None, unit: str | None) -> str:
    text = f'"{name}";q={quota}'
    if window_sec is not None:
        text += f";w={window_sec}"
    return text if unit is None else f'{text};qu="{unit}"'


def _standing(limit: Limit) -> str:
    text = f'"{limit.name}";r={limit.remaining}'
    return text if limit.reset_sec is None else f"{text};t={math.ceil(limit.reset_sec)}"


def refused(limits: Sequence[Limit], waits: Mapping[str, float | None], detail: str) -> Problem:
    """A 429. ``waits`` has the quotas that are exceeded, each with the seconds until what was
    refused fits: the first that takes longest gives the code."""
    bounded = {name: _bounded(wait) for name, wait in waits.items()}
    worst = max(bounded, key=lambda name: bounded[name])
    told = [
        limit._replace(reset_sec=bounded[limit.name]) if limit.name in bounded else limit
        for limit in limits
    ]
    retry_after = bounded[worst] + random.randint(0, 1 + bounded[worst] // 4)  # noqa: S311
    drain = waits.get(PENDING)
    return Problem(
        429,
        CODES[worst],
        detail,
        headers={**headers(told), "Retry-After": str(retry_after)},
        exceeded=Exceeded(list(waits), retry_after, None if drain is None else round(drain, 1)),
    )


def _bounded(wait_sec: float | None) -> int:
    seconds = UNKNOWN_WAIT_SEC if wait_sec is None else math.ceil(wait_sec)
    return max(1, min(seconds, LONGEST_WAIT_SEC))


def too_many_at_once(name: str, asked: int, most: int) -> Problem:
    """An atomic batch that no waiting makes fit."""
    what = {CREATES: "jobs at once", BYTES: "bytes of payload at once", PENDING: "pending jobs"}
    return Problem(
        422,
        "batch_exceeds_quota",
        f"The batch is atomic and has {asked}; the tenant's quota is {most} {what[name]}.",
    )
