"""Requests, read: each body becomes a value that can be carried out, or a list of its faults."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NamedTuple
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from noonday.api.checks import Ports, check_job, check_lane, duration, parents_of
from noonday.api.reading import Fault, Faults, read, read_quickly, read_slowly
from noonday.api.wire import (
    USUAL_RETRY,
    AfterBody,
    CronBody,
    Instant,
    IntervalBody,
    JobBody,
    OnceBody,
    RetryBody,
    ScheduleBody,
    jitter_of,
)
from noonday.domain.dependencies import NOTHING, After
from noonday.domain.lanes import READY_MADE
from noonday.domain.model import (
    USUAL_POLICY,
    Cron,
    HttpTarget,
    Interval,
    Once,
    RetryPolicy,
    Schedule,
    lane_for,
)
from noonday.domain.target import WEB_PORTS, Endpoint, carries_credentials

MOST_JOBS: Final = 1_000
MOST_PER_SEC: Final = 100_000
"""Of one batch."""


class JobRequest(msgspec.Struct, frozen=True, gc=False):
    """A job to create: sound, with every default in its place."""

    name: str
    schedule_type: str
    target: HttpTarget
    """Without the headers that carry credentials."""
    target_host: str
    secret_headers: dict[str, str]
    payload: bytes
    """To be sent as it is; empty if none was given."""
    content_type: str
    priority: int
    lane: str
    lease_sec: int
    retry_policy: RetryPolicy
    on_unknown: Literal["retry", "dead_letter"]
    cancel_url: str | None
    concurrency_key: str | None
    labels: dict[str, str]
    wanted: ScheduleBody
    after: After = NOTHING
    after_pointer: str = "/after"
    """Where in the body the jobs stand that it waits for."""

    def schedule(self, now: datetime, jitter_sec: int = 0) -> Schedule:
        """The schedule of a job that is created at ``now``, the database's time. ``jitter_sec`` is
        that of recurring jobs that name none.

        Every job has the same id to a draw by ``H`` when its body is read, so a schedule may
        still turn out, by ``domain.schedule.first``, not to occur for the id it is given.
        """
        return schedule_of(self.wanted, now, jitter_sec)


class PreviewBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule to look at; nothing is created."""

    schedule: ScheduleBody
    lane: Annotated[
        str,
        Meta(min_length=1, max_length=63, description="The lane of such a job."),
    ] = lane_for(0)
    count: Annotated[int, Meta(ge=1, le=100, description="How many occurrences.")] = 5
    after: (
        Annotated[Instant, Meta(description="The first one is later; without it, as created now.")]
        | None
    ) = None


def schedule_of(wanted: ScheduleBody, now: datetime, jitter_sec: int = 0) -> Schedule:
    """What a job's schedule is when it is created at ``now``; ``jitter_sec`` is that of recurring
    ones that name none."""
    match wanted:
        case OnceBody() as once:
            return Once(_run_at(once, now), once.jitter_sec, once.grace_sec)
        case CronBody() as body:
            return Cron(
                body.cron,
                body.timezone,
                jitter_of(body, jitter_sec),
                body.misfire,
                body.overlap,
                body.grace_sec,
                body.dst_gap,
                body.dst_fold,
                body.starts_at,
                body.ends_at,
                body.max_occurrences,
            )
        case IntervalBody() as body:
            return Interval(
                body.interval_sec,
                body.starts_at or now,
                jitter_of(body, jitter_sec),
                body.misfire,
                body.overlap,
                body.grace_sec,
                body.ends_at,
                body.max_occurrences,
            )


def _run_at(once: OnceBody, now: datetime) -> datetime:
    if once.run_at is not None:
        return once.run_at
    delay = None if once.delay is None else duration(once.delay)
    return now if delay is None else now + delay


def read_job(
    document: bytes,
    *,
    allow_private: bool,
    ports: Ports = WEB_PORTS,
    lanes: Collection[str] = READY_MADE,
) -> JobRequest | list[Fault]:
    """A job to create, or everything that is wrong with it. Raises nothing.

    ``allow_private`` and ``ports`` (None: any) say which targets may be called, ``lanes`` which
    lanes there are.
    """
    faults = Faults()
    body = read_quickly(document, JobBody)
    if body is None:
        body = read_slowly(document, JobBody, faults)
    return _checked(body, faults, allow_private, ports, lanes)


def _checked(
    body: JobBody, faults: Faults, allow_private: bool, ports: Ports, lanes: Collection[str]
) -> JobRequest | list[Fault]:
    if body.lane is not UNSET:
        check_lane(body.lane, faults, lanes)
    endpoint = check_job(body, faults, allow_private=allow_private, ports=ports)
    if endpoint is None or faults:
        return faults.all()
    return _request(body, endpoint)


