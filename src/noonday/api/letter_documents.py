"""Answers about dead letters and their replays, written down."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from noonday.api.documents import ResponseDocument, Stamp, maybe, stamp
from noonday.domain import replay as gate
from noonday.domain.replay import ReplayState, StopWhen, Terms
from noonday.store import Row, runs
from noonday.store.letters import Groups
from noonday.store.replays import Count, Replay


def _note(description: str) -> Meta:
    return Meta(description=description)


class LetterRequest(msgspec.Struct, frozen=True):
    """What was called last; never with its body or its query."""

    method: str | None
    url: str | None
    content_type: str | None
    attempts: int


class PayloadReference(msgspec.Struct, frozen=True):
    """The payload that a replay sends: that of this version of the job."""

    job_id: str
    version: int
    bytes: int | None


class DiscardDocument(msgspec.Struct, frozen=True):
    """Who laid a dead letter aside for good, and why."""

    at: Stamp
    by: str
    reason: str


class DeadLetterDocument(msgspec.Struct, frozen=True):
    """A run that will not be tried again by itself."""

    id: Annotated[str, _note("The run's id.")]
    job_id: str
    state: Annotated[
        Literal["DEAD", "REPLAYED", "DISCARDED"],
        _note("It lies there; its run was opened again; or a person laid it aside for good."),
    ]
    reason: str
    fingerprint: Annotated[str, _note("The same for errors that are alike.")]
    http_status: int | None
    error: str | None
    attempts: int
    deaths: Annotated[int, _note("How often it was given up: more than once after replays.")]
    target_host: str
    occurrence_at: Stamp
    first_dead_at: Stamp
    dead_at: Stamp
    request: LetterRequest
    response: Annotated[ResponseDocument | None, _note("What is kept of the last answer.")]
    payload: PayloadReference
    replayed_at: Stamp | None
    replay_id: str | None
    replay_outcome: Annotated[
        Literal["SUCCEEDED", "FAILED", "CANCELLED"] | None,
        _note("Of its last replay. The first failure counts, whatever its retries come to."),
    ]
    discard: DiscardDocument | None


class LetterGroup(msgspec.Struct, frozen=True):
    """Dead letters that are alike."""

    reason: Annotated[str | None, _note("Null when they are not grouped by it.")]
    fingerprint: Annotated[str | None, _note("Null when they are not grouped by it.")]
    count: int
    first_seen: Stamp
    last_seen: Stamp
    sample_id: Annotated[str, _note("The newest of them.")]
    sample_error: str | None


class LetterGroups(msgspec.Struct, frozen=True):
    """Dead letters by what they have in common, the biggest group first."""

    data: list[LetterGroup]
    complete: Annotated[
        bool, _note("False when there are more letters, or groups, than were counted.")
    ]
    counted_from: Annotated[
        Stamp | None,
        _note("The oldest letter that was counted. For older ones ask with this as `dead_to`."),
    ]


class ReplayCount(msgspec.Struct, frozen=True):
    """What a replay would find; nothing was written."""

    matched: Annotated[int, _note("Letters that lie there, those left out included.")]
    matched_all: Annotated[bool, _note("False when there are more than were counted.")]
    by_reason: dict[str, int]
    left_out: Annotated[dict[str, int], _note("How many would not be reopened, by why.")]


class ReplayFilter(msgspec.Struct, frozen=True):
    """Which dead letters are replayed; null does not narrow."""

    reason: str | None
    fingerprint: str | None
    job_id: str | None
    target_host: str | None
    dead_from: Stamp | None
    dead_to: Stamp | None


class ReplayDocument(msgspec.Struct, frozen=True):
    """A gated replay: what was asked for, and how far it is."""

    id: str
    state: Annotated[
        Literal["RUNNING", "PAUSED", "STOPPED", "ABORTED", "DONE"],
        _note("STOPPED is by its gate; `state_reason` says why."),
    ]
    state_reason: str | None
    filter: ReplayFilter | None
    ids: Annotated[int | None, _note("How many were named, if they were named.")]
    canary: int
    rate_per_sec: float
    ramp_sec: float
    stop_when: StopWhen
    again: bool
    reason: str
    created_by: str
    created_at: Stamp
    changed_at: Annotated[Stamp, _note("When it came to its state.")]
    canary_passed_at: Stamp | None
    matched: Annotated[int, _note("Letters that lay there when it was asked for.")]
    matched_all: Annotated[bool, _note("False when there were more than were counted.")]
    replayed: Annotated[int, _note("Runs that it has reopened.")]
    succeeded: int
    failed: Annotated[int, _note("At least once. They go on with their own retries.")]
    cancelled: int
    unfinished: Annotated[int, _note("Reopened, and nothing is known of them yet.")]
    skipped: Annotated[dict[str, int], _note("Letters that were not reopened, by why.")]
    current_rate_per_sec: Annotated[
        float, _note("At this moment, with its ramp; 0 unless RUNNING.")
    ]


# --- from rows --------------------------------------------------------------------------------


class _Request(msgspec.Struct, frozen=True):
    method: str | None = None
    url: str | None = None
    content_type: str | None = None
    payload_bytes: int | None = None


def letter_document(row: Row) -> DeadLetterDocument:
    """A dead letter's row."""
    request = msgspec.json.decode(row["request"] or b"{}", type=_Request)
    response = row["response"]
    replay_id = row["replay_id"]
    return DeadLetterDocument(
        id=str(runs.key_of(row)),
        job_id=str(row["job_id"]),
        state=row["state"],
        reason=row["reason"],
        fingerprint=row["fingerprint"],
        http_status=row["http_status"],
        error=row["error"],
        attempts=row["attempts"],
        deaths=row["deaths"],
        target_host=row["target_host"],
        occurrence_at=stamp(row["occurrence_at"]),
        first_dead_at=stamp(row["first_dead_at"]),
        dead_at=stamp(row["dead_at"]),
        request=LetterRequest(request.method, request.url, request.content_type, row["attempts"]),
        response=None if response is None else msgspec.json.decode(response, type=ResponseDocument),
        payload=PayloadReference(str(row["job_id"]), row["payload_version"], request.payload_bytes),
        replayed_at=maybe(row["replayed_at"]),
        replay_id=None if replay_id is None else str(replay_id),
        replay_outcome=row["replay_outcome"],
        discard=_discard(row),
    )


