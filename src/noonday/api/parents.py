"""What a new job waits for: whether it may, how that stands, and what follows at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from noonday.api.problems import invalid
from noonday.api.reading import Fault, at
from noonday.api.schemas import JobRequest
from noonday.domain.dependencies import Fate, Told, fate, gravest
from noonday.domain.model import LedgerOutcome
from noonday.store import Store, Tx, dependencies
from noonday.store.dependencies import Parent, Standing

Wanted = tuple[JobRequest, int]
"""A request and the tenant that it comes from."""


class Family(NamedTuple):
    """What a new job has to wait for."""

    open: tuple[UUID, ...] = ()
    """Parents that have not ended."""
    decided: tuple[UUID, datetime, str] | None = None
    """One that has, and settles already that the job will not run: it is told of that end again."""

    @property
    def edges(self) -> tuple[UUID, ...]:
        """The parents that it is told the end of."""
        return self.open if self.decided is None else (self.decided[0],)


NOBODY = Family()


def _parents(wanted: Iterable[Wanted]) -> list[Parent]:
    return sorted({Parent(job, tenant) for request, tenant in wanted for job in request.after.jobs})


async def announce(store: Store, wanted: Sequence[Wanted]) -> None:
    """Before jobs are created: have those that they are to wait for note their ends."""
    found = _parents(wanted)
    if found:
        async with store.transaction() as tx:
            await dependencies.announce(tx, found)


async def look(tx: Tx, wanted: Sequence[Wanted]) -> Mapping[Parent, Standing]:
    """How the parents stand. Until the transaction ends nobody is told of the end of those that
    are open, so that the jobs to be created will be among them."""
    found = _parents(wanted)
    if not found:
        return {}
    await dependencies.share_families(tx, [parent.id for parent in found])
    return await dependencies.standing(tx, found)


def family(wanted: Wanted, standing: Mapping[Parent, Standing]) -> Family | None:
    """What a job waits for; None while that cannot be said. Raises a problem with every parent
    that is none."""
    request, tenant_id = wanted
    if not request.after.jobs:
        return NOBODY
    stands = {job: standing.get(Parent(job, tenant_id)) for job in request.after.jobs}
    _require_parents(request, list(stands.values()))
    known = {job: stand for job, stand in stands.items() if stand is not None}
    if any(stand.outcome is None and not stand.open for stand in known.values()):
        return None
    waits_for = tuple(job for job, stand in known.items() if stand.open)
    return Family(waits_for, _decided(request, known))


def _require_parents(request: JobRequest, stands: Sequence[Standing | None]) -> None:
    faults = [
        Fault(at(request.after_pointer, n), *fault)
        for n, stand in enumerate(stands)
        if (fault := _fault(stand)) is not None
    ]
    if faults:
        raise invalid(faults)


def _fault(stand: Standing | None) -> tuple[str, str] | None:
    if stand is None:
        return "unknown_job", "is not the id of a job that is there"
    if stand.schedule_type != "once":
        return "invalid", "fires more than once; only for a job that fires once can be waited"
    return None


def _decided(
    request: JobRequest, known: Mapping[UUID, Standing]
) -> tuple[UUID, datetime, str] | None:
    after = request.after
    told = [
        Told(fate(after.on, after.cascade_cancel, outcome), job, outcome)
        for job, stand in known.items()
        if stand.outcome is not None
        for outcome in (LedgerOutcome(stand.outcome),)
    ]
    if not told or (worst := gravest(told)).fate is Fate.GO_ON:
        return None
    return worst.parent, known[worst.parent].first_at, worst.outcome.value
