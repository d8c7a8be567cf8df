"""The backlog after an outage: what is left of it, how fast it goes, and what it waits for."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from noonday.api.context import context_of
from noonday.api.documents import BacklogDelay, BacklogDocument, maybe, stamp
from noonday.api.pages import json
from noonday.domain.catch_up import LATE, Delay, Summary, summed
from noonday.store import late, workers
from noonday.store.late import Late


async def show(request: Request) -> Response:
    """How all schedulers together catch up on what is late."""
    async with context_of(request).store.singly() as tx:
        found = await late.count(tx, await tx.clock() - LATE)
        together = summed(await workers.catch_ups(tx))
    return json(_document(found, together))


def _document(found: Late, together: Summary | None) -> BacklogDocument:
    return BacklogDocument(
        late_after_sec=LATE.total_seconds(),
        remaining=found.number,
        exact=found.exact,
        oldest_due_at=maybe(found.oldest_at),
        rate_per_sec=together.per_sec if together else 0.0,
        eta_sec=together.eta_sec(found.number) if together else None,
        share=together.share if together else None,
        limit_sec=together.limit_sec if together else None,
        delayed=together.passed_over if together else 0,
        delays=[_delay(*each) for each in together.delays.items()] if together else [],
    )


def _delay(lane: str, delay: Delay) -> BacklogDelay:
    return BacklogDelay(lane, stamp(delay.since), delay.waited_sec, delay.priority)
