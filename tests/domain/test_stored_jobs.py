"""The document of a job is stored without defaults, so what it leaves out never changes meaning."""

from __future__ import annotations

import msgspec
import pytest

from noonday.domain.model import EPOCH, Cron, HttpTarget, Interval, JobSpec, Schedule

AT = "2027-03-28T01:00:00Z"
REST = {
    "target": {
        "type": "http",
        "url": "https://example.com/hook",
        "method": "POST",
        "headers": {},
        "timeout_sec": 30.0,
    },
    "retry_policy": {
        "max_attempts": 8,
        "base_sec": 5.0,
        "factor": 3.0,
        "cap_sec": 3600.0,
        "max_age_sec": 86400,
    },
    "lease_sec": 60,
    "on_unknown": "retry",
    "cancel_url": None,
}
MANY = {
    "jitter_sec": 0, "misfire": "one", "overlap": "skip", "grace_sec": 86400, "ends_at": None,
    "max_occurrences": None,
}  # fmt: skip
STORED = [
    (
        {"type": "once", "run_at": AT},
        {"jitter_sec": 0, "grace_sec": None},
    ),
    (
        {"type": "cron", "cron": "0 0 * * *", "overlap": "skip"},
        MANY | {"timezone": "UTC", "dst_gap": "run", "dst_fold": "first", "starts_at": None},
    ),
    (
        {"type": "interval", "interval_sec": 60, "starts_at": AT, "overlap": "skip"},
        MANY,
    ),
]


@pytest.mark.parametrize(("short", "rest"), STORED)
def test_what_is_left_out_means_what_it_always_has(
    short: dict[str, object], rest: dict[str, object]
) -> None:
    target = {"type": "http", "url": "https://example.com/hook", "method": "POST"}
    brief = msgspec.json.encode({"schedule": short, "target": target})
    whole = msgspec.json.encode({"schedule": short | rest, **REST})
    spec = msgspec.json.decode(brief, type=JobSpec)
    assert spec == msgspec.json.decode(whole, type=JobSpec)
    assert msgspec.json.decode(msgspec.json.encode(spec)) == msgspec.json.decode(brief)


@pytest.mark.parametrize("schedule", [Cron("@daily"), Interval(60, EPOCH)])
def test_what_statements_read_is_always_written(schedule: Schedule) -> None:
    written = msgspec.json.encode(JobSpec(schedule, HttpTarget("https://example.com")))
    spec = msgspec.json.decode(written)
    assert (spec["schedule"]["overlap"], spec["target"]["method"]) == ("skip", "POST")
