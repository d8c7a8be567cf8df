"""Whether a drill was passed, and whether it was one at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

from noonday.drill.faults import FAULTS, HOSTILE
from noonday.drill.marks import Mark

LOST: Final = frozenset({"I1", "I4", "I10"})
DOUBLED: Final = frozenset({"I3"})
STALE: Final = frozenset({"I6", "I7", "I15"})
KILLS: Final = frozenset({"F1", "F2", "F3"})
TAKE_OVER: Final = frozenset({"F1", "F2", "F6"})
DELIVERIES_PER_SEC: Final = 4.0
SEC_PER_KILL: Final = 6.0
SEC_PER_TAKEOVER: Final = 30.0


def count(violations: Sequence[str], of: Set[str]) -> int:
    """How many violations are of these invariants."""
    return sum(violation.partition(":")[0] in of for violation in violations)


def emptiness(
    seconds: float,
    named: Sequence[str],
    figures: Mapping[str, int],
    marks: Sequence[Mark],
    *,
    all_named: bool,
) -> Iterator[str]:
    """Why the drill proves nothing, if so. ``figures``: deliveries, kills, takeovers."""
    wanted = {"deliveries": seconds * DELIVERIES_PER_SEC}
    if KILLS & set(named):
        wanted["kills"] = seconds / SEC_PER_KILL
    if TAKE_OVER & set(named):
        wanted["takeovers"] = seconds / SEC_PER_TAKEOVER
    for what, least in wanted.items():
        if figures[what] < int(least):
            yield f"{figures[what]} {what}, and not the {int(least)} of {seconds:g} s"
    yield from _without_effect(named, marks, all_named=all_named)


def _without_effect(
    named: Sequence[str], marks: Sequence[Mark], *, all_named: bool
) -> Iterator[str]:
    for number in named:
        struck = [mark for mark in marks if mark.number == number and mark.struck]
        if not struck and not all_named:
            yield f"{number} was named, and never struck"
        elif struck and not any(mark.effect for mark in struck):
            yield f"{number} struck {len(struck)} times without a visible effect"
    optional = {fault.name for fault in FAULTS if fault.optional}
    for name in sorted({mark.name for mark in marks if mark.number != HOSTILE} - optional):
        struck = [mark for mark in marks if mark.name == name and mark.struck]
        if struck and not any(mark.effect for mark in struck):
            details = "; ".join(mark.detail for mark in struck)
            yield f"“{name}” struck {len(struck)} times without a visible effect ({details})"
