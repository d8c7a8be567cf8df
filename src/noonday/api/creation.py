"""What creating jobs writes: for a batch of them, one statement per table.

A job that is due now gets its occurrence and run at once, any other a timer. Keyed requests are
told apart from those that were carried out before, or are being carried out elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from datetime import datetime, timedelta
from secrets import randbits
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from noonday.api import parents, showing
from noonday.api.checks import UNKNOWN_LANE
from noonday.api.context import Caller
from noonday.api.keys import Answer, Busy, conflict, judge
from noonday.api.parents import Family
from noonday.api.problems import Problem, invalid
from noonday.api.reading import Fault
from noonday.api.schemas import JobRequest
from noonday.api.showing import Armed
from noonday.api.wire import OnceBody
from noonday.domain import schedule
from noonday.domain.errors import ScheduleError
from noonday.domain.model import JobSpec, Kind, Once, Schedule, shard_of
from noonday.domain.ranking import Ranks, Work, by_time
from noonday.store import (
    Tx,
    audit,
    dependencies,
    idempotency,
    jobs,
    lanes,
    locks,
    occurrences,
    timers,
)
from noonday.store.dependencies import Dependent
from noonday.store.idempotency import Grip, KeyId, Stored, Use
from noonday.store.jobs import NewJob
from noonday.store.occurrences import Opening
from noonday.store.secretbox import HEADERS, SecretBox
from noonday.store.timers import Timer

SOON: Final = timedelta(seconds=1)
"""A scheduler may sleep past a timer that is due so soon, unless it is woken."""

_encode: Final = msgspec.json.Encoder().encode


class Order(NamedTuple):
    """One job to create. Its payload is inline, or in the blob store already."""

    caller: Caller
    request: JobRequest
    payload_ref: str | None
    use: Use | None
    traceparent: str | None
    request_id: str
    refusal: Problem | None = None
    """Why it may not be created, unless it was before: its tenant's quota is used up."""
    jitter_sec: int = 0
    """What a recurring job has that names no jitter."""
    hot: Container[datetime] = ()
    """The hot minutes."""

    @property
    def wanted(self) -> parents.Wanted:
        """The request, and whose it is."""
        return self.request, self.caller.tenant_id


def wanting(orders: Iterable[Order]) -> list[parents.Wanted]:
    """What is asked for by those that wait for other jobs; most do not."""
    return [order.wanted for order in orders if order.request.after.jobs]


class Moving(NamedTuple):
    """A job that it is to wait for is just being written to, or all are still told of its former
    end; try again."""


Result = Answer | Busy | Moving | Problem


class Created(NamedTuple):
    """What became of a batch, order by order, and what to wake and note when it is committed."""

    results: list[Result]
    at: datetime
    lock: int
    """Held until the transaction has ended; see :func:`happened`."""
    tenants: Counter[int]
    """How many of each were created."""
    ids: list[UUID]
    runs: bool
    timers_soon: bool


class _Rows(NamedTuple):
    """What one job consists of in the database."""

    job: NewJob
    timer: Timer | None
    opening: Opening | None
    waiting: Dependent | None
    family: Family
    audit: audit.Entry
    answer: Answer


async def create(
    tx: Tx, orders: Sequence[Order], box: SecretBox, ranks: Ranks = by_time
) -> Created:
    """Create what has not been created before. A job at fault gets a problem as its result."""
    lock = randbits(63)
    now, ledger_start = await occurrences.clock(tx, lock)
    results, followers = await _known(tx, orders)
    fresh = [n for n in range(len(orders)) if n not in results and n not in followers]
    gone = await lanes.missing(tx, {orders[n].request.lane for n in fresh})
    rows: dict[int, _Rows] = {}
    standing = await parents.look(tx, wanting([orders[n] for n in fresh]))
    for n, job_id in zip(fresh, jobs.new_ids(now, len(fresh)), strict=True):
        try:
            if orders[n].request.lane in gone:
                raise at_fault("/lane", UNKNOWN_LANE, "has just been deleted")
            family = parents.family(orders[n].wanted, standing)
            if family is None:
                results[n] = Moving()
                continue
            rows[n] = _lay_out(orders[n], job_id, now, ledger_start, box, family)
            results[n] = rows[n].answer
        except Problem as problem:
            results[n] = problem
    await _insert(tx, orders, rows, now, ranks)
    for n, leader in followers.items():
        results[n] = _after(results[leader], same=orders[n].use == orders[leader].use)
    due_soon, made = now + SOON, rows.values()
    return Created(
        results=[results[n] for n in range(len(orders))],
        at=now,
        lock=lock,
        tenants=Counter([row.job.tenant_id for row in made]),
        ids=[row.job.id for row in made],
        runs=any(row.opening for row in made),
        timers_soon=any(row.timer and row.timer.due_at <= due_soon for row in made),
    )


