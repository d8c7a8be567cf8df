"""The things Noonday speaks of, frozen. One word for one thing, as in ``docs/glossary.md``.

Instants are aware datetimes in UTC and end in ``_at``; durations given by a client keep the
client's unit and end in ``_sec``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Final, Literal, NamedTuple, TypeVar
from uuid import UUID

import msgspec

T = TypeVar("T")

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
SHARDS: Final = 64
PRIORITIES: Final = range(10)
LONG_TIMEOUT_SEC: Final = 120.0
"""A job whose attempts may take longer belongs to the lane ``long``, unless it names one."""


def lane_for(timeout_sec: float) -> str:
    """The lane of a job that names none, by how long one attempt may take."""
    return "long" if timeout_sec > LONG_TIMEOUT_SEC else "default"


def shard_of(job_id: UUID) -> int:
    """The slice of timers that a job belongs to: the last bits of a UUIDv7 are random."""
    return job_id.int % SHARDS


# --- What a tenant asked for ------------------------------------------------------------------

# A document of each job is stored, without what has its default value: so a default that stands
# here never changes. (It is told by identity: one that a client has spelled out may be written.)


def _written(default: T) -> T:
    """A field that is always written: statements read it out of the document."""
    return msgspec.field(default_factory=lambda: default)


Misfire = Literal["one", "skip", "all"]
"""What runs when several occurrences of a job are due at once: the latest, none, or each."""
Overlap = Literal["skip", "allow", "queue", "replace"]
"""What becomes of an occurrence while a run of its job is unfinished."""


class Once(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="once", tag_field="type"):
    """Fire one time, at ``run_at``; late rather than never, unless ``grace_sec`` bounds it."""

    run_at: datetime
    jitter_sec: int = 0
    grace_sec: int | None = None


class Cron(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="cron", tag_field="type"):
    """Fire whenever the local time of ``timezone`` matches ``cron``."""

    cron: str
    timezone: str = "UTC"
    jitter_sec: int = 0
    misfire: Misfire = "one"
    overlap: Overlap = _written("skip")
    grace_sec: int = 86_400
    dst_gap: Literal["run", "skip"] = "run"
    dst_fold: Literal["first", "second", "both"] = "first"
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    """No occurrence is later."""
    max_occurrences: int | None = None
    """Of nominal times, whether or not they run."""


class Interval(
    msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="interval", tag_field="type"
):
    """Fire at ``starts_at + k * interval_sec``, whatever runs take (k = 0, 1, 2 ...)."""

    interval_sec: int
    starts_at: datetime
    jitter_sec: int = 0
    misfire: Misfire = "one"
    overlap: Overlap = _written("skip")
    grace_sec: int = 86_400
    ends_at: datetime | None = None
    max_occurrences: int | None = None


Schedule = Once | Cron | Interval


class HttpTarget(
    msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="http", tag_field="type"
):
    """A webhook to call. ``headers`` holds what a customer added, credentials left out."""

    url: str
    method: Literal["POST", "PUT", "PATCH", "GET", "DELETE"] = _written("POST")
    headers: dict[str, str] = {}
    timeout_sec: float = 30.0


class RetryPolicy(msgspec.Struct, frozen=True, gc=False):
    """How often and how long a run is tried: ``base * factor**(failures - 1)``, at most ``cap``."""

    max_attempts: int = 8
    base_sec: float = 5.0
    factor: float = 3.0
    cap_sec: float = 3_600.0
    max_age_sec: int | None = 86_400


USUAL_POLICY: Final = RetryPolicy()

OnUnknown = Literal["retry", "dead_letter"]
"""What follows when nobody knows whether the receiver did the work."""


class JobSpec(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The part of a job that is stored as one document and read as a whole."""

    schedule: Schedule
    target: HttpTarget
    retry_policy: RetryPolicy = USUAL_POLICY
    lease_sec: int = 60
    on_unknown: OnUnknown = "retry"
    cancel_url: str | None = None
    """Called when a request that is under way is cut off because its run was cancelled."""


# --- Occurrences and runs ---------------------------------------------------------------------


class Kind(IntEnum):
    """Why an occurrence exists: its schedule, a person's trigger, or a backfill."""

    SCHEDULE = 0
    TRIGGER = 1
    BACKFILL = 2


_LETTERS: Final = "stb"


class RunKey(NamedTuple):
    """What names an occurrence and its run everywhere: two schedulers cannot name it twice."""

    job_id: UUID
    kind: Kind
    occurrence_at: datetime

    def __str__(self) -> str:
        micros = (self.occurrence_at - EPOCH) // MICROSECOND
        return f"{self.job_id.hex}-{_LETTERS[self.kind]}{micros}"


