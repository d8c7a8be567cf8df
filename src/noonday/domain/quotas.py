"""What a tenant may post: how much a second, and how much of it may be unfinished at a time.

A rate is kept in the database. Each process that takes part in it leases small blocks of tokens
and spends those by itself; what it has not spent when the lease ends is lost, never spent later.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

CREATES: Final = "creates"
BYTES: Final = "bytes"
PENDING: Final = "pending"

BLOCK_SEC: Final = 0.1
"""A block is worth this much of the rate at most, or one token."""
LEASE_SEC: Final = 1.0
"""Tokens that were not spent for so long are lost."""

SMALLEST: Final = 8
"""Tokens that are taken ahead of need, at least."""


class Quotas(NamedTuple):
    """A tenant's quotas; None is no quota."""

    creates_per_sec: float | None = None
    creates_burst: int | None = None
    create_bytes_per_sec: int | None = None
    max_pending_jobs: int | None = None

    def rates(self, max_payload_bytes: int) -> list[Rate]:
        """What is limited by time. Any single payload that is allowed fits into a burst."""
        found = []
        if self.creates_per_sec is not None:
            burst = self.creates_burst or max(1, math.floor(self.creates_per_sec))
            found.append(Rate(CREATES, self.creates_per_sec, burst))
        if self.create_bytes_per_sec is not None:
            burst = max(self.create_bytes_per_sec, max_payload_bytes)
            found.append(Rate(BYTES, float(self.create_bytes_per_sec), burst))
        return found


class Rate(NamedTuple):
    """So many tokens a second, and after a pause a burst of them at once."""

    name: str
    per_sec: float
    burst: int

    @property
    def window_sec(self) -> int:
        """The time in which a burst comes together, in whole seconds."""
        return max(1, math.ceil(self.burst / self.per_sec))

    @property
    def quota(self) -> int:
        """What the rate allows in its window."""
        return max(1, math.floor(self.per_sec * self.window_sec + 1e-9))

    @property
    def block(self) -> int:
        """The most tokens that a process holds unspent."""
        return max(1, min(self.burst, math.floor(self.per_sec * BLOCK_SEC)))


class Lease:
    """The tokens of one rate that a process holds, and what it knows of the others.

    All times are seconds of one clock of the process.
    """

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self.quota, self.window_sec = rate.quota, rate.window_sec
        self._tokens = 0
        self._until = 0.0
        self._next_at = -math.inf
        self._extra = 0

    def held(self, now: float) -> int:
        """Tokens that may be spent now."""
        return self._tokens if now < self._until else 0

    def is_low(self, now: float) -> bool:
        """Whether it is time to take more, so that nobody has to wait for it: at a pace at which
        that is worth a statement."""
        if self._extra < SMALLEST:
            return False
        ends_soon, held = now > self._until - LEASE_SEC / 4, self.held(now)
        return held * 2 < self._extra or (ends_soon and held < self._extra)

    def spend(self, number: int) -> None:
        """Use tokens of those that are held."""
        self._tokens -= number

    def give_back(self, number: int, now: float) -> int:
        """Tokens that were not needed after all: a block of them is kept, for as long as the lease
        lasts; how many are left over for others."""
        kept = max(0, min(number, self.rate.block - self._tokens)) if now < self._until else 0
        self._tokens += kept
        self._next_at -= (number - kept) / self.rate.per_sec
        return number - kept

    def wanted(self, number: int, now: float) -> int:
        """What to take when ``number`` tokens are needed: a little more than that where the last
        block was spent before its time, so that who posts little lets little go to waste."""
        held = self.held(now)
        more = self._extra
        if now >= self._until:
            more //= 2
        elif held < number or held * 2 < more:
            more = max(more * 4, number)
        self._extra = min(more, self.rate.block)
        return max(0, number - held + self._extra)

    def taken(self, number: int, next_at: float, asked_at: float) -> None:
        """``number`` tokens came, of those asked for at ``asked_at``; the next one conforms at
        ``next_at``."""
        self._tokens = self.held(asked_at) + number
        self._until = asked_at + LEASE_SEC
        self._next_at = next_at

    def remaining(self, now: float) -> int:
        """Tokens left, as far as this process knows: others may have taken of them."""
        return self.held(now) + self._conforming(now)

    def wait_sec(self, number: int, now: float) -> float:
        """Seconds until ``number`` tokens are there, if nobody else takes any."""
        lacking = number - self.held(now)
        if lacking <= 0:
            return 0.0
        return max(0.0, self._begins(now) + (lacking - 1) / self.rate.per_sec - now)

    def full_sec(self, now: float) -> float:
        """Seconds until a whole burst is there."""
        return self.wait_sec(self.rate.burst, now)

    def _begins(self, now: float) -> float:
        return max(self._next_at, now - (self.rate.burst - 1) / self.rate.per_sec)

    def _conforming(self, now: float) -> int:
        ahead = now - self._begins(now)
        return 0 if ahead < 0 else 1 + math.floor(ahead * self.rate.per_sec + 1e-6)