async def happened(tx: Tx, created: Created) -> bool:
    """Whether a batch was committed, when the answer to its COMMIT was lost.

    Waits until the transaction in question has ended, one way or the other.
    """
    await locks.wait_key(tx, created.lock)
    return await jobs.existing(tx, created.ids) == set(created.ids)


async def _known(tx: Tx, orders: Sequence[Order]) -> tuple[dict[int, Result], dict[int, int]]:
    """Results that need no new job, and whose result depends on which other of the batch."""
    results: dict[int, Result] = {}
    first: dict[KeyId, int] = {}
    followers: dict[int, int] = {}
    uses = {n: order.use for n, order in enumerate(orders) if order.use is not None}
    for n, use in uses.items():
        if first.setdefault(use.id, n) != n:
            followers[n] = first[use.id]
    leaders = list(first.values())
    grips = await idempotency.take(tx, [uses[n] for n in leaders])
    results |= {n: Busy(grip) for n, grip in zip(leaders, grips, strict=True)}
    mine = [n for n in leaders if results[n] == Busy(Grip.MINE)]
    kept = await idempotency.find(tx, [uses[n].id for n in mine])
    for n in mine:
        del results[n]
    for n, use in uses.items():
        if use.id in kept:
            results[n] = judge(kept[use.id], use.fingerprint)
            followers.pop(n, None)
    return results, followers


def _after(first: Result, *, same: bool) -> Result:
    """The result of an order whose key another of its batch came with ``first``."""
    if isinstance(first, Answer):
        return first._replace(replayed=True) if same else conflict()
    return first if same or isinstance(first, Moving) else Busy(Grip.OTHER)


def _lay_out(
    order: Order,
    job_id: UUID,
    now: datetime,
    ledger_start: datetime,
    box: SecretBox,
    family: Family,
) -> _Rows:
    if order.refusal is not None:
        raise order.refusal
    request, tenant_id = order.request, order.caller.tenant_id
    wanted, first_at, planned = plan(request, order.jitter_sec, job_id, now, ledger_start)
    delay = schedule.jitter(job_id, wanted.jitter_sec)
    due_at = first_at + delay
    opening = timer = waiting = armed = None
    if family.edges:
        waiting = Dependent(
            job_id, tenant_id, first_at, due_at, shard_of(job_id),
            request.after.on, request.after.cascade_cancel, len(family.edges),
        )  # fmt: skip
    elif planned.fire is not None and _starts_at_once(wanted, planned):
        opening = Opening(
            job_id, planned.fire, Kind.SCHEDULE, tenant_id, planned.fire + delay, 1,
            request.lane, request.priority, None, request.target_host, request.concurrency_key,
        )  # fmt: skip
        if planned.rearm is not None:
            armed = Armed(planned.rearm, 2)
    else:
        # Also where it is out of its grace already: the scheduler's tick records the miss.
        armed = Armed(first_at, 1)
    if armed is not None:
        at = armed.occurrence_at
        timer = Timer(job_id, at, at + delay, 1, armed.seq, shard_of(job_id))
    spec = JobSpec(
        wanted, request.target, request.retry_policy, request.lease_sec,
        request.on_unknown, request.cancel_url,
    )  # fmt: skip
    job, text_id = _new_job(order, job_id, now, first_at, spec, box), str(job_id)
    next_run_at = opening.due_at if opening else None
    if armed is not None and not opening:
        next_run_at = showing.next_run(wanted, job_id, armed, due_at)
    waits_for = family.open[: showing.WAITS_FOR]
    document = showing.new_job(
        job, text_id, spec, request, armed, next_run_at, waits_for, order.hot
    )
    answer = Answer(202, f"/v1/jobs/{text_id}", _encode(document))
    return _Rows(job, timer, opening, waiting, family, _audit(order, job, text_id), answer)


def _starts_at_once(wanted: Schedule, planned: schedule.Plan) -> bool:
    """Whether what is due needs no tick: nothing ends with it, and nothing will wait for it."""
    if isinstance(wanted, Once):
        return True
    return planned.rearm is not None and wanted.overlap in ("skip", "allow")


