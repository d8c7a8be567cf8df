"""A gated replay: how fast dead letters are reopened, and when that has to stop.

First a canary: a few runs that must all succeed. Then the rest, at a rate that rises from a tenth
to the whole, as long as few enough of the reopened runs fail. At no time are more than ``window``
of them unfinished, so that a receiver that dies again is noticed before it has seen many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from noonday.domain.model import MICROSECOND

PULSES: Final = 20
"""Batches a second, about, once a rate is too high for runs one by one."""
RAMP_FROM: Final = 0.1
"""The part of the rate at which the canary goes, and the ramp begins."""
SMALLEST_SAMPLE: Final = 10
"""Outcomes that the ratio is taken of at least, so that one failure among two stops nothing."""


class ReplayState(StrEnum):
    """How a replay stands; STOPPED is by the gate, and can be resumed."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    ABORTED = "ABORTED"
    DONE = "DONE"


class Letters(msgspec.Struct, frozen=True):
    """Which dead letters; None does not narrow."""

    reason: str | None = None
    fingerprint: str | None = None
    job_id: UUID | None = None
    target_host: str | None = None
    dead_from: datetime | None = None
    dead_to: datetime | None = None


class StopWhen(msgspec.Struct, frozen=True):
    """Stop when more than ``failure_ratio`` of the last ``window`` runs have failed."""

    failure_ratio: float = 0.2
    window: int = 50


class Terms(msgspec.Struct, frozen=True):
    """What was asked for: which letters (by ``filter``, or by ``ids``), and the gate."""

    filter: Letters = Letters()
    ids: tuple[str, ...] | None = None
    canary: int = 1
    rate_per_sec: float = 10.0
    ramp_sec: float = 60.0
    stop_when: StopWhen = StopWhen()
    again: bool = False
    """Also letters that were replayed before, and died again."""


# --- how fast ---------------------------------------------------------------------------------


class Pace(NamedTuple):
    """At most ``batch`` runs at once, and then none for as long as ``spacing``."""

    batch: int
    spacing: timedelta


def pace(rate_per_sec: float, share: float = 1.0) -> Pace:
    """How to release ``share`` of a rate.

    In any window of ``w`` seconds, from one second on, there are at most ``rate_per_sec * w``
    releases, rounded up: of batches ``b`` every ``b / (rate + 1 - b)`` seconds, a half-open window
    holds fewer than ``rate * w + 1 + (b - 1) * (1 - w)``. A share only spaces them further apart.
    """
    batch = max(int((rate_per_sec + 1) / (PULSES + 1)), 1)
    spacing_sec = batch / (rate_per_sec + 1 - batch) / share
    return Pace(batch, math.ceil(spacing_sec * 1_000_000) * MICROSECOND)


def share(terms: Terms, ramp_from: datetime | None, now: datetime) -> float:
    """The part of the rate that is released at ``now``: up to ``ramp_from`` the smallest."""
    if terms.ramp_sec <= 0:
        return 1.0
    elapsed = 0.0 if ramp_from is None else (now - ramp_from).total_seconds()
    return min(RAMP_FROM + (1 - RAMP_FROM) * max(elapsed, 0.0) / terms.ramp_sec, 1.0)


# --- whether at all ---------------------------------------------------------------------------


def keep(terms: Terms, recent: Sequence[bool], outcomes: Sequence[bool]) -> list[bool]:
    """The last outcomes, as many as matter, with new ones."""
    return [*recent, *outcomes][-max(terms.stop_when.window, terms.canary, 1) :]


def has_passed(terms: Terms, recent: Sequence[bool]) -> bool:
    """Whether the canary is through: as many successes as asked for, and no failure."""
    return all(recent) and len(recent) >= terms.canary


def must_stop(terms: Terms, recent: Sequence[bool], *, in_canary: bool) -> str | None:
    """Why to stop after these outcomes, or None to go on."""
    if not in_canary:
        recent = recent[-terms.stop_when.window :]
    failed = len(recent) - sum(recent)
    if in_canary:
        return f"the canary failed: {failed} of {len(recent)}" if failed else None
    sample = max(len(recent), min(SMALLEST_SAMPLE, terms.stop_when.window))
    if failed > terms.stop_when.failure_ratio * sample:
        return f"too many failed: {failed} of the last {len(recent)}"
    return None


def room(terms: Terms, recent: Sequence[bool], unfinished: int, *, in_canary: bool) -> int:
    """How many more runs may be released now, the pace aside."""
    free = terms.stop_when.window - unfinished
    if in_canary:
        free = min(free, terms.canary - len(recent) - unfinished)
    return max(free, 0)
