"""Jobs that are there: list, show, cancel, trigger."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, cast, get_args
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from noonday.api import bodies, keys, problems
from noonday.api.context import Caller, caller_of, context_of
from noonday.api.documents import JobDocument, JobStatus
from noonday.api.ids import job_id_of
from noonday.api.keys import Answer
from noonday.api.notes import denied, note
from noonday.api.pages import place
from noonday.api.parameters import RUNNING_WORDS
from noonday.api.problems import Problem, not_found
from noonday.api.queries import Query
from noonday.api.quotas import QuotaKeeper
from noonday.api.reading import read
from noonday.api.runs import run_document
from noonday.api.schemas import TriggerBody
from noonday.api.showing import shown
from noonday.domain.model import MICROSECOND, JobSpec, Kind, RunKey, shard_of
from noonday.domain.ranking import Ranks
from noonday.domain.roles import Role
from noonday.domain.schedule import overlap_of
from noonday.store import Row, Tx, cancels, jobs, locks, occurrences, overlaps, reports, runs
from noonday.store.backlogs import Change
from noonday.store.jobs import Filter
from noonday.store.occurrences import Opening

TRIGGER: Final = "POST /v1/jobs/{id}/trigger"

_encode: Final = msgspec.json.Encoder().encode
_read_spec: Final = msgspec.json.Decoder(JobSpec).decode


async def page(request: Request) -> Response:
    """The tenant's jobs, newest first."""
    query = Query(request)
    by = Filter(
        status=query.choice("status", get_args(JobStatus)),
        schedule_type=query.choice("schedule_type", ("once", "cron", "interval")),
        lane=query.text("lane"),
        name_prefix=query.text("name_prefix"),
        label=query.pair("label"),
        target_host=query.text("target_host"),
        created_from=query.instant("created_from"),
        created_to=query.instant("created_to"),
    )
    where = place(request, query, by)
    after = where.after(tuple[UUID])
    context = context_of(request)
    async with context.store.transaction() as tx:
        found = await reports.jobs(
            tx, caller_of(request).tenant_id, after[0] if after else None, where.limit, by
        )
        items = await shown(tx, context.secretbox, found.rows)
    return where.answer(items, (found.next_before,) if found.next_before else None)


async def get(request: Request) -> Response:
    """One job, or 304 when the caller has it as it is."""
    job_id = job_id_of(request)
    async with context_of(request).store.transaction() as tx:
        document = await shown_job(tx, request, job_id)
    body = _encode(document)
    tag = tag_of(document, body)
    if _has(request, tag):
        return Response(status_code=304, headers={"ETag": tag})
    return Response(body, 200, {"ETag": tag}, "application/json")


def tag_of(document: JobDocument, body: bytes) -> str:
    """The version, and a digest: how a job stands changes without a new version."""
    return f'"v{document.version}-{blake2b(body, digest_size=6).hexdigest()}"'


def _has(request: Request, tag: str) -> bool:
    """``If-None-Match`` (RFC 9110 §13.1.2), which compares weakly."""
    given = request.headers.get("if-none-match", "")
    return any(one.strip().removeprefix("W/") in (tag, "*") for one in given.split(","))


async def shown_job(tx: Tx, request: Request, job_id: UUID) -> JobDocument:
    """The caller's job as it stands; a 404 if there is none."""
    row = await reports.job(tx, job_id, caller_of(request).tenant_id)
    if row is None:
        raise not_found("No job")
    (document,) = await shown(tx, context_of(request).secretbox, [row])
    return document


# --- cancel -----------------------------------------------------------------------------------


async def cancel(request: Request) -> Response:
    """End a job: nothing of it starts any more. An attempt that is under way is the last one, or
    is cut off as well."""
    job_id = job_id_of(request)
    query = Query(request)
    stop = query.choice("running", RUNNING_WORDS) == "cancel"
    query.check()
    document: JobDocument | None = None
    change = Change(context_of(request).backlogs, {job_id: caller_of(request).tenant_id})
    async with context_of(request).store.transaction() as tx:
        job = await locked(tx, request, "job.cancel", job_id)
        if job is not None:
            require_own(job, caller_of(request))
            await change.begin(tx)
            await _cancel(tx, request, job, stop=stop)
            await change.end(tx)
            document = await shown_job(tx, request, job_id)
    change.note()
    if document is None:
        raise not_found("No job")
    return answer(document)