def plan(
    request: JobRequest, jitter_sec: int, job_id: UUID, now: datetime, ledger_start: datetime
) -> tuple[Schedule, datetime, schedule.Plan]:
    """The schedule that a request comes to ``now``, its first occurrence, and what is due of it; a
    problem when that cannot be carried out. ``jitter_sec`` is that of recurring jobs that name
    none."""
    try:
        wanted = request.schedule(now, jitter_sec)
        first_at = first_of(wanted, job_id, now, ledger_start)
        schedule.check(wanted, job_id)
        planned = schedule.plan(wanted, first_at, job_id, now)
    except ScheduleError as error:
        body = request.wanted
        delayed = isinstance(body, OnceBody) and body.run_at is None and error.field == "run_at"
        field = "delay" if delayed else error.field
        code = "out_of_range" if error.field == "run_at" else "invalid"
        raise at_fault(f"/schedule/{field}", code, error.detail) from None
    return wanted, first_at, planned


def first_of(wanted: Schedule, job_id: UUID, now: datetime, ledger_start: datetime) -> datetime:
    """The first occurrence of a job that is created ``now``; a problem when it cannot have one."""
    first_at = schedule.first(wanted, job_id, now)
    if first_at is None:
        raise nothing_left(wanted)
    if first_at < ledger_start:
        raise at_fault(
            "/schedule/run_at",
            "before_ledger",
            f"must not lie before {ledger_start:%Y-%m-%d}, where the ledger begins",
        )
    return first_at


def nothing_left(wanted: Schedule) -> Problem:
    """A schedule that has no occurrence from now on."""
    if isinstance(wanted, Once) or wanted.ends_at is None:
        return at_fault("/schedule", "never_fires", "leaves no occurrence before 2200-01-01")
    return at_fault("/schedule/ends_at", "out_of_range", "leaves no occurrence from now on")


def at_fault(pointer: str, code: str, detail: str) -> Problem:
    """A body with one fault."""
    return invalid([Fault(pointer, code, detail)])


def _new_job(
    order: Order, job_id: UUID, now: datetime, first_at: datetime, spec: JobSpec, box: SecretBox
) -> NewJob:
    request = order.request
    labels = _encode(request.labels).decode() if request.labels else "{}"
    sealed = None
    if request.secret_headers:
        sealed = box.seal(_encode(request.secret_headers), order.caller.tenant_id, HEADERS)
    return NewJob(
        job_id, order.caller.tenant_id, now, order.caller.key_id, request.schedule_type, first_at,
        request.name, request.lane, request.priority, request.lease_sec, request.target_host,
        labels, _encode(spec).decode(), sealed,
        request.payload if order.payload_ref is None else None, order.payload_ref,
        len(request.payload), request.content_type, order.traceparent,
        _encode(request.after).decode() if request.after.jobs else None, request.concurrency_key,
    )  # fmt: skip


def _audit(order: Order, job: NewJob, text_id: str) -> audit.Entry:
    after = {"name": job.name, "schedule": job.schedule_type, "target": job.target_host}
    return audit.Entry(
        job.tenant_id, job.created_by, "job.create", "job", text_id, None, audit.document(after),
        order.request_id,
    )  # fmt: skip


async def _insert(
    tx: Tx, orders: Sequence[Order], rows: dict[int, _Rows], now: datetime, ranks: Ranks
) -> None:
    if not rows:
        return
    made = list(rows.values())
    await jobs.insert(tx, [row.job for row in made])
    await timers.arm(tx, [row.timer for row in made if row.timer], now)
    await occurrences.open_new(tx, _openings(made, now, ranks), now)
    await dependencies.insert(
        tx,
        [row.waiting for row in made if row.waiting],
        [(parent, row.job.id) for row in made for parent in row.family.edges],
    )
    await dependencies.note(tx, list({row.family.decided for row in made if row.family.decided}))
    await audit.write(tx, [row.audit for row in made], now)
    stored = [
        Stored(use.id, use.fingerprint, row.answer.status, row.answer.location, row.answer.body)
        for n, row in rows.items()
        if (use := orders[n].use) is not None
    ]
    await idempotency.store(tx, stored, now)


def _openings(made: Sequence[_Rows], now: datetime, ranks: Ranks) -> list[Opening]:
    """What starts at once, each with its place in the queue."""
    due = [(row.opening, row.job) for row in made if row.opening]
    works = [
        Work(job.tenant_id, job.lane, job.priority, job.target_host, job.concurrency_key)
        for _, job in due
    ]
    given = ranks(works, now)
    return [opening._replace(rank=rank) for (opening, _), rank in zip(due, given, strict=True)]
