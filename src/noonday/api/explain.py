"""Why a job is, or is not, running now."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from noonday.api.context import caller_of, context_of
from noonday.api.documents import ExplanationDocument, UseDocument, maybe
from noonday.api.ids import job_id_of
from noonday.api.pages import json
from noonday.api.problems import not_found
from noonday.domain import explaining
from noonday.domain.catch_up import LATE, summed
from noonday.domain.explaining import MOST_AHEAD, Explanation, Facts, Use, ranges_before
from noonday.domain.ranking import AGEING_SEC
from noonday.domain.rates import KEY_PREFIX
from noonday.store import Row, Tx, dependencies, explanations, rates, runs, workers
from noonday.store.explanations import MOST_NAMED


async def explain(request: Request) -> Response:
    """The one constraint that holds the job now, and what would free it."""
    job_id, tenant_id = job_id_of(request), caller_of(request).tenant_id
    async with context_of(request).store.transaction() as tx:
        job = await explanations.job(tx, job_id, tenant_id)
        facts = None if job is None else await _facts(tx, job)
    if facts is None:
        raise not_found("No job")
    return json(_document(facts, explaining.explain(facts)))


async def _facts(tx: Tx, job: Row) -> Facts:
    facts = Facts(await tx.clock(), job)
    run = await explanations.run(tx, job["id"])
    if run is None:
        return await _without_run(tx, facts)
    facts = facts._replace(run=run)
    if run["state"] != "READY":
        return facts
    return await (_of_hold if run["hold"] else _of_lane)(tx, facts, run)


async def _without_run(tx: Tx, facts: Facts) -> Facts:
    job_id = facts.job["id"]
    if facts.job["state"] not in ("ACTIVE", "ENDED"):
        return facts
    waiting = await explanations.waiting(tx, job_id)
    if waiting is not None:
        found = await dependencies.open_parents(tx, [job_id], MOST_NAMED)
        return facts._replace(waiting=waiting, parents=[str(one) for one in found.get(job_id, ())])
    timer = await explanations.timer(tx, job_id)
    if timer is not None:
        facts = facts._replace(timer=timer, scheduler_alive=timer["owned"])
        return await _late(tx, facts) if timer["due_at"] < facts.now - LATE else facts
    return facts._replace(last=await explanations.last(tx, job_id))


async def _late(tx: Tx, facts: Facts) -> Facts:
    together = summed(await workers.catch_ups(tx))
    return facts._replace(delay=together and together.delays.get(facts.job["lane"]))


async def _of_hold(tx: Tx, facts: Facts, run: Row) -> Facts:
    key = run["hold_key"]
    facts = facts._replace(ahead=await explanations.ahead_held(tx, run, MOST_AHEAD))
    if run["hold"] == "cap":
        used, users = await explanations.users(tx, run)
        most = await explanations.limit(tx, key, run["tenant_id"])
        if most is None:  # taken away just now; a key is one at a time then
            most = 1 if key == run["key_cap"] else used
        service = await explanations.service_sec(tx, facts.job)
        pace = most / service if service else None
        use = Use(used, most, [str(user) for user in users])
        return facts._replace(use=use, starts_per_sec=pace)
    if run["hold"] == "breaker":
        return facts._replace(target=await explanations.target(tx, key))
    if run["hold"] == "rate":
        rate = await _rate(tx, key.removeprefix(KEY_PREFIX))
        return facts._replace(rate_per_sec=rate, starts_per_sec=rate)
    return facts


async def _rate(tx: Tx, key: str) -> float | None:
    found = (await rates.limits_of(tx, [key])).get(key)
    stands = (await rates.stand(tx, [key])).get(key)
    return None if found is None else found * (stands["slowed"] if stands else 1.0)


async def _of_lane(tx: Tx, facts: Facts, run: Row) -> Facts:
    name = run["lane"]
    lane = await explanations.lane(tx, name)
    reports = [each[name] for each in await workers.lanes(tx) if name in each]
    slots, use = sum(report.slots for report in reports), None
    if lane is not None and lane["max_running"] is not None:
        most = lane["max_running"]
        use = Use(await explanations.lane_users(tx, name, most), most)
        slots = min(slots, most)
    ageing_sec = AGEING_SEC if lane is None else lane["ageing_sec"]
    before = ranges_before(run["rank"], run["priority"], facts.now, ageing_sec, reports)
    service = await explanations.service_sec(tx, facts.job)
    return facts._replace(
        lane=lane,
        use=use,
        slots=sum(report.slots for report in reports),
        ahead=await explanations.ahead(tx, name, before, MOST_AHEAD),
        starts_per_sec=slots / service if service else None,
    )


def _document(facts: Facts, found: Explanation) -> ExplanationDocument:
    run = None if facts.run is None else str(runs.key_of(facts.run))
    use = None if found.use is None else UseDocument(found.use.used, found.use.limit)
    return ExplanationDocument(
        job_id=str(facts.job["id"]),
        run_id=run,
        constraint=found.constraint,
        detail=found.detail,
        frees=found.frees,
        since=maybe(found.since),
        until=maybe(found.until),
        position=found.position,
        position_is_exact=found.position is None or found.position <= MOST_AHEAD,
        estimated_start_at=maybe(found.estimated_start_at),
        blocked_by=list(found.blocked_by),
        use=use,
    )
