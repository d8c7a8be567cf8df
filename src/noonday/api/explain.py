"""Why a job is, or is not, running now."""

from __future__ import annotations

from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response

from noonday.api.context import caller_of, context_of
from noonday.api.documents import ExplanationDocument, UseDocument, maybe
from noonday.api.ids import job_id_of
from noonday.api.pages import json
from noonday.api.problems import not_found
from noonday.domain import explaining
from noonday.domain.explaining import MOST_AHEAD, Explanation, Facts, Use
from noonday.domain.model import EPOCH, PRIORITIES
from noonday.domain.ranking import AGEING_STEP
from noonday.store import Row, Tx, explanations, runs


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
    timer = await explanations.timer(tx, job["id"]) if job["state"] == "ACTIVE" else None
    if timer is not None:
        facts = facts._replace(timer=timer, scheduler_alive=timer["owned"])
    if run is None:
        last = None if timer else await explanations.last(tx, job["id"])
        return facts._replace(last=last)
    facts = facts._replace(run=run)
    if run["state"] != "READY":
        return facts
    return await (_of_hold if run["hold"] else _of_lane)(tx, facts, run)


async def _of_hold(tx: Tx, facts: Facts, run: Row) -> Facts:
    key, tenant_id = run["hold_key"], run["tenant_id"]
    facts = facts._replace(ahead=await explanations.ahead_held(tx, run, MOST_AHEAD))
    if run["hold"] == "cap":
        used, users = await explanations.users(tx, run)
        most = await explanations.limit(tx, key, tenant_id)
        if most is None:
            most = 1 if key == run["key_cap"] else used
        return facts._replace(use=Use(used, most, [str(user) for user in users]))
    if run["hold"] == "breaker":
        return facts._replace(target=await explanations.target(tx, key))
    return facts


async def _of_lane(tx: Tx, facts: Facts, run: Row) -> Facts:
    lane = await explanations.lane(tx, run["lane"])
    use = None
    if lane is not None and lane["max_running"] is not None:
        most = lane["max_running"]
        use = Use(await explanations.lane_users(tx, lane["name"], most), most)
    step = timedelta(seconds=lane["ageing_sec"]) if lane is not None else AGEING_STEP
    ranges = [
        (priority, EPOCH, run["rank"] + (run["priority"] - priority) * step)
        for priority in PRIORITIES
    ]
    return facts._replace(
        lane=lane, use=use, ahead=await explanations.ahead(tx, run["lane"], ranges, MOST_AHEAD)
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