def _request(body: JobBody, endpoint: Endpoint) -> JobRequest:
    headers, secrets = _split(body.target.headers)
    target = body.target
    content_type, payload = _payload(body)
    parents, after_pointer = parents_of(body)
    return JobRequest(
        body.name, str(body.schedule.__struct_config__.tag),
        HttpTarget(target.url, target.method, headers, target.timeout_sec), endpoint.host, secrets,
        payload, content_type, body.priority,
        lane_for(target.timeout_sec) if body.lane is UNSET else body.lane, body.lease_sec,
        _policy(body.retry_policy),
        body.on_unknown, body.cancel_url, body.concurrency_key, body.labels, body.schedule,
        _after(body.after, parents), after_pointer,
    )  # fmt: skip


def _policy(body: RetryBody) -> RetryPolicy:
    if body is USUAL_RETRY:  # as in most jobs: then it is not written with the job
        return USUAL_POLICY
    return RetryPolicy(
        body.max_attempts, body.base_sec, body.factor, body.cap_sec, body.max_age_sec
    )


def _after(body: list[str] | AfterBody, parents: list[str]) -> After:
    if not body:
        return NOTHING
    jobs = tuple(map(UUID, parents))
    return After(jobs, body.on, body.cascade_cancel) if isinstance(body, AfterBody) else After(jobs)


def _split(headers: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    if not headers:
        return headers, {}
    secrets = {name: value for name, value in headers.items() if carries_credentials(name)}
    return {name: headers[name] for name in headers if name not in secrets}, secrets


def _payload(body: JobBody) -> tuple[str, bytes]:
    if body.payload_base64 is not UNSET:
        given = "application/octet-stream" if body.content_type is UNSET else body.content_type
        return given, body.payload_base64
    return "application/json", b"" if body.payload is UNSET else bytes(body.payload)


# --- Batches ----------------------------------------------------------------------------------

# In a pattern `$` alone lets a line feed follow, to Python though not to ECMA 262.
_Key = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=255,
        pattern=r"^[!-~]+(?!\n)$",
        description="As the header Idempotency-Key of a single job: visible ASCII.",
        examples=["a1"],
    ),
]


