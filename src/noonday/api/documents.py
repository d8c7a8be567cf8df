"""Answers, written down: one struct for each thing that the API shows.

Instants are strings in UTC with exactly three digits of milliseconds, made by :func:`stamp`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from noonday.api.problems import ProblemDocument
from noonday.domain.dependencies import NOTHING, After
from noonday.domain.explaining import Constraint
from noonday.domain.model import (
    Cron,
    HttpTarget,
    Interval,
    Misfire,
    Once,
    Overlap,
    RetryPolicy,
    Schedule,
)

T = TypeVar("T")

Stamp = Annotated[
    str,
    Meta(
        extra_json_schema={"format": "date-time"},
        description="UTC, with milliseconds.",
        examples=["2027-03-28T01:00:00.000Z"],
    ),
]


def _note(description: str) -> Meta:
    return Meta(description=description)


@lru_cache(4_096)  # the few of one job are the same, and those of jobs that are made together
def stamp(at: datetime) -> str:
    """An instant as the API writes it: ``2027-03-28T01:00:00.000Z``. Its offset is a fixed one (in
    a zone, the two readings of an hour that occurs twice would count as one)."""
    return f"{at.astimezone(UTC).isoformat(timespec='milliseconds')[:23]}Z"


def maybe(at: datetime | None) -> str | None:
    """The stamp of an instant that may not be there."""
    return None if at is None else stamp(at)


# --- Jobs -------------------------------------------------------------------------------------


class OnceDocument(msgspec.Struct, frozen=True, gc=False, tag="once", tag_field="type"):
    """Fires one time."""

    run_at: Stamp
    jitter_sec: int
    grace_sec: int | None


class CronDocument(msgspec.Struct, frozen=True, tag="cron", tag_field="type"):
    """Fires at the local times that an expression names."""

    cron: str
    timezone: str
    jitter_sec: int
    misfire: Misfire
    overlap: Overlap
    grace_sec: int
    dst_gap: Literal["run", "skip"]
    dst_fold: Literal["first", "second", "both"]
    starts_at: Stamp | None
    ends_at: Stamp | None
    max_occurrences: int | None


class IntervalDocument(msgspec.Struct, frozen=True, tag="interval", tag_field="type"):
    """Fires at ``starts_at`` and every ``interval_sec`` after it."""

    interval_sec: int
    starts_at: Stamp
    jitter_sec: int
    misfire: Misfire
    overlap: Overlap
    grace_sec: int
    ends_at: Stamp | None
    max_occurrences: int | None


ScheduleDocument = OnceDocument | CronDocument | IntervalDocument


def schedule_document(schedule: Schedule) -> ScheduleDocument:
    """A schedule with all its defaults."""
    match schedule:
        case Once():
            return OnceDocument(stamp(schedule.run_at), schedule.jitter_sec, schedule.grace_sec)
        case Cron():
            return CronDocument(
                schedule.cron,
                schedule.timezone,
                schedule.jitter_sec,
                schedule.misfire,
                schedule.overlap,
                schedule.grace_sec,
                schedule.dst_gap,
                schedule.dst_fold,
                maybe(schedule.starts_at),
                maybe(schedule.ends_at),
                schedule.max_occurrences,
            )
        case Interval():
            return IntervalDocument(
                schedule.interval_sec,
                stamp(schedule.starts_at),
                schedule.jitter_sec,
                schedule.misfire,
                schedule.overlap,
                schedule.grace_sec,
                maybe(schedule.ends_at),
                schedule.max_occurrences,
            )


class FireDocument(msgspec.Struct, frozen=True):
    """An occurrence to come. ``local`` is the same instant in the schedule's time zone; ``runs`` is
    false where the schedule leaves it out; ``note`` says what a change of the clock does to it."""

    at: Stamp
    local: str
    runs: bool
    note: str | None


class PreviewDocument(msgspec.Struct, frozen=True):
    """What a schedule would do, in English and occurrence by occurrence."""

    schedule: ScheduleDocument
    sentence: str
    fires: list[FireDocument]
    notes: Annotated[list[str], _note("What to think about.")] | UnsetType = UNSET


class TargetDocument(msgspec.Struct, frozen=True, gc=False, tag="http", tag_field="type"):
    """The webhook that is called. Headers that carry credentials are shown by name only."""

    url: str
    method: str
    headers: dict[str, str]
    secret_headers: list[str]
    timeout_sec: float


def shown_url(url: str) -> str:
    """A URL without the values in its query, which may be secrets."""
    path, mark, query = url.partition("?")
    return path + mark + "&".join(map(_masked, query.split("&"))) if mark else url


def maybe_url(url: str | None) -> str | None:
    """The same of a URL that may not be there."""
    return None if url is None else shown_url(url)


def _masked(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name}=***" if equals else "***" if pair else ""


def target_document(target: HttpTarget, secret_headers: Iterable[str]) -> TargetDocument:
    """A target; ``secret_headers`` are the names of the headers that are not shown."""
    return TargetDocument(
        shown_url(target.url),
        target.method,
        target.headers,
        sorted(secret_headers),
        target.timeout_sec,
    )


JobStatus = Literal["PENDING", "RUNNING", "COMPLETE", "FAILED", "PAUSED", "SUSPENDED", "CANCELLED"]


class AfterDocument(msgspec.Struct, frozen=True):
    """What a job waits for before it runs."""

    jobs: list[str]
    on: Literal["success", "any"]
    cascade_cancel: bool


_AFTER_NOTHING = AfterDocument([], NOTHING.on, NOTHING.cascade_cancel)


def after_document(after: After) -> AfterDocument:
    """What a job was told to wait for, in its one form."""
    if after is NOTHING:
        return _AFTER_NOTHING
    return AfterDocument(list(map(str, after.jobs)), after.on, after.cascade_cancel)


class JobDocument(msgspec.Struct, frozen=True, gc=False):
    """A job: what was asked for, with all defaults, and how it stands."""

    id: Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
    name: str
    status: JobStatus
    state_reason: Annotated[str | None, _note("Why it is paused, suspended or cancelled.")]
    schedule: ScheduleDocument
    target: TargetDocument
    priority: int
    lane: str
    retry_policy: RetryPolicy
    lease_sec: int
    labels: dict[str, str]
    payload_bytes: int
    content_type: str
    version: int
    created_at: Stamp
    created_by: str
    next_run_at: Annotated[Stamp | None, _note("When it runs next, jitter and retries included.")]
    next_fires: Annotated[list[Stamp], _note("The next nominal times of its schedule, up to five.")]
    attempts: Annotated[int, _note("At its latest run.")]
    last_error: Annotated[str | None, _note("Of the latest attempt that failed at that run.")]
    on_unknown: Literal["retry", "dead_letter"]
    cancel_url: Annotated[str | None, _note("Without the values in its query.")]
    after: AfterDocument
    waits_for: Annotated[
        list[str], _note("Of the jobs in `after`, those that have not ended, up to 20.")
    ]
    concurrency_key: str | None = None
    notes: Annotated[list[str], _note("When it was created: what to think about.")] | UnsetType = (
        UNSET
    )
    paused_until: Annotated[Stamp | None, _note("When it goes on by itself.")] = None


class FiresChange(msgspec.Struct, frozen=True):
    """The next nominal times of a job before and after a change, up to five each."""

    before: list[Stamp]
    after: list[Stamp]
    added: list[Stamp]
    removed: list[Stamp]


class JobChanges(msgspec.Struct, frozen=True):
    """What a change of a job comes to."""

    fields: Annotated[list[str], _note("Those that are not what they were.")]
    next_fires: FiresChange


class ChangedJobDocument(JobDocument, frozen=True, gc=False, kw_only=True):
    """A job as it is after a change, and what that came to."""

    changes: JobChanges


class BatchItem(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What became of one job of a batch: the job, or the problem with it."""

    index: int
    status: int
    location: str | None = None
    replayed: bool = False
    job: JobDocument | None = None
    problem: ProblemDocument | None = None


