"""What becomes of a job that waits for others, by what came of them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, Literal, NamedTuple
from uuid import UUID

import msgspec

from noonday.domain.model import LedgerOutcome

MOST_PARENTS: Final = 100
"""That one job may wait for."""

On = Literal["success", "any"]


class After(msgspec.Struct, frozen=True):
    """What a job waits for. ``on`` success, a parent that came to anything else has it skipped;
    with ``cascade_cancel`` one that was cancelled has it cancelled."""

    jobs: tuple[UUID, ...] = ()
    on: On = "success"
    cascade_cancel: bool = False


NOTHING: Final = After()
"""Nothing to wait for."""


class Fate(IntEnum):
    """What follows for a child from one parent's end; of several the gravest counts."""

    GO_ON = 0
    SKIP = 1
    CANCEL = 2


class Told(NamedTuple):
    """A child's fate by one parent."""

    fate: Fate
    parent: UUID
    outcome: LedgerOutcome

    @property
    def reason(self) -> str:
        """Why it does not run, for the ledger."""
        return f"parent_{self.outcome.lower()}"


def fate(on: On, cascade_cancel: bool, outcome: LedgerOutcome) -> Fate:
    """What follows for a child when a parent has come to ``outcome``."""
    if cascade_cancel and outcome is LedgerOutcome.CANCELLED:
        return Fate.CANCEL
    if on == "any" or outcome is LedgerOutcome.COMPLETE:
        return Fate.GO_ON
    return Fate.SKIP


def gravest(told: Iterable[Told]) -> Told:
    """The one that counts: the gravest, and of such the first."""
    return max(told, key=lambda one: one.fate)