class BatchEntry(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One job of a batch, with a key of its own."""

    job: Annotated[Raw, Meta(description="A job as for POST /v1/jobs.", examples=[Raw(b"{}")])]
    idempotency_key: _Key | None = None


class BatchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Up to 1,000 jobs at once."""

    jobs: Annotated[list[BatchEntry], Meta(min_length=1, max_length=MOST_JOBS)]
    atomic: Annotated[bool, Meta(description="All of the jobs, or none.")] = False


class SoundEntry(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """An entry whose job has all its fields as they should be."""

    job: JobBody
    idempotency_key: _Key | None = None


class SoundBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A :class:`BatchBody` of such entries."""

    jobs: Annotated[list[SoundEntry], Meta(min_length=1, max_length=MOST_JOBS)]
    atomic: bool = False


_as_it_stands: Final = msgspec.json.Decoder(BatchBody).decode


class Item(NamedTuple):
    """One job of a batch. The pointers of its faults begin at the job."""

    idempotency_key: str | None
    raw: bytes
    job: JobRequest | list[Fault]


class Batch(NamedTuple):
    """Jobs to create together."""

    atomic: bool
    items: list[Item]


def read_batch(
    document: bytes,
    *,
    allow_private: bool,
    ports: Ports = WEB_PORTS,
    lanes: Collection[str] = READY_MADE,
) -> Batch | list[Fault]:
    """A batch whose jobs are good or bad one by one; or what is wrong with the batch itself."""
    # Most batches are sound, and then read in one go.
    sound = read_quickly(document, SoundBatch)
    body = read(document, BatchBody) if sound is None else _as_it_stands(document)
    if isinstance(body, list):
        return body
    items = []
    for n, entry in enumerate(body.jobs):
        raw = bytes(entry.job)
        if sound is None:
            job = read_job(raw, allow_private=allow_private, ports=ports, lanes=lanes)
        else:
            job = _checked(sound.jobs[n].job, Faults(), allow_private, ports, lanes)
        items.append(Item(entry.idempotency_key, raw, job))
    return Batch(body.atomic, items)


# --- Small requests, for ``read`` -------------------------------------------------------------


class TriggerBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Run a job now, beside its schedule."""

    reason: Annotated[str, Meta(max_length=255, description="For the audit log.")] = ""


class PauseBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fire nothing of a job for now."""

    reason: Annotated[str, Meta(max_length=255, description="For whoever looks at it later.")] = ""
    until: (
        Annotated[
            Instant, Meta(description="When it goes on by itself; without it, not by itself.")
        ]
        | None
    ) = None


class ResumeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Let a job fire again."""

    reason: Annotated[str, Meta(max_length=255, description="For the audit log.")] = ""
    catch_up: Annotated[
        bool,
        Meta(description="Decide about what it left out as after an outage, by its `misfire`."),
    ] = False


class JobPatchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A merge patch of a job (RFC 7396): what is given replaces what is there, null takes it away.

    A ``schedule`` or ``target`` of another ``type`` is replaced as a whole, and so are payloads.
    """

    schedule: dict[str, Any] | UnsetType = UNSET
    target: dict[str, Any] | UnsetType = UNSET
    name: str | UnsetType | None = UNSET
    payload: Any | UnsetType = UNSET
    payload_base64: str | UnsetType | None = UNSET
    content_type: str | UnsetType | None = UNSET
    priority: int | UnsetType | None = UNSET
    lane: str | UnsetType | None = UNSET
    retry_policy: dict[str, Any] | UnsetType | None = UNSET
    lease_sec: int | UnsetType | None = UNSET
    on_unknown: Literal["retry", "dead_letter"] | UnsetType | None = UNSET
    cancel_url: str | UnsetType | None = UNSET
    concurrency_key: str | UnsetType | None = UNSET
    labels: dict[str, str | None] | UnsetType | None = UNSET


class CancelBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """End a run: cancelled, or set aside as a dead letter."""

    reason: Annotated[str, Meta(max_length=255, description="For whoever looks at it later.")] = ""
    dead_letter: Annotated[
        bool, Meta(description="Keep it as a dead letter, which can be replayed.")
    ] = False


class JobFilterBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs are meant: those that match all that is given, as for GET /v1/jobs."""

    schedule_type: Literal["once", "cron", "interval"] | None = None
    lane: Annotated[str, Meta(max_length=255)] | None = None
    name_prefix: Annotated[str, Meta(max_length=255)] | None = None
    label: (
        Annotated[
            str,
            Meta(max_length=320, pattern="^[^:]+:", description="`key:value`", examples=["a:b"]),
        ]
        | None
    ) = None
    target_host: Annotated[str, Meta(max_length=255)] | None = None
    created_from: Annotated[datetime, Meta(tz=True)] | None = None
    created_to: Annotated[datetime, Meta(tz=True)] | None = None


class BulkCancelBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cancel all jobs that a filter matches and that are there by now."""

    filter: Annotated[
        JobFilterBody, Meta(description="It has to narrow them down.", examples=[{"lane": "long"}])
    ]
    running: Annotated[
        Literal["finish", "cancel"],
        Meta(description="Whether attempts under way are let finish, or cut off as well."),
    ] = "finish"
    reason: Annotated[str, Meta(max_length=255, description="For whoever looks at it later.")] = ""


class BackfillBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Run the nominal times of a past range that have not run."""

    from_at: Annotated[
        datetime,
        Meta(
            tz=True,
            description="The first nominal time that is meant. Not below the start of the ledger.",
            examples=[datetime.fromisoformat("2027-01-01T00:00:00+00:00")],
        ),
    ] = msgspec.field(name="from")
    to_at: Annotated[
        datetime,
        Meta(
            tz=True,
            description="The last nominal time that is meant. Not in the future.",
            examples=[datetime.fromisoformat("2027-01-31T23:59:59+00:00")],
        ),
    ] = msgspec.field(name="to")
    dry_run: Annotated[bool, Meta(description="Only count; nothing is written.")] = False
    rate_per_sec: Annotated[
        float, Meta(ge=0.001, le=1_000, description="Never are more opened in a second.")
    ] = 10.0
    lane: Annotated[
        str, Meta(min_length=1, max_length=63, description="The stream of runs that they join.")
    ] = "batch"
    priority: (
        Annotated[int, Meta(ge=0, le=9, description="Of the runs; null: that of the job.")] | None
    ) = None
    reason: Annotated[str, Meta(max_length=255, description="For the audit log.")] = ""


CreatesPerSec = Annotated[
    float,
    Meta(
        ge=0.001,
        le=1_000_000,
        description="Jobs and triggers that may be posted a second; null: no quota.",
    ),
]
CreatesBurst = Annotated[
    int,
    Meta(
        ge=1,
        le=1_000_000,
        description="How many of them at once after a pause; null: as many as in a second.",
    ),
]
CreateBytesPerSec = Annotated[
    int,
    Meta(
        ge=1,
        le=1_000_000_000,
        description="Bytes of payload that may be posted a second; null: no quota.",
    ),
]
MaxRunning = Annotated[
    int,
    Meta(
        ge=0,
        le=1_000_000,
        description="Runs that are carried out at a time, at most; null: no cap.",
        examples=[10],
    ),
]
Weight = Annotated[
    float,
    Meta(
        gt=0,
        le=1_000,
        description="Its part of a lane's slots while several tenants wait, against the others'.",
        examples=[2],
    ),
]
MaxPendingJobs = Annotated[
    int,
    Meta(
        ge=0,
        le=1_000_000_000,
        description="Jobs that have not ended; with more nothing is created. null: no quota.",
    ),
]
TenantJitter = Annotated[
    int,
    Meta(
        ge=0,
        le=86_400,
        description="The `jitter_sec` of recurring jobs that name none, unless their lane says it.",
        examples=[300],
    ),
]
DeliveriesPerSec = Annotated[
    float,
    Meta(
        gt=0,
        le=MOST_PER_SEC,
        description="How many requests a second are sent for the tenant, to all its targets "
        "together and by all workers; null: no limit.",
        examples=[50],
    ),
]


class HostLimitBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the tenant's runs that call one host are limited to."""

    max_running: MaxRunning | None = None
    rate_per_sec: (
        Annotated[
            float,
            Meta(
                gt=0,
                le=100_000,
                description="Deliveries in a second, evenly spread, at most; null: no limit.",
                examples=[50],
            ),
        ]
        | None
    ) = None


class KeyLimitBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many runs of a concurrency key are carried out at a time."""

    max_running: MaxRunning | None


class TenantBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant to create."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(?!\n)$",
            description="Lower-case letters, digits and hyphens.",
            examples=["payments"],
        ),
    ]
    max_payload_bytes: Annotated[
        int, Meta(ge=1, le=1_048_576, description="The largest payload of a job.")
    ] = 1_048_576
    keep_responses: Annotated[
        bool, Meta(description="Whether an excerpt of what receivers answer is kept.")
    ] = True
    creates_per_sec: CreatesPerSec | None = None
    creates_burst: CreatesBurst | None = None
    create_bytes_per_sec: CreateBytesPerSec | None = None
    max_pending_jobs: MaxPendingJobs | None = None
    deliveries_per_sec: DeliveriesPerSec | None = None
    max_running: MaxRunning | None = None
    weight: Weight = 1.0
    jitter_sec: TenantJitter = 0


class TenantChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to change of a tenant; what is not given stays. A quota that is null is taken away."""

    max_payload_bytes: (
        Annotated[int, Meta(ge=1, le=1_048_576, description="The largest payload of a job.")] | None
    ) = None
    keep_responses: (
        Annotated[bool, Meta(description="Whether an excerpt of what receivers answer is kept.")]
        | None
    ) = None
    creates_per_sec: CreatesPerSec | UnsetType | None = UNSET
    creates_burst: CreatesBurst | UnsetType | None = UNSET
    create_bytes_per_sec: CreateBytesPerSec | UnsetType | None = UNSET
    max_pending_jobs: MaxPendingJobs | UnsetType | None = UNSET
    deliveries_per_sec: DeliveriesPerSec | UnsetType | None = UNSET
    max_running: MaxRunning | UnsetType | None = UNSET
    weight: Weight | None = None
    jitter_sec: TenantJitter | None = None


class ApiKeyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An API key to create."""

    tenant: Annotated[str, Meta(max_length=63, description="Its tenant.", examples=["payments"])]
    role: Annotated[
        Literal["viewer", "submitter", "operator", "admin"],
        Meta(description="What it may do.", examples=["submitter"]),
    ]
    name: Annotated[str, Meta(max_length=255, description="For people.")] = ""
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None


class LaneBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a lane; what is not given stays, or has its default in a new lane."""

    weight: (
        Annotated[
            float,
            Meta(gt=0, le=1_000, description="Its share of slots that serve other lanes as well."),
        ]
        | UnsetType
    ) = UNSET
    max_running: (
        Annotated[int, Meta(ge=0, le=1000000, description="Most runs at once; null: no cap.")]
        | UnsetType
        | None
    ) = UNSET
    ageing_sec: (
        Annotated[
            float,
            Meta(gt=0, le=86_400, description="A step of priority is worth so much waiting."),
        ]
        | UnsetType
    ) = UNSET
    objective_sec: (
        Annotated[float, Meta(gt=0, le=604800, description="Longest wait; null: as set for all.")]
        | UnsetType
        | None
    ) = UNSET
    sheddable: (
        Annotated[bool, Meta(description="Whether it waits while others miss their objective.")]
        | UnsetType
    ) = UNSET
    jitter_sec: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=86_400,
                description="The `jitter_sec` of its recurring jobs that name none; null: what "
                "their tenant says.",
            ),
        ]
        | UnsetType
        | None
    ) = UNSET
