"""What a receiver is sent: the ``webhooks`` part of the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 1}

HEADERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "X-Job-Id": ("The job.", {"type": "string", "format": "uuid"}),
    "X-Run-Id": (
        "The run, and the id of this delivery: the same over retries and replays. Make the effect "
        "happen once per run, and fence by it.",
        _TEXT,
    ),
    "X-Occurrence": (
        "The nominal time of the occurrence.",
        {"type": "string", "format": "date-time"},
    ),
    "X-Attempt": ("The number of the attempt, from 1 on; none is used twice.", _COUNT),
    "X-Lease-Version": (
        "The fencing token. Refuse one that is lower than the highest seen for this run.",
        _COUNT,
    ),
    "X-Scheduler-Signature": (
        "`t=<seconds>,v1=<hex>`: HMAC-SHA256 over `t.run_id.attempt.lease_version.occurrence."
        "sha256(body)`, the hash in hex. There are several `v1=` while a secret is being rotated; "
        "any of them will do.",
        _TEXT,
    ),
    "webhook-id": ("The run, as Standard Webhooks 1.0 wants it.", _TEXT),
    "webhook-timestamp": ("When this attempt was signed, in seconds since 1970.", _COUNT),
    "webhook-signature": (
        "`v1,<base64>`, several apart by spaces while a secret is being rotated: HMAC-SHA256 over "
        "`webhook-id.webhook-timestamp.body`.",
        _TEXT,
    ),
    "Idempotency-Key": ("The run.", _TEXT),
    "traceparent": ("The trace of the request that created the job (W3C Trace Context).", _TEXT),
}
_OPTIONAL: Final = frozenset({"traceparent"})

DELIVERY: Final[dict[str, Any]] = {
    "operationId": "delivery",
    "summary": "An attempt at a run: the job's payload, sent to its target",
    "description": "Sent with the target's method and headers. Delivery is at least once. Each "
    "attempt is signed anew, over exactly the bytes that are sent, with the tenant's secrets: "
    "`whsec_` and the base64 of the key. Redirects are not followed.",
    "security": [],
    "parameters": [
        {
            "name": name,
            "in": "header",
            "description": description,
            "required": name not in _OPTIONAL,
            "schema": schema,
        }
        for name, (description, schema) in HEADERS.items()
    ],
    "requestBody": {
        "description": "The payload, byte for byte; empty if the job has none.",
        "required": False,
        "content": {"application/json": {"schema": {}}, "*/*": {"schema": {}}},
    },
    "responses": {
        "2XX": {"description": "Done: the run is COMPLETE."},
        "408": {"description": "Failed; tried again by the job's retry policy."},
        "410": {"description": "Gone: the run becomes a dead letter at once."},
        "425": {"description": "Failed; tried again by the job's retry policy."},
        "429": {
            "description": "Failed; tried again, not before the time that Retry-After asks for, "
            "within limits.",
            "headers": {
                "Retry-After": {
                    "description": "Seconds, or a date (RFC 9110 §10.2.3).",
                    "schema": _TEXT,
                }
            },
        },
        "3XX": {"description": "Failed; tried again by the job's retry policy."},
        "4XX": {"description": "Refused for good: the run becomes a dead letter at once."},
        "5XX": {"description": "Failed; tried again by the job's retry policy."},
    },
}