def _discard(row: Row) -> DiscardDocument | None:
    if row["discarded_at"] is None:
        return None
    return DiscardDocument(stamp(row["discarded_at"]), row["discarded_by"], row["discard_reason"])


def groups_document(found: Groups) -> LetterGroups:
    """Groups of letters."""
    return LetterGroups(
        [_group(row) for row in found.rows], found.complete, maybe(found.counted_from)
    )


def _group(row: Row) -> LetterGroup:
    return LetterGroup(
        reason=row["reason"],
        fingerprint=row["fingerprint"],
        count=row["count"],
        first_seen=stamp(row["first_seen"]),
        last_seen=stamp(row["last_seen"]),
        sample_id=str(runs.key_of(row)),
        sample_error=row["error"],
    )


def count_document(found: Count) -> ReplayCount:
    """What a dry run found."""
    return ReplayCount(found.matched, found.complete, found.by_reason, found.left_out)


def replay_document(row: Row, now: datetime) -> ReplayDocument:
    """A replay's row, as it stands at ``now``."""
    replay = Replay.of(row)
    terms = replay.terms
    return ReplayDocument(
        id=str(replay.id),
        state=replay.state.value,
        state_reason=replay.state_reason,
        filter=_filter(terms) if terms.ids is None else None,
        ids=None if terms.ids is None else len(terms.ids),
        canary=terms.canary,
        rate_per_sec=terms.rate_per_sec,
        ramp_sec=terms.ramp_sec,
        stop_when=terms.stop_when,
        again=terms.again,
        reason=row["reason"],
        created_by=row["created_by"],
        created_at=stamp(replay.created_at),
        changed_at=stamp(replay.changed_at),
        canary_passed_at=maybe(replay.canary_passed_at),
        matched=replay.matched,
        matched_all=replay.matched_all,
        replayed=replay.replayed,
        succeeded=replay.succeeded,
        failed=replay.failed,
        cancelled=replay.cancelled,
        unfinished=replay.unfinished,
        skipped=replay.skipped,
        current_rate_per_sec=_rate(replay, now),
    )


def _rate(replay: Replay, now: datetime) -> float:
    if replay.state is not ReplayState.RUNNING:
        return 0.0
    terms = replay.terms
    return round(terms.rate_per_sec * gate.share(terms, replay.ramp_from, now), 3)


def _filter(terms: Terms) -> ReplayFilter:
    by = terms.filter
    return ReplayFilter(
        by.reason, by.fingerprint, None if by.job_id is None else str(by.job_id), by.target_host,
        maybe(by.dead_from), maybe(by.dead_to),
    )  # fmt: skip
