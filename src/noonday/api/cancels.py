"""Cancel one run: at once where it waits, in stages where it is under way."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from noonday.api import bodies, problems
from noonday.api.context import caller_of, context_of
from noonday.api.ids import run_key_of
from noonday.api.jobs import require_own
from noonday.api.notes import denied, note
from noonday.api.pages import json
from noonday.api.problems import Problem, not_found
from noonday.api.runs import run_document
from noonday.api.schemas import CancelBody
from noonday.domain.model import RunKey
from noonday.domain.roles import Role
from noonday.store import Row, Tx, cancels, jobs, reports
from noonday.store.backlogs import Change
from noonday.store.cancels import Which

_ACTION: Final = "run.cancel"


async def run(request: Request) -> Response:
    """End a run, or ask its worker to cut it off; with ``dead_letter`` it is set aside as one."""
    key = run_key_of(request)
    tenant_id = caller_of(request).tenant_id
    wanted = await bodies.parsed(request, CancelBody, optional=True)
    change = Change(context_of(request).backlogs, {key.job_id: tenant_id})
    async with context_of(request).store.transaction() as tx:
        await change.begin(tx)
        found = await _end(tx, request, key, wanted)
        await change.end(tx)
        row = await reports.run(tx, key, tenant_id)
    change.note()
    if row is None:
        raise not_found("No run")
    if not found and row["outcome"] != _expected(wanted):
        raise Problem(409, "run_ended", f"The run has ended: {row['outcome']}.")
    return json(run_document(row))


def _expected(wanted: CancelBody) -> str:
    return "FAILED" if wanted.dead_letter else "CANCELLED"


async def _end(tx: Tx, request: Request, key: RunKey, wanted: CancelBody) -> bool:
    """Whether there was an unfinished run to end."""
    caller, what = caller_of(request), ("run", key)
    job = await jobs.one(tx, key.job_id, caller.tenant_id)
    if job is None:
        await denied(tx, request, _ACTION, what)
        return False
    _require_right(request, job, wanted)
    which, reason = Which.run(key), wanted.reason or f"cancelled by {caller.key_id}"
    await cancels.lock(tx, which)  # a claim or a settle that is under way comes first
    found = await cancels.cancel(tx, which, reason, kill=wanted.dead_letter)
    found += await cancels.request(tx, which, reason, stop=True, kill=wanted.dead_letter)
    if found:
        after = {"reason": reason, "dead_letter": wanted.dead_letter}
        await note(tx, request, _ACTION, what, after=after)
    return found > 0


def _require_right(request: Request, job: Row, wanted: CancelBody) -> None:
    caller = caller_of(request)
    require_own(job, caller)
    if wanted.dead_letter and caller.role < Role.OPERATOR:
        raise problems.forbidden(Role.OPERATOR)
