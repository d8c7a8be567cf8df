"""Backfills: the past of a recurring job, asked for here and opened by the schedulers."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import uuid_utils.compat
from starlette.requests import Request
from starlette.responses import Response

from noonday.api import bodies, keys, problems
from noonday.api.checks import UNKNOWN_LANE
from noonday.api.context import caller_of, context_of
from noonday.api.documents import BackfillCount
from noonday.api.ids import job_id_of
from noonday.api.keys import Answer
from noonday.api.notes import denied, note
from noonday.api.operations import accepted
from noonday.api.pages import json, there
from noonday.api.problems import Problem, not_found
from noonday.api.reading import Fault, Faults, read
from noonday.api.schemas import BackfillBody
from noonday.domain import backfill
from noonday.domain.backfill import MOST, Place, Span, Version
from noonday.domain.errors import ScheduleError
from noonday.domain.model import JobSpec, Schedule
from noonday.store import Row, Tx, backfills, jobs, lanes, operations, partitions
from noonday.store.backfills import Backfill

CREATE: Final = "POST /v1/jobs/{id}/backfill"

_encode: Final = msgspec.json.Encoder().encode
_read_spec: Final = msgspec.json.Decoder(JobSpec).decode


class _Found(NamedTuple):
    """What there is in the range."""

    schedule: Schedule
    armed: Place | None
    spans: tuple[Span, ...]
    nominal: int


async def create(request: Request) -> Response:
    """Ask for a backfill; or, as a dry run, count what it would find."""
    context, job_id = context_of(request), job_id_of(request)
    document = await bodies.read(request, context.body_limit)
    wanted = read(document, BackfillBody)
    if isinstance(wanted, list):
        raise problems.invalid(wanted)
    if wanted.dry_run:
        async with context.store.transaction() as tx:
            counted = await _count(tx, request, job_id, wanted)
        if counted is None:
            raise not_found("No job")
        return json(counted)

    async def execute(tx: Tx) -> Answer | Problem:
        return await _begin(tx, request, job_id, wanted)

    use = keys.use_of(request, CREATE, document)
    return (await keys.once(context.store, use, execute)).response()


async def _begin(tx: Tx, request: Request, job_id: UUID, wanted: BackfillBody) -> Answer | Problem:
    job = await _job(tx, request, job_id)
    if job is None:
        return not_found("No job")
    found, caller = await _find(tx, job, wanted), caller_of(request)
    made: UUID = uuid_utils.compat.uuid7()
    asked = Backfill(
        job_id, found.spans, wanted.lane, wanted.priority, wanted.rate_per_sec, wanted.reason
    )
    text = _encode(asked).decode()
    await operations.create(
        tx, made, caller.tenant_id, "backfill", text, caller.key_id, found.nominal
    )
    after = {"job": str(job_id), "asked": wanted, "nominal": found.nominal}
    await note(tx, request, "operation.create", ("operation", made), after=after)
    return accepted(there(await operations.one(tx, made, caller.tenant_id)))


async def _count(
    tx: Tx, request: Request, job_id: UUID, wanted: BackfillBody
) -> BackfillCount | None:
    job = await _job(tx, request, job_id)
    if job is None:
        return None
    found = await _find(tx, job, wanted)
    times = await asyncio.to_thread(lambda: list(backfill.times(found.spans, job_id)))
    ran = await backfills.ran(tx, job_id, [each.at for each in times])
    until = await backfills.undecided_from(tx, job_id, found.schedule, found.armed)
    to_run = sum(backfill.is_open(each, ran, until) for each in times)
    return BackfillCount(found.nominal, to_run, len(ran), found.nominal - to_run - len(ran))


async def _job(tx: Tx, request: Request, job_id: UUID) -> Row | None:
    """The caller's job, if it is one that can be backfilled; that it is none is in the log."""
    job = await jobs.one(tx, job_id, caller_of(request).tenant_id)
    if job is None:
        await denied(tx, request, "job.backfill", ("job", job_id))
        return None
    if job["schedule_type"] == "once":
        raise Problem(409, "not_recurring", "The job fires once; trigger it instead.")
    if job["state"] == "CANCELLED":
        raise problems.job_cancelled()
    return job


async def _find(tx: Tx, job: Row, wanted: BackfillBody) -> _Found:
    await _check(tx, wanted)
    try:
        schedule = _read_spec(job["spec"]).schedule
        versions = await backfills.versions(tx, job, schedule)
        armed = await backfills.armed(tx, job["id"])
        # Thousands of nominal times, perhaps: others are answered meanwhile.
        spans, count = await asyncio.to_thread(
            _measured, versions, job["id"], wanted.from_at, wanted.to_at, armed
        )
    except (msgspec.MsgspecError, ScheduleError) as error:
        detail = f"The job's schedule cannot be computed: {error}."
        raise Problem(409, "not_computable", detail) from None
    if count is None:
        detail = f"leaves more than {MOST:,} nominal times up to there; take a part of the range"
        raise problems.invalid([Fault("/from", "out_of_range", detail)])
    return _Found(schedule, armed, spans, count)


def _measured(
    versions: list[Version], job_id: UUID, from_at: datetime, to_at: datetime, armed: Place | None
) -> tuple[tuple[Span, ...], int | None]:
    spans = backfill.spans(versions, job_id, from_at, to_at, armed)
    return spans, backfill.count(spans, job_id)


async def _check(tx: Tx, wanted: BackfillBody) -> None:
    """What of a request only the database can judge, all faults at once."""
    faults = Faults()
    begins: datetime = await tx.value(partitions.LEDGER_START)
    if wanted.to_at > await tx.clock():
        faults.add("/to", "out_of_range", "must not be in the future")
    if wanted.from_at > wanted.to_at:
        faults.add("/from", "out_of_range", "must not be later than to", "/to")
    if wanted.from_at < begins:
        detail = f"must not lie before {begins:%Y-%m-%d}, where the ledger begins"
        faults.add("/from", "before_ledger", detail)
    if await lanes.missing(tx, {wanted.lane}):
        faults.add("/lane", UNKNOWN_LANE, "is no lane that there is")
    if faults:
        raise problems.invalid(faults.all())
