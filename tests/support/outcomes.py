"""Bring a job's runs into a state, by the statements of the product itself."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from noonday.domain.lifecycle import Event, Transition
from noonday.domain.model import ExecutionStatus, Outcome, OutcomeKind, Reason
from noonday.store import Store, runs
from noonday.store.runs import Held, held_key
from noonday.store.settlements import Settlement
from tests.support.seeds import claim, completed, retried, settle

How = Literal["running", "complete", "retrying", "dead"]


async def bring(store: Store, job_id: str, how: How) -> None:
    """Claim the READY runs of a job and have them end like this; others stay READY."""
    async with store.transaction() as tx:
        held = [held_key(row) for row in await claim(tx)]
        await runs.hand_back(tx, [lease for lease in held if lease.job_id != UUID(job_id)])
        mine = [lease for lease in held if lease.job_id == UUID(job_id)]
        assert mine, "no run of the job was READY"
        if how != "running":
            written = await settle(tx, *(_settlement(lease, how) for lease in mine))
            assert written == set(mine)


def _settlement(lease: Held, how: How) -> Settlement:
    if how == "complete":
        return completed(lease)
    if how == "retrying":
        return retried(lease)
    return Settlement(
        lease,
        Transition(Event.DEAD_LETTER, ExecutionStatus.FAILED, reason=Reason.PERMANENT_ANSWER),
        Outcome(OutcomeKind.PERMANENT, http_status=400, error="the receiver said no"),
    )
