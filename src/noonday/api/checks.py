"""What the types of a job's body cannot say: URLs, headers, expressions, fields against fields."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import timedelta
from functools import lru_cache
from typing import Final
from uuid import UUID

from msgspec import UNSET

from noonday.api.reading import Faults, at
from noonday.api.wire import (
    AfterBody,
    CronBody,
    IntervalBody,
    JobBody,
    OnceBody,
    ScheduleBody,
    jitter_of,
)
from noonday.domain import cron, schedule
from noonday.domain.errors import ScheduleError
from noonday.domain.model import EPOCH, Cron, Interval, Once
from noonday.domain.target import (
    Endpoint,
    forbidden,
    header_fault,
    is_reserved,
    parse_url,
)

Ports = tuple[int, ...] | frozenset[int] | None
"""The ports that targets may have; None allows any."""
UNKNOWN_LANE: Final = "unknown_lane"
ANY_JOB: Final = UUID(int=0)
_DURATION: Final = re.compile(
    r"P(?:(?P<weeks>\d{1,10})W|(?=\d|T\d)(?:(?P<days>\d{1,10})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,10})H)?(?:(?P<minutes>\d{1,10})M)?(?:(?P<seconds>\d{1,12})S)?)?)",
    re.ASCII,
)
_NAME: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEDIA_TYPE: Final = re.compile(
    rf"""{_NAME}/{_NAME}(?:[ \t]*;[ \t]*{_NAME}=(?:{_NAME}|"[ !#-\[\]-~]*"))*""", re.ASCII
)


@lru_cache(4_096)
def duration(text: str) -> timedelta | None:
    """An ISO 8601 duration, ``PnDTnHnMnS`` or ``PnW``; None if it is not one, or too long.

    Years and months have no fixed length; fractions are not in RFC 3339, appendix A.
    """
    parts = _DURATION.fullmatch(text)
    if parts is None:
        return None
    numbers = {unit: int(number) for unit, number in parts.groupdict().items() if number}
    try:
        length = timedelta(**numbers)
    except OverflowError:
        return None
    return length if length <= timedelta(seconds=schedule.LONGEST_SEC) else None


def check_job(
    job: JobBody, faults: Faults, *, allow_private: bool, ports: Ports
) -> Endpoint | None:
    """Note all faults of a job whose fields are sound one by one; its URL, taken apart."""
    check_schedule(job.schedule, faults)
    if job.target.headers:
        _check_headers(job.target.headers, faults)
    _check_payload(job, faults)
    if job.after:
        _check_after(job, faults)
    policy = job.retry_policy
    if policy.cap_sec < policy.base_sec:
        detail = f"must be at least base_sec, which is {policy.base_sec:g}"
        faults.add("/retry_policy/cap_sec", "out_of_range", detail, "/retry_policy/base_sec")
    if job.cancel_url is not None:
        _check_url("/cancel_url", job.cancel_url, faults, allow_private, ports)
    return _check_url("/target/url", job.target.url, faults, allow_private, ports)


def _check_after(job: JobBody, faults: Faults) -> None:
    parents, pointer = parents_of(job)
    if parents and not isinstance(job.schedule, OnceBody):
        faults.add("/after", "conflict", "only a job that fires once waits for others", "/schedule")
    seen: set[UUID] = set()
    for n, parent in enumerate(map(UUID, parents)):
        if parent in seen:
            faults.add(at(pointer, n), "conflict", "is named before")
        seen.add(parent)


def parents_of(job: JobBody) -> tuple[list[str], str]:
    """What a job waits for, and the pointer to that list."""
    if isinstance(job.after, AfterBody):
        return job.after.jobs, "/after/jobs"
    return job.after, "/after"


def check_lane(lane: str, faults: Faults, known: Collection[str]) -> None:
    """Note that a lane is not there."""
    if lane not in known:
        faults.add("/lane", UNKNOWN_LANE, f"must be one of {', '.join(sorted(known))}")


def check_schedule(body: ScheduleBody, faults: Faults) -> None:
    """Note what is wrong with a schedule, field by field and as a whole."""
    match body:
        case OnceBody():
            _check_once(body, faults)
        case CronBody():
            _check_cron(body, faults)
        case IntervalBody():
            _check_interval(body, faults)


def _check_once(body: OnceBody, faults: Faults) -> None:
    if body.delay is not None:
        if body.run_at is not None:
            faults.add("/schedule/delay", "conflict", "cannot be given beside run_at")
        elif duration(body.delay) is None:
            detail = "must be a duration such as PT30S, P1DT12H or P2W, of at most 36,525 days"
            faults.add("/schedule/delay", "invalid", detail)
    if body.run_at is not None:
        _check_whole(Once(body.run_at, body.jitter_sec, body.grace_sec), faults)


def _check_cron(body: CronBody, faults: Faults) -> None:
    expression, timezone = body.cron, body.timezone
    try:
        cron.parse(expression, ANY_JOB)
    except ScheduleError as error:
        faults.add("/schedule/cron", "invalid", error.detail)
        expression = "@daily"
    try:
        cron.zone_named(timezone)
    except ScheduleError as error:
        faults.add("/schedule/timezone", "invalid", error.detail)
        timezone = "UTC"
    wanted = Cron(
        expression, timezone, jitter_of(body), starts_at=body.starts_at, ends_at=body.ends_at
    )
    _check_whole(wanted, faults)


def _check_interval(body: IntervalBody, faults: Faults) -> None:
    if jitter_of(body) >= body.interval_sec:
        detail = f"must be less than interval_sec, which is {body.interval_sec}"
        faults.add("/schedule/jitter_sec", "out_of_range", detail, "/schedule/interval_sec")
    starts_at = EPOCH if body.starts_at is None else body.starts_at
    _check_whole(
        Interval(body.interval_sec, starts_at, jitter_of(body), ends_at=body.ends_at), faults
    )


def _check_whole(wanted: Once | Cron | Interval, faults: Faults) -> None:
    """The verdict of the domain, for what the fields do not show one by one."""
    try:
        schedule.check(wanted)
    except ScheduleError as error:
        code = "out_of_range" if error.field.endswith("_at") else "invalid"
        faults.add(f"/schedule/{error.field}", code, error.detail)


def _check_url(
    pointer: str, url: str, faults: Faults, allow_private: bool, ports: Ports
) -> Endpoint | None:
    endpoint, fault = _judged(url, allow_private, ports)
    if fault is not None:
        faults.add(pointer, *fault)
    return endpoint


@lru_cache(4_096)
def _judged(
    url: str, allow_private: bool, ports: Ports
) -> tuple[Endpoint | None, tuple[str, str] | None]:
    """A URL, taken apart, and the code and text of what is wrong with it."""
    try:
        endpoint = parse_url(url)
    except ValueError as error:
        return None, ("invalid", str(error))
    reason = forbidden(endpoint, allow_private=allow_private, ports=ports)
    return endpoint, ("forbidden_target", reason) if reason else None


def _check_headers(headers: dict[str, str], faults: Faults) -> None:
    seen: set[str] = set()
    for name, value in headers.items():
        if fault := header_fault(name, value):
            code = "reserved_header" if is_reserved(name) else "invalid"
            faults.add(at("/target/headers", name), code, fault)
        if name.lower() in seen:
            detail = "is given twice, in different case"
            faults.add(at("/target/headers", name), "conflict", detail)
        seen.add(name.lower())


def _check_payload(job: JobBody, faults: Faults) -> None:
    if job.payload_base64 is UNSET:
        if job.content_type is not UNSET:
            detail = "belongs to payload_base64; a payload is sent as application/json"
            faults.add("/content_type", "conflict", detail, "/payload_base64")
        return
    if job.payload is not UNSET:
        faults.add("/payload_base64", "conflict", "cannot be given beside payload", "/payload")
    if job.content_type is not UNSET and not _MEDIA_TYPE.fullmatch(job.content_type):
        faults.add("/content_type", "invalid", "must be a media type such as text/plain")
