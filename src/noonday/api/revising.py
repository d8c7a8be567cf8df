"""What a change of a job comes to, written with its shard in hand.

What was due of the job as it was is fired first. Then there is a new version of it, which stands at
the occurrence that comes next.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
from starlette.requests import Request

from noonday.api import creation, showing
from noonday.api.checks import UNKNOWN_LANE
from noonday.api.context import caller_of, context_of
from noonday.api.creation import at_fault
from noonday.api.documents import maybe_url, schedule_document, stamp, target_document
from noonday.api.notes import note
from noonday.api.problems import Problem
from noonday.api.schemas import JobRequest
from noonday.domain import pausing, schedule
from noonday.domain.model import JobSpec, Once, Schedule
from noonday.store import Row, Tx, changes, jobs, lanes, occurrences, partitions, pending
from noonday.store.changes import Definition, Payload, Place, Stands
from noonday.store.secretbox import HEADERS

_encode: Final = msgspec.json.Encoder().encode
_read_texts: Final = msgspec.json.Decoder(dict[str, str]).decode


class Draft(NamedTuple):
    """A job as it was seen, and what it is to be."""

    job: Row
    spec: JobSpec
    secret_headers: dict[str, str]
    wanted: JobRequest
    payload: Payload | None
    """To be sent from now on; None: as before."""
    jitter_sec: int
    """Of a recurring schedule that names none."""


class Moved(Exception):
    """The job is not at the version any more that was judged."""


def differences(draft: Draft, wanted: Schedule) -> dict[str, tuple[Any, Any]]:
    """The fields that change, each as it is shown before and after; no secrets."""
    job, spec, asked = draft.job, draft.spec, draft.wanted
    was, will = draft.secret_headers, asked.secret_headers
    pairs: dict[str, tuple[Any, Any]] = {
        "name": (job["name"], asked.name),
        "priority": (job["priority"], asked.priority),
        "lane": (job["lane"], asked.lane),
        "retry_policy": (spec.retry_policy, asked.retry_policy),
        "lease_sec": (spec.lease_sec, asked.lease_sec),
        "on_unknown": (spec.on_unknown, asked.on_unknown),
        "concurrency_key": (job["concurrency_key"], asked.concurrency_key),
        "labels": (_read_texts(job["labels"]), asked.labels),
    }
    found = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if spec.schedule != wanted:
        found["schedule"] = schedule_document(spec.schedule), schedule_document(wanted)
    if (spec.target, was) != (asked.target, will):
        found["target"] = target_document(spec.target, was), target_document(asked.target, will)
    if spec.cancel_url != asked.cancel_url:
        found["cancel_url"] = maybe_url(spec.cancel_url), maybe_url(asked.cancel_url)
    if draft.payload is not None:
        version = job["payload_version"]
        found["payload"] = (
            {"version": version, "bytes": job["payload_bytes"]},
            {"version": version + 1, "bytes": draft.payload.payload_bytes},
        )
    return found


def fires(wanted: Schedule, job: Row, stands: Stands) -> list[str]:
    """The next nominal times of a job that stands there."""
    armed = None
    if stands.armed is not None:
        armed = showing.Armed(stands.armed.occurrence_at, stands.armed.seq)
    elif stands.pause is not None and stands.pause.until_at is not None:
        paused = showing.Armed(stands.pause.occurrence_at, stands.pause.seq)
        armed = showing.after_pause(wanted, job["id"], paused, stands.pause.until_at)
    return list(map(stamp, showing.fires(wanted, job["id"], armed)))


async def write(
    tx: Tx,
    request: Request,
    draft: Draft,
    stands: Stands,
    fields: dict[str, tuple[Any, Any]],
    now: datetime,
) -> None:
    """Make a job what it is to be, and have it go on from where it stands; ``fields`` change."""
    job, asked = draft.job, draft.wanted
    await _require_left(tx, draft, stands, "schedule" in fields)
    if "lane" in fields and await lanes.missing(tx, {asked.lane}):
        raise at_fault("/lane", UNKNOWN_LANE, "has just been deleted")
    wanted, first_at = asked.schedule(now, draft.jitter_sec), job["first_at"]
    place = stands.place
    if "schedule" in fields:
        ledger_start = await tx.value(partitions.LEDGER_START)
        wanted, first, _ = creation.plan(asked, draft.jitter_sec, job["id"], now, ledger_start)
        await changes.keep_schedule(tx, job["id"], now)
        if place is None or not pausing.same_times(draft.spec.schedule, wanted):
            by = caller_of(request).key_id
            await changes.leave_out(tx, job, draft.spec.schedule, stands, by, now)
            first_at = await _first(tx, job["id"], wanted, first, now)
            place = Place(first_at, 1)
        elif not schedule.is_within(wanted, place.occurrence_at, place.seq):
            place = None
    definition = _definition(request, draft, wanted, first_at)
    if not await changes.redefine(tx, job, definition):
        raise Moved
    if draft.payload is not None:
        await changes.replace_payload(tx, job["id"], draft.payload)
    if place is not None and not stands.waits:
        await changes.go_on(tx, job, wanted, stands, place, now)
    elif not isinstance(wanted, Once):  # its end was moved to before its next occurrence
        await jobs.end(tx, [(job["id"], job["schedule_version"] + 1)], now)
    before, after = ({name: pair[n] for name, pair in fields.items()} for n in (0, 1))
    await note(tx, request, "job.change", ("job", job["id"]), before, after)


async def _require_left(tx: Tx, draft: Draft, stands: Stands, schedule_changes: bool) -> None:
    """A job can be changed up to its end, the schedule of one that fires once up to then."""
    job, wanted = draft.job, draft.wanted
    if job["schedule_type"] != "once":
        if stands.at is None and job["state"] in ("ACTIVE", "ENDED"):
            raise Problem(409, "job_ended", "The job has ended; create another.")
        return
    fired = stands.at is None and not stands.waits and job["state"] == "ACTIVE"
    if fired and job["id"] not in await pending.still(tx, [job["id"]]):
        raise Problem(409, "job_ended", "The job has ended; create another.")
    if not schedule_changes:
        return
    if fired:
        raise Problem(409, "job_fired", "The job has fired, so that its schedule is used up.")
    if stands.waits:
        raise Problem(
            409, "job_waits", "The job waits for others; its schedule cannot change meanwhile."
        )
    if stands.at is not None and stands.at.awaited and wanted.schedule_type != "once":
        raise Problem(409, "job_awaited", "Other jobs wait for this one to fire once.")


async def _first(
    tx: Tx, job_id: UUID, wanted: Schedule, first: datetime, now: datetime
) -> datetime:
    """Where a schedule begins that comes in place of another: later than ``now`` and all that is on
    record, which may lie ahead of a clock that was set back; or at the one time that it names."""
    if not isinstance(wanted, Once):
        since = max(now, (await occurrences.accounted(tx, job_id)).until_at)
        later = first if first > since else schedule.next_after(wanted, since, job_id)
        if later is None:
            raise creation.nothing_left(wanted)
        return later
    if await occurrences.is_there(tx, job_id, wanted.run_at):
        detail = "is in the job's ledger already; take another time"
        raise at_fault("/schedule/run_at", "conflict", detail)
    return first


def _definition(request: Request, draft: Draft, wanted: Schedule, first_at: datetime) -> Definition:
    job, asked = draft.job, draft.wanted
    sealed = job["secret_headers"]
    if draft.secret_headers != asked.secret_headers:
        text = _encode(asked.secret_headers)
        box = context_of(request).secretbox
        sealed = box.seal(text, job["tenant_id"], HEADERS) if asked.secret_headers else None
    spec = JobSpec(
        wanted, asked.target, asked.retry_policy, asked.lease_sec, asked.on_unknown,
        asked.cancel_url,
    )  # fmt: skip
    return Definition(
        asked.schedule_type, first_at, asked.name, asked.lane, asked.priority, asked.lease_sec,
        asked.target_host, _encode(asked.labels).decode(), _encode(spec).decode(), sealed,
        asked.concurrency_key,
    )  # fmt: skip
