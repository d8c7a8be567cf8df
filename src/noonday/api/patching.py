"""``PATCH /v1/jobs/{id}``: a job becomes another version of itself.

The patch is laid over the job and judged as a new job would be, before anything is held. Then, with
the job's shard, it is written if the job is still at the version that was judged.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from noonday.api import bodies, headers, patches, posting, problems, revising, schemas
from noonday.api.auth import KNOWN_SEC
from noonday.api.context import INLINE_BYTES, caller_of, context_of, lanes_of
from noonday.api.documents import ChangedJobDocument, FiresChange, JobChanges, JobDocument
from noonday.api.ids import job_id_of
from noonday.api.jobs import locked, require_own, shown_job, tag_of
from noonday.api.notes import denied
from noonday.api.parameters import BOOLEANS
from noonday.api.patches import Patch
from noonday.api.problems import Problem, not_found
from noonday.api.queries import Query
from noonday.api.revising import Draft
from noonday.api.schemas import JobRequest
from noonday.domain.errors import SecretUnreadable
from noonday.domain.lanes import usual_jitter
from noonday.domain.model import JobSpec
from noonday.domain.ranking import by_time
from noonday.store import Row, Tx, changes, jobs
from noonday.store.backlogs import Change
from noonday.store.blobs import new_reference
from noonday.store.changes import Payload
from noonday.store.secretbox import HEADERS

TRIES: Final = 5
"""How often a change of whichever version is judged anew, since the job has changed meanwhile."""

_encode: Final = msgspec.json.Encoder().encode
_read_spec: Final = msgspec.json.Decoder(JobSpec).decode
_read_texts: Final = msgspec.json.Decoder(dict[str, str]).decode


class _Rehearsed(Exception):
    """Ends the transaction of a change that is not to be made."""

    def __init__(self, document: ChangedJobDocument) -> None:
        super().__init__()
        self.document = document


async def change(request: Request) -> Response:
    """Change a job; nothing of it as it was fires after the answer."""
    job_id, query = job_id_of(request), Query(request)
    rehearsal = query.choice("dry_run", BOOLEANS) == "true"
    query.check()
    versions = headers.if_match(request)
    body = await bodies.read(request, context_of(request).body_limit, types=bodies.MERGE_PATCH)
    patch = patches.read(body)
    for _ in range(TRIES):
        draft = await _draft(request, job_id, versions, patch)
        try:
            return await _carry_out(request, draft, rehearsal=rehearsal)
        except revising.Moved:
            continue
    raise _stale()


def _stale() -> Problem:
    return Problem(
        412, "precondition_failed", "The job is not at the version that If-Match names; look again."
    )


# --- what it is to be -------------------------------------------------------------------------


async def _draft(
    request: Request, job_id: UUID, versions: frozenset[int] | None, patch: Patch
) -> Draft:
    caller = caller_of(request)
    async with context_of(request).store.transaction() as tx:
        job = await jobs.one(tx, job_id, caller.tenant_id)
        payload = None
        if job is None:
            await denied(tx, request, "job.change", ("job", job_id))
        elif patches.has_payload(patch):
            payload = await changes.payload(tx, job_id)
    if job is None:
        raise not_found("No job")
    require_own(job, caller)
    if versions is not None and job["version"] not in versions:
        raise _stale()
    if job["state"] == "CANCELLED":
        raise problems.job_cancelled()
    spec, secrets = _opened(request, job)
    wanted = await _wanted(request, patch, patches.body_of(job, spec, secrets))
    if len(wanted.payload) > caller.max_payload_bytes:
        raise problems.too_large(caller.max_payload_bytes, "payload")
    known = await lanes_of(request).known(KNOWN_SEC)
    jitter_sec = usual_jitter(known.get(wanted.lane), caller.jitter_sec)
    new = None if payload is None else _new(wanted, payload)
    return Draft(job, spec, secrets, wanted, new, jitter_sec)


def _opened(request: Request, job: Row) -> tuple[JobSpec, dict[str, str]]:
    """What is stored of a job as one document, and its headers that are stored sealed."""
    try:
        spec = _read_spec(job["spec"])
    except msgspec.MsgspecError as error:
        raise Problem(409, "not_computable", f"The job cannot be read: {error}.") from None
    if job["secret_headers"] is None:
        return spec, {}
    box = context_of(request).secretbox
    try:
        return spec, _read_texts(box.open(job["secret_headers"], job["tenant_id"], HEADERS))
    except SecretUnreadable:
        raise Problem(
            409, "secret_unreadable", "The job's credentials do not open with the key at hand."
        ) from None


async def _wanted(request: Request, patch: Patch, base: dict[str, Any]) -> JobRequest:
    immutable = [patches.IMMUTABLE] if "after" in patch else []
    rest = {name: value for name, value in patch.items() if name != "after"}
    body = patches.laid_over(rest, base)
    wanted = await posting.read_body(request, schemas.read_job, body)
    if isinstance(wanted, list):
        raise problems.invalid([*immutable, *wanted])
    if immutable:
        raise problems.invalid(immutable)
    return wanted


def _new(wanted: JobRequest, was: Payload) -> Payload | None:
    """The payload, if it is another one. (What lies in the blob store is not compared.)"""
    size = len(wanted.payload)
    made = Payload(wanted.payload, None, size, wanted.content_type)
    if size > INLINE_BYTES:
        return made._replace(payload=None, payload_ref=new_reference())
    return None if made == was else made


# --- making it so -----------------------------------------------------------------------------


async def _carry_out(request: Request, draft: Draft, *, rehearsal: bool) -> Response:
    context = context_of(request)
    draft, reference = await _with_blob(request, draft, rehearsal=rehearsal)
    backlog = Change(context.backlogs, {draft.job["id"]: draft.job["tenant_id"]})
    try:
        async with context.store.transaction() as tx:
            changed = await _change(tx, request, draft, backlog, rehearsal=rehearsal)
    except _Rehearsed as rehearsed:
        return Response(_encode(rehearsed.document), 200, None, "application/json")
    except (Problem, revising.Moved):
        if reference is not None:  # no row names it
            await context.blobs.delete(reference)
        raise
    backlog.note()
    return _answer(changed)


async def _with_blob(
    request: Request, draft: Draft, *, rehearsal: bool
) -> tuple[Draft, str | None]:
    """The draft, its payload put into the blob store if that is where it belongs."""
    if draft.payload is None or draft.payload.payload_ref is None or rehearsal:
        return draft, None
    reference = await posting.put_payload(context_of(request), draft.wanted.payload)
    return draft._replace(payload=draft.payload._replace(payload_ref=reference)), reference


def _answer(changed: ChangedJobDocument) -> Response:
    """The tag is that of the job itself."""
    job = asdict(changed)
    del job["changes"]
    document = JobDocument(**job)
    tag = tag_of(document, _encode(document))
    return Response(_encode(changed), 200, {"ETag": tag}, "application/json")


async def _change(
    tx: Tx, request: Request, draft: Draft, backlog: Change, *, rehearsal: bool
) -> ChangedJobDocument:
    job = await locked(tx, request, "job.change", draft.job["id"])
    if job is None or job["version"] != draft.job["version"]:
        raise revising.Moved
    await backlog.begin(tx)
    now = await tx.moment()
    fields = revising.differences(draft, draft.wanted.schedule(now, draft.jitter_sec))
    before = (await shown_job(tx, request, job["id"])).next_fires
    if fields:
        ranks = by_time if rehearsal else context_of(request).ranks
        stands = await changes.stop(tx, draft.job, ranks, now)
        before = revising.fires(draft.spec.schedule, job, stands)
        await revising.write(tx, request, draft, stands, fields, now)
    await backlog.end(tx)
    document = await shown_job(tx, request, job["id"])
    came_to = JobChanges(list(fields), _compared(before, document.next_fires))
    changed = ChangedJobDocument(**asdict(document), changes=came_to)
    if rehearsal:
        raise _Rehearsed(changed)
    return changed


def _compared(before: list[str], after: list[str]) -> FiresChange:
    return FiresChange(
        before,
        after,
        added=[at for at in after if at not in before],
        removed=[at for at in before if at not in after],
    )
