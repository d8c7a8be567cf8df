"""``POST /v1/jobs`` and ``POST /v1/jobs:batch``: a body becomes orders, orders become answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping, Sequence, Set
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar, cast

from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from noonday.api import bodies, headers, keys, problems, schemas
from noonday.api.auth import KNOWN_SEC
from noonday.api.checks import UNKNOWN_LANE, Ports
from noonday.api.commits import Commits, Outcome
from noonday.api.context import (
    INLINE_BYTES,
    AppContext,
    Caller,
    caller_of,
    context_of,
    hot_of,
    lanes_of,
)
from noonday.api.creation import Order
from noonday.api.documents import BatchAnswer, BatchItem, JobDocument
from noonday.api.keys import Answer
from noonday.api.pages import json
from noonday.api.problems import Problem
from noonday.api.quotas import QuotaKeeper
from noonday.api.reading import Fault
from noonday.api.schemas import Batch, Item, JobRequest
from noonday.domain.errors import StoreUnavailable
from noonday.domain.lanes import READY_MADE, Lane, usual_jitter
from noonday.store import workers
from noonday.store.blobs import new_reference
from noonday.store.connections import host_name
from noonday.store.idempotency import Use

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

SINGLE: Final = "POST /v1/jobs"
BATCH: Final = "POST /v1/jobs:batch"


async def create(request: Request) -> Response:
    """Create one job, durable when this answers."""
    context = context_of(request)
    body = await bodies.read(request, context.body_limit)
    use = keys.use_of(request, SINGLE, body)
    job = await read_body(request, schemas.read_job, body)
    if isinstance(job, list):
        raise problems.invalid(job)
    sender = await _sender(request)
    sender.require_fit(job)
    share = await _quotas(request).ask(sender.caller, [len(job.payload)])
    try:
        if share.refusal is not None and use is None:
            raise share.refusal
        order = sender.order(job, use, share.refusal)
        writing = _commits(request).submit_all
        if _is_big(order):
            order = await _kept(context, order)
            (answer,) = await _discarding(context, [order], writing([order]))
        else:
            (answer,) = await writing([order])
        if isinstance(answer, Exception):
            raise answer
        if not answer.replayed:
            share.made(0)
    finally:
        await share.close()
    return answer.response(share.headers)


async def create_batch(request: Request) -> Response:
    """Create up to a thousand jobs: each by itself, or all of them or none."""
    context = context_of(request)
    body = await bodies.read(request, context.batch_body_limit)
    batch = await read_body(request, schemas.read_batch, body)
    if isinstance(batch, list):
        raise problems.invalid(batch)
    sizes = _sizes(request, batch)
    share = await _quotas(request).ask(caller_of(request), list(sizes.values()), whole=batch.atomic)
    refusals = {n: share.refusal_of(place) for place, n in enumerate(sizes)}
    try:
        answers = await _carry_out(request, batch, refusals)
        share.made(*[place for place, n in enumerate(sizes) if _is_new(answers[n])])
    finally:
        await share.close()
    return json(_batch_answer(request, answers), 202, share.headers)


def _is_new(answer: Answer | Problem) -> bool:
    return isinstance(answer, Answer) and not answer.replayed


async def _carry_out(
    request: Request, batch: Batch, refusals: Mapping[int, Problem | None]
) -> Sequence[Answer | Problem]:
    if batch.atomic:
        return await _all_or_none(request, batch.items, next(iter(refusals.values()), None))
    answers = await _each(request, batch.items, refusals)
    down = [one for one in answers if isinstance(one, Problem) and one.status == 503]
    if len(down) == len(answers):
        raise down[0]
    return answers


class _Reads(Protocol[T_co]):
    """Reads a body, by what the service allows and has."""

    def __call__(
        self,
        document: bytes,
        *,
        allow_private: bool,
        ports: Ports,
        lanes: Collection[str],
    ) -> T_co | list[Fault]: ...


async def read_body(request: Request, read: _Reads[T_co], body: bytes) -> T_co | list[Fault]:
    """The body, read by the lanes that this process knows of; when one is not known, by those that
    there are by now. (One that is gone is found out when its jobs are written.)"""
    context, lanes = context_of(request), lanes_of(request)
    how = partial(
        read, body, allow_private=context.allow_private_targets, ports=context.allowed_ports or None
    )
    value = how(lanes={*READY_MADE, *lanes.cached})
    return how(lanes=await lanes.read()) if _misses_a_lane(value) else value


def _misses_a_lane(value: object) -> bool:
    match value:
        case Batch():
            return any(
                isinstance(item.job, list) and _misses_a_lane(item.job) for item in value.items
            )
        case list():
            return any(fault.code == UNKNOWN_LANE for fault in value)
        case _:
            return False


async def _each(
    request: Request, items: Sequence[Item], refusals: Mapping[int, Problem | None]
) -> list[Answer | Problem]:
    """The jobs that are in order, made together; what is wrong with one is its own matter."""
    context, sender = context_of(request), await _sender(request)
    use_of = keys.uses(request, BATCH)
    outcomes: dict[int, Outcome] = {}
    orders: dict[int, Order] = {}
    for n, (key, raw, job) in enumerate(items):
        try:
            if isinstance(job, list):
                raise problems.invalid(job)
            use, refusal = None if key is None else use_of(key, raw), refusals.get(n)
            if refusal is not None and use is None:
                outcomes[n] = refusal
                continue
            sender.require_fit(job)
            orders[n] = sender.order(job, use, refusal)
        except Problem as problem:
            outcomes[n] = problem
    big = [n for n, order in orders.items() if _is_big(order)]
    kept = (_kept(context, orders[n]) for n in big)
    for n, order in zip(big, await asyncio.gather(*kept, return_exceptions=True), strict=True):
        if isinstance(order, Order):
            orders[n] = order
        else:
            del orders[n]
            outcomes[n] = _an_exception(order)
    made = list(orders.values())
    answers = await _discarding(context, made, _commits(request).submit_all(made))
    outcomes.update(zip(orders, answers, strict=True))
    return [_told(outcomes[n]) for n in range(len(items))]


def _an_exception(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    raise error


def _told(outcome: Outcome) -> Answer | Problem:
    """An outcome as an item of a batch tells it."""
    if isinstance(outcome, Answer):
        return outcome
    if isinstance(outcome, StoreUnavailable):
        return problems.unavailable()
    if isinstance(outcome, Problem):
        return outcome
    raise outcome


async def _all_or_none(
    request: Request, items: Sequence[Item], refusal: Problem | None
) -> Sequence[Answer]:
    faults = [
        Fault(f"/jobs/{n}/job{fault.pointer}", fault.code, fault.detail)
        for n, item in enumerate(items)
        if isinstance(item.job, list)
        for fault in item.job
    ]
    if faults:
        raise Problem(422, "invalid", "Jobs of the batch have faults; see errors.", errors=faults)
    if refusal is not None and any(item.idempotency_key is None for item in items):
        raise refusal
    context, sender = context_of(request), await _sender(request)
    use_of = keys.uses(request, BATCH)
    orders: list[Order] = []
    try:
        for key, raw, read in items:
            job = cast("JobRequest", read)
            sender.require_fit(job)
            use = None if key is None else use_of(key, raw)
            orders.append(await _kept(context, sender.order(job, use, refusal)))
        return await _discarding(context, orders, _commits(request).create_all(orders))
    except Problem:
        await _discard(context, orders)
        raise


class _Sender(NamedTuple):
    """What all orders of a request have in common."""

    caller: Caller
    traceparent: str | None
    request_id: str
    lanes: Mapping[str, Lane]
    hot: Set[datetime]

    def require_fit(self, job: JobRequest) -> None:
        """Raise a problem for a payload that is larger than the tenant may have."""
        most = self.caller.max_payload_bytes
        if len(job.payload) > most:
            raise problems.too_large(most, "payload")

    def order(self, job: JobRequest, use: Use | None, refusal: Problem | None) -> Order:
        """The order for a job."""
        return Order(
            self.caller, job, None, use, self.traceparent, self.request_id, refusal,
            usual_jitter(self.lanes.get(job.lane), self.caller.jitter_sec), self.hot,
        )  # fmt: skip


async def _sender(request: Request) -> _Sender:
    return _Sender(
        caller_of(request), headers.traceparent(request), problems.request_id(request),
        await lanes_of(request).known(KNOWN_SEC), await hot_of(request).known(),
    )  # fmt: skip


def _sizes(request: Request, batch: Batch) -> dict[int, int]:
    """What the jobs of a batch count for, by their number, but for those that are at fault."""
    most = caller_of(request).max_payload_bytes
    sizes = {
        n: len(item.job.payload)
        for n, item in enumerate(batch.items)
        if not isinstance(item.job, list)
    }
    return {n: size for n, size in sizes.items() if size <= most}


# --- Payloads that are kept beside the database -----------------------------------------------


def _is_big(order: Order) -> bool:
    return len(order.request.payload) > INLINE_BYTES


async def _kept(context: AppContext, order: Order) -> Order:
    """The order, its payload put into the blob store if it is a big one."""
    if not _is_big(order):
        return order
    return order._replace(payload_ref=await put_payload(context, order.request.payload))


async def put_payload(context: AppContext, payload: bytes) -> str:
    """Write a big payload before the row that names it."""
    if not context.blobs_shared:
        async with context.store.transaction() as tx:
            elsewhere = await workers.hosts(tx) - {host_name()}
        if elsewhere:
            raise Problem(
                413,
                "too_large",
                f"A payload of more than {INLINE_BYTES} bytes is kept in this host's blob folder, "
                "which workers on other hosts cannot read (blobs_shared is off).",
            )
    reference = new_reference()
    await context.blobs.put(reference, payload)
    return reference


async def _discarding(
    context: AppContext, orders: Sequence[Order], outcomes: Awaitable[Sequence[T]]
) -> Sequence[T]:
    """The outcomes; payloads of jobs that were refused, or made before, are discarded."""
    found = await outcomes
    unused = [
        order
        for order, outcome in zip(orders, found, strict=True)
        if order.payload_ref is not None
        and (isinstance(outcome, Problem) or (isinstance(outcome, Answer) and outcome.replayed))
    ]
    await _discard(context, unused)
    return found


async def _discard(context: AppContext, orders: Sequence[Order]) -> None:
    """Remove payloads that no row names."""
    for order in orders:
        if order.payload_ref is not None:
            await context.blobs.delete(order.payload_ref)


# --- The answer -------------------------------------------------------------------------------


def _batch_answer(request: Request, answers: Sequence[Answer | Problem]) -> BatchAnswer:
    made = [answer for answer in answers if isinstance(answer, Answer)]
    replayed = sum([answer.replayed for answer in made])
    return BatchAnswer(
        created=len(made) - replayed,
        replayed=replayed,
        failed=len(answers) - len(made),
        results=[_item(request, n, answer) for n, answer in enumerate(answers)],
    )


def _item(request: Request, index: int, answer: Answer | Problem) -> BatchItem:
    if isinstance(answer, Answer):
        job = cast("JobDocument", Raw(answer.body))  # written down already
        return BatchItem(index, answer.status, answer.location, answer.replayed, job)
    document = problems.document(answer, problems.request_id(request))
    return BatchItem(index, answer.status, problem=document)


def _commits(request: Request) -> Commits:
    return cast("Commits", request.app.state.commits)


def _quotas(request: Request) -> QuotaKeeper:
    return cast("QuotaKeeper", request.app.state.quotas)
