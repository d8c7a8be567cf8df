"""Every two events of one run against each other, in every order of their steps.

Whatever the order, what is left is what one after the other would have left: the one first, or the
other. Who passes over locked rows may also have found nothing. The pairs follow from the table of
transitions: for each state, all events that may happen to it, each also against itself. An event
without a step here fails.

Where the other pairs are:

==========================================  =======================================================
claim × claim, claim given up               ``test_claims``
tick × tick, takeover, delete, trigger;     ``test_ticks``
takeover × takeover, renewal
tick × pause, resume, change, delete,       ``test_changes``
trigger; each of these × each
late commits × claims, retries, ticks       ``test_floors``
permit × permit, × claim given up, hold ×   ``test_breakers``
admit, breaker × resume
a result × a claim after the reaper;        ``test_leases``
cancel × batches of results
key × key, rotation × delivery, rotation ×  ``test_records``
rotation, revocation × revocation, trigger
× delete, × retention, retention × tick,
operation × operation, × abort
step of a backfill × step, tick, cancel,    ``test_backfills``
abort
all of a run at once, with retention        ``tests/faults/test_contention.py``
==========================================  =======================================================
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from noonday.domain import lifecycle
from noonday.domain.caps import host_cap
from noonday.domain.lifecycle import TRANSITIONS, Event, Source
from noonday.domain.model import Outcome, OutcomeKind, RunKey
from noonday.store import Store, Tx, cancels, caps, dead_letters, holds, locks, runs
from noonday.store.cancels import Which
from noonday.store.settlements import Settlement
from tests.races.test_leases import IN_TIME, LEASED_AT, SETTLED, TOO_LATE, at, beating, reaping
from tests.support import seeds
from tests.support.invariants import broken
from tests.support.stepping import Plan, Stage, Step, orders

LATER = TOO_LATE + timedelta(seconds=60)
CAP = host_cap(seeds.TENANT, "capped")
REPLAY_ID = UUID(int=30)
Make = Callable[[RunKey], list[Step]]


# --- what happens to a run --------------------------------------------------------------------


def settling(settlement: Callable[[Any], Settlement]) -> Make:
    def make(run: RunKey) -> list[Step]:
        async def step(tx: Tx) -> int:
            return len(await seeds.settle(tx, settlement(seeds.held(run))))

        return [step]

    return make


def ending(event: Event) -> Make:
    return settling(lambda held: Settlement(held, SETTLED[event], seeds.FAILURE))


def of(act: Callable[[Tx, RunKey], Any]) -> Make:
    """One step."""

    def make(run: RunKey) -> list[Step]:
        async def step(tx: Tx) -> object:
            return await act(tx, run)

        return [step]

    return make


def asked(tx: Tx, run: RunKey) -> Any:
    return cancels.request(tx, Which.run(run), "asked", stop=True)


def cancelled(*, kill: bool = False) -> Make:
    """All that is done to cancel a run, in its three steps."""

    def make(run: RunKey) -> list[Step]:
        which = Which.run(run)

        async def lock(tx: Tx) -> int:
            await locks.own_shard(tx, 0)
            return await cancels.lock(tx, which)

        async def request(tx: Tx) -> int:
            return await cancels.request(tx, which, "asked", stop=True, kill=kill)

        async def cancel(tx: Tx) -> int:
            return await cancels.cancel(tx, which, "asked", kill=kill)

        return [lock, request, cancel]

    return make


def held_back(held: Any) -> Settlement:

    return Settlement(held, lifecycle.hold("lane", seeds.HOLD_KEY), Outcome(OutcomeKind.NOT_SENT))


async def own_tenant(tx: Tx) -> None:
    await locks.own_tenant(tx, seeds.TENANT)


async def give_slot(tx: Tx) -> int:
    return await caps.admit(tx, (await caps.waiting(tx, seeds.TENANT, [CAP], 10)).rows)


async def rekey(tx: Tx) -> int:
    rows = (await caps.waiting(tx, seeds.TENANT, [CAP], 10)).rows
    return await caps.rekey(tx, [(row, host_cap(seeds.TENANT, "other")) for row in rows])


async def put_back(tx: Tx) -> int:
    return await caps.put_back(tx, seeds.TENANT, CAP)


STEPS: dict[str, Make] = {
    Event.CLAIM: of(lambda tx, _: seeds.claim(tx)),
    Event.HEARTBEAT: lambda run: [beating(seeds.held(run))],
    **{event: ending(event) for event in SETTLED},
    Event.STOP: settling(seeds.stopped),
    Event.HOLD: settling(held_back),
    Event.EXPIRE: lambda _: reaping(),
    Event.RETRY_DUE: of(lambda tx, _: runs.retry_due(tx, 100)),
    Event.REQUEST_CANCEL: of(asked),
    Event.CANCEL: cancelled(),
    Event.KILL: cancelled(kill=True),
    Event.ADMIT: of(lambda tx, _: holds.admit(tx, seeds.HOLD_KEY, 100)),
    Event.GIVE_SLOT: lambda _: [own_tenant, give_slot],
    Event.REKEY: lambda _: [own_tenant, rekey],
    Event.PUT_BACK: lambda _: [own_tenant, put_back],
    Event.REPLAY: of(lambda tx, run: dead_letters.replay(tx, [run], seeds.TENANT, REPLAY_ID)),
    "tell": of(lambda tx, _: cancels.asked(tx, seeds.WORKER, 100)),
    "discard": of(lambda tx, run: dead_letters.discard(tx, run, seeds.TENANT, "me", "old")),
}
PASSES_OVER = {
    *(Event.CLAIM, Event.EXPIRE, Event.RETRY_DUE, Event.ADMIT, Event.PUT_BACK, Event.REPLAY),
    "tell",
}
"""What takes rows with SKIP LOCKED."""


def test_every_event_has_its_steps() -> None:
    assert set(Event) - {Event.MATERIALIZE} <= set(STEPS)


# --- what it happens to -----------------------------------------------------------------------


async def _ready(tx: Tx) -> RunKey:
    (run,) = await seeds.ready(tx)
    return run


async def _running(tx: Tx) -> RunKey:
    run = await _ready(tx)
    assert len(await seeds.claim(tx)) == 1
    return run


async def _asked(tx: Tx) -> RunKey:
    run = await _running(tx)
    assert await asked(tx, run) == 1
    return run


async def _over_a_cap(tx: Tx) -> RunKey:
    run = await _ready(tx)
    await seeds.cap(tx, run, 0)
    return run


async def _waiting(tx: Tx) -> RunKey:
    run = await _ready(tx)
    await seeds.hold(tx, run, "cap", await seeds.cap(tx, run, 1))
    return run


async def _held(tx: Tx) -> RunKey:
    run = await _ready(tx)
    await seeds.hold(tx, run)
    return run


async def _retrying(tx: Tx) -> RunKey:
    run = await _running(tx)
    assert await seeds.settle(tx, seeds.retried(seeds.held(run)))
    return run


async def _dead(tx: Tx) -> RunKey:
    run = await _running(tx)
    assert await seeds.settle(
        tx, Settlement(seeds.held(run), SETTLED[Event.DEAD_LETTER], seeds.FAILURE)
    )
    return run


def events_of(source: Source, *others: str) -> list[str]:
    return [event for event in Event if source in TRANSITIONS[event].sources] + list(others)


def pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    return list(itertools.combinations_with_replacement(names, 2))


RUNNING = [*events_of(Source.RUNNING), Event.CANCEL, Event.KILL, "tell"]
SITUATIONS: dict[str, tuple[Callable[[Tx], Awaitable[RunKey]], datetime, list[tuple[str, str]]]] = {
    "ready": (_over_a_cap, LEASED_AT, pairs(events_of(Source.READY))),
    "waiting": (_waiting, LEASED_AT, pairs(events_of(Source.WAITING))),
    "held": (_held, LEASED_AT, pairs(events_of(Source.HELD))),
    "running": (_running, IN_TIME, pairs(RUNNING)),
    "asked to stop": (_asked, IN_TIME, [("tell", name) for name in RUNNING]),
    "lapsed": (_running, TOO_LATE, [(Event.EXPIRE, name) for name in [*RUNNING, Event.EXPIRE]]),
    "lapsed, asked to stop": (_asked, TOO_LATE, [(Event.EXPIRE, name) for name in RUNNING]),
    "retrying": (_retrying, LATER, pairs(events_of(Source.RETRYING))),
    "dead": (_dead, LATER, pairs(events_of(Source.DEAD, "discard"))),
}


# --- what is left of it -----------------------------------------------------------------------

LEFT = {
    "run": """SELECT state, claimable, hold, hold_key, failures, interruptions, attempt,
                     lease_version, cancel_reason, cancel_requested_at IS NOT NULL AS requested,
                     cancel_kills
              FROM runs WHERE job_id = $1""",
    "ledger": """SELECT outcome, reason, attempts FROM occurrences
                 WHERE job_id = $1 AND occurrence_at = $2""",
    "history": """SELECT attempt, lease_version, status FROM executions WHERE job_id = $1
                  ORDER BY lease_version, attempt""",
    "letter": "SELECT state, reason, attempts, replay_id FROM dead_letters WHERE job_id = $1",
}
# Only what is in the way of the next play: the rest would take the most of the time.
CLEAR = (
    "DELETE FROM runs WHERE job_id = $1 AND occurrence_at = $2",
    "DELETE FROM occurrences WHERE job_id = $1 AND occurrence_at = $2",
    "DELETE FROM dead_letters WHERE job_id = $1 AND occurrence_at = $2",
)


async def left(store: Store, run: RunKey) -> str:
    found = {}
    async with store.transaction() as tx:
        for name, query in LEFT.items():
            args = (run.job_id, run.occurrence_at) if "$2" in query else (run.job_id,)
            found[name] = [tuple(row.values()) for row in await tx.rows(query, *args)]
    return str(found)


class Pair:
    """Two events of a run in a situation."""

    def __init__(self, store: Store, stage: Stage, situation: str) -> None:
        self._store = store
        self._stage = stage
        self._make, self._now, self.pairs = SITUATIONS[situation]
        self._run: RunKey | None = None
        self._sound: set[str] = set()

    async def check(self, one: str, other: str) -> int:
        """Play every order; how many."""
        names = {"one": one, "other": other}
        found = {order: await self._play(names, order) for order in orders(await self._plan(names))}
        allowed = {found[tuple(sorted(order))] for order in found}
        allowed |= {found[tuple(sorted(order, reverse=True))] for order in found}
        for name, the_other in (("one", "other"), ("other", "one")):
            if names[name] in PASSES_OVER:
                allowed.add(await self._alone(names[the_other]))
        for order, what in found.items():
            assert what in allowed, f"{one} × {other} in order {order}: {what}, not {allowed}"
        return len(found)

    async def _plan(self, names: dict[str, str]) -> Plan:
        self._store.now = LEASED_AT
        async with self._store.transaction() as tx:
            for statement in CLEAR if self._run else ():
                await tx.execute(statement, *self._run[::2])  # type: ignore[index]
            run = self._run = await self._make(tx)
        return {
            session: [at(self._now, step) for step in STEPS[name](run)]
            for session, name in names.items()
        }

    async def _play(self, names: dict[str, str], order: Sequence[str]) -> str:
        played = await self._stage.play(await self._plan(names), order)
        assert not played.errors, (names, played)
        assert self._run is not None
        found = await left(self._store, self._run)
        if found not in self._sound:
            assert not await broken(self._store), (names, played)
            self._sound.add(found)
        return found

    async def _alone(self, name: str) -> str:
        plan = await self._plan({"one": name})
        return await self._play({"one": name}, ["one"] * (len(plan["one"]) + 1))


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_two_events_of_a_run_leave_what_one_after_the_other_would(
    store: Store, stage: Stage, situation: str
) -> None:
    pair = Pair(store, stage, situation)
    for one, other in pair.pairs:
        assert await pair.check(one, other) >= 6
