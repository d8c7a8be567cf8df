"""Everything that a drill starts: Postgres, the service's processes, the receivers."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from noonday import listening, server
from noonday.domain.errors import StoreUnavailable
from noonday.drill.checks import journal
from noonday.drill.links import Link
from noonday.drill.members import Member, clock_environment
from noonday.drill.postgres import Database
from noonday.drill.witnesses import Witness
from noonday.settings import Settings
from noonday.store import Row, Store, tenants
from noonday.store.secretbox import SIGNING, read_key_file
from noonday.supervisor import Child

ROLES: Final = ("api", "api", "scheduler", "scheduler", "scheduler", "worker", "worker", "worker")
RECEIVERS: Final = 3
"""The first has only targets that are never hostile: breakers go by host and port."""
TARGETS: Final = 20
STEADY_TARGETS: Final = 4
"""The first targets are never hostile: what is sent there shows how Noonday itself does."""
LEASE_SEC: Final = 5
START_SEC: Final = 60.0
PATIENCE_SEC: Final = 15.0


class World:
    """What faults strike, clients call, and checks look at."""

    def __init__(
        self,
        out: Path,
        seed: int,
        *,
        size_mb: int = 0,
        faketime: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.out = out
        self.seed = seed
        self.faketime = faketime
        self.size_mb = size_mb
        self.members: list[Member] = []
        self.witnesses: list[Witness] = []
        self.database = Database(out / "data", size_mb)
        self.upset = asyncio.Lock()
        """Held by a fault that Postgres suffers as a whole."""
        self.token = ""
        self.secrets: list[str] = []
        self._environment = dict(environment or {})
        self._stack = AsyncExitStack()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        """All of it, ready; ended after the block."""
        async with self._stack:
            self._stack.push_async_callback(self.database.close)
            await self.database.open()
            await self._prepare()
            await self._start_receivers()
            await self._start_members()
            yield self

    async def _prepare(self) -> None:
        self._settings = Settings(
            home=self.out / "home",
            database_url=self.database.dsn,
            allow_private_targets=True,
            allowed_ports=(),
            log_format="json",
            worker_pools=("critical,default,batch,*=16", "long=32"),
            worker_grace_sec=2.0,
            pool_size=4,
        )
        made = await server.prepare(self._settings)
        assert made.token is not None
        self.token = made.token
        await journal.install(self.database.dsn)
        self.store = await Store.open(self.database.dsn, size=4, name="drill")
        self._stack.push_async_callback(self.store.close)
        self.secrets = await self._read_secrets()

    async def _read_secrets(self) -> list[str]:
        box = read_key_file(self._settings.secret_key_path)
        async with self.store.transaction() as tx:
            sealed = await tenants.signing_keys(tx, [1])
        opened = (box.open(secret, 1, SIGNING) for secret in sealed[1])
        return ["whsec_" + base64.b64encode(secret).decode() for secret in opened]

    async def _start_receivers(self) -> None:
        for n in range(RECEIVERS):
            witness = Witness(self.out / f"receiver-{n}", f"{self.seed}/receiver/{n}")
            await witness.start()
            self._stack.push_async_callback(witness.close)
            self.witnesses.append(witness)

    async def _start_members(self) -> None:
        self._api_socket = listening.bind("127.0.0.1", 0)
        self._stack.callback(self._api_socket.close)
        self.address = listening.address_of(self._api_socket)
        self._stack.push_async_callback(self._stop_members)
        for n, role in enumerate(ROLES):
            await self._add(role, f"{role}-{ROLES[:n].count(role) + 1}")
        ready = await asyncio.gather(*(member.settled(START_SEC) for member in self.members))
        if not all(ready):
            raise StoreUnavailable(f"not all processes became ready; their logs are in {self.out}")

    async def _add(self, role: str, name: str) -> None:
        link = Link(self.database.dsn)
        await link.open()
        self._stack.push_async_callback(link.close)
        clock, environment = None, dict(self._environment)
        if self.faketime is not None:
            clock = self.out / f"{name}.clock"
            clock.write_text("+0\n")
            environment |= clock_environment(self.faketime, clock)
        settings = replace(self._settings, database_url=link.url, worker_name=name)
        child = Child(
            role,
            settings,
            admin=listening.bind("127.0.0.1", 0),
            api=self._api_socket if role == "api" else None,
            environment=environment,
        )
        member = Member(name, child, link, self.out / f"{name}.log", clock)
        self.members.append(member)
        member.start()

    async def _stop_members(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(member.close) for member in self.members))

    def url(self, target: int) -> str:
        """The URL of one of the ``TARGETS``."""
        which = 0 if target < STEADY_TARGETS else 1 + target % (RECEIVERS - 1)
        return f"{self.witnesses[which].url}/t{target:02}"

    async def look_after(self) -> None:
        """Start again what has ended by itself, for as long as this runs."""
        while True:
            for member in self.members:
                member.look_after()
            await asyncio.sleep(0.5)

    @asynccontextmanager
    async def victim(self, role: str | None, chance: random.Random) -> AsyncIterator[Member]:
        """A process of ``role``, drawn from those that suffer no fault; ours while this lasts.

        One scheduler is always left alone: a takeover needs somebody who takes over.
        """
        drawn = chance.random()
        while True:
            free = [
                member
                for member in self.members
                if role in (None, member.role) and member.runs and not member.struck.locked()
            ]
            if any(m.role != "scheduler" for m in free) or len(free) > 1:
                break
            await asyncio.sleep(0.1)
        member = free[int(drawn * len(free))]
        async with member.struck:
            yield member

    def member(self, pid: int) -> Member | None:
        """The process with this pid."""
        return next((member for member in self.members if member.pid == pid), None)

    async def rows(self, query: str, *args: object) -> list[Row]:
        """What a query answers, when the database can answer; it may be run more than once.
        Raises ``StoreUnavailable`` after ``PATIENCE_SEC``."""
        until = asyncio.get_running_loop().time() + PATIENCE_SEC
        while True:
            try:
                async with self.store.transaction() as tx:
                    return await tx.rows(query, *args)
            except StoreUnavailable:
                if asyncio.get_running_loop().time() > until:
                    raise
            await asyncio.sleep(0.1)

    async def value(self, query: str, *args: object) -> Any:
        """The first value of :meth:`rows`, or None."""
        rows = await self.rows(query, *args)
        return rows[0][0] if rows else None
