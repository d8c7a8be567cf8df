"""All kinds of jobs, a moody receiver, and processes that die at random."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from noonday.client import AsyncClient, NoondayClientError
from tests.support.cluster import Cluster
from tests.support.members import Member
from tests.support.receivers import Answer

RECURRING: list[dict[str, Any]] = [
    {"type": "cron", "cron": "* * * * * *", "overlap": "allow"},
    {"type": "cron", "cron": "* * * * * *", "jitter_sec": 2},
    {"type": "cron", "cron": "*/2 * * * * *", "timezone": "Europe/Paris"},
    {"type": "cron", "cron": "*/3 * * * * *", "overlap": "allow", "jitter_sec": 1},
    {"type": "interval", "interval_sec": 1},
    {"type": "interval", "interval_sec": 2, "overlap": "allow"},
]
ONE_OFF: list[dict[str, Any]] = [
    {"type": "once"},
    {"type": "once", "delay": "PT2S"},
    {"type": "once", "delay": "PT1S", "jitter_sec": 2},
]
MOODS = {
    "/well": [Answer()],
    "/moody": [Answer(), Answer(500), Answer(429), Answer(drop="before"), Answer(drop="within")],
    "/never": [Answer(404)],
}


class Storm:
    """Kills, stops and restarts members of a cluster, one fault at a time for each."""

    def __init__(self, members: list[Member], chance: random.Random) -> None:
        self._members = members
        self._chance = chance
        self._struck: dict[Member, asyncio.Task[None]] = {}
        self.log: list[str] = []

    async def rage(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            free = [m for m in self._members if m not in self._struck or self._struck[m].done()]
            if free:
                member = self._chance.choice(free)
                fault = self._chance.choices([self._kill, self._stop, self._freeze], [4, 1, 2])[0]
                self.log.append(f"{fault.__name__} {member.role} {member.pid}")
                self._struck[member] = asyncio.create_task(fault(member))
            await asyncio.sleep(self._chance.uniform(0.3, 1.2))  # its rhythm
        await asyncio.gather(*self._struck.values())

    async def _kill(self, member: Member) -> None:
        member.kill()
        member.start()

    async def _stop(self, member: Member) -> None:
        member.signal(signal.SIGTERM)
        await member.ended(15)
        member.start()

    async def _freeze(self, member: Member) -> None:
        member.freeze()
        await asyncio.sleep(self._chance.uniform(1, 8))  # shorter and longer than a lease
        member.thaw()


@asynccontextmanager
async def customers(cluster: Cluster, chance: random.Random) -> AsyncIterator[None]:
    """Clients that create one-off jobs and trigger others until the block ends."""
    recurring = [
        await cluster.post(chance.choice(list(MOODS)), schedule=schedule) for schedule in RECURRING
    ]

    async def create(client: AsyncClient) -> None:
        retries = {"base_sec": 0.1, "cap_sec": 0.5, "max_attempts": chance.choice([2, 20])}
        path, schedule = chance.choice(list(MOODS)), chance.choice(ONE_OFF)
        body = cluster.body(path, schedule=schedule, retry_policy=retries)
        cluster.acknowledge(await client.jobs.create(body))

    async def trigger(client: AsyncClient) -> None:
        await client.jobs.trigger(str(chance.choice(recurring)))

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_again_and_again(cluster, act)) for act in (create, create, trigger)
        ]
        yield
        for task in tasks:
            task.cancel()


async def _again_and_again(cluster: Cluster, act: Callable[[AsyncClient], Awaitable[None]]) -> None:
    async with cluster.client(timeout_sec=5) as client:
        while True:
            with suppress(NoondayClientError):  # what was not acknowledged was not promised
                await act(client)
            await asyncio.sleep(0.05)
