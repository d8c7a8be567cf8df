"""A whole service, ticked by hand over a database that misbehaves, with clients and a receiver."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from noonday import listening, server
from noonday.domain.errors import FenceLost, StoreUnavailable
from tests.support.by_hand import HandNode, Tick, by_hand
from tests.support.cluster import OVERDUE, RECURRING, UNFINISHED, Cluster
from tests.support.database import database_settings
from tests.support.faulty import Faults, FaultyStore
from tests.support.holds import eventually
from tests.support.receivers import Answer
from tests.support.servers import Answered, Client

SCHEDULERS, WORKERS = 2, 2
AT_ONCE = 4
"""Loops that are ticked at the same time, in one process or in several."""

RECURRING_JOBS: list[dict[str, Any]] = [
    {"type": "interval", "interval_sec": 1},
    {"type": "interval", "interval_sec": 2, "overlap": "allow", "jitter_sec": 1},
    {"type": "cron", "cron": "* * * * * *", "overlap": "allow"},
]
ONE_OFF: list[dict[str, Any]] = [{"type": "once"}, {"type": "once", "delay": "PT1S"}]
PATHS = ("/well", "/well", "/moody", "/never")
MOODS = (
    *[Answer()] * 4,
    *(Answer(500), Answer(429), Answer(drop="before"), Answer(drop="within")),
)
JANITOR = "scheduler: janitor"
PAYLOADS = ({"n": 1}, {"n": 1}, {"n": 1}, {"big": "x" * 40_000})

# As if its worker had been stopped for a while.
CUT_SHORT = """
UPDATE runs SET locked_until = now() WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM runs WHERE state = 'RUNNING' AND locked_until > now()
    ORDER BY rank LIMIT 1 FOR UPDATE SKIP LOCKED))
