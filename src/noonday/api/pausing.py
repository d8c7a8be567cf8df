"""Jobs that are to fire nothing for now, and again."""

from __future__ import annotations

from datetime import datetime

from starlette.requests import Request
from starlette.responses import Response

from noonday.api import bodies
from noonday.api.context import caller_of, context_of
from noonday.api.creation import at_fault
from noonday.api.documents import JobDocument, maybe
from noonday.api.ids import job_id_of
from noonday.api.jobs import answer, locked, shown_job
from noonday.api.notes import note
from noonday.api.problems import Problem, job_cancelled, not_found
from noonday.api.schemas import PauseBody, ResumeBody
from noonday.domain.errors import ScheduleError
from noonday.domain.schedule import HORIZON
from noonday.store import Row, Tx, dependencies, jobs, pauses
from noonday.store.backlogs import Change


async def pause(request: Request) -> Response:
    """Fire nothing of a job for now; what has begun goes on."""
    job_id = job_id_of(request)
    wanted = await bodies.parsed(request, PauseBody, optional=True)
    document: JobDocument | None = None
    async with context_of(request).store.transaction() as tx:
        job = await locked(tx, request, "job.pause", job_id)
        if job is not None:
            await _pause(tx, request, job, wanted)
            document = await shown_job(tx, request, job_id)
    if document is None:
        raise not_found("No job")
    return answer(document)


async def _pause(tx: Tx, request: Request, job: Row, wanted: PauseBody) -> None:
    now, by = await tx.moment(), caller_of(request).key_id
    if wanted.until is not None and not now < wanted.until < HORIZON:
        raise at_fault("/until", "out_of_range", "must be later than now, and before 2200-01-01")
    reason = wanted.reason or f"paused by {by}"
    match job["state"]:
        case "ACTIVE":
            if await dependencies.lock(tx, [job["id"]]):
                raise _waits()
            ranks = context_of(request).ranks
            if not await pauses.pause(tx, job, reason, wanted.until, by, ranks, now):
                raise _ended()
            before = {"state": "ACTIVE"}
        case "PAUSED":
            known = await pauses.one(tx, job["id"])
            until = None if known is None else known.until_at
            if (job["state_reason"], until) == (reason, wanted.until):
                return
            await pauses.prolong(tx, job["id"], wanted.until, by)
            await jobs.pause(tx, job["id"], reason)
            before = _standing(job["state_reason"], until)
        case "SUSPENDED":
            raise Problem(409, "job_suspended", "The job is suspended: it fires nothing already.")
        case "ENDED":
            raise _ended()
        case _:
            raise job_cancelled()
    after = _standing(reason, wanted.until)
    await note(tx, request, "job.pause", ("job", job["id"]), before, after)


def _standing(reason: str, until: datetime | None) -> dict[str, str]:
    return {"state": "PAUSED", "reason": reason, "until": maybe(until) or "resumed"}


def _ended() -> Problem:
    return Problem(409, "job_ended", "Nothing of the job is left to fire.")


def _waits() -> Problem:
    return Problem(
        409,
        "job_waits",
        "The job waits for others, and fires nothing before they have ended: pause those.",
    )


async def resume(request: Request) -> Response:
    """Let a job fire again that was paused or suspended; any other stays as it is."""
    job_id = job_id_of(request)
    wanted = await bodies.parsed(request, ResumeBody, optional=True)
    document: JobDocument | None = None
    change = Change(context_of(request).backlogs, {job_id: caller_of(request).tenant_id})
    async with context_of(request).store.transaction() as tx:
        job = await locked(tx, request, "job.resume", job_id)
        if job is not None:
            await change.begin(tx)
            await _resume(tx, request, job, wanted)
            await change.end(tx)
            document = await shown_job(tx, request, job_id)
    change.note()
    if document is None:
        raise not_found("No job")
    return answer(document)


async def _resume(tx: Tx, request: Request, job: Row, wanted: ResumeBody) -> None:
    if job["state"] == "CANCELLED":
        raise job_cancelled()
    if job["state"] not in ("PAUSED", "SUSPENDED"):
        return
    now = await tx.moment()
    try:
        await pauses.resume(tx, job, now, now, catch_up=wanted.catch_up)
    except ScheduleError as error:
        raise Problem(
            409, "not_computable", f"The job's schedule cannot be computed: {error}."
        ) from None
    before = {"state": job["state"], "reason": job["state_reason"]}
    after = {"state": "ACTIVE", "reason": wanted.reason, "catch_up": wanted.catch_up}
    await note(tx, request, "job.resume", ("job", job["id"]), before, after)
