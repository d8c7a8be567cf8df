"""``POST /v1/jobs`` and ``POST /v1/jobs:batch``: a body becomes orders, orders become answers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from noonday.api import bodies, headers, keys, problems, schemas
from noonday.api.checks import UNKNOWN_LANE
from noonday.api.commits import Commits
from noonday.api.context import INLINE_BYTES, AppContext, caller_of, context_of, lanes_of
from noonday.api.creation import Order
from noonday.api.documents import BatchAnswer, BatchItem, JobDocument
from noonday.api.keys import Answer
from noonday.api.pages import json
from noonday.api.problems import Problem
from noonday.api.quotas import QuotaKeeper
from noonday.api.reading import Fault
from noonday.api.schemas import Batch, Item, JobRequest
from noonday.domain.errors import StoreUnavailable
from noonday.domain.lanes import READY_MADE
from noonday.store import workers
from noonday.store.blobs import new_reference
from noonday.store.connections import host_name
from noonday.store.idempotency import Use

T_co = TypeVar("T_co", covariant=True)

SINGLE: Final = "POST /v1/jobs"
BATCH: Final = "POST /v1/jobs:batch"

_read_job: Final = msgspec.json.Decoder(JobDocument).decode


async def create(request: Request) -> Response:
    """Create one job, durable when this answers."""
    context = context_of(request)
    body = await bodies.read(request, context.body_limit)
    use = keys.use_of(request, SINGLE, body)
    job = await _read(request, schemas.read_job, body)
    if isinstance(job, list):
        raise problems.invalid(job)
    _require_fit(request, job)
    share = await _quotas(request).ask(caller_of(request), [len(job.payload)])
    try:
        if share.refusal is not None and use is None:
            raise share.refusal
        answer = await _submit(request, job, use, share.refusal)
        if not answer.replayed:
            share.made(0)
    finally:
        await share.close()
    return answer.response(share.headers)


async def create_batch(request: Request) -> Response:
    """Create up to a thousand jobs: each by itself, or all of them or none."""
    context = context_of(request)
    body = await bodies.read(request, context.batch_body_limit)
    batch = await _read(request, schemas.read_batch, body)
    if isinstance(batch, list):
        raise problems.invalid(batch)
    sizes = _sizes(request, batch)
    share = await _quotas(request).ask(caller_of(request), list(sizes.values()), whole=batch.atomic)
    refusals = {n: share.refusal_of(place) for place, n in enumerate(sizes)}
    try:
        answers = await _carry_out(request, batch, refusals)
        share.made(*(place for place, n in enumerate(sizes) if _is_new(answers[n])))
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
    answers = await asyncio.gather(
        *(_one_of_many(request, item, refusals.get(n)) for n, item in enumerate(batch.items))
    )
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
        ports: Collection[int] | None,
        lanes: Collection[str],
    ) -> T_co | list[Fault]: ...


async def _read(request: Request, read: _Reads[T_co], body: bytes) -> T_co | list[Fault]:
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
            return any(_misses_a_lane(item.job) for item in value.items)
        case list():
            return any(fault.code == UNKNOWN_LANE for fault in value)
        case _:
            return False


async def _one_of_many(request: Request, item: Item, refusal: Problem | None) -> Answer | Problem:
    try:
        if isinstance(item.job, list):
            raise problems.invalid(item.job)
        use = _use_of(request, item)
        if refusal is not None and use is None:
            return refusal
        return await _submit(request, item.job, use, refusal)
    except Problem as problem:
        return problem
    except StoreUnavailable:
        return problems.unavailable()


async def _all_or_none(
    request: Request, items: Sequence[Item], refusal: Problem | None
) -> list[Answer]:
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
    ordered: list[_Ordered] = []
    answers: list[Answer] = []
    try:
        for item in items:
            job = cast("JobRequest", item.job)
            ordered.append(await _order(request, job, _use_of(request, item), refusal))
        answers = await _commits(request).create_all([one.order for one in ordered])
    except Problem:
        await _discard(context_of(request), ordered)
        raise
    unused = [one for one, answer in zip(ordered, answers, strict=True) if answer.replayed]
    await _discard(context_of(request), unused)
    return answers


class _Ordered(NamedTuple):
    order: Order
    blob: str | None


async def _submit(
    request: Request, job: JobRequest, use: Use | None, refusal: Problem | None
) -> Answer:
    ordered = await _order(request, job, use, refusal)
    try:
        answer = await _commits(request).submit(ordered.order)
    except Problem:
        await _discard(context_of(request), [ordered])
        raise
    if answer.replayed:
        await _discard(context_of(request), [ordered])
    return answer


def _sizes(request: Request, batch: Batch) -> dict[int, int]:
    """What the jobs of a batch count for, by their number, but for those that are at fault."""
    most = caller_of(request).max_payload_bytes
    sizes = {
        n: len(item.job.payload)
        for n, item in enumerate(batch.items)
        if not isinstance(item.job, list)
    }
    return {n: size for n, size in sizes.items() if size <= most}


def _require_fit(request: Request, job: JobRequest) -> None:
    most = caller_of(request).max_payload_bytes
    if len(job.payload) > most:
        raise problems.too_large(most, "payload")


async def _order(
    request: Request, job: JobRequest, use: Use | None, refusal: Problem | None
) -> _Ordered:
    _require_fit(request, job)
    blob = None
    if len(job.payload) > INLINE_BYTES:
        blob = await _put(context_of(request), job.payload)
    order = Order(
        caller_of(request), job, blob, use, headers.traceparent(request),
        problems.request_id(request), refusal,
    )  # fmt: skip
    return _Ordered(order, blob)


async def _put(context: AppContext, payload: bytes) -> str:
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


async def _discard(context: AppContext, ordered: Sequence[_Ordered]) -> None:
    """Remove payloads that no row names: these jobs were refused, or made before."""
    for one in ordered:
        if one.blob is not None:
            await context.blobs.delete(one.blob)


def _batch_answer(request: Request, answers: Sequence[Answer | Problem]) -> BatchAnswer:
    made = [answer for answer in answers if isinstance(answer, Answer)]
    replayed = sum(answer.replayed for answer in made)
    return BatchAnswer(
        created=len(made) - replayed,
        replayed=replayed,
        failed=len(answers) - len(made),
        results=[_item(request, n, answer) for n, answer in enumerate(answers)],
    )


def _item(request: Request, index: int, answer: Answer | Problem) -> BatchItem:
    if isinstance(answer, Answer):
        job = _read_job(answer.body)
        return BatchItem(index, answer.status, answer.location, answer.replayed, job)
    document = problems.document(answer, problems.request_id(request))
    return BatchItem(index, answer.status, problem=document)


def _use_of(request: Request, item: Item) -> Use | None:
    if item.idempotency_key is None:
        return None
    return keys.use(request, BATCH, item.idempotency_key, item.raw)


def _commits(request: Request) -> Commits:
    return cast("Commits", request.app.state.commits)


def _quotas(request: Request) -> QuotaKeeper:
    return cast("QuotaKeeper", request.app.state.quotas)
