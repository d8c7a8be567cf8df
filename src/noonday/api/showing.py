"""Jobs as they are shown: what was asked for, and how it stands."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from noonday.api.documents import (
    JobDocument,
    after_document,
    maybe,
    maybe_url,
    schedule_document,
    stamp,
    target_document,
)
from noonday.api.schemas import JobRequest
from noonday.domain import pausing, schedule
from noonday.domain.dependencies import NOTHING, After
from noonday.domain.errors import ScheduleError, SecretUnreadable
from noonday.domain.model import JobSpec, Once, Schedule
from noonday.store import Row, Tx, dependencies, reports
from noonday.store.jobs import NewJob
from noonday.store.secretbox import HEADERS, SecretBox

FIRES: Final = 5
"""How many of the next occurrences are shown."""
WAITS_FOR: Final = 20
"""How many of the jobs are shown that one waits for."""

HOT: Final = (
    "Much else is due in the minute of {minute}, so it may have to wait. Another minute, a "
    "jitter_sec, or H in place of the minute of a cron expression avoid that; see GET /v1/forecast."
)
"""What is said of a hot minute."""

_read_spec: Final = msgspec.json.Decoder(JobSpec).decode
_read_after: Final = msgspec.json.Decoder(After).decode
_read_texts: Final = msgspec.json.Decoder(dict[str, str]).decode


class Armed(NamedTuple):
    """The occurrence that a timer stands at, and the number of that."""

    occurrence_at: datetime
    seq: int


def fires(wanted: Schedule, job_id: UUID, armed: Armed | None) -> list[datetime]:
    """The occurrence that is armed and those after it, but for what the schedule leaves out."""
    if armed is None:
        return []
    left = schedule.left_from(wanted, armed.seq)
    count = FIRES if left is None else min(FIRES, left)
    first = armed.occurrence_at
    later = schedule.upcoming(wanted, job_id, first, count - 1)
    return [at for at in (first, *later) if not schedule.is_left_out(wanted, at, job_id)]


def next_run(
    wanted: Schedule, job_id: UUID, armed: Armed | None, due_at: datetime
) -> datetime | None:
    """When the armed occurrence is due; where the schedule leaves it out, the next one after it."""
    if armed is None or not schedule.is_left_out(wanted, armed.occurrence_at, job_id):
        return due_at
    after = fires(wanted, job_id, armed)
    return after[0] + schedule.jitter(job_id, wanted.jitter_sec) if after else None


def new_job(
    job: NewJob,
    job_id: str,
    spec: JobSpec,
    request: JobRequest,
    armed: Armed | None,
    next_run_at: datetime | None,
    waits_for: Sequence[UUID] = (),
    hot: Container[datetime] = (),
) -> JobDocument:
    """A job that was created just now; ``armed`` is where its timer stands, ``hot`` are the hot
    minutes."""
    coming = fires(spec.schedule, job.id, armed)
    return JobDocument(
        job_id, job.name, "PENDING", None, schedule_document(spec.schedule),
        target_document(spec.target, request.secret_headers), job.priority, job.lane,
        spec.retry_policy, job.lease_sec, request.labels, job.payload_bytes, job.content_type, 1,
        stamp(job.created_at), job.created_by, maybe(next_run_at),
        list(map(stamp, coming)), 0, None, spec.on_unknown,
        maybe_url(spec.cancel_url), after_document(request.after), list(map(str, waits_for)),
        job.concurrency_key,
        notes(coming, schedule.jitter(job.id, spec.schedule.jitter_sec), hot) if hot else UNSET,
    )  # fmt: skip


def after_pause(wanted: Schedule, job_id: UUID, paused: Armed, until_at: datetime) -> Armed | None:
    """The occurrence that a job goes on with that was paused there; None also where nobody can
    say."""
    try:
        if schedule.left_from(wanted, paused.seq) is None or isinstance(wanted, Once):
            at = pausing.goes_on(wanted, paused.occurrence_at, until_at, job_id)
            return None if at is None else Armed(at, paused.seq)
        after = pausing.resumption(wanted, paused.occurrence_at, paused.seq, until_at, job_id)
    except ScheduleError:
        return None
    return None if after.armed is None else Armed(after.armed, after.seq)


def _run_after_pause(
    wanted: Schedule, job_id: UUID, armed: Armed | None, until_at: datetime
) -> datetime | None:
    if armed is None:
        return None
    due_at = armed.occurrence_at + schedule.jitter(job_id, wanted.jitter_sec)
    at = next_run(wanted, job_id, armed, due_at)
    return None if at is None else max(at, until_at)


def notes(
    coming: Iterable[datetime], delay: timedelta, hot: Container[datetime]
) -> list[str] | UnsetType:
    """What to think about when occurrences fall into a hot minute; not set when none does."""
    for at in coming:
        minute = (at + delay).replace(second=0, microsecond=0)
        if minute in hot:
            return [HOT.format(minute=stamp(minute))]
    return UNSET


async def shown(tx: Tx, box: SecretBox, rows: Sequence[Row]) -> list[JobDocument]:
    """Rows of ``reports.job`` or ``reports.jobs``, with their timers and last errors."""
    now = await tx.clock()
    specs = [_read_spec(row["spec"]) for row in rows]
    waiting = await dependencies.open_parents(
        tx, [row["id"] for row in rows if row["after"] is not None], WAITS_FOR
    )
    hints = [
        (row["id"], due)
        for row, spec in zip(rows, specs, strict=True)
        if row["id"] not in waiting and (due := _expected_due(row, spec.schedule, now)) is not None
    ]
    timers = await reports.timers(tx, hints)
    tried = [row for row in rows if row["attempts"] and row["last_at"]]
    since = min((row["last_at"] for row in tried), default=now)
    errors = await reports.last_errors(tx, [row["id"] for row in tried], since)
    return [
        _stored(
            row, spec, box, timers.get(row["id"]), errors.get(row["id"]), waiting.get(row["id"], ())
        )
        for row, spec in zip(rows, specs, strict=True)
    ]


def _expected_due(row: Row, wanted: Schedule, now: datetime) -> datetime | None:
    """When a job's timer should be due; None when it cannot have one."""
    if row["state"] != "ACTIVE" or row["fired"]:
        return None
    delay = schedule.jitter(row["id"], wanted.jitter_sec)
    if isinstance(wanted, Once):
        return wanted.run_at + delay
    try:
        at = schedule.next_after(wanted, now - delay, row["id"])
    except ScheduleError:
        return None
    return None if at is None else at + delay