"""


BACKFILLS = "SELECT count(*) FROM operations WHERE state = 'RUNNING'"


class FaultyWorld:
    """The processes, and what was asked of them and answered."""

    def __init__(self, cluster: Cluster, client: Client, nodes: list[HandNode], seed: int) -> None:
        self.cluster = cluster
        self.faults = Faults(seed)
        self.made: dict[str, tuple[dict[str, Any], str]] = {}
        """By the key that a job was created with: its body, and its id."""
        self.recurring: list[str] = []
        self.ticked: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._client = client
        self._nodes = nodes
        self._chance = random.Random(seed)
        self._keys = 0

    @classmethod
    @asynccontextmanager
    async def over(
        cls, url: str, home: Path, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[FaultyWorld]:
        """All processes are there, all is well, and some jobs recur."""
        async with Cluster.over(url, home) as cluster, AsyncExitStack() as stack:
            listener = listening.bind("127.0.0.1", 0)
            session = await stack.enter_async_context(aiohttp.ClientSession())
            client = Client(session, listening.address_of(listener), cluster.token)
            nodes: list[HandNode] = []
            world = cls(cluster, client, nodes, seed)
            cluster.receiver.answer("/moody", *world._chance.choices(MOODS, k=5_000))
            cluster.receiver.answer("/never", 404)
            monkeypatch.setattr(server, "Store", FaultyStore.under(world.faults))
            settings = msgspec.structs.replace(cluster.settings, **database_settings(url))
            for role in ["api"] + ["scheduler"] * SCHEDULERS + ["worker"] * WORKERS:
                socket = listener if role == "api" else None
                nodes.append(await stack.enter_async_context(by_hand(role, settings, socket)))
            for schedule in RECURRING_JOBS:
                world.recurring.append(str(await world._create(schedule)))
            yield world

    # --- while it is faulty ---------------------------------------------------------------

    async def rage(self, rate: float, rounds: int) -> None:
        """Rounds of ticks and of requests under faults; all is well again afterwards."""
        self.faults.rage(rate)
        for _ in range(rounds):
            chosen = self._chance.sample(self._loops(), AT_ONCE)
            if self._chance.random() < 0.7:  # it has much to do
                chosen = [loop for loop in chosen if loop[0] != JANITOR]
            act = self._chance.choice(
                (self._create, self._repeat, self._trigger, self._backfill, self._nothing)
            )
            if self._chance.random() < 0.05:
                await self.cluster.execute(CUT_SHORT)
            await asyncio.gather(act(), *(self._tick(*loop) for loop in chosen))
        self.faults.heal()
        self.cluster.receiver.answer("/moody", 200)

    @property
    def loops(self) -> set[str]:
        """The names of all loops, each with its role."""
        return {name for name, _ in self._loops()}

    def _loops(self) -> list[tuple[str, Tick]]:
        return [
            (f"{node.role}: {name}", tick)
            for node in self._nodes
            for name, tick in node.ticks.items()
        ]

    async def _tick(self, name: str, tick: Tick) -> None:
        self.ticked[name] += 1
        try:
            await tick()
        except (StoreUnavailable, FenceLost):
            self.failed[name] += 1

    async def _nothing(self) -> None: ...

    async def _create(self, schedule: dict[str, Any] | None = None) -> str:
        path = self._chance.choice(PATHS)
        body = self.cluster.body(
            path,
            schedule=schedule or self._chance.choice(ONE_OFF),
            payload=self._chance.choice(PAYLOADS),
            retry_policy={"base_sec": 0.1, "cap_sec": 0.5, "max_attempts": 20},
        )
        key = self._key()
        answer = await self._until_answered("POST", "/v1/jobs", body, key)
        assert answer.status == 202, answer
        job_id = str(self.cluster.acknowledge(answer.body))
        self.made[key] = body, job_id
        return job_id

    async def _repeat(self) -> None:
        """The same request again: a client that has not heard."""
        key = self._chance.choice(list(self.made))
        body, job_id = self.made[key]
        answer = await self._until_answered("POST", "/v1/jobs", body, key)
        assert (answer.status, answer.body["id"]) == (202, job_id), answer
        assert answer.headers["idempotent-replayed"] == "true"

    async def _trigger(self) -> None:
        path = f"/v1/jobs/{self._chance.choice(self.recurring)}/trigger"
        answer = await self._until_answered("POST", path, None, self._key())
        assert answer.status == 202 or answer.code == "overlap", answer

    async def _backfill(self) -> None:
        """Some seconds of an hour ago, of a job by an expression: of others there was nothing."""
        first = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
        last = first + timedelta(seconds=self._chance.randrange(9))
        body = {"from": first.isoformat(), "to": last.isoformat(), "rate_per_sec": 100}
        path = f"/v1/jobs/{self.recurring[-1]}/backfill"
        answer = await self._until_answered("POST", path, body, self._key())
        assert answer.status == 202, answer

    def _key(self) -> str:
        self._keys += 1
        return f"key-{self._keys}"

    async def _until_answered(self, method: str, path: str, body: Any, key: str) -> Answered:
        while True:
            answer = await self._client.call(method, path, body, idempotency_key=key)
            if answer.status != 503:
                return answer
            assert (answer.code, answer.headers["retry-after"]) == ("unavailable", "1")

    # --- when it is well again ------------------------------------------------------------

    async def drain(self) -> None:
        """Let all work come to its end."""
        await self._pass_until(f"SELECT ({OVERDUE}) + ({BACKFILLS})")
        for row in await self._rows(RECURRING):
            assert (await self._client.delete(f"/v1/jobs/{row}")).status == 200
        await self._pass_until(f"SELECT ({OVERDUE}) + ({UNFINISHED})")

    async def _rows(self, query: str) -> list[str]:
        async with self.cluster.store.transaction() as tx:
            return [str(row[0]) for row in await tx.rows(query)]

    async def _pass_until(self, count: str) -> None:
        async def one_pass() -> bool:
            for name, tick in self._loops():
                if name != JANITOR:
                    await tick()
            return not await self.cluster.value(count)

        await eventually(one_pass, 30)
