"""Bulk actions: asked for, watched, aborted."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec
import uuid_utils.compat
from starlette.requests import Request
from starlette.responses import Response

from noonday.api import bodies, keys, problems
from noonday.api.context import caller_of, context_of
from noonday.api.documents import OperationDocument, maybe, stamp
from noonday.api.ids import job_id_of
from noonday.api.keys import Answer
from noonday.api.notes import denied, note
from noonday.api.pages import NEWEST, json, place, there
from noonday.api.problems import Problem, not_found
from noonday.api.queries import Query
from noonday.api.reading import Fault, read
from noonday.api.schemas import BulkCancelBody, JobFilterBody
from noonday.store import Row, Tx, operations
from noonday.store.jobs import Filter
from noonday.store.operations import BulkCancel

CANCEL_JOBS: Final = "POST /v1/jobs:cancel"

_encode: Final = msgspec.json.Encoder().encode


class _Subject(msgspec.Struct):
    """What is shown of what was asked for."""

    job_id: str | None = None


_read_subject: Final = msgspec.json.Decoder(_Subject).decode


async def cancel_jobs(request: Request) -> Response:
    """Cancel all jobs that a filter matches, as an operation."""
    context = context_of(request)
    body = await bodies.read(request, context.body_limit)
    wanted = read(body, BulkCancelBody)
    if isinstance(wanted, list):
        raise problems.invalid(wanted)
    if wanted.filter == JobFilterBody():
        raise problems.invalid([Fault("/filter", "required", "must narrow it down")])

    async def execute(tx: Tx) -> Answer | Problem:
        return await _begin(tx, request, wanted)

    answer = await keys.once(context.store, keys.use_of(request, CANCEL_JOBS, body), execute)
    return answer.response()


async def _begin(tx: Tx, request: Request, wanted: BulkCancelBody) -> Answer:
    given, caller = wanted.filter, caller_of(request)
    name, _, value = (given.label or "").partition(":")
    by = Filter(
        schedule_type=given.schedule_type, lane=given.lane, name_prefix=given.name_prefix,
        label=(name, value) if name else None, target_host=given.target_host,
        created_from=given.created_from, created_to=given.created_to,
    )  # fmt: skip
    reason = wanted.reason or f"cancelled by {caller.key_id}"
    text = _encode(BulkCancel(by, wanted.running, reason)).decode()
    made: UUID = uuid_utils.compat.uuid7()
    await operations.create(tx, made, caller.tenant_id, "cancel_jobs", text, caller.key_id)
    await note(tx, request, "operation.create", ("operation", made), after=wanted)
    row = await operations.one(tx, made, caller.tenant_id)
    return accepted(there(row))


def accepted(row: Row) -> Answer:
    """The answer to whoever has asked for an operation."""
    return Answer(202, f"/v1/operations/{row['id']}", _encode(_document(row)))


async def page(request: Request) -> Response:
    """The tenant's operations, newest first."""
    where = place(request, Query(request))
    (before,) = where.after(tuple[UUID]) or (NEWEST,)
    async with context_of(request).store.transaction() as tx:
        rows = await operations.page(tx, caller_of(request).tenant_id, before, where.limit + 1)
    return where.answer_rows(rows, _document, lambda row: (row["id"],))


async def get(request: Request) -> Response:
    """One operation, and how far it is."""
    operation_id = job_id_of(request, "No operation")
    async with context_of(request).store.transaction() as tx:
        row = await operations.one(tx, operation_id, caller_of(request).tenant_id)
    if row is None:
        raise not_found("No operation")
    return json(_document(row))


async def abort(request: Request) -> Response:
    """Stop an operation where it is; what it has done stays done."""
    operation_id = job_id_of(request, "No operation")
    tenant_id = caller_of(request).tenant_id
    async with context_of(request).store.transaction() as tx:
        if await operations.one(tx, operation_id, tenant_id) is not None:
            if await operations.end(tx, operation_id, "ABORTED"):
                await note(tx, request, "operation.abort", ("operation", operation_id))
        else:
            await denied(tx, request, "operation.abort", ("operation", operation_id))
        row = await operations.one(tx, operation_id, tenant_id)
    if row is None:
        raise not_found("No operation")
    if row["state"] not in ("RUNNING", "ABORTED"):
        raise Problem(409, "operation_ended", f"The operation has ended: {row['state']}.")
    return json(_document(row))


def _document(row: Row) -> OperationDocument:
    return OperationDocument(
        id=str(row["id"]),
        kind=row["kind"],
        state=row["state"],
        job_id=_read_subject(row["request"]).job_id,
        total=row["total"],
        looked_at=row["looked_at"],
        done=row["done"],
        skipped=row["looked_at"] - row["done"],
        created_by=row["created_by"],
        created_at=stamp(row["created_at"]),
        changed_at=stamp(row["changed_at"]),
        ended_at=maybe(row["ended_at"]),
        error=row["error"],
    )
