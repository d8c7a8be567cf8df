"""Why a job is not running: for each thing that may hold it, that and nothing else is told."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from noonday.api.documents import stamp
from noonday.domain.breaker import pauses, target_of
from noonday.domain.catch_up import Delay, Report
from noonday.domain.explaining import Constraint
from noonday.domain.lane_clock import LaneReport
from noonday.domain.ranking import queued, seconds
from noonday.domain.roles import Role
from noonday.store import targets, workers
from tests.support.changing import MINUTE, T, minutely, tick
from tests.support.database_locks import value
from tests.support.outcomes import bring
from tests.support.servers import NOW, Api

NOTHING = timedelta(0)
LATER = "2050-01-01T00:00:00.000Z"


async def do(api: Api, *statements: str) -> None:
    async with api.store.transaction() as tx:
        for statement in statements:
            await tx.execute(statement)


async def explained(api: Api, job: str) -> Any:
    answer = await api.admin.get(f"/v1/jobs/{job}/explain")
    assert answer.status == 200, answer
    return answer.body


async def served(api: Api, *lanes: str) -> None:
    """A living worker with slots for these lanes."""
    async with api.store.transaction() as tx:
        reports = {lane: LaneReport(8, open=True) for lane in lanes}
        await workers.report(tx, uuid4(), "worker", "one", slots=8, lanes=reports)


async def held_by(api: Api, cap: str, key: str, *, users: int, limit: int | None) -> str:
    """A job held under a cap that ``users`` runs use; one more waits before it."""
    column, slot = f"{cap}_cap", ", key_slot = true" if cap == "key" else ""
    for _ in range(users):
        await api.admin.create(schedule=NOW)
    await do(api, f"UPDATE runs SET {column} = '{key}'{slot}")
    if limit is not None and cap == "tenant":
        await do(api, f"UPDATE tenants SET max_running = {limit}")
    elif limit is not None:
        await do(
            api,
            f"""INSERT INTO limits (key, tenant_id, kind, name, max_running, changed_at)
                VALUES ('{key}', 1, '{cap}', 'x', {limit}, now())""",
        )
    waiting = [await api.admin.create(schedule=NOW) for _ in range(2)]
    ids = ", ".join(f"'{job}'" for job in waiting)
    await do(
        api,
        f"""UPDATE runs SET hold = 'cap', hold_key = '{key}', claimable = false, {column} = '{key}'
            WHERE job_id IN ({ids})""",
    )
    return waiting[-1]


async def test_what_is_not_due_waits_for_its_time(api: Api) -> None:
    told = await explained(api, await api.admin.create())
    assert (told["constraint"], told["until"]) == (Constraint.NOT_DUE, LATER)
    assert told["estimated_start_at"] == LATER
    assert told["run_id"] is None


@pytest.mark.parametrize("owned", [True, False])
async def test_what_is_due_and_not_materialized_waits_for_a_scheduler(
    api: Api, owned: bool
) -> None:
    job = await api.admin.create()
    await do(api, "UPDATE timers SET due_at = now() - interval '90 seconds'")
    if owned:
        await do(
            api,
            """UPDATE shards SET owner_id = gen_random_uuid(),
               leased_until = now() + interval '10 s'""",
        )
    told = await explained(api, job)
    assert told["constraint"] == Constraint.SCHEDULER
    assert ("no scheduler" in told["detail"]) is not owned
    assert "1 min 3" in told["detail"]


@pytest.mark.parametrize(
    ("schedule", "priority", "waits"),
    [("interval", 4, True), ("interval", 3, False), ("once", 9, False)],
)
async def test_what_is_late_and_recurs_may_wait_for_its_lane(
    api: Api, schedule: str, priority: int, waits: bool
) -> None:
    how: dict[str, Any] = {"run_at": LATER} if schedule == "once" else {"interval_sec": 3_600}
    job = await api.admin.create(schedule={"type": schedule, **how}, priority=priority)
    await do(
        api,
        "DELETE FROM runs",
        "UPDATE timers SET due_at = now() - interval '90 seconds'",
        "UPDATE shards SET owner_id = gen_random_uuid(), leased_until = now() + interval '10 s'",
    )
    async with api.store.transaction() as tx:
        delay = Delay(await tx.clock(), 50.0, 4)
        report = Report(0.5, 30.0, delays={"default": delay})
        await workers.report(tx, uuid4(), "scheduler", "one", catch_up=report)
    told = await explained(api, job)
    assert told["constraint"] == Constraint.SCHEDULER
    assert ("runs of its lane have waited for 50 s" in told["detail"]) is waits


@pytest.mark.parametrize(
    ("state", "constraint"),
    [
        ("CANCELLED", Constraint.CANCELLED),
        ("SUSPENDED", Constraint.SUSPENDED),
        ("PAUSED", Constraint.PAUSED),
    ],
)
async def test_a_job_that_was_stopped_says_why(
    api: Api, state: str, constraint: Constraint
) -> None:
    job = await api.admin.create()
    await do(
        api,
        "DELETE FROM timers",
        f"UPDATE jobs SET state = '{state}', state_reason = 'no more', state_changed_at = now()",
    )
    told = await explained(api, job)
    assert told["constraint"] == constraint
    assert "no more" in told["detail"]
    assert told["since"] is not None


@pytest.mark.parametrize(("most", "reason"), [(1, "grace"), (5, "misfire")])
async def test_what_has_ended_by_what_it_missed_says_so(api: Api, most: int, reason: str) -> None:
    wanted = minutely(
        misfire="skip", max_occurrences=most, grace_sec=1, starts_at=stamp(T + MINUTE)
    )
    api.store.now = T
    job = await api.admin.create(schedule=wanted)
    await tick(api.store, T + 10 * MINUTE)
    told = await explained(api, job)
    assert (told["constraint"], told["since"]) == (Constraint.ENDED, stamp(T + 10 * MINUTE))
    assert f"MISSED ({reason})" in told["detail"]


@pytest.mark.parametrize(("how", "outcome"), [("complete", "COMPLETE"), ("dead", "FAILED")])
async def test_what_has_ended_says_how(api: Api, how: Any, outcome: str) -> None:
    job = await api.admin.create(schedule=NOW)
    await bring(api.store, job, how)
    told = await explained(api, job)
    assert told["constraint"] == Constraint.ENDED
    assert outcome in told["detail"]
    assert ("dead letter" in told["frees"]) is (how == "dead")


async def test_what_is_running_is_held_by_nothing(api: Api) -> None:
    job = await api.admin.create(schedule=NOW)
    await bring(api.store, job, "running")
    told = await explained(api, job)
    assert (told["constraint"], told["position"]) == (Constraint.NONE, None)
    assert "attempt 1" in told["detail"]
    assert told["run_id"].startswith(job.replace("-", ""))


async def test_a_lease_that_has_run_out_is_told(api: Api) -> None:
    job = await api.admin.create(schedule=NOW)
    await bring(api.store, job, "running")
    await do(api, "UPDATE runs SET locked_until = now() - interval '1 second'")
    assert "lease has run out" in (await explained(api, job))["detail"]


async def test_a_retry_waits_for_its_time(api: Api) -> None:
    job = await api.admin.create(schedule=NOW)
    await bring(api.store, job, "retrying")
    told = await explained(api, job)
    assert told["constraint"] == Constraint.RETRY
    assert told["until"] == told["estimated_start_at"] is not None


@pytest.mark.parametrize("state", ["OPEN", "SUSPENDED", "CLOSED"])
async def test_a_breaker_says_since_when_and_why(api: Api, state: str) -> None:
    job = await api.admin.create(schedule=NOW)
    tenant = int(await value(api.store, "SELECT id FROM tenants"))
    target = target_of(tenant, "https://receiver.example/run")
    assert target is not None
    async with api.store.transaction() as tx:
        if state == "SUSPENDED":
            await targets.suspend(tx, tenant, target, "answered 410", NOTHING)
        else:
            await targets.open(tx, tenant, target, "answered 503", NOTHING, pauses())
        if state == "CLOSED":
            await targets.resume(tx, tenant, target.host, "resumed")
        await tx.execute(
            "UPDATE runs SET hold = 'breaker', hold_key = $1, claimable = false",
            target.url_key if state == "SUSPENDED" else target.key,
        )
    told = await explained(api, job)
    assert (told["constraint"], told["position"]) == (Constraint.BREAKER, 1)
    assert told["since"] is not None
    assert {"OPEN": "503", "SUSPENDED": "410", "CLOSED": "ramp"}[state] in told["detail"]
    assert (told["until"] is not None) is (state == "OPEN")


@pytest.mark.parametrize(
    ("cap", "key", "limit", "constraint", "named"),
    [
        ("tenant", "tenant:1", 2, Constraint.TENANT_CAP, "tenant"),
        ("host", "host:1:receiver.example", 2, Constraint.HOST_CAP, "receiver.example"),
        ("key", "key:1:billing:eu", 2, Constraint.CONCURRENCY_KEY, "'billing:eu'"),
    ],
)
async def test_a_cap_says_how_much_is_used_and_by_whom(
    api: Api, cap: str, key: str, limit: int, constraint: Constraint, named: str
) -> None:
    job = await held_by(api, cap, key, users=2, limit=limit)
    told = await explained(api, job)
    assert (told["constraint"], told["use"]) == (constraint, {"used": 2, "limit": 2})
    assert named in told["detail"]
    assert "2/2" in told["detail"]
    assert len(told["blocked_by"]) == 2
    assert told["position"] == 2


async def test_a_concurrency_key_without_a_limit_of_its_own_is_one_at_a_time(api: Api) -> None:
    told = await explained(api, await held_by(api, "key", "key:1:a", users=1, limit=None))
    assert told["use"] == {"used": 1, "limit": 1}
    assert told["blocked_by"][0] in told["detail"]


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("paused_at = now(), pause_reason = 'rebuilt'", Constraint.LANE_PAUSED),
        ("shed_at = now(), shed_reason = 'rebuilt'", Constraint.LANE_SHED),
    ],
)
async def test_a_lane_that_stands_still_says_why(
    api: Api, change: str, constraint: Constraint
) -> None:
    job = await api.admin.create(schedule=NOW)
    await served(api, "default")
    await do(
        api,
        f"UPDATE lanes SET {change}",
        """INSERT INTO costs (tenant_id, target_host, seconds, changed_at)
           SELECT tenant_id, target_host, 1, now() FROM jobs""",
    )
    told = await explained(api, job)
    assert told["constraint"] == constraint
    assert (told["position"], told["estimated_start_at"]) == (1, None), "nobody knows"
    assert "rebuilt" in told["detail"]


async def test_a_lane_that_no_worker_serves_is_told(api: Api) -> None:
    job = await api.admin.create(schedule=NOW, lane="long")
    await served(api, "default")
    told = await explained(api, job)
    assert told["constraint"] == Constraint.NO_WORKER
    assert "--pool long=" in told["frees"]


async def test_a_full_lane_is_told(api: Api) -> None:
    running = await api.admin.create(schedule=NOW)
    await bring(api.store, running, "running")
    job = await api.admin.create(schedule=NOW)
    await served(api, "default")
    await do(api, "UPDATE lanes SET max_running = 1")
    told = await explained(api, job)
    assert (told["constraint"], told["use"]) == (Constraint.LANE_CAP, {"used": 1, "limit": 1})


async def test_the_place_in_the_queue_goes_by_priority_and_waiting(api: Api) -> None:
    await served(api, "default")
    job = await api.admin.create(schedule=NOW, priority=5)
    await api.admin.create(schedule=NOW, priority=4)
    await api.admin.create(schedule=NOW, priority=6)
    told = await explained(api, job)
    assert (told["constraint"], told["position"]) == (Constraint.QUEUED, 2)
    await do(api, "UPDATE runs SET rank = rank - interval '1 hour' WHERE priority = 6")
    assert (await explained(api, job))["position"] == 3


async def test_a_run_of_a_flood_is_behind_what_queues_before_it_and_what_is_in_front(
    api: Api,
) -> None:
    await served(api, "default")
    jobs = [await api.admin.create(schedule=NOW) for _ in range(4)]
    async with api.store.transaction() as tx:
        now = seconds(await tx.clock())
        for n, job in enumerate(jobs[1:], 1):
            rank = queued(now + n * 60)
            await tx.execute("UPDATE runs SET rank = $2 WHERE job_id = $1", UUID(job), rank)
    places = [(await explained(api, job))["position"] for job in jobs]
    assert places == [1, 2, 3, 4]


async def test_the_start_is_estimated_from_slots_and_how_long_runs_take(api: Api) -> None:
    await served(api, "default")
    job = await api.admin.create(schedule=NOW)
    assert (await explained(api, job))["estimated_start_at"] is None
    await do(
        api,
        """INSERT INTO costs (tenant_id, target_host, seconds, changed_at)
           SELECT tenant_id, target_host, 80, now() FROM jobs""",
    )
    async with api.store.transaction() as tx:
        now = await tx.clock()
    begins = datetime.fromisoformat((await explained(api, job))["estimated_start_at"])
    assert timedelta(seconds=9) < begins - now < timedelta(seconds=11)


@pytest.mark.parametrize("slowed", [1.0, 0.5])
async def test_a_rate_limit_says_its_rate(api: Api, slowed: float) -> None:
    job = await api.admin.create(schedule=NOW)
    key = "host:1:receiver.example"
    await do(
        api,
        f"""INSERT INTO limits (key, tenant_id, kind, name, rate_per_sec, changed_at)
            VALUES ('{key}', 1, 'host', 'receiver.example', 10, now())""",
        f"""INSERT INTO rates (key, next_at, slowed, slowed_at)
            VALUES ('{key}', now(), {slowed}, now())""",
        f"UPDATE runs SET hold = 'rate', hold_key = 'rate:{key}', claimable = false",
    )
    told = await explained(api, job)
    assert (told["constraint"], told["position"]) == (Constraint.RATE_LIMIT, 1)
    assert f"{10 * slowed:g} per second" in told["detail"]
    assert told["estimated_start_at"] is not None


async def test_what_waits_for_others_names_them(api: Api) -> None:
    parents = [await api.admin.create() for _ in range(2)]
    told = await explained(api, await api.admin.create(after=parents))
    assert (told["constraint"], sorted(told["blocked_by"])) == (Constraint.AFTER, sorted(parents))


async def test_of_several_unfinished_runs_the_furthest_is_told_of(api: Api) -> None:
    job = await api.admin.create(schedule=NOW)
    await api.admin.post(f"/v1/jobs/{job}/trigger")
    await bring(api.store, job, "running")
    await do(
        api,
        """UPDATE runs SET state = 'READY', worker_id = NULL, leased_at = NULL,
           locked_until = NULL WHERE kind = 0""",
    )
    assert (await explained(api, job))["constraint"] == Constraint.NONE


async def test_another_tenant_learns_nothing(api: Api) -> None:
    other = await api.client(Role.ADMIN, "beta")
    job = await api.admin.create()
    assert (await other.get(f"/v1/jobs/{job}/explain")).status == 404