class BatchAnswer(msgspec.Struct, frozen=True):
    """What became of each job of a batch, in the order of the request."""

    created: int
    replayed: int
    failed: int
    results: list[BatchItem]


# --- Runs and the ledger ----------------------------------------------------------------------


class CancelDocument(msgspec.Struct, frozen=True):
    """How far the cancelling of a run is that a worker has under way.

    `finishing`: it may end by itself, but is not tried again. `requested`: its worker is to cut it
    off. `told`: its worker knows. Then it is over, and the run CANCELLED.
    """

    stage: Literal["finishing", "requested", "told"]
    reason: str
    requested_at: Stamp | None
    told_at: Stamp | None


class RunDocument(msgspec.Struct, frozen=True):
    """An occurrence being carried out, or how it ended."""

    id: str
    job_id: str
    kind: Literal["schedule", "trigger", "backfill"]
    state: Annotated[str, _note("READY, RUNNING, RETRYING; at the end the ledger's outcome.")]
    occurrence_at: Stamp
    due_at: Stamp
    attempt: int
    lane: str | None
    priority: int | None
    lease_version: int | None
    worker_id: str | None
    leased_at: Stamp | None
    locked_until: Stamp | None
    retry_at: Stamp | None
    hold: Annotated[str | None, _note("What keeps a READY run from being claimed.")]
    hold_reason: Annotated[str | None, _note("Why, as far as it is known.")]
    hold_since: Annotated[Stamp | None, _note("Since when its target stands as it does.")]
    cancel: Annotated[CancelDocument | None, _note("Set while it runs and is to be its last.")]
    reason: str | None
    ended_at: Stamp | None


