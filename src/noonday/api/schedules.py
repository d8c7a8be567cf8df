"""Schedules without jobs: what one would do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from noonday.api import bodies, showing
from noonday.api.auth import KNOWN_SEC
from noonday.api.checks import ANY_JOB, check_lane, check_schedule
from noonday.api.context import caller_of, context_of, hot_of, lanes_of
from noonday.api.creation import first_of
from noonday.api.documents import FireDocument, PreviewDocument, schedule_document, stamp
from noonday.api.pages import json
from noonday.api.problems import invalid
from noonday.api.reading import Faults
from noonday.api.schemas import PreviewBody, schedule_of
from noonday.domain import cron, preview
from noonday.domain.lanes import usual_jitter
from noonday.domain.model import Cron, Schedule
from noonday.domain.preview import Fire
from noonday.store import partitions


async def show(request: Request) -> Response:
    """The next occurrences of a schedule, and what it says in English."""
    body = await bodies.parsed(request, PreviewBody)
    lanes = await lanes_of(request).known(KNOWN_SEC)
    if body.lane not in lanes:
        lanes = await lanes_of(request).read()
    faults = Faults()
    check_lane(body.lane, faults, lanes)
    check_schedule(body.schedule, faults)
    if body.after is not None and getattr(body.schedule, "max_occurrences", None) is not None:
        detail = "cannot be given beside max_occurrences, which counts from the first one on"
        faults.add("/after", "conflict", detail, "/schedule/max_occurrences")
    if found := faults.all():
        raise invalid(found)
    async with context_of(request).store.singly() as tx:
        now = await tx.clock()
        ledger_start = await tx.value(partitions.LEDGER_START)
    jitter_sec = usual_jitter(lanes[body.lane], caller_of(request).jitter_sec)
    wanted = schedule_of(body.schedule, now, jitter_sec)
    if body.after is None:
        first_of(wanted, ANY_JOB, now, ledger_start)
    fires = preview.fires(wanted, ANY_JOB, body.after, now, body.count)
    return json(
        PreviewDocument(
            schedule_document(wanted),
            preview.sentence(wanted, ANY_JOB),
            [_document(fire) for fire in fires],
            await _notes(request, wanted, fires),
        )
    )


async def _notes(
    request: Request, wanted: Schedule, fires: Sequence[Fire]
) -> list[str] | UnsetType:
    """Whether it falls into a hot minute, where every job of that schedule does."""
    if wanted.jitter_sec >= 60 or (isinstance(wanted, Cron) and cron.is_drawn(wanted.cron)):
        return UNSET
    coming = [fire.at for fire in fires if fire.runs]
    return showing.notes(coming, timedelta(0), await hot_of(request).known())


def _document(fire: Fire) -> FireDocument:
    local = fire.local.isoformat(timespec="milliseconds")
    return FireDocument(stamp(fire.at), local, fire.runs, fire.note)
