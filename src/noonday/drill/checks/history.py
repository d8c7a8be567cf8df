"""The invariants, checked over the whole history of a database that keeps a journal.

Evidence comes from three sides: the tables, the journal (see ``journal``), and what was seen
from outside, the answers of the API and the requests that a receiver got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from noonday.drill.checks.delivery_rules import (
    i12_requests_and_attempts_match,
    i13_requests_are_signed_and_alike,
)
from noonday.drill.checks.evidence import Evidence, Witness, gather
from noonday.drill.checks.lease_rules import (
    i5_leases_do_not_overlap,
    i6_lease_versions_rise,
    i7_results_are_the_last_holders,
    i8_only_allowed_transitions,
    i9_attempts_are_numbered_and_bounded,
)
from noonday.drill.checks.ledger_rules import (
    i1_nothing_acknowledged_is_lost,
    i2_nothing_is_unexpected,
    i3_an_occurrence_is_materialized_once,
    i4_no_occurrence_is_missing,
    i10_nothing_is_left,
    i15_no_scheduler_writes_behind_its_fence,
)
from noonday.drill.checks.promise_rules import (
    i14_what_must_not_overlap_does_not,
    i16_the_next_fire_is_the_right_one,
    i17_what_was_cancelled_stays_so,
    i20_a_key_makes_one_job_and_keeps_its_answer,
    i21_all_is_well_again,
)

Rule = Callable[[Evidence], Iterator[str]]
RULES: Final[dict[str, Rule]] = {
    "I1": i1_nothing_acknowledged_is_lost,
    "I2": i2_nothing_is_unexpected,
    "I3": i3_an_occurrence_is_materialized_once,
    "I4": i4_no_occurrence_is_missing,
    "I5": i5_leases_do_not_overlap,
    "I6": i6_lease_versions_rise,
    "I7": i7_results_are_the_last_holders,
    "I8": i8_only_allowed_transitions,
    "I9": i9_attempts_are_numbered_and_bounded,
    "I10": i10_nothing_is_left,
    "I12": i12_requests_and_attempts_match,
    "I13": i13_requests_are_signed_and_alike,
    "I14": i14_what_must_not_overlap_does_not,
    "I15": i15_no_scheduler_writes_behind_its_fence,
    "I16": i16_the_next_fire_is_the_right_one,
    "I17": i17_what_was_cancelled_stays_so,
    "I20": i20_a_key_makes_one_job_and_keeps_its_answer,
    "I21": i21_all_is_well_again,
}
NOT_APPLICABLE: Final = {"I11": "no broker: the ready queue is Postgres itself"}
AT_THE_END: Final = "I10"
"""Holds only when all work was let come to its end."""
HEALED: Final = "I21"
"""Holds only when no fault has struck for a while, and all processes are there."""
OF_NOW: Final = ("I16", "I21")
"""Need nothing of the past."""


async def check(
    dsn: str, witness: Witness, *, drained: bool = True, healed: bool = False
) -> list[str]:
    """The violations, each beginning with the number of its invariant; empty is good.

    ``drained`` says that all work was let come to its end before, ``healed`` that the last fault
    has ended a while ago and everything runs.
    """
    return violations(await gather(dsn, witness), drained=drained, healed=healed)


def violations(evidence: Evidence, *, drained: bool, healed: bool) -> list[str]:
    """As :func:`check`, of evidence that was gathered before."""
    left_out = {name for name, on in ((AT_THE_END, drained), (HEALED, healed)) if not on}
    return broken(evidence, [name for name in RULES if name not in left_out])


def broken(evidence: Evidence, names: Iterable[str]) -> list[str]:
    """The violations of the invariants that are named."""
    return [f"{name}: {violation}" for name in names for violation in RULES[name](evidence)]
