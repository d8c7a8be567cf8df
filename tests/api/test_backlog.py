"""The backlog after an outage, as the API shows it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from noonday.domain.catch_up import Delay, Report
from noonday.domain.roles import Role
from noonday.store import late, workers
from tests.support import seeds
from tests.support.database_locks import value
from tests.support.servers import Api

MINUTE = timedelta(minutes=1)

TIMERS = """
INSERT INTO timers (job_id, occurrence_at, due_at, schedule_version, seq, shard)
SELECT gen_random_uuid(), at, at, 1, 1, n % 64
FROM generate_series(1, $1::int) AS n,
     LATERAL (SELECT now() - interval '2 minutes' - n * interval '1 ms' AS at) AS due
"""


async def test_with_nothing_late_anybody_may_see_that(api: Api) -> None:
    viewer = await api.client(Role.VIEWER)
    answer = await viewer.get("/v1/backlog")
    assert (answer.status, answer.body) == (
        200,
        {
            "late_after_sec": 60.0, "remaining": 0, "exact": True, "oldest_due_at": None,
            "rate_per_sec": 0.0, "eta_sec": None, "share": None, "limit_sec": None, "delayed": 0,
            "delays": [],
        },
    )  # fmt: skip


async def test_it_says_how_all_living_schedulers_together_catch_up(api: Api) -> None:
    async with api.store.transaction() as tx:
        now = await tx.clock()
        await seeds.armed(tx, seeds.every(60, now - 5 * MINUTE), now - 5 * MINUTE, count=40)
        await seeds.armed(tx, seeds.every(60, now), now + MINUTE, count=3)
        delay = Delay(now - MINUTE, 50.0, 4)
        for each, id in ((0, seeds.WORKER), (1, seeds.OTHER_WORKER)):
            report = Report(0.5, 30.0, 1.5 + each, 10, 0.0, {"batch": delay} if each else {})
            await workers.report(tx, id, "scheduler", str(each), catch_up=report)
        tx.now = now - 10 * MINUTE
        await workers.report(
            tx, seeds.job_id(), "scheduler", "dead", catch_up=Report(0.9, 30.0, 99.0)
        )
    shown = (await api.admin.get("/v1/backlog")).body
    assert (shown["remaining"], shown["exact"], shown["delayed"]) == (40, True, 20)
    assert (shown["rate_per_sec"], shown["eta_sec"], shown["share"]) == (4.0, 10.0, 0.5)
    assert shown["oldest_due_at"].startswith(f"{now - 5 * MINUTE:%Y-%m-%dT%H:%M:%S}")
    (only,) = shown["delays"]
    assert (only["lane"], only["waited_sec"], only["priority"]) == ("batch", 50.0, 4)


@pytest.mark.parametrize("count", [late.FEW, late.FEW + 1, 60_000])
async def test_few_are_counted_and_of_many_a_sample_is(api: Api, count: int) -> None:
    async with api.store.transaction() as tx:
        await tx.execute(TIMERS, count)
    assert await value(api.store, "SELECT count(*) FROM timers") == count
    shown = (await api.admin.get("/v1/backlog")).body
    assert shown["exact"] == (count <= late.FEW)
    assert shown["remaining"] == pytest.approx(count, rel=0.0 if count <= late.FEW else 0.15)


async def test_it_takes_no_parameters(api: Api) -> None:
    assert (await api.admin.get("/v1/backlog?limit=3")).status == 422