class ResponseDocument(msgspec.Struct, frozen=True):
    """An excerpt of an answer. Its tenant may want none to be kept."""

    headers: dict[str, str]
    body: Annotated[str, _note("The first kilobyte, if it is text.")]
    truncated: bool


class ExecutionDocument(msgspec.Struct, frozen=True):
    """One attempt at a run; one that is under way has no ``finished_at``."""

    run_id: str
    attempt: int
    lease_version: int
    worker_id: str
    status: str
    started_at: Stamp
    finished_at: Stamp | None
    duration_ms: int | None
    http_status: int | None
    error: str | None
    unknown: Annotated[bool, _note("The receiver may have done it, though no answer was seen.")]
    retry_at: Stamp | None
    response: Annotated[ResponseDocument | None, _note("What is kept of the answer.")]
    duplicate_cause: Annotated[
        str | None,
        _note(
            "Set when the receiver said that it had done this before, to what explains it: "
            "`lease_expired`, `interrupted`, `lost_answer`, `failed_answer`, `replay`; or "
            "`unexplained`."
        ),
    ]


class RangeDocument(msgspec.Struct, frozen=True):
    """Nominal times one after the other that came to the same."""

    from_at: Annotated[Stamp, _note("The first of them.")]
    to_at: Annotated[Stamp, _note("The last.")]
    count: Annotated[int | None, _note("Null: too many to be counted.")]
    by: Annotated[str, _note("The API key that has caused it, or the part of the service.")]


class OccurrenceDocument(msgspec.Struct, frozen=True):
    """A line of the ledger: one nominal time of a job, and its one outcome; or, with ``range``,
    several that came to the same."""

    run_id: Annotated[str | None, _note("Null of a range.")]
    kind: Literal["schedule", "trigger", "backfill"]
    occurrence_at: Annotated[Stamp, _note("Of a range, the last.")]
    due_at: Annotated[Stamp | None, _note("Null of a range.")]
    materialized_at: Annotated[Stamp, _note("When the line was written.")]
    late_ms: Annotated[int | None, _note("From due to materialized; null of a range.")]
    outcome: str | None
    reason: str | None
    blocking_run: Annotated[str | None, _note("The run that was in the way of what is SKIPPED.")]
    ended_at: Stamp | None
    attempts: int | None
    schedule_version: Annotated[
        int | None,
        _note("Counts what changed the job or took it out of service; null beside its schedule."),
    ] = None
    superseded_by: Annotated[
        str | None, _note("The occurrence that took the place of what was MISSED (superseded).")
    ] = None
    range: RangeDocument | None = None


TargetState = Literal["CLOSED", "OPEN", "HALF_OPEN", "SUSPENDED"]


