"""What must hold between the attempts on record and the requests that a receiver saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from noonday.domain.model import parse_run_id
from noonday.drill.checks.evidence import Evidence
from noonday.drill.checks.received import Received
from noonday.receiver import InvalidSignature, verify
from noonday.store.runs import key_of

TOLERANCE_SEC = 5


def i12_requests_and_attempts_match(evidence: Evidence) -> Iterator[str]:
    recorded = {
        (str(run), row["attempt"], row["lease_version"])
        for run, executions in evidence.executions.items()
        for row in executions
    } | {
        (str(key_of(row)), row["attempt"], row["lease_version"])
        for row in evidence.runs
        if row["state"] == "RUNNING"
    }
    if evidence.requests:
        yield from _successes_that_nobody_saw(evidence)
    for run_id, requests in evidence.requests.items():
        for attempt, count in Counter(request.attempt for request in requests).items():
            if count > 1:
                yield f"{run_id}: {count} requests for attempt {attempt}"
        for request in requests:
            if (run_id, request.attempt, request.lease_version) not in recorded:
                yield (
                    f"{run_id}: a request for attempt {request.attempt}, "
                    f"lease {request.lease_version}, of which there is no record"
                )


def _verify(evidence: Evidence, request: Received, secrets: list[str]) -> None:
    """It was signed after its lease was granted and before it came, whose network may be slow."""
    run = parse_run_id(request.run_id)
    leases = evidence.leases.get(run, []) if run is not None else []
    granted = next(
        (lease for lease in leases if lease.lease_version == request.lease_version), None
    )
    earliest = request.at
    if granted is not None:
        earliest = min(earliest, granted.leased_at.timestamp())
    middle = (earliest + request.at) / 2
    slack = TOLERANCE_SEC + (request.at - earliest) / 2
    verify(dict(request.headers), request.body, secrets, tolerance_sec=slack, now=middle)


def _successes_that_nobody_saw(evidence: Evidence) -> Iterator[str]:
    for run, executions in evidence.executions.items():
        seen = {request.attempt for request in evidence.requests.get(str(run), [])}
        for row in executions:
            if row["status"] == "SUCCESS" and row["attempt"] not in seen:
                yield f"{run}: attempt {row['attempt']} succeeded, and no receiver has seen it"


def i13_requests_are_signed_and_alike(evidence: Evidence) -> Iterator[str]:
    secrets = evidence.witness.secrets
    for run_id, requests in evidence.requests.items():
        for request in requests:
            try:
                _verify(evidence, request, secrets)
            except InvalidSignature as error:
                yield f"{run_id}, attempt {request.attempt}: {error.reason}"
            run = parse_run_id(run_id)
            if run is not None and request["X-Job-Id"] != str(run.job_id):
                yield f"{run_id}, attempt {request.attempt}: sent for another job"
        if len({request.body for request in requests}) > 1:
            yield f"{run_id}: its attempts have different bodies"
