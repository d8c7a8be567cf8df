"""Write what became of a batch of attempts: one guarded statement per event that occurs in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from noonday.domain.fingerprint import fingerprint
from noonday.domain.lifecycle import Event, Transition
from noonday.domain.model import Excerpt, Outcome
from noonday.store import Tx, cancels, holds, runs
from noonday.store.runs import Ended, Held
from noonday.store.wakeups import QUIET_SEC, RETRIES

NEAR: Final = timedelta(seconds=QUIET_SEC)
"""A retry sooner than this may be over before anybody has looked when it is due."""


class Settlement(NamedTuple):
    """An attempt that ended, under the lease it was made with, and what follows."""

    held: Held
    transition: Transition
    outcome: Outcome
    duplicate_cause: str | None = None
    """Why the receiver had done it before, if it says so."""

    def ended(self) -> Ended:
        """The columns of its execution."""
        status, outcome = self.transition.execution, self.outcome
        return Ended(
            *self.held, status=status.value if status else "", http_status=outcome.http_status,
            error=outcome.error, unknown=outcome.unknown, response=_written(outcome.response),
            duplicate_cause=self.duplicate_cause,
        )  # fmt: skip


def _written(response: Excerpt | None) -> str | None:
    if response is None:
        return None
    try:
        return msgspec.json.encode(response).decode()
    except UnicodeEncodeError:  # half a character: no excerpt is worth an outcome
        return None


async def apply(tx: Tx, settlements: Sequence[Settlement]) -> set[Held]:
    """Write all; the leases under which something was written. The others were lost before."""
    by_event: dict[Event, list[Settlement]] = defaultdict(list)
    # In key order everywhere, so that no two batches can wait for each other in a circle.
    for settlement in sorted(settlements, key=_place):
        by_event[settlement.transition.event].append(settlement)
    crossing = _crossing(by_event) if len(by_event) > 1 else []
    if crossing:
        await runs.lock(tx, crossing)
    written: set[Held] = set()
    for event, batch in by_event.items():
        written |= await WRITERS[event](tx, batch)
        missing = [one for one in batch if one.held not in written]
        # Lost, or moved by a note that was made meanwhile: locked, it moves no more.
        if missing and await runs.lock(tx, [one.held for one in missing]):
            written |= await WRITERS[event](tx, missing)
    offered = [held for event in GOES_ON for held, *_ in by_event.get(event, ())]
    if offered:
        await cancels.end(tx, offered)
    return written


def _place(settlement: Settlement) -> tuple[bytes, datetime, int, int]:
    """Where it stands in key order. (Bytes compare faster than a UUID.)"""
    held = settlement.held
    return held.job_id.bytes, held.occurrence_at, held.kind, held.lease_version


def _crossing(by_event: Mapping[Event, Sequence[Settlement]]) -> list[Held]:
    """Runs of jobs that stand under several events: written event by event, they would be locked
    in another order than by whoever takes the runs of such a job one after the other."""
    events = Counter(
        job for batch in by_event.values() for job in {one.held.job_id for one in batch}
    )
    held = (one.held for batch in by_event.values() for one in batch)
    return sorted(lease for lease in held if events[lease.job_id] > 1)


async def _complete(tx: Tx, batch: Sequence[Settlement]) -> set[Held]:
    return {batch[n].held for n in await runs.complete(tx, [one.ended() for one in batch])}


async def _retry(tx: Tx, batch: Sequence[Settlement]) -> set[Held]:
    waits = [(one.ended(), one.transition.delay or timedelta()) for one in batch]
    if any(delay < NEAR for _, delay in waits):
        tx.wakes.add(RETRIES)
    return await runs.retry(tx, waits)


async def _dead_letter(tx: Tx, batch: Sequence[Settlement]) -> set[Held]:
    letters = [(one.ended(), *_why(one)) for one in batch]
    return await runs.dead_letter(tx, letters)


def _why(one: Settlement) -> tuple[str, str]:
    reason = str(one.transition.reason)
    return reason, fingerprint(reason, one.outcome.http_status, one.outcome.error)


async def _release(tx: Tx, batch: Sequence[Settlement]) -> set[Held]:
    return await runs.release(tx, [one.ended() for one in batch])


async def _hand_back(tx: Tx, batch: Sequence[Settlement]) -> set[Held]:
    return await runs.hand_back(tx, [one.held for one in batch])


async def _stop(tx: Tx, batch: Sequence[Settlement]) -> set[Held]:
    return await runs.stop(tx, [one.ended() for one in batch])


async def _hold(tx: Tx, batch: Sequence[Settlement]) -> set[Held]:
    leases = [(one.held, *(one.transition.hold or ("", ""))) for one in batch]
    return await holds.hold(tx, leases)


GOES_ON: Final = (Event.RETRY, Event.INTERRUPT, Event.EXPIRE, Event.HAND_BACK, Event.HOLD)
"""After these a run would be tried again, unless its job was cancelled meanwhile."""

WRITERS: Final[dict[Event, Callable[[Tx, Sequence[Settlement]], Awaitable[set[Held]]]]] = {
    Event.COMPLETE: _complete,
    Event.RETRY: _retry,
    Event.DEAD_LETTER: _dead_letter,
    Event.INTERRUPT: _release,
    Event.EXPIRE: _release,
    Event.HAND_BACK: _hand_back,
    Event.STOP: _stop,
    Event.HOLD: _hold,
}
