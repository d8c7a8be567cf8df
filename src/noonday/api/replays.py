"""Gated replays of dead letters: started here, moved on by the schedulers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from noonday.api import bodies, keys, problems
from noonday.api.context import caller_of, context_of
from noonday.api.ids import job_id_of
from noonday.api.keys import Answer
from noonday.api.letter_documents import ReplayDocument, count_document, replay_document
from noonday.api.notes import denied, note
from noonday.api.pages import NEWEST, json, place
from noonday.api.problems import Problem, not_found
from noonday.api.queries import Query
from noonday.api.replay_bodies import ReplayBody, WhyBody, read_replay, terms_of
from noonday.domain.replay import ReplayState
from noonday.store import Tx, replays
from noonday.store.replays import Replay

CREATE: Final = "POST /v1/dlq/replays"
RUNNING, PAUSED, STOPPED, ABORTED, DONE = ReplayState

_encode: Final = msgspec.json.Encoder().encode


async def create(request: Request) -> Response:
    """Start a replay; or, as a dry run, count what it would find."""
    context = context_of(request)
    document = await bodies.read(request, context.body_limit)
    wanted = read_replay(document)
    if isinstance(wanted, list):
        raise problems.invalid(wanted)
    if wanted.dry_run:
        async with context.store.transaction() as tx:
            found = await replays.count(tx, caller_of(request).tenant_id, terms_of(wanted))
        return json(count_document(found))

    async def execute(tx: Tx) -> Answer | Problem:
        return await _create(tx, request, wanted)

    use = keys.use_of(request, CREATE, document)
    return (await keys.once(context.store, use, execute)).response()


async def _create(tx: Tx, request: Request, wanted: ReplayBody) -> Answer:
    caller, terms = caller_of(request), terms_of(wanted)
    found = await replays.count(tx, caller.tenant_id, terms)
    replay_id = await replays.create(
        tx, caller.tenant_id, terms, wanted.reason, caller.key_id, found
    )
    # Which ids they were stays with the replay.
    said = msgspec.structs.asdict(terms) | {"ids": len(terms.ids or ()) or None}
    after = {"terms": said, "reason": wanted.reason, "matched": found.matched}
    await note(tx, request, "replay.create", ("replay", replay_id), after=after)
    shown = await _shown(tx, replay_id, caller.tenant_id)
    return Answer(202, f"/v1/dlq/replays/{replay_id}", _encode(shown))


async def page(request: Request) -> Response:
    """The tenant's replays, newest first."""
    where = place(request, Query(request))
    (before,) = where.after(tuple[UUID]) or (NEWEST,)
    async with context_of(request).store.transaction() as tx:
        now = await tx.clock()
        rows = await replays.page(tx, caller_of(request).tenant_id, before, where.limit + 1)
    return where.answer_rows(rows, lambda row: replay_document(row, now), lambda row: (row["id"],))


async def get(request: Request) -> Response:
    """One replay, as it stands."""
    replay_id = job_id_of(request, "No replay")
    async with context_of(request).store.transaction() as tx:
        shown = await _shown(tx, replay_id, caller_of(request).tenant_id)
    if shown is None:
        raise not_found("No replay")
    return json(shown)


async def _shown(tx: Tx, replay_id: UUID, tenant_id: int) -> ReplayDocument | None:
    row = await replays.one(tx, replay_id, tenant_id)
    return None if row is None else replay_document(row, await tx.clock())


# --- pause, resume, abort ---------------------------------------------------------------------


async def pause(request: Request) -> Response:
    """Reopen no more for now. What is reopened goes on."""
    return await _turn(request, "replay.pause", PAUSED, (RUNNING,))


async def resume(request: Request) -> Response:
    """Go on. After a stop the canary is asked for again; the ramp begins anew."""
    return await _turn(request, "replay.resume", RUNNING, (PAUSED, STOPPED))


async def abort(request: Request) -> Response:
    """Reopen no more for good. What is reopened goes on."""
    return await _turn(request, "replay.abort", ABORTED, (RUNNING, PAUSED, STOPPED))


async def _turn(
    request: Request, action: str, to: ReplayState, sources: Collection[ReplayState]
) -> Response:
    replay_id = job_id_of(request, "No replay")
    why = (await bodies.parsed(request, WhyBody, optional=True)).reason
    tenant_id = caller_of(request).tenant_id
    async with context_of(request).store.transaction() as tx:
        replay = await replays.locked(tx, replay_id, tenant_id)
        if replay is None:
            await denied(tx, request, action, ("replay", replay_id))
        elif replay.state in sources:
            before = {"state": replay.state, "state_reason": replay.state_reason}
            await _change(tx, replay, to, why)
            after = {"state": to, "reason": why}
            await note(tx, request, action, ("replay", replay_id), before, after)
        shown = await _shown(tx, replay_id, tenant_id)
    if replay is None or shown is None:
        raise not_found("No replay")
    if replay.state is not to:
        raise Problem(409, "replay_over", f"The replay is {replay.state}; this comes too late.")
    return json(shown)


async def _change(tx: Tx, replay: Replay, to: ReplayState, why: str) -> None:
    now = await tx.moment()
    if to is RUNNING:
        if replay.state is STOPPED:
            replay.recent, replay.canary_passed_at, replay.ramp_from = [], None, None
        elif replay.ramp_from is not None:
            replay.ramp_from = now
        replay.next_at = max(replay.next_at, now)
    replay.turn(to, why or None, now)
    await replays.save(tx, replay)
