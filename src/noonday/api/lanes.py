"""Lanes, as people set them up, pause them and look at them."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from noonday.api import bodies, problems
from noonday.api.context import caller_of, context_of, lanes_of
from noonday.api.documents import LaneCount, LaneDocument, LaneScaling, maybe, stamp
from noonday.api.ids import name_of
from noonday.api.notes import note
from noonday.api.pages import json, place
from noonday.api.problems import Problem, not_found
from noonday.api.queries import Query
from noonday.api.reading import Fault
from noonday.api.replay_bodies import WhyBody
from noonday.api.schemas import LaneBody
from noonday.domain.lanes import MOST_LANES, READY_MADE, Lane, is_name
from noonday.store import Row, Tx, lanes, scaling

_SETTINGS: Final = (
    "weight",
    "max_running",
    "ageing_sec",
    "objective_sec",
    "sheddable",
    "jitter_sec",
)


async def page(request: Request) -> Response:
    """All lanes, by name, each with what was counted in it last."""
    where = place(request, Query(request))
    (after,) = where.after(tuple[str]) or ("",)
    async with context_of(request).store.transaction() as tx:
        found, counted = await lanes.every(tx), await lanes.counted(tx)
        wanted = await scaling.every(tx)
    rest = [lane for lane in found if lane.name > after]
    shown = [
        _document(lane, counted.get(lane.name), wanted.get(lane.name))
        for lane in rest[: where.limit]
    ]
    return where.answer(shown, (shown[-1].name,) if len(rest) > len(shown) else None)


async def put(request: Request) -> Response:
    """Make a lane, or change what is given of one."""
    name = request.path_params["name"]
    if not is_name(name):
        detail = "must be 1 to 63 lower-case letters, digits, hyphens and underscores"
        raise problems.invalid([Fault("/path/name", "invalid", detail)])
    wanted = await bodies.parsed(request, LaneBody)
    async with context_of(request).store.transaction() as tx:
        await lanes.own(tx, name)
        made = await lanes.create(tx, name)
        before = await lanes.one(tx, name)
        if before is None:
            detail = f"There are {MOST_LANES} lanes, and no more are taken."
            raise Problem(409, "too_many_lanes", detail)
        after = before._replace(**_given(wanted))
        await lanes.change(tx, before, after)
        action, old = ("create", None) if made else ("change", _settings(before))
        await note(tx, request, f"lane.{action}", ("lane", name), old, _settings(after))
        document = await _shown(tx, name)
    _changed(request)
    return json(document, 201 if made else 200)


def _given(wanted: LaneBody) -> dict[str, Any]:
    fields = msgspec.structs.asdict(wanted)
    return {setting: value for setting, value in fields.items() if value is not UNSET}


def _settings(lane: Lane) -> dict[str, Any]:
    return {setting: getattr(lane, setting) for setting in _SETTINGS}


async def delete(request: Request) -> Response:
    """Delete a lane that was made by hand and that no job belongs to."""
    name = name_of(request, "No lane")
    if name in READY_MADE:
        raise Problem(409, "ready_made", "This lane is always there.")
    async with context_of(request).store.transaction() as tx:
        await lanes.own(tx, name)
        document = await _shown(tx, name)
        if await lanes.used(tx, name):
            detail = "Jobs belong to this lane, ended ones perhaps, or a backfill."
            raise Problem(409, "lane_in_use", detail)
        await lanes.delete(tx, name)
        await note(tx, request, "lane.delete", ("lane", name))
    _changed(request)
    return json(document)


async def pause(request: Request) -> Response:
    """Start nothing more of a lane; one that is paused already stays as it is."""
    name, reason = await _why(request)
    async with context_of(request).store.transaction() as tx:
        await lanes.own(tx, name)
        if await lanes.pause(tx, name, caller_of(request).key_id, reason):
            await note(tx, request, "lane.pause", ("lane", name), after={"reason": reason})
        document = await _shown(tx, name)
    _changed(request)
    return json(document)


async def resume(request: Request) -> Response:
    """Let the runs of a lane start again."""
    name, reason = await _why(request)
    async with context_of(request).store.transaction() as tx:
        await lanes.own(tx, name)
        if await lanes.resume(tx, name):
            await note(tx, request, "lane.resume", ("lane", name), after={"reason": reason})
        document = await _shown(tx, name)
    _changed(request)
    return json(document)


async def _why(request: Request) -> tuple[str, str]:
    wanted = await bodies.parsed(request, WhyBody, optional=True)
    return name_of(request, "No lane"), wanted.reason


def _changed(request: Request) -> None:
    lanes_of(request).forget()
    context_of(request).wakeups.runs()


async def _shown(tx: Tx, name: str) -> LaneDocument:
    lane = await lanes.one(tx, name)
    if lane is None:
        raise not_found("No lane")
    counted, wanted = await lanes.counted(tx), await scaling.every(tx)
    return _document(lane, counted.get(name), wanted.get(name))


def _document(lane: Lane, counted: Row | None, wanted: Row | None) -> LaneDocument:
    paused = lane.paused_at is not None
    return LaneDocument(
        name=lane.name,
        state="PAUSED" if paused else "SHED" if lane.shed_at is not None else "OPEN",
        reason=lane.pause_reason if paused else lane.shed_reason,
        since=maybe(lane.paused_at if paused else lane.shed_at),
        by=lane.paused_by,
        weight=lane.weight,
        max_running=lane.max_running,
        ageing_sec=lane.ageing_sec,
        objective_sec=lane.objective_sec,
        sheddable=lane.sheddable,
        jitter_sec=lane.jitter_sec,
        counts=None if counted is None else _counts(counted),
        scaling=None if wanted is None else _scaling(wanted),
    )


def _counts(row: Row) -> LaneCount:
    return LaneCount(
        counted_at=stamp(row["counted_at"]),
        ready=row["ready"],
        oldest_age_sec=row["oldest_age_sec"],
        running=row["running"],
        objective_sec=row["objective_sec"],
    )


def _scaling(row: Row) -> LaneScaling:
    return LaneScaling(
        wanted_slots=row["slots"], reason=row["reason"], since=stamp(row["changed_at"])
    )
