"""The parameters of calls, as the route table and the OpenAPI document name them."""

from __future__ import annotations

from typing import Any, Final, get_args

from noonday.api import dlq
from noonday.api.documents import JobStatus, TargetState
from noonday.api.routes import CURSOR, LIMIT, Parameter
from noonday.domain.model import Reason

_TEXT: Final[dict[str, Any]] = {"type": "string", "maxLength": 255}
_INSTANT: Final[dict[str, Any]] = {"type": "string", "format": "date-time"}


def _one_of(words: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "string", "enum": list(words)}


PAGE: Final = (LIMIT, CURSOR)

JOB_FILTERS: Final = (
    Parameter("status", "query", "How the job stands.", _one_of(get_args(JobStatus))),
    Parameter("schedule_type", "query", "Its kind.", _one_of(("once", "cron", "interval"))),
    Parameter("lane", "query", "Its lane.", _TEXT),
    Parameter("name_prefix", "query", "What its name begins with.", _TEXT),
    Parameter(
        "label", "query", "One of its labels, as `key:value`.", {"type": "string", "maxLength": 320}
    ),
    Parameter("target_host", "query", "The host that it calls.", _TEXT),
    Parameter("created_from", "query", "Created at this time or later.", _INSTANT),
    Parameter("created_to", "query", "Created before this time.", _INSTANT),
)
LETTER_FILTERS: Final = (
    Parameter("reason", "query", "Why it was given up.", _one_of(tuple(Reason))),
    Parameter("fingerprint", "query", "The same for errors that are alike.", _TEXT),
    Parameter(
        "state", "query", "DEAD are those that lie there; without it, all.", _one_of(dlq.STATES)
    ),
    Parameter("job_id", "query", "Its job.", {"type": "string", "format": "uuid"}),
    Parameter("target_host", "query", "The host that was called.", _TEXT),
    Parameter("dead_from", "query", "Given up at this time or later.", _INSTANT),
    Parameter("dead_to", "query", "Given up before this time.", _INSTANT),
)
BOOLEANS: Final = ("true", "false")
RUNNING_WORDS: Final = ("finish", "cancel")
RUNNING: Final = Parameter(
    "running",
    "query",
    "Whether attempts under way are let finish (the default), or cut off as well.",
    _one_of(RUNNING_WORDS),
)
TARGET_STATE: Final = Parameter(
    "state", "query", "How its breaker stands.", _one_of(get_args(TargetState))
)
GROUP_BY: Final = Parameter(
    "group_by",
    "query",
    "Count the letters of each kind instead, the newest 200,000 at most.",
    _one_of(dlq.GROUPINGS),
)
_JITTER: Final[dict[str, Any]] = {"type": "integer", "minimum": 0, "maximum": 86_400}
FORECAST: Final = (
    Parameter(
        "hours", "query", "How far to look.",
        {"type": "integer", "minimum": 1, "maximum": 72, "default": 72},
    ),
    Parameter("lane", "query", "Only what queues in this lane.", _TEXT),
    Parameter("target_host", "query", "Only what calls this host.", _TEXT),
    Parameter(
        "tenant", "query", "Only what belongs to this tenant. Keys with the role admin see all "
        "tenants without it, others only their own.", _TEXT,
    ),
    Parameter("hot_only", "query", "List hot minutes alone.", _one_of(BOOLEANS)),
    Parameter(
        "jitter_sec", "query", "Say as well what it would be like if all recurring jobs that have "
        "no jitter had this one.", _JITTER,
    ),
)  # fmt: skip
WHY: Final = Parameter("reason", "query", "Why, for people.", _TEXT, required=True)
TENANT: Final = Parameter("tenant", "query", "Only the keys of this tenant.", _TEXT)
IF_NONE_MATCH: Final = Parameter(
    "If-None-Match", "header", "An `ETag` seen before: 304 if nothing has changed since."
)
IF_MATCH: Final = Parameter(
    "If-Match",
    "header",
    "The `ETag` of the job that the change is meant for, of which only the version counts; or `*`.",
    required=True,
)
DRY_RUN: Final = Parameter("dry_run", "query", "Only say what it would come to.", _one_of(BOOLEANS))
TRACEPARENT: Final = Parameter(
    "traceparent", "header", "The trace that deliveries of the job continue (W3C Trace Context)."
)
LINK: Final = Parameter("Link", "header", 'The next page, `rel="next"`; not on the last one.')