def answer(document: JobDocument) -> Response:
    """A job as it is after something was done to it."""
    body = _encode(document)
    return Response(body, 200, {"ETag": tag_of(document, body)}, "application/json")


async def locked(tx: Tx, request: Request, action: str, job_id: UUID) -> Row | None:
    """The caller's job, kept from every tick until the transaction ends; None is in the log.

    A try at somebody else's job costs the same as one at a job that nobody has.
    """
    tenant_id = caller_of(request).tenant_id
    if await jobs.one(tx, job_id, tenant_id) is None:
        await denied(tx, request, action, ("job", job_id))
        return None
    await locks.own_shard(tx, shard_of(job_id))
    # Read again: what ticks have done up to the lock is seen only now.
    return await jobs.one(tx, job_id, tenant_id)


def require_own(job: Row, caller: Caller) -> None:
    """A submitter may end or change what its own key created; who has a higher role, everything."""
    if caller.role < Role.OPERATOR and job["created_by"] != caller.key_id:
        raise Problem(
            403, "forbidden", "A key with the role submitter ends and changes only what it created."
        )


async def _cancel(tx: Tx, request: Request, job: Row, *, stop: bool) -> None:
    reason = f"cancelled by {caller_of(request).key_id}"
    if await cancels.cancel_job(tx, job, reason, stop=stop):
        before, after = {"state": job["state"]}, {"state": "CANCELLED", "stop": stop}
        await note(tx, request, "job.cancel", ("job", job["id"]), before, after)


# --- trigger ----------------------------------------------------------------------------------


async def trigger(request: Request) -> Response:
    """Run a job now, beside its schedule."""
    context = context_of(request)
    job_id = job_id_of(request)
    body = await bodies.read(request, context.body_limit, optional=True)
    wanted = read(body, TriggerBody) if body else TriggerBody()
    if isinstance(wanted, list):
        raise problems.invalid(wanted)
    use = keys.use_of(request, TRIGGER, body)

    quotas = cast("QuotaKeeper", request.app.state.quotas)
    share = await quotas.ask(caller_of(request), [0], makes=False)

    async def execute(tx: Tx) -> Answer | Problem:
        if share.refusal is not None:
            return share.refusal
        return await _trigger(tx, request, job_id, wanted.reason)

    try:
        if share.refusal is not None and use is None:
            raise share.refusal
        answer = await keys.once(context.store, use, execute)
        if not answer.replayed:
            share.made(0)
    finally:
        await share.close()
    context.wakeups.runs()
    return answer.response(share.headers)


async def _trigger(tx: Tx, request: Request, job_id: UUID, reason: str) -> Answer | Problem:
    job = await locked(tx, request, "job.trigger", job_id)
    if job is None:
        return not_found("No job")
    if job["state"] == "CANCELLED":
        raise problems.job_cancelled()
    waits = await _waits(tx, job)
    key = await _open(tx, job, context_of(request).ranks)
    if waits:
        await overlaps.queue(tx, key)
    done = {"run": str(key), "reason": reason}
    await note(tx, request, "job.trigger", ("job", job_id), after=done)
    row = await reports.run(tx, key, job["tenant_id"])
    if row is None:
        raise LookupError("a run that was opened is not there")
    return Answer(202, f"/v1/runs/{key}", _encode(run_document(row)))


async def _waits(tx: Tx, job: Row) -> bool:
    """Whether a run of the job has to wait for one that is unfinished."""
    overlap = overlap_of(_read_spec(job["spec"]).schedule)
    if overlap == "allow":
        return False
    unfinished = await runs.of_job(tx, job["id"], 1)
    if unfinished and overlap == "skip":
        raise Problem(
            409,
            "overlap",
            f"The job does not overlap itself, and run {runs.key_of(unfinished[0])} is unfinished.",
        )
    return bool(unfinished)


async def _open(tx: Tx, job: Row, ranks: Ranks) -> RunKey:
    """The next free instant names the run; two triggers of one microsecond do not share one."""
    now = at = await tx.clock()
    (rank,) = ranks([runs.work_of(job)], now)
    while True:
        opening = Opening(
            job["id"], at, Kind.TRIGGER, job["tenant_id"], at, job["payload_version"],
            job["lane"], job["priority"], rank, job["target_host"], job["concurrency_key"],
        )  # fmt: skip
        if await occurrences.open_now(tx, [opening], now):
            return RunKey(job["id"], Kind.TRIGGER, at)
        at += MICROSECOND
