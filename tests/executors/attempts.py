"""Attempts for tests of executors."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from noonday.domain.model import Attempt, HttpTarget, Kind, RunKey

JOB = UUID("019390f0-0000-7000-8000-000000000001")
OCCURRENCE = datetime(2026, 11, 29, 12, 0, 0, 250_000, tzinfo=UTC)
SECRET = bytes(range(32))
OLDER_SECRET = bytes(range(32, 64))


def attempt(
    url: str,
    *,
    body: bytes = b'{"ledger": "eu"}',
    method: str = "POST",
    timeout_sec: float = 5.0,
    headers: dict[str, str] | None = None,
    number: int = 1,
    lease_version: int = 1,
    occurrence_at: datetime = OCCURRENCE,
    secrets: tuple[bytes, ...] = (SECRET,),
    content_type: str = "application/json",
    traceparent: str | None = None,
) -> Attempt:
    target = HttpTarget(url=url, method=method, timeout_sec=timeout_sec)  # type: ignore[arg-type]
    return Attempt(
        run=RunKey(JOB, Kind.SCHEDULE, occurrence_at),
        number=number,
        lease_version=lease_version,
        target=target,
        headers=headers or {},
        body=body,
        content_type=content_type,
        secrets=secrets,
        traceparent=traceparent,
    )
