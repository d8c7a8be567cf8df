"""Runs, their attempts, and the ledger of a job."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, NamedTuple
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from noonday.api.context import caller_of, context_of
from noonday.api.documents import (
    CancelDocument,
    ExecutionDocument,
    OccurrenceDocument,
    RangeDocument,
    ResponseDocument,
    RunDocument,
    maybe,
    stamp,
)
from noonday.api.ids import job_id_of, run_key_of
from noonday.api.pages import json, place
from noonday.api.problems import not_found
from noonday.api.queries import Query
from noonday.domain.caps import HOLDS, in_words
from noonday.domain.model import Kind
from noonday.store import Row, Tx, jobs, occurrence_ranges, occurrences, reports, runs
from noonday.store.reports import ExecutionPosition

_read_response: Final = msgspec.json.Decoder(ResponseDocument).decode
_WORDS: Final[tuple[Literal["schedule", "trigger", "backfill"], ...]] = (
    "schedule",
    "trigger",
    "backfill",
)


async def get(request: Request) -> Response:
    """One run, unfinished or ended."""
    key = run_key_of(request)
    async with context_of(request).store.transaction() as tx:
        row = await reports.run(tx, key, caller_of(request).tenant_id)
    if row is None:
        raise not_found("No run")
    return json(run_document(row))


def run_document(row: Row) -> RunDocument:
    """A run's ledger row, joined with the run while that is unfinished."""
    unfinished = row["state"] is not None
    return RunDocument(
        id=str(runs.key_of(row)),
        job_id=str(row["job_id"]),
        kind=_WORDS[row["kind"]],
        state=row["state"] if unfinished else row["outcome"],
        occurrence_at=stamp(row["occurrence_at"]),
        due_at=stamp(row["due_at"]),
        attempt=row["attempt"] if unfinished else row["attempts"],
        lane=row["lane"],
        priority=row["priority"],
        lease_version=row["lease_version"],
        worker_id=_text(row["worker_id"]),
        leased_at=maybe(row["leased_at"]),
        locked_until=maybe(row["locked_until"]),
        retry_at=maybe(row["retry_at"]),
        hold=row["hold"],
        hold_reason=in_words(row["hold_key"]) if row["hold"] in HOLDS else row["hold_reason"],
        hold_since=maybe(row["hold_since"]),
        cancel=_cancel_document(row),
        reason=row["reason"],
        ended_at=maybe(row["ended_at"]),
    )


def _cancel_document(row: Row) -> CancelDocument | None:
    if row["cancel_reason"] is None:
        return None
    requested_at, told_at = row["cancel_requested_at"], row["cancel_told_at"]
    stage: Literal["finishing", "requested", "told"] = "finishing"
    if requested_at is not None:
        stage = "requested" if told_at is None else "told"
    return CancelDocument(stage, row["cancel_reason"], maybe(requested_at), maybe(told_at))


async def executions(request: Request) -> Response:
    """The attempts of a job, those under way first, then newest first."""
    job_id = job_id_of(request)
    where = place(request, Query(request))
    before = where.after(ExecutionPosition)
    tenant_id = caller_of(request).tenant_id
    async with context_of(request).store.transaction() as tx:
        await _require_job(tx, job_id, tenant_id)
        running = [] if before else await reports.running(tx, job_id, tenant_id, where.limit)
        room = where.limit - len(running)
        ended = await reports.executions(
            tx, job_id, tenant_id, before or ExecutionPosition(), room + 1
        )
    items = [_running_document(row) for row in running]
    items += [_execution_document(row) for row in ended[:room]]
    more = len(ended) > room
    last = _position(ended[room - 1]) if more and room else ExecutionPosition()
    return where.answer(items, last if more else None)


def _position(row: Row) -> ExecutionPosition:
    return ExecutionPosition(row["finished_at"], row["occurrence_at"], row["kind"], row["attempt"])


