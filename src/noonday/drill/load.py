"""The clients of a drill: they create jobs, trigger and cancel them, and insist on an answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID

import aiohttp

from noonday.drill.client_log import ClientLog, Request
from noonday.drill.world import LEASE_SEC, STEADY_TARGETS, TARGETS, World

PULSES: Final = 6
"""Jobs that fire each second, to targets that are never hostile: they show when all is well."""
CREATORS: Final = 3
TRY_SEC: Final = 5.0
INSIST_SEC: Final = 25.0
GIVE_UP: Final = 0.1
"""How many of those who got no answer never ask again."""
RECURRING: Final[tuple[dict[str, Any], ...]] = (
    {"type": "cron", "cron": "* * * * * *", "overlap": "allow"},
    {"type": "cron", "cron": "* * * * * *", "jitter_sec": 2},
    {"type": "cron", "cron": "*/2 * * * * *", "timezone": "Europe/Paris"},
    {"type": "cron", "cron": "*/3 * * * * *", "overlap": "allow", "jitter_sec": 1},
    {"type": "interval", "interval_sec": 1},
    {"type": "interval", "interval_sec": 2, "overlap": "allow"},
    {"type": "interval", "interval_sec": 3, "jitter_sec": 2},
    {"type": "interval", "interval_sec": 5},
)
ONE_OFF: Final[tuple[dict[str, Any], ...]] = (
    {"type": "once"},
    {"type": "once"},
    {"type": "once", "delay": "PT2S"},
    {"type": "once", "delay": "PT5S"},
    {"type": "once", "delay": "PT1S", "jitter_sec": 2},
)


class Clients:
    """All clients of one drill. What each of them does next is drawn from the seed."""

    def __init__(self, world: World, log: ClientLog) -> None:
        self._world = world
        self._log = log
        self._recurring: list[UUID] = []
        self.pulses: set[UUID] = set()

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """They work until the block ends; what is under way is seen through."""
        stop = asyncio.Event()
        timeout = aiohttp.ClientTimeout(total=TRY_SEC)
        headers = {"Authorization": f"Bearer {self._world.token}"}
        # A connection for each request: else all would go to the API process that came first.
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(
            connector=connector, headers=headers, timeout=timeout
        ) as self._session:
            await self._prepare()
            acts = [(f"creator {n}", self._create) for n in range(CREATORS)]
            acts += [("trigger", self._trigger), ("canceller", self._come_and_go)]
            async with asyncio.TaskGroup() as group:
                for name, act in acts:
                    group.create_task(self._again_and_again(name, act, stop))
                try:
                    yield
                finally:
                    stop.set()

    async def _prepare(self) -> None:
        for n in range(PULSES):
            schedule = {"type": "interval", "interval_sec": 1, "overlap": "allow"}
            body = self._job(f"pulse-{n}", n % STEADY_TARGETS, schedule)
            self.pulses |= set(await self._post_job(body))
        for n, schedule in enumerate(RECURRING):
            body = self._job(f"recurring-{n}", n % TARGETS, schedule)
            self._recurring += await self._post_job(body)

    async def _again_and_again(
        self,
        name: str,
        act: Callable[[random.Random, str], Awaitable[None]],
        stop: asyncio.Event,
    ) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            # Of each step alone, so that no answer and no fault changes what is drawn later.
            chance = random.Random(f"{self._world.seed}/{name}/{number}")
            await act(chance, f"{name.replace(' ', '-')}-{number}")
            await asyncio.sleep(chance.uniform(0.1, 0.5))

    async def _create(self, chance: random.Random, name: str) -> None:
        target, schedule = chance.randrange(TARGETS), chance.choice(ONE_OFF)
        body = self._job(name, target, schedule, max_attempts=chance.choice([3, 30]))
        cancel, gives_up = chance.random() < 0.1, chance.random() < GIVE_UP
        for job_id in await self._post_job(body, gives_up=gives_up):
            if cancel:
                await self._cancel(job_id, stop=chance.random() < 0.5)

    async def _trigger(self, chance: random.Random, name: str) -> None:
        job_id, cancel = chance.choice(self._recurring), chance.random() < 0.2
        run = await self._insist("trigger", name, "POST", f"/v1/jobs/{job_id}/trigger")
        if run is not None and cancel:
            await self._insist("cancel run", run["id"], "POST", f"/v1/runs/{run['id']}/cancel")

    async def _come_and_go(self, chance: random.Random, name: str) -> None:
        """A recurring job that is cancelled after a while."""
        body = self._job(name, chance.randrange(TARGETS), chance.choice(RECURRING))
        for job_id in await self._post_job(body):
            await asyncio.sleep(chance.uniform(1, 6))
            await self._cancel(job_id, stop=chance.random() < 0.5)

    def _job(
        self, name: str, target: int, schedule: dict[str, Any], *, max_attempts: int = 20
    ) -> dict[str, Any]:
        return {
            "name": name,
            "schedule": schedule,
            "target": {"type": "http", "url": self._world.url(target), "timeout_sec": 3},
            "payload": {"name": name},
            "lease_sec": LEASE_SEC,
            "retry_policy": {"base_sec": 0.2, "cap_sec": 1, "max_attempts": max_attempts},
        }

    async def _post_job(self, body: dict[str, Any], *, gives_up: bool = False) -> list[UUID]:
        """The job's id, when it was acknowledged."""
        name = body["name"]
        answer = await self._insist("create", name, "POST", "/v1/jobs", body, gives_up=gives_up)
        return [UUID(answer["id"])] if answer is not None else []

    async def _cancel(self, job_id: UUID, *, stop: bool) -> None:
        """End a job; with ``stop`` what runs of it, too."""
        path = f"/v1/jobs/{job_id}" + ("?running=cancel" if stop else "")
        await self._insist("cancel", str(job_id), "DELETE", path)

    async def _insist(
        self,
        what: str,
        key: str,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        gives_up: bool = False,
    ) -> dict[str, Any] | None:
        """Ask under one key until there is a final answer; None when there was none, or a no."""
        request = self._log.ask(what, key)
        until = asyncio.get_running_loop().time() + INSIST_SEC
        while asyncio.get_running_loop().time() < until:
            request.tries += 1
            answer = await self._try(request, method, path, body)
            if answer is not None:
                return answer or None
            if gives_up:
                break
            await asyncio.sleep(0.3)
        return None

    async def _try(
        self, request: Request, method: str, path: str, body: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """The answer; empty when it is a no for good, None when it is to be asked again."""
        url, headers = self._world.address + path, {"Idempotency-Key": request.key}
        try:
            async with self._session.request(method, url, json=body, headers=headers) as answer:
                data = await answer.read()
                again = answer.status in (408, 429, 500, 502, 503, 504)
                if answer.status == 409 and b"idempotency_in_flight" in data:
                    again = True
                if again:
                    self._log.trouble(request, f"answered {answer.status}")
                    return None
                replayed = answer.headers.get("Idempotent-Replayed") == "true"
                self._log.answered(request, answer.status, data, replayed=replayed)
                return await answer.json() if answer.status < 300 else {}
        except (aiohttp.ClientError, TimeoutError) as error:
            self._log.trouble(request, type(error).__name__)
            return None
