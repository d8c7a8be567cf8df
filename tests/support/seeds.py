"""Rows that a test begins with, written by the statements of the product itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import msgspec
import uuid_utils.compat

from noonday.domain.caps import host_cap
from noonday.domain.lane_clock import LaneClock
from noonday.domain.lifecycle import Event, Transition
from noonday.domain.model import (
    ExecutionStatus,
    HttpTarget,
    Interval,
    JobSpec,
    Kind,
    Once,
    Outcome,
    OutcomeKind,
    RetryPolicy,
    RunKey,
    Schedule,
    shard_of,
)
from noonday.domain.ranking import Band, Floors, Range, Ranks, Span, Work, by_time
from noonday.domain.schedule import jitter
from noonday.store import Row, Tx, jobs, limits, occurrences, runs, settlements, shards, timers
from noonday.store.limits import Limit
from noonday.store.occurrences import Entry, Fired, Opening
from noonday.store.runs import Held
from noonday.store.settlements import Settlement
from noonday.store.timers import Timer

LEASE_SEC = 60
HOLD_KEY = "lane:x"
TENANT = 1
WORKER = UUID(int=1)
OTHER_WORKER = UUID(int=2)
HOST = "127.0.0.1"
TARGET = HttpTarget(f"http://{HOST}/hook")
SUCCESS = Outcome(OutcomeKind.SUCCESS, http_status=200)
FAILURE = Outcome(OutcomeKind.TRANSIENT, http_status=503, error="busy", unknown=True)


def job_id(shard: int | None = None) -> UUID:
    """A new UUIDv7, in ``shard`` if one is given."""
    made: UUID = uuid_utils.compat.uuid7()
    if shard is not None:
        made = UUID(int=made.int - shard_of(made) + shard)
    return made


def spec_of(
    schedule: Schedule,
    *,
    policy: RetryPolicy | None = None,
    lease_sec: int = LEASE_SEC,
    url: str | None = None,
) -> JobSpec:
    target = TARGET if url is None else HttpTarget(url)
    return JobSpec(schedule, target, policy or RetryPolicy(), lease_sec)


def new_job(
    spec: JobSpec,
    now: datetime,
    *,
    id: UUID | None = None,
    lane: str = "default",
    priority: int = 5,
    text: str | None = None,
    tenant: int = TENANT,
) -> jobs.NewJob:
    """A definition to insert; ``text`` stands in place of the encoded spec."""
    kind = {"Once": "once", "Cron": "cron", "Interval": "interval"}[type(spec.schedule).__name__]
    return jobs.NewJob(
        id=id or job_id(),
        tenant_id=tenant,
        created_at=now,
        created_by="test",
        schedule_type=kind,
        first_at=now,
        name="a job",
        lane=lane,
        priority=priority,
        lease_sec=spec.lease_sec,
        target_host="127.0.0.1",
        labels="{}",
        spec=msgspec.json.encode(spec).decode() if text is None else text,
        secret_headers=None,
        payload=b"{}",
        payload_ref=None,
        payload_bytes=2,
        content_type="application/json",
        traceparent=None,
    )


# --- runs -------------------------------------------------------------------------------------


async def ready(
    tx: Tx,
    *,
    lane: str = "default",
    priority: int = 5,
    count: int = 1,
    policy: RetryPolicy | None = None,
    lease_sec: int = LEASE_SEC,
    tenant: int = TENANT,
    url: str | None = None,
    host: str = "127.0.0.1",
    key: str | None = None,
    ranks: Ranks = by_time,
) -> list[RunKey]:
    """One-off jobs that are due now, each with its READY run; held, if it has a cap."""
    now = await tx.clock()
    spec = spec_of(Once(now), policy=policy, lease_sec=lease_sec, url=url)
    job = new_job(spec, now, lane=lane, priority=priority, tenant=tenant)
    job = job._replace(target_host=host, concurrency_key=key)
    made = [job._replace(id=job_id()) for _ in range(count)]
    await jobs.insert(tx, made)
    given = ranks([Work(tenant, lane, priority, host)] * count, now)
    opened = [
        Opening(each.id, now, Kind.SCHEDULE, tenant, now, 1, lane, priority, rank, host, key)
        for each, rank in zip(made, given, strict=True)
    ]
    assert await occurrences.open_now(tx, opened, now) == count
    return [RunKey(job.id, Kind.SCHEDULE, now) for job in made]


def ranges(floors: Floors | None = None) -> list[Range]:
    """What a claim looks at from floors on, or from the very beginning, by real time."""
    return LaneClock().ranges((floors or Floors()).each())


def span(priority: int = 5, *, queued: bool = False) -> Span:
    """All ranks of a priority in one band."""
    (found,) = (each for each in Floors().each() if each.band == Band(priority, queued))
    return found


async def claim(
    tx: Tx, *, lane: str = "default", limit: int = 100, worker: UUID = WORKER
) -> list[Row]:
    """Claim from the very beginning of a lane."""
    claimed = await runs.claim(tx, lane, ranges(), limit, worker)
    return claimed.rows


async def hold(tx: Tx, run: RunKey, kind: str = "lane", key: str = HOLD_KEY) -> None:
    """Hold a READY run back."""
    await tx.execute(
        "UPDATE runs SET hold = $2, hold_key = $3, claimable = false WHERE job_id = $1",
        run.job_id, kind, key,
    )  # fmt: skip


async def cap(tx: Tx, run: RunKey, most: int) -> str:
    """Have a run count against a cap of its host that was set just now; its key."""
    name = host_cap(TENANT, "capped")
    await limits.put(tx, TENANT, "host", "capped", Limit(most))
    await tx.execute("UPDATE runs SET host_cap = $2 WHERE job_id = $1", run.job_id, name)
    return name


async def tenant(tx: Tx, id: int = TENANT, max_running: int | None = None) -> None:
    """A tenant of that id, perhaps with a cap on all its runs."""
    await tx.execute(
        """INSERT INTO tenants (id, name, signing_secrets, secrets_rotated_at, created_at,
                                max_running)
           OVERRIDING SYSTEM VALUE VALUES ($1, $2, '{}', now(), now(), $3)
           ON CONFLICT (id) DO UPDATE SET max_running = $3""",
        id, f"tenant {id}", max_running,
    )  # fmt: skip


async def limit(tx: Tx, kind: str, name: str, most: int | None) -> None:
    """Limit a host or a key of the tenant."""
    await limits.put(tx, TENANT, kind, name, Limit(most))


def held(run: RunKey, lease_version: int = 1) -> Held:
    return Held(run.job_id, run.occurrence_at, run.kind, lease_version)


def completed(lease: Held) -> Settlement:
    return Settlement(lease, Transition(Event.COMPLETE, ExecutionStatus.SUCCESS), SUCCESS)


def retried(lease: Held, delay: timedelta = timedelta(seconds=10)) -> Settlement:
    transition = Transition(Event.RETRY, ExecutionStatus.FAILED, delay=delay)
    return Settlement(lease, transition, FAILURE)


def stopped(lease: Held) -> Settlement:
    outcome = Outcome(OutcomeKind.CANCELLED, error="stopped", unknown=True)
    return Settlement(lease, Transition(Event.STOP, ExecutionStatus.CANCELLED), outcome)


def interrupted(lease: Held) -> Settlement:
    outcome = Outcome(OutcomeKind.INTERRUPTED, error="shutdown", unknown=True)
    return Settlement(lease, Transition(Event.INTERRUPT, ExecutionStatus.INTERRUPTED), outcome)


def handed_back(lease: Held) -> Settlement:
    return Settlement(lease, Transition(Event.HAND_BACK), Outcome(OutcomeKind.NOT_SENT))


async def settle(tx: Tx, *items: Settlement) -> set[Held]:
    return await settlements.apply(tx, items)


# --- timers -----------------------------------------------------------------------------------


async def armed(
    tx: Tx,
    schedule: Schedule,
    occurrence_at: datetime,
    *,
    count: int = 1,
    shard: int | None = None,
    text: str | None = None,
    ids: Sequence[UUID] | None = None,
) -> list[UUID]:
    """Jobs of one schedule whose timers stand at ``occurrence_at``, due or not."""
    made = [
        new_job(spec_of(schedule), occurrence_at, id=id, text=text)
        for id in (ids or [job_id(shard) for _ in range(count)])
    ]
    await jobs.insert(tx, made)
    await timers.arm(
        tx,
        [
            Timer(
                job.id,
                occurrence_at,
                occurrence_at + jitter(job.id, schedule.jitter_sec),
                1,
                0,
                shard_of(job.id),
            )
            for job in made
        ],
        occurrence_at,
    )
    return [job.id for job in made]


def every(seconds: float, since: datetime) -> Interval:
    return Interval(math.ceil(seconds), since)


def fired(job: UUID, due_at: datetime, *, version: int = 1, seq: int = 0, epoch: int = 1) -> Fired:
    return Fired(job, due_at, version, seq, shard_of(job), epoch)


def open_entry(job: UUID, at: datetime, *, overlap: str | None = None) -> Entry:
    return Entry(job, at, at, None, None, overlap)


async def own_all_shards(tx: Tx, owner: UUID | None = None) -> dict[int, int]:
    return await shards.acquire(tx, owner or uuid4(), 64)