def _stored(
    row: Row,
    spec: JobSpec,
    box: SecretBox,
    timer: Row | None,
    error: str | None,
    waits_for: Sequence[UUID],
) -> JobDocument:
    active = row["state"] == "ACTIVE"
    armed = Armed(timer["occurrence_at"], timer["seq"]) if timer and active else None
    times = [next_run(spec.schedule, row["id"], armed, timer["due_at"])] if timer else []
    if row["paused_until"] is not None:
        paused = Armed(row["paused_at"], row["paused_seq"])
        armed = after_pause(spec.schedule, row["id"], paused, row["paused_until"])
        times.append(_run_after_pause(spec.schedule, row["id"], armed, row["paused_until"]))
    if row["run_state"] in ("READY", "RETRYING"):
        times.append(row["run_retry_at"] or row["run_due_at"])
    after = NOTHING if row["after"] is None else _read_after(row["after"])
    return JobDocument(
        id=str(row["id"]),
        name=row["name"],
        status=row["status"],
        state_reason=row["state_reason"],
        schedule=schedule_document(spec.schedule),
        target=target_document(spec.target, _secret_names(row, box)),
        priority=row["priority"],
        lane=row["lane"],
        retry_policy=spec.retry_policy,
        lease_sec=row["lease_sec"],
        labels=_read_texts(row["labels"]),
        payload_bytes=row["payload_bytes"],
        content_type=row["content_type"],
        version=row["version"],
        created_at=stamp(row["created_at"]),
        created_by=row["created_by"],
        next_run_at=maybe(min(filter(None, times), default=None)),
        next_fires=list(map(stamp, fires(spec.schedule, row["id"], armed))),
        attempts=row["attempts"],
        last_error=error,
        on_unknown=spec.on_unknown,
        cancel_url=maybe_url(spec.cancel_url),
        after=after_document(after),
        waits_for=[str(parent) for parent in waits_for],
        concurrency_key=row["concurrency_key"],
        paused_until=maybe(row["paused_until"]),
    )


def _secret_names(row: Row, box: SecretBox) -> list[str]:
    """The names of a job's credential headers; none when they do not open with the key at hand."""
    if row["secret_headers"] is None:
        return []
    try:
        return list(_read_texts(box.open(row["secret_headers"], row["tenant_id"], HEADERS)))
    except SecretUnreadable:
        return []