def parse_run_id(text: str) -> RunKey | None:
    """Read a run id back into its key; None for anything that is not one in canonical form."""
    head, dash, tail = text.partition("-")
    if (
        not dash
        or tail[:1] not in tuple(_LETTERS)
        or not (tail[1:].isascii() and tail[1:].isdigit())
    ):
        return None
    try:
        at = EPOCH + timedelta(microseconds=int(tail[1:]))
        key = RunKey(UUID(hex=head), Kind(_LETTERS.index(tail[0])), at)
    except (ValueError, OverflowError):
        return None
    return key if str(key) == text else None


class RunState(StrEnum):
    """READY may be held; what waits for a time is RETRYING; what has a lease is RUNNING."""

    READY = "READY"
    RUNNING = "RUNNING"
    RETRYING = "RETRYING"


class LedgerOutcome(StrEnum):
    """How an occurrence ended. An open one has none yet."""

    COMPLETE = "COMPLETE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"
    MISSED = "MISSED"


class ExecutionStatus(StrEnum):
    """How one attempt ended. A running one is the lease itself and has no execution yet."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    INTERRUPTED = "INTERRUPTED"
    CANCELLED = "CANCELLED"


class Reason(StrEnum):
    """Why a run became a dead letter: a closed set, so that it can be counted and filtered."""

    PERMANENT_ANSWER = "permanent_answer"
    BAD_PAYLOAD = "bad_payload"
    TRANSIENT = "transient"
    TIMEOUT = "timeout"
    LEASE_EXPIRED = "lease_expired"
    EXPIRED = "expired"
    BLOCKED_TARGET = "blocked_target"
    TARGET_GONE = "target_gone"
    INTERRUPTED = "interrupted"
    UNKNOWN_OUTCOME = "unknown_outcome"
    """The receiver may have done the work, and the job wants nothing automatic then."""
    KILLED = "killed"
    """By hand."""


# --- Attempts and their outcomes --------------------------------------------------------------


class Reading(NamedTuple):
    """When the database's clock was read, in seconds: what it showed, and the monotonic clock of
    this process before it asked and after it was answered."""

    shown: float
    asked: float
    answered: float

    def now(self, wall: float, monotonic: float) -> float:
        """The database's time, as near as can be told: the clock on our wall, unless it shows
        something that the time cannot be."""
        earliest, latest = self.shown - self.answered, self.shown - self.asked
        return min(max(wall, earliest + monotonic), latest + monotonic)


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """All that an executor needs to carry out one attempt; it knows nothing of states."""

    run: RunKey
    number: int
    lease_version: int
    target: HttpTarget
    headers: dict[str, str]
    """The customer's headers, credentials included."""
    body: bytes
    content_type: str
    secrets: tuple[bytes, ...]
    """The tenant's signing keys, newest first; the older ones are signed with during a rotation."""
    traceparent: str | None = None
    clock: Reading | None = None
    """Time is the database's, as of the claim; None goes by the clock on the wall."""


class OutcomeKind(StrEnum):
    """The closed set of answers an executor can give."""

    SUCCESS = "success"
    TRANSIENT = "transient"
    """Failed in a way that may pass: 408, 425, 429, 5xx, 3xx, a network fault."""
    TIMEOUT = "timeout"
    PERMANENT = "permanent"
    """Another try would fail the same way: other 4xx, a certificate that does not verify."""
    GONE = "gone"
    """410: the receiver wants no more of these."""
    BLOCKED = "blocked"
    """The address may not be called; nothing was sent."""
    BAD_PAYLOAD = "bad_payload"
    """The payload or target cannot be made into a request; nothing was sent."""
    INTERRUPTED = "interrupted"
    """We stopped the attempt ourselves (shutdown); the receiver may have seen it."""
    NOT_SENT = "not_sent"
    """Handed back before anything was sent: leaves no trace but a higher lease version."""
    CANCELLED = "cancelled"
    """We stopped the attempt, because its run was cancelled; the receiver may have seen it."""
    KILLED = "killed"
    """The same, and a person wants a dead letter of it."""
    EXPIRED = "expired"
    """It was held back until it was too old to be tried again; nothing was sent."""


class Excerpt(msgspec.Struct, frozen=True, gc=False):
    """What is kept of an answer, beside its status: for people, cut and clean."""

    headers: dict[str, str] = {}
    """Those of a closed list, names in lower case."""
    body: str = ""
    """The first 1,000 bytes as text; of what is not text, only that."""
    truncated: bool = False
    """Whether there was more of the body."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What came of an attempt. ``error`` is for people: cut, clean, and without secrets."""

    kind: OutcomeKind
    http_status: int | None = None
    error: str | None = None
    retry_after: timedelta | None = None
    """The receiver's wish from ``Retry-After``, not yet bounded."""
    unknown: bool = False
    """True when the receiver may have done the work although we saw no answer."""
    response: Excerpt | None = None
    """What is kept of the answer; None when there was none, or nothing beside its status."""
    duplicate: bool = False
    """The receiver says that it had done this already (``X-Noonday-Duplicate: 1``)."""
