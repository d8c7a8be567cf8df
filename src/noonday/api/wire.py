"""The body of a job, field by field: types, limits, defaults, and what is not carried out yet.

This is the one table that decoding, the list of faults and the OpenAPI document are made from.
What a type cannot say is checked in ``checks.py``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from noonday.api.shapes import LATER
from noonday.domain import model
from noonday.domain.dependencies import MOST_PARENTS
from noonday.domain.model import LONG_TIMEOUT_SEC, USUAL_POLICY, Cron, HttpTarget
from noonday.domain.schedule import LONGEST_SEC, MOST_OCCURRENCES

DAY_SEC: Final = 86_400


Instant = Annotated[
    datetime,
    Meta(
        tz=True,
        description="RFC 3339 with an offset, from 1970 up to 2200.",
        examples=[datetime.fromisoformat("2027-03-28T02:30:00+01:00")],
    ),
]
Jitter = Annotated[
    int,
    Meta(
        ge=0,
        le=DAY_SEC,
        description="Delays each occurrence by a fixed time of the job, from 0 up to so many "
        "seconds, so that many jobs do not fire at once.",
    ),
]
UsualJitter = Annotated[
    int,
    Meta(
        ge=0,
        le=DAY_SEC,
        description="Delays each occurrence by a fixed time of the job, from 0 up to so many "
        "seconds, so that many jobs do not fire at once. If not given, what the lane says, else "
        "what the tenant says (of an interval at most all but a second); at first both say 0.",
    ),
]
Grace = Annotated[
    int,
    Meta(
        ge=0,
        le=LONGEST_SEC,
        description="An occurrence that is later than so many seconds is not run, but missed.",
    ),
]
Misfire = Annotated[
    model.Misfire,
    Meta(
        description="When several occurrences are due at once, after an outage, the latest runs, "
        "or none of them (`skip`), or each (`all`): the last 1,000, ten a second, or one a second "
        "where they may not overlap."
    ),
]
Overlap = Annotated[
    model.Overlap,
    Meta(
        description="While a run of the job is unfinished, the next occurrence is skipped; runs "
        "beside it (`allow`); waits for its end (`queue`: one waits, and a later one takes its "
        "place); or takes its place (`replace`: it is asked to stop, and the next begins when it "
        "has ended)."
    ),
]
EndsAt = Annotated[
    Instant, Meta(description="No occurrence is later. A job that has had its last has ended.")
]
MaxOccurrences = Annotated[
    int,
    Meta(
        ge=1,
        le=MOST_OCCURRENCES,
        description="How many nominal times there are, from the first on, whether or not they run.",
        examples=[12],
    ),
]
ConcurrencyKey = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=200,
        # (In a pattern `$` alone lets a line feed follow, to Python though not to ECMA 262.)
        pattern="^[^\\u0000-\\u001f\\u007f-\\u009f\\u2028\\u2029]+(?!\\n)$",
        description="Runs of one key are carried out one at a time, in their order, or as many at "
        "a time as `PUT /v1/limits/keys/{key}` says. Printable characters.",
        examples=["invoice-4711"],
    ),
]


class OnceBody(
    msgspec.Struct, tag="once", tag_field="type", frozen=True, gc=False, forbid_unknown_fields=True
):
    """Fires one time: at ``run_at``, after ``delay``, or else at once. A past time runs at once."""

    run_at: Instant | None = None
    delay: (
        Annotated[
            str,
            Meta(
                max_length=64,
                description="An ISO 8601 duration, `PnDTnHnMnS` or `PnW`, from the request on. "
                "A day has 24 hours.",
                examples=["PT30S"],
                extra_json_schema={"format": "duration"},
            ),
        ]
        | None
    ) = None
    jitter_sec: Jitter = 0
    grace_sec: Grace | None = None


class CronBody(
    msgspec.Struct, tag="cron", tag_field="type", frozen=True, gc=False, forbid_unknown_fields=True
):
    """Fires at each local time that the expression names."""

    cron: Annotated[
        str,
        Meta(
            max_length=200,
            description="Five fields, or six with the seconds first; names, ranges, lists, steps, "
            "`L`, `5L`, `5#2`, `H` and macros such as `@daily`. Day of month and day of week are "
            "joined by or when both are restricted.",
            examples=["0 0 * * *"],
        ),
    ]
    timezone: Annotated[
        str,
        Meta(max_length=64, description="An IANA time zone.", examples=["Europe/Paris"]),
    ] = Cron("").timezone
    jitter_sec: UsualJitter | UnsetType = UNSET
    misfire: Misfire = "one"
    overlap: Overlap = "skip"
    grace_sec: Grace = DAY_SEC
    dst_gap: Annotated[
        Literal["run", "skip"],
        Meta(
            description="A local time that the clock skips fires once, right after the gap, or not "
            "at all: then it is SKIPPED in the ledger."
        ),
    ] = "run"
    dst_fold: Annotated[
        Literal["first", "second", "both"],
        Meta(
            description="In which pass a local time that occurs twice fires; wildcard hours fire "
            "in both."
        ),
    ] = "first"
    starts_at: Instant | None = None
    ends_at: EndsAt | None = None
    max_occurrences: MaxOccurrences | None = None


class IntervalBody(
    msgspec.Struct,
    tag="interval",
    tag_field="type",
    frozen=True,
    gc=False,
    forbid_unknown_fields=True,
):
    """Fires at ``starts_at`` and every ``interval_sec`` after it, however long runs take."""

    interval_sec: Annotated[
        int, Meta(ge=1, le=LONGEST_SEC, description="Seconds between occurrences.", examples=[3600])
    ]
    starts_at: Instant | None = None
    jitter_sec: UsualJitter | UnsetType = UNSET
    misfire: Misfire = "one"
    overlap: Overlap = "skip"
    grace_sec: Grace = DAY_SEC
    ends_at: EndsAt | None = None
    max_occurrences: MaxOccurrences | None = None


ScheduleBody = OnceBody | CronBody | IntervalBody


def jitter_of(body: ScheduleBody, usual: int = 0) -> int:
    """The jitter that a schedule has where it is ``usual`` that those have that name none."""
    if body.jitter_sec is not UNSET:
        return body.jitter_sec
    return min(usual, body.interval_sec - 1) if isinstance(body, IntervalBody) else usual


class HttpBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A webhook: the payload is sent there, signed, and a 2xx answer is success."""

    type: Annotated[
        Literal["http"],
        Meta(
            description="The kind of target.",
            examples=["http"],
            extra={LATER: ("script", "container", "pull")},
        ),
    ]
    url: Annotated[
        str,
        Meta(
            max_length=2048,
            description="An absolute http or https URL without credentials and fragment. "
            "Addresses inside the service's own network are refused.",
            examples=["https://example.com/hook"],
            extra_json_schema={"format": "uri"},
        ),
    ]
    method: Literal["POST", "PUT", "PATCH", "GET", "DELETE"] = HttpTarget("").method
    headers: Annotated[
        dict[str, str],
        Meta(
            max_length=64,
            description="Sent with each attempt. Names that Noonday sets itself are refused. "
            "Headers that carry credentials are stored sealed and never shown again.",
        ),
    ] = {}
    timeout_sec: Annotated[
        float, Meta(ge=0.1, le=DAY_SEC, description="An attempt that takes longer has failed.")
    ] = HttpTarget("").timeout_sec


class RetryBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """How long a run is tried: waits of ``base_sec * factor**n``, each longer by up to a fifth."""

    max_attempts: Annotated[
        int, Meta(ge=1, le=1000, description="Attempts that fail until the run is a dead letter.")
    ] = USUAL_POLICY.max_attempts
    base_sec: Annotated[float, Meta(ge=0.1, le=DAY_SEC, description="The first wait.")] = (
        USUAL_POLICY.base_sec
    )
    factor: Annotated[float, Meta(ge=1, le=100, description="What each wait grows by.")] = (
        USUAL_POLICY.factor
    )
    cap_sec: Annotated[float, Meta(ge=0.1, le=30 * DAY_SEC, description="The longest wait.")] = (
        USUAL_POLICY.cap_sec
    )
    max_age_sec: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=LONGEST_SEC,
                description="No attempt begins later than so long after the run was due.",
            ),
        ]
        | None
    ) = USUAL_POLICY.max_age_sec


USUAL_RETRY: Final = RetryBody()

# In a pattern `$` alone lets a line feed follow, to Python though not to ECMA 262.
JobId = Annotated[
    str,
    Meta(
        pattern=r"^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?!\n)$",
        description="The id of a job.",
        examples=["019ace00-0000-7000-8000-000000000000"],
    ),
]
Parents = Annotated[
    list[JobId],
    Meta(
        max_length=MOST_PARENTS,
        description="Jobs of the same tenant that fire once, each named once.",
    ),
]


class AfterBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs to wait for, and what follows from what came of them."""

    jobs: Parents = []
    on: Annotated[
        Literal["success", "any"],
        Meta(
            description="`success`: the job is skipped as soon as one of them has come to anything "
            "but COMPLETE. `any`: it runs whatever came of them."
        ),
    ] = "success"
    cascade_cancel: Annotated[
        bool, Meta(description="The job is cancelled as soon as one of them was.")
    ] = False


class JobBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A job: what to call, and when."""

    schedule: ScheduleBody
    target: HttpBody
    name: Annotated[str, Meta(max_length=255, description="For people; need not be unique.")] = ""
    payload: (
        Annotated[
            Raw,
            Meta(description="Any JSON. It is sent byte for byte as it stands in the request."),
        ]
        | UnsetType
    ) = UNSET
    payload_base64: (
        Annotated[bytes, Meta(description="A payload that is not JSON.")] | UnsetType
    ) = UNSET
    content_type: (
        Annotated[
            str,
            Meta(
                min_length=3,
                max_length=255,
                description="Of `payload_base64`; `application/octet-stream` if not given. "
                "A `payload` is sent as `application/json`.",
                examples=["text/plain; charset=utf-8"],
            ),
        ]
        | UnsetType
    ) = UNSET
    priority: Annotated[int, Meta(ge=0, le=9, description="0 is the most urgent.")] = 5
    lane: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=63,
                description="The stream of runs it joins, one of those of `GET /v1/lanes`. If not "
                f"given, `long` when `timeout_sec` is more than {LONG_TIMEOUT_SEC:.0f}, else "
                "`default`.",
                examples=["batch"],
            ),
        ]
        | UnsetType
    ) = UNSET
    retry_policy: RetryBody = USUAL_RETRY
    lease_sec: Annotated[
        int,
        Meta(
            ge=5,
            le=3600,
            description="A run whose worker is not heard of for so long is offered to another.",
        ),
    ] = 60
    on_unknown: Annotated[
        Literal["retry", "dead_letter"],
        Meta(
            description="What follows when nobody knows whether the receiver did the work: another "
            "attempt, or a dead letter and nothing by itself.",
        ),
    ] = "retry"
    cancel_url: (
        Annotated[
            str,
            Meta(
                max_length=2048,
                description="Called when a request under way is cut off because its run was "
                "cancelled: a signed POST with the target's headers. What holds for the target's "
                "URL holds for this one.",
                examples=["https://example.com/cancel"],
                extra_json_schema={"format": "uri"},
            ),
        ]
        | None
    ) = None
    after: Annotated[
        Parents | AfterBody,
        Meta(description="What it waits for before it runs: jobs, or jobs and what else counts."),
    ] = []
    concurrency_key: ConcurrencyKey | None = None
    labels: Annotated[
        dict[
            Annotated[str, Meta(min_length=1, max_length=63)],
            Annotated[str, Meta(max_length=255)],
        ],
        Meta(max_length=32, description="For finding jobs again."),
    ] = {}


EXAMPLE: Final = {
    "name": "nightly-billing",
    "schedule": {"type": "cron", "cron": "0 0 * * *", "timezone": "Europe/Paris"},
    "target": {
        "type": "http",
        "url": "https://example.com/billing",
        "headers": {"x-team": "payments"},
    },
    "payload": {"ledger": "eu"},
    "priority": 2,
    "labels": {"env": "prod"},
}
"""A job that shows what most jobs say."""
