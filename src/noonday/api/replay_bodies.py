"""Requests about replays, read."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from noonday.api.reading import MOST_FAULTS, Fault, read
from noonday.domain.model import Reason, parse_run_id
from noonday.domain.replay import Letters, StopWhen, Terms


class WhyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why, for the audit log."""

    reason: Annotated[str, Meta(max_length=255, description="For the audit log.")] = ""


class ReplayFilterBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters; an empty one means all that lie there."""

    reason: Annotated[Reason, Meta(description="Why they were given up.")] | None = None
    fingerprint: (
        Annotated[str, Meta(max_length=64, description="Errors that are alike.")] | None
    ) = None
    job_id: Annotated[UUID, Meta(description="Of this job.")] | None = None
    target_host: Annotated[str, Meta(max_length=255, description="Calls to this host.")] | None = (
        None
    )
    dead_from: Annotated[datetime, Meta(tz=True)] | None = None
    dead_to: Annotated[datetime, Meta(tz=True)] | None = None


class StopWhenBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stop when more than ``failure_ratio`` of the last ``window`` runs have failed."""

    failure_ratio: Annotated[
        float, Meta(ge=0, le=1, description="Of at least ten runs, or the window if it is smaller.")
    ] = StopWhen().failure_ratio
    window: Annotated[
        int, Meta(ge=1, le=1_000, description="Never are more reopened runs unfinished than this.")
    ] = StopWhen().window


class ReplayBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dead letters to replay, by ``filter`` or by ``ids``, and the gate."""

    filter: ReplayFilterBody | UnsetType = UNSET
    ids: (
        Annotated[
            list[Annotated[str, Meta(max_length=80)]],
            Meta(min_length=1, max_length=1_000, description="Ids of dead letters."),
        ]
        | UnsetType
    ) = UNSET
    canary: Annotated[
        int, Meta(ge=0, le=1_000, description="So many runs must all succeed before the rest.")
    ] = Terms().canary
    rate_per_sec: Annotated[
        float, Meta(ge=0.001, le=1_000, description="Never are more reopened in a second.")
    ] = Terms().rate_per_sec
    ramp_sec: Annotated[
        float,
        Meta(ge=0, le=86_400, description="The rate rises from a tenth to the whole in this time."),
    ] = Terms().ramp_sec
    stop_when: StopWhenBody = StopWhenBody()
    again: Annotated[
        bool, Meta(description="Also letters that were replayed before, and died again.")
    ] = False
    reason: Annotated[str, Meta(max_length=255, description="For the audit log.")] = ""
    dry_run: Annotated[bool, Meta(description="Only count; nothing is written.")] = False


def read_replay(document: bytes) -> ReplayBody | list[Fault]:
    """A replay to start, or everything that is wrong with it."""
    body = read(document, ReplayBody)
    if isinstance(body, list):
        return body
    if (body.filter is UNSET) == (body.ids is UNSET):
        code = "missing" if body.ids is UNSET else "conflict"
        return [Fault("/filter", code, "give either a filter, which may be empty, or ids")]
    ids = [] if body.ids is UNSET else body.ids
    return [
        Fault(f"/ids/{n}", "invalid", "is not the id of a dead letter")
        for n, text in enumerate(ids)
        if parse_run_id(text) is None
    ][:MOST_FAULTS] or body


def terms_of(body: ReplayBody) -> Terms:
    """What a body asks for."""
    by = ReplayFilterBody() if body.filter is UNSET else body.filter
    return Terms(
        filter=Letters(**msgspec.structs.asdict(by)),
        ids=None if body.ids is UNSET else tuple(dict.fromkeys(body.ids)),
        canary=body.canary,
        rate_per_sec=body.rate_per_sec,
        ramp_sec=body.ramp_sec,
        stop_when=StopWhen(body.stop_when.failure_ratio, body.stop_when.window),
        again=body.again,
    )