class TargetStateDocument(msgspec.Struct, frozen=True):
    """The breaker of a host and port, or of one URL there that answered 410; or a host that has a
    rate and no breaker that ever opened."""

    host: str
    port: Annotated[int | None, _note("Null: all of the host's.")]
    url: Annotated[str | None, _note("Only this URL, shown without its query; null: all of them.")]
    state: Annotated[
        TargetState,
        _note(
            "CLOSED: runs go on. OPEN: they are held. HALF_OPEN: a few are let through to try it. "
            "SUSPENDED: they are held until somebody resumes it."
        ),
    ]
    reason: str
    since: Stamp
    trips: Annotated[int, _note("How often it opened without having been CLOSED for long.")]
    next_try_at: Annotated[Stamp | None, _note("When an OPEN one is tried again.")]
    held: Annotated[int | None, _note("Runs that it holds up; counted up to 10,000, in lists.")]
    rate_per_sec: Annotated[
        float | None, _note("The rate of what is sent to the host, in lists; null: not limited.")
    ] = None
    slowed: Annotated[
        float | None,
        _note(
            "The part of the rate that is used now. Each 429 halves it, at most once in 5 seconds "
            "and down to 1/64; every 10 seconds a 16th comes back."
        ),
    ] = None
    waiting_for_rate: Annotated[
        int | None, _note("Runs that wait for the host's rate; counted up to 10,000.")
    ] = None


class ResumedDocument(msgspec.Struct, frozen=True):
    """What a person has resumed of a host."""

    resumed: list[TargetStateDocument]


class UseDocument(msgspec.Struct, frozen=True):
    """How much of a limit is used."""

    used: int
    limit: int


class ExplanationDocument(msgspec.Struct, frozen=True):
    """Why a job is, or is not, running now: the one constraint that holds it."""

    job_id: str
    run_id: str | None
    """Its run that this is about; none while nothing of it is unfinished."""
    constraint: Constraint
    detail: Annotated[str, _note("A sentence for people.")]
    frees: Annotated[str, _note("What would let it go on, for people.")]
    since: Stamp | None
    until: Annotated[Stamp | None, _note("When it ends by itself, as far as that is known.")]
    position: Annotated[
        int | None, _note("The place among those that wait for the same; 1 is next.")
    ]
    position_is_exact: Annotated[bool, _note("False when there are more ahead than were counted.")]
    estimated_start_at: Annotated[
        Stamp | None, _note("From the rate at which such runs have begun lately.")
    ]
    blocked_by: Annotated[list[str], _note("Ids of runs, or of jobs, that hold it; at most 5.")]
    use: UseDocument | None


class LimitDocument(msgspec.Struct, frozen=True):
    """What a tenant, one of its hosts or one of its concurrency keys is limited to."""

    kind: Literal["tenant", "host", "key"]
    name: str
    max_running: Annotated[int | None, _note("Runs at a time; null: no cap.")]
    rate_per_sec: Annotated[float | None, _note("Of a host: deliveries in a second; null: any.")]
    used: Annotated[
        int,
        _note(
            "Slots that runs have; counted up to 10,000. A run keeps the slot of its key until it "
            "ends, those of its host and tenant while it is, or may be, carried out."
        ),
    ]
    waiting: Annotated[int, _note("Runs that wait for a slot of it; counted up to 10,000.")]


