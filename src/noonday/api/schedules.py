"""Schedules without jobs: what one would do."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from noonday.api import bodies
from noonday.api.checks import ANY_JOB, check_schedule
from noonday.api.context import context_of
from noonday.api.documents import FireDocument, PreviewDocument, schedule_document, stamp
from noonday.api.pages import json
from noonday.api.problems import invalid
from noonday.api.reading import Faults
from noonday.api.schemas import PreviewBody, schedule_of
from noonday.domain import preview
from noonday.domain.preview import Fire


async def show(request: Request) -> Response:
    """The next occurrences of a schedule, and what it says in English."""
    body = await bodies.parsed(request, PreviewBody)
    faults = Faults()
    check_schedule(body.schedule, faults)
    if found := faults.all():
        raise invalid(found)
    async with context_of(request).store.singly() as tx:
        now = await tx.clock()
    wanted = schedule_of(body.schedule, now)
    fires = preview.fires(wanted, ANY_JOB, body.after, now, body.count)
    return json(
        PreviewDocument(
            schedule_document(wanted),
            preview.sentence(wanted, ANY_JOB),
            [_document(fire) for fire in fires],
        )
    )


def _document(fire: Fire) -> FireDocument:
    local = fire.local.isoformat(timespec="milliseconds")
    return FireDocument(stamp(fire.at), local, fire.runs, fire.note)
