"""LSE: cancels that race with the start and the end of a run."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from noonday.client import AsyncClient, NoondayApiError
from noonday.domain.model import Kind, RunKey
from noonday.drill.checks import journal
from noonday.drill.checks.database import direct
from noonday.drill.checks.journal import Entry
from tests.field.durations import scaled
from tests.support.cluster import Cluster
from tests.support.holds import eventually
from tests.support.receivers import Answer

SEED = int(os.environ.get("NOONDAY_TEST_SEED", "20270314"))
AT_ONCE = 8
PATHS = ("/well", "/moody")
LONGEST_SEC = 0.05
"""Claim, request and settle have come and gone by then, mostly."""
ENDED = "SELECT outcome = $2 FROM occurrences WHERE job_id = $1"
LEDGER = "SELECT * FROM occurrences"

Ask = Callable[[AsyncClient, RunKey], Awaitable[dict[str, Any]]]


async def job(client: AsyncClient, run: RunKey) -> dict[str, Any]:
    """DELETE: what runs is let finish."""
    return await client.jobs.delete(str(run.job_id))


async def job_and_what_runs(client: AsyncClient, run: RunKey) -> dict[str, Any]:
    """DELETE with running=cancel."""
    return await client.jobs.delete(str(run.job_id), running="cancel")


async def run(client: AsyncClient, run: RunKey) -> dict[str, Any]:
    """POST of a cancel of the run."""
    return await client.runs.cancel(str(run))


class Raced(NamedTuple):
    """What the API said to two cancels around a run: a state, or the code of a problem."""

    run: RunKey
    first: str
    again: str


class Cancels:
    """Creates jobs and cancels each around its run: at any moment, in the middle, or afterwards."""

    def __init__(self, cluster: Cluster, client: AsyncClient, ask: Ask, chance: random.Random):
        self._cluster = cluster
        self._client = client
        self._ask = ask
        self._chance = chance
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def at_any_moment(self) -> Raced:
        path, wait_sec = self._chance.choice(PATHS), self._chance.uniform(0, LONGEST_SEC)
        async with self._gate:
            run = await a_run(self._cluster, self._client, path)
            await asyncio.sleep(wait_sec)  # which of the two comes first is left to chance
            return await self._twice(run)

    async def in_the_middle(self) -> Raced:
        run = await a_run(self._cluster, self._client, "/held")
        receiver = self._cluster.receiver
        await eventually(lambda: any(one.run_id == str(run) for one in receiver.requests))
        return await self._twice(run)

    async def afterwards(self) -> Raced:
        run = await a_run(self._cluster, self._client, "/well")
        await self._cluster.until(ENDED, run.job_id, "COMPLETE")
        return await self._twice(run)

    async def _twice(self, run: RunKey) -> Raced:
        first = await said(self._ask, self._client, run)
        return Raced(run, first, await said(self._ask, self._client, run))


@pytest.mark.parametrize("ask", [job, job_and_what_runs, run])
async def test_what_a_cancel_answers_is_what_becomes_of_the_run(cluster: Cluster, ask: Ask) -> None:
    """LSE-07: cancels around claim and completion, each twice."""
    chance = random.Random(SEED)
    # Mostly well: else its breaker opens, and what it holds has to wait.
    moods = chance.choices([Answer(), Answer(503)], [4, 1], k=5_000)
    cluster.receiver.answer("/moody", *moods)
    cluster.receiver.answer("/held", *[Answer(hold=True), Answer(503, hold=True)] * 10)
    cluster.add("worker", worker_pools=("default=64",))
    await cluster.start("api", "scheduler")
    async with cluster.client() as client, asyncio.TaskGroup() as group:
        cancels = Cancels(cluster, client, ask, chance)
        ways = [cancels.in_the_middle] * 6 + [cancels.afterwards] * 6
        ways += [cancels.at_any_moment] * scaled(80, 1_000)
        tasks = [group.create_task(way()) for way in ways]
    cluster.receiver.release()
    await cluster.drain(40)
    assert await cluster.check() == [], f"seed {SEED}"
    await assert_answers_hold(cluster, ask, [task.result() for task in tasks])


async def a_run(cluster: Cluster, client: AsyncClient, path: str) -> RunKey:
    """The run of a new job."""
    id = cluster.acknowledge(await client.jobs.create(cluster.body(path)))
    at: datetime = await cluster.value(
        "SELECT occurrence_at FROM occurrences WHERE job_id = $1", id
    )
    return RunKey(id, Kind.SCHEDULE, at)


async def said(ask: Ask, client: AsyncClient, run: RunKey) -> str:
    try:
        document = await ask(client, run)
    except NoondayApiError as error:
        return error.code
    return str(document["status" if "status" in document else "state"])


async def assert_answers_hold(cluster: Cluster, ask: Ask, raced: list[Raced]) -> None:
    async with direct(cluster.dsn) as connection, connection.transaction() as tx:
        ledger = {row["job_id"]: row for row in await tx.rows(LEDGER)}
        entries = [entry for entry in await journal.read(tx) if entry.source == "runs"]
    asked = {entry.job_id for entry in entries if is_asked(entry)}
    assert not [entry.run for entry in entries if began_after_all(entry)]
    requests = Counter(UUID(hex=one.run_id.split("-")[0]) for one in cluster.receiver.requests)
    seen: Counter[tuple[str, str]] = Counter()
    for one in raced:
        id = one.run.job_id
        outcome, attempts = ledger[id]["outcome"], ledger[id]["attempts"]
        seen[one.first, outcome] += 1
        match one.first:
            case "run_ended" | "COMPLETE":  # the work had won
                assert (outcome, one.again) == ("COMPLETE", one.first), one
            case "CANCELLED" if id not in asked:  # it will not be tried, or not again
                assert (outcome, one.again) == ("CANCELLED", "CANCELLED"), one
            case "CANCELLED":  # the job: its attempt may finish, or was cut off
                assert one.again == "CANCELLED", one
                assert outcome in {"CANCELLED", "COMPLETE"}, one
            case _:  # the run: asked to stop
                assert one.first == "RUNNING", one
                ended = {"COMPLETE": "run_ended", "CANCELLED": "CANCELLED"}[outcome]
                assert one.again in {"RUNNING", ended}, one
        # One that was cut off may have been so before it was sent.
        assert requests[id] <= attempts, one
        assert requests[id] == attempts or (id in asked and ask is not job), one
    print(dict(seen))
    assert {outcome for _, outcome in seen} == {"COMPLETE", "CANCELLED"}, "both sides have won"
    assert asked, "some were cancelled while they ran"


def is_asked(entry: Entry) -> bool:
    """A cancel is noted on a run that is under way."""
    return entry.after is not None and entry.after["cancel_reason"] is not None


def began_after_all(entry: Entry) -> bool:
    """An attempt at a run that was cancelled before."""
    before, after = entry.before or {}, entry.after or {}
    began = after.get("state") == "RUNNING" != before.get("state")
    return began and after["cancel_reason"] is not None


async def test_what_has_ended_long_ago_is_not_cancelled_and_says_so(cluster: Cluster) -> None:
    """LSE-07: nobody is told that something was stopped that had happened."""
    cluster.receiver.answer("/never", 404)
    await cluster.start("api", "scheduler", "worker")
    async with cluster.client() as client:
        for path, outcome in (("/well", "COMPLETE"), ("/never", "FAILED")):
            which = await a_run(cluster, client, path)
            await cluster.until(ENDED, which.job_id, outcome)
            for _ in range(2):
                assert await said(run, client, which) == "run_ended"
                assert await said(job_and_what_runs, client, which) == outcome
                assert (await client.runs.get(str(which)))["state"] == outcome
    assert await cluster.check() == []