# --- Lists and administration -----------------------------------------------------------------


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list."""

    data: list[T]
    next_cursor: str | None
    has_more: bool


class OperationDocument(msgspec.Struct, frozen=True):
    """A bulk action, and how far it is."""

    id: str
    kind: Literal["cancel_jobs", "backfill"]
    state: Literal["RUNNING", "DONE", "ABORTED", "FAILED"]
    job_id: Annotated[str | None, _note("The job that is backfilled.")]
    total: Annotated[int | None, _note("What there is to look at; null: nobody has counted.")]
    looked_at: Annotated[
        int, _note("Jobs, or nominal times, that it has gone through, meant or not.")
    ]
    done: Annotated[int, _note("Jobs that were cancelled, or nominal times that were opened.")]
    skipped: Annotated[
        int,
        _note(
            "Those it has gone through for which there was nothing to do: jobs that do not match "
            "or had nothing left, nominal times that have run, or that the schedule leaves out."
        ),
    ]
    created_by: str
    created_at: Stamp
    changed_at: Stamp
    ended_at: Stamp | None
    error: str | None


class BackfillCount(msgspec.Struct, frozen=True):
    """What a backfill would find; nothing was written."""

    nominal: Annotated[int, _note("Nominal times in the range.")]
    to_run: Annotated[int, _note("Those that would run.")]
    ran: Annotated[int, _note("Those that have run, or are running or waiting to.")]
    left_out: Annotated[
        int,
        _note(
            "The others: local times that do not exist, and what the scheduler is about to fire."
        ),
    ]


class TenantDocument(msgspec.Struct, frozen=True):
    """A tenant. ``signing_secret`` is there only in the answers that made a new one."""

    id: int
    name: str
    max_payload_bytes: int
    keep_responses: Annotated[bool, _note("Whether excerpts of answers are kept.")]
    creates_per_sec: Annotated[float | None, _note("Quota of jobs and triggers posted a second.")]
    creates_burst: Annotated[int | None, _note("So many of them at once after a pause.")]
    create_bytes_per_sec: Annotated[int | None, _note("Quota of payload bytes posted a second.")]
    max_pending_jobs: Annotated[int | None, _note("Quota of jobs that have not ended.")]
    deliveries_per_sec: Annotated[float | None, _note("How fast it sends; null: not limited.")]
    max_running: Annotated[int | None, _note("Its runs that are carried out at a time, at most.")]
    weight: Annotated[float, _note("Its part of a lane's slots, against other tenants'.")]
    jitter_sec: Annotated[
        int, _note("Of recurring jobs that name no jitter, unless their lane says it.")
    ]
    created_at: Stamp
    secrets_rotated_at: Stamp
    signing_secret: str | None = None


class ApiKeyDocument(msgspec.Struct, frozen=True):
    """An API key. ``key`` is there only in the answer that made it."""

    id: str
    tenant: str
    role: Literal["viewer", "submitter", "operator", "admin"]
    name: str
    created_at: Stamp
    expires_at: Stamp | None
    revoked_at: Stamp | None
    key: str | None = None


class WorkerDocument(msgspec.Struct, frozen=True):
    """A process of the service."""

    id: str
    role: str
    name: str
    host: str
    pid: int
    slots: int
    in_flight: int
    stopping: bool
    alive: bool
    started_at: Stamp
    seen_at: Stamp


class ShardDocument(msgspec.Struct, frozen=True):
    """A slice of timers and the scheduler that owns it."""

    shard: int
    epoch: int
    owner_id: str | None
    leased_until: Stamp | None


class LaneCount(msgspec.Struct, frozen=True):
    """How much stood in a lane when it was counted last, by the scheduler that leads."""

    counted_at: Stamp
    ready: Annotated[int, _note("Runs that could be claimed.")]
    oldest_age_sec: Annotated[float, _note("How long one of them could have been; 0 of none.")]
    running: int
    objective_sec: Annotated[float, _note("How long it may be: the lane's, or the settings'.")]


class LaneScaling(msgspec.Struct, frozen=True):
    """How many slots a lane needs in all, as the scheduler that leads has found."""

    wanted_slots: int
    reason: Annotated[str, _note("What they are needed for.")]
    since: Stamp


class LaneDocument(msgspec.Struct, frozen=True):
    """A stream of runs with limits of its own."""

    name: str
    state: Annotated[Literal["OPEN", "PAUSED", "SHED"], _note("Claimed, or why it is not.")]
    reason: Annotated[str | None, _note("Why it is not claimed.")]
    since: Annotated[Stamp | None, _note("Since when it is not.")]
    by: Annotated[str | None, _note("The API key that paused it.")]
    weight: float
    max_running: int | None
    ageing_sec: float
    objective_sec: float | None
    sheddable: bool
    jitter_sec: Annotated[
        int | None, _note("Of recurring jobs that name no jitter; null: as their tenant's.")
    ]
    counts: Annotated[LaneCount | None, _note("Null until a scheduler has counted.")]
    scaling: Annotated[LaneScaling | None, _note("Null until a scheduler has looked.")]


class BacklogDelay(msgspec.Struct, frozen=True):
    """A lane of which late recurring timers wait, since its runs do."""

    lane: str
    since: Stamp
    waited_sec: Annotated[float, _note("How long the run that waits longest has.")]
    priority: Annotated[int, _note("Jobs of this priority wait, and of all that are less urgent.")]


class BacklogDocument(msgspec.Struct, frozen=True):
    """What is late after an outage, of all tenants, and how the schedulers catch up on it."""

    late_after_sec: Annotated[float, _note("A timer is late that is overdue by more.")]
    remaining: Annotated[int, _note("Timers that are late.")]
    exact: Annotated[bool, _note("Whether they were counted; of many a sample is.")]
    oldest_due_at: Stamp | None
    rate_per_sec: Annotated[float, _note("Late timers fired, over the last minute.")]
    eta_sec: Annotated[
        float | None,
        _note("How long it takes still, at this rate. Null while none is fired that could be."),
    ]
    share: Annotated[
        float | None, _note("The most that it gets beside fresh work; null without a scheduler.")
    ]
    limit_sec: Annotated[float | None, _note("When a lane delays what recurs; see `delays`.")]
    delayed: Annotated[int, _note("Late timers that `delays` held up when last looked through.")]
    delays: list[BacklogDelay]


class MinuteDocument(msgspec.Struct, frozen=True):
    """What is due in a minute: occurrences to expect, so they may be a fraction."""

    at: Stamp
    occurrences: float
    hot: Annotated[bool, _note("Whether much is due then in the service as a whole.")]
    with_jitter: Annotated[
        float | None, _note("What would be due then with `jitter_sec`, where that is given.")
    ] = None
    hot_with_jitter: bool | None = None


class ShareDocument(msgspec.Struct, frozen=True):
    """A part of what is due in a minute; without a name, all that is too small to be listed."""

    name: str | None
    occurrences: float


class HotMinuteDocument(msgspec.Struct, frozen=True):
    """What a hot minute consists of: the biggest tenants, lanes and hosts."""

    at: Stamp
    occurrences: float
    with_jitter: float | None
    hot_with_jitter: bool | None
    tenants: list[ShareDocument]
    lanes: list[ShareDocument]
    target_hosts: list[ShareDocument]


class OutlookDocument(msgspec.Struct, frozen=True):
    """All minutes together."""

    hot_minutes: int
    busiest_at: Stamp | None
    busiest: Annotated[float, _note("What is due in the busiest minute.")]


class ForecastDocument(msgspec.Struct, frozen=True):
    """What is due, minute by minute, as it was counted last."""

    computed_at: Annotated[Stamp | None, _note("Null until a scheduler has counted.")]
    took_sec: float | None
    starts_at: Stamp | None
    ends_at: Stamp | None
    estimated: Annotated[
        bool, _note("Timers were too many to look at each: of one-off jobs these are estimates.")
    ]
    occurrences: Annotated[float, _note("In all.")]
    hot_from: Annotated[
        float | None, _note("A minute is hot in which so much is due in the service as a whole.")
    ]
    outlook: OutlookDocument
    with_jitter: Annotated[OutlookDocument | None, _note("The same with `jitter_sec`.")]
    minutes: Annotated[list[MinuteDocument], _note("Those in which nothing is due are left out.")]
    hot: Annotated[list[HotMinuteDocument], _note("The biggest hot minutes, 100 at the most.")]
    folded_minutes: Annotated[
        int,
        _note(
            "In so many minutes some streams were too small to be listed by tenant, lane and host: "
            "there a number that is narrowed down may be too low."
        ),
    ]


class AlertDocument(msgspec.Struct, frozen=True):
    """Something that is wrong with the service, or was lately."""

    name: str
    labels: Annotated[dict[str, str], _note("What it is about: a lane, reason, loop or role.")]
    state: Literal["FIRING", "PENDING", "RESOLVED"]
    severity: Literal["critical", "warning"]
    summary: str
    action: Annotated[str, _note("What to do first.")]
    runbook: Annotated[str, _note("Where the pages say more.")]
    value: float
    samples: Annotated[list[str], _note("Up to three error texts.")]
    times: Annotated[int, _note("How often it has fired.")]
    since: Annotated[Stamp, _note("When it came into its state.")]
    last_sent_at: Annotated[Stamp | None, _note("When a notice of it was last taken.")]
    unsent_tries: Annotated[int, _note("Tries to post the notice that is due.")]


class AuditDocument(msgspec.Struct, frozen=True):
    """One change: who, what, when, and the thing before and after."""

    id: int
    at: Stamp
    tenant_id: int | None
    actor: str
    action: str
    object_type: str
    object_id: str
    before: Any
    after: Any
    request_id: str | None