def _running_document(row: Row) -> ExecutionDocument:
    return ExecutionDocument(
        run_id=str(runs.key_of(row)),
        attempt=row["attempt"],
        lease_version=row["lease_version"],
        worker_id=str(row["worker_id"]),
        status="RUNNING",
        started_at=stamp(row["leased_at"]),
        finished_at=None,
        duration_ms=None,
        http_status=None,
        error=None,
        unknown=False,
        retry_at=None,
        response=None,
        duplicate_cause=None,
    )


def _execution_document(row: Row) -> ExecutionDocument:
    return ExecutionDocument(
        run_id=str(runs.key_of(row)),
        attempt=row["attempt"],
        lease_version=row["lease_version"],
        worker_id=str(row["worker_id"]),
        status=row["status"],
        started_at=stamp(row["leased_at"]),
        finished_at=stamp(row["finished_at"]),
        duration_ms=_millis(row["leased_at"], row["finished_at"]),
        http_status=row["http_status"],
        error=row["error"],
        unknown=row["unknown"],
        retry_at=maybe(row["retry_at"]),
        response=_response(row["response"]),
        duplicate_cause=row["duplicate_cause"],
    )


class LedgerPosition(NamedTuple):
    """Just before this line of the ledger."""

    occurrence_at: datetime = reports.END
    kind: int = Kind.SCHEDULE


async def ledger(request: Request) -> Response:
    """The ledger of a job: what became of each nominal time, latest first."""
    job_id = job_id_of(request)
    where = place(request, Query(request))
    before = where.after(LedgerPosition) or LedgerPosition()
    tenant_id = caller_of(request).tenant_id
    async with context_of(request).store.transaction() as tx:
        await _require_job(tx, job_id, tenant_id)
        wanted = (job_id, tenant_id, *before, where.limit + 1)
        rows = await occurrences.ledger(tx, *wanted) + await occurrence_ranges.ledger(tx, *wanted)
    rows.sort(key=lambda row: (row["occurrence_at"], row["kind"]), reverse=True)
    return where.answer_rows(
        rows,
        _occurrence_document,
        lambda row: LedgerPosition(row["occurrence_at"], row["kind"]),
    )


def _occurrence_document(row: Row) -> OccurrenceDocument:
    if row["kind"] == occurrence_ranges.KIND:
        return _range_document(row)
    return OccurrenceDocument(
        run_id=str(runs.key_of(row)),
        kind=_WORDS[row["kind"]],
        occurrence_at=stamp(row["occurrence_at"]),
        due_at=stamp(row["due_at"]),
        materialized_at=stamp(row["materialized_at"]),
        late_ms=max(_millis(row["due_at"], row["materialized_at"]), 0),
        outcome=row["outcome"],
        reason=row["reason"],
        blocking_run=row["blocking_run"],
        ended_at=maybe(row["ended_at"]),
        attempts=row["attempts"],
        schedule_version=_version(row),
        superseded_by=row["superseded_by"],
    )


def _version(row: Row) -> int | None:
    return row["schedule_version"] or 1 if row["kind"] == Kind.SCHEDULE else None


def _range_document(row: Row) -> OccurrenceDocument:
    until = stamp(row["occurrence_at"])
    return OccurrenceDocument(
        run_id=None,
        kind="schedule",
        occurrence_at=until,
        due_at=None,
        materialized_at=stamp(row["written_at"]),
        late_ms=None,
        outcome=row["outcome"],
        reason=row["reason"],
        blocking_run=None,
        ended_at=stamp(row["written_at"]),
        attempts=None,
        schedule_version=row["schedule_version"],
        superseded_by=row["superseded_by"],
        range=RangeDocument(stamp(row["from_at"]), until, row["count"], row["caused_by"]),
    )


async def _require_job(tx: Tx, job_id: UUID, tenant_id: int) -> None:
    if await jobs.one(tx, job_id, tenant_id) is None:
        raise not_found("No job")


def _response(text: str | None) -> ResponseDocument | None:
    return None if text is None else _read_response(text)


def _millis(start: datetime, end: datetime) -> int:
    return round((end - start).total_seconds() * 1000)


def _text(worker_id: UUID | None) -> str | None:
    return None if worker_id is None else str(worker_id)
