"""A cluster of real processes over one database, and what is asked of it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from noonday import listening, server
from noonday.client import AsyncClient
from noonday.domain.errors import StoreUnavailable
from noonday.drill.checks import history, journal
from noonday.drill.checks.evidence import Witness
from noonday.settings import Settings
from noonday.store import Store, tenants
from noonday.store.secretbox import SIGNING, read_key_file
from noonday.supervisor import Child
from tests.support.holds import eventually
from tests.support.members import Member
from tests.support.receivers import RecordingReceiver

LEASE_SEC = 5  # the shortest there is

OVERDUE = "SELECT count(*) FROM timers WHERE due_at < now() - interval '0.5 s'"
UNFINISHED = "SELECT count(*) FROM runs"
RECURRING = "SELECT id FROM jobs WHERE schedule_type <> 'once' AND state = 'ACTIVE'"


class Cluster:
    """Processes over one database that keeps a journal, with a receiver as their witness."""

    def __init__(
        self,
        dsn: str,
        settings: Settings,
        store: Store,
        receiver: RecordingReceiver,
        token: str,
    ) -> None:
        self.dsn = dsn
        """Of the database itself, however its processes reach it."""
        self.settings = settings
        self.store = store
        self.receiver = receiver
        self.receivers = [receiver]
        """All that its jobs call."""
        self.token = token
        self.members: list[Member] = []
        self.acknowledged: set[UUID] = set()
        self.secrets: list[str] = []
        self._api_socket = listening.bind("127.0.0.1", 0)
        self.address = listening.address_of(self._api_socket)

    @classmethod
    @asynccontextmanager
    async def over(
        cls, dsn: str, home: Path, *, token: str | None = None, **changes: Any
    ) -> AsyncIterator[Cluster]:
        """A cluster without processes yet; all that it has are ended after the block.

        ``token`` is the admin key of a database that was made ready before.
        """
        settings = Settings(
            home=home,
            database_url=dsn,
            allow_private_targets=True,
            allowed_ports=(),
            log_format="json",
            worker_pools=("default,critical,batch,*=8", "long=32"),
            worker_grace_sec=2.0,
            breaker_pause_sec=1.0,
        )
        settings = msgspec.structs.replace(settings, **changes)
        made = await server.prepare(settings)
        token = token or made.token
        assert token is not None
        await journal.install(dsn)
        store = await Store.open(dsn, size=4, name="a test")
        async with RecordingReceiver() as receiver:
            cluster = cls(dsn, settings, store, receiver, token)
            cluster.secrets = await cluster._read_secrets()
            try:
                yield cluster
            finally:
                await cluster._close()
                await store.close()

    def add(
        self, role: str, *, environment: Mapping[str, str] | None = None, **changes: Any
    ) -> Member:
        """Start a process; ``changes`` are settings of its own, ``environment`` adds variables."""
        settings = msgspec.structs.replace(self.settings, **changes)
        admin = listening.bind("127.0.0.1", 0)
        api = self._api_socket if role == "api" else None
        log = self.settings.home / f"{role}-{len(self.members)}.log"
        child = Child(role, settings, admin, api, environment=environment or {})
        member = Member(child, log)
        self.members.append(member)
        member.start()
        return member

    async def start(self, *roles: str) -> list[Member]:
        """Start a process of each role and wait until all are ready."""
        added = [self.add(role) for role in roles]
        await asyncio.gather(*(member.ready() for member in added))
        return added

    def client(self, **how: Any) -> AsyncClient:
        return AsyncClient(self.address, self.token, **how)

    async def post(self, path: str = "/", **fields: Any) -> UUID:
        """Create a job that calls ``path`` of the receiver; its id, when it is acknowledged."""
        async with self.client() as client:
            return self.acknowledge(await client.jobs.create(self.body(path, **fields)))

    def acknowledge(self, document: dict[str, Any]) -> UUID:
        job_id = UUID(document["id"])
        self.acknowledged.add(job_id)
        return job_id

    def body(self, path: str = "/", **fields: Any) -> dict[str, Any]:
        return {
            "name": path,
            "schedule": {"type": "once"},
            "target": {"type": "http", "url": self.receiver.url + path},
            "payload": {"path": path},
            "lease_sec": LEASE_SEC,
            "retry_policy": {"base_sec": 0.1, "cap_sec": 0.5},
            **fields,
        }

    async def value(self, query: str, *args: object) -> Any:
        async with self.store.transaction() as tx:
            return await tx.value(query, *args)

    async def execute(self, statement: str, *args: object) -> None:
        async with self.store.transaction() as tx:
            await tx.execute(statement, *args)

    async def until(self, query: str, *args: object, deadline_sec: float = 20) -> Any:
        """What ``query`` answers, as soon as that is true."""

        async def ask() -> Any:
            try:
                return await self.value(query, *args)
            except StoreUnavailable:
                return None

        return await eventually(ask, deadline_sec)

    async def drain(self, deadline_sec: float = 20) -> None:
        """Stop what recurs once its timers are on time again, and let all work come to its end."""
        await self.until(f"SELECT ({OVERDUE}) = 0", deadline_sec=deadline_sec)
        async with self.store.transaction() as tx:
            recurring = [str(row["id"]) for row in await tx.rows(RECURRING)]
        async with self.client() as client:
            for ids in (recurring[n : n + 8] for n in range(0, len(recurring), 8)):
                await asyncio.gather(*(client.jobs.delete(id) for id in ids))
        await self.until(f"SELECT ({OVERDUE}) + ({UNFINISHED}) = 0", deadline_sec=deadline_sec)

    async def check(self, *, drained: bool = True) -> list[str]:
        """The invariants that do not hold."""
        requests = [request for receiver in self.receivers for request in receiver.requests]
        witness = Witness(self.acknowledged, requests, self.secrets)
        return await history.check(self.dsn, witness, drained=drained)

    async def _read_secrets(self) -> list[str]:
        box = read_key_file(self.settings.secret_key_path)
        async with self.store.transaction() as tx:
            sealed = await tenants.signing_keys(tx, [1])
        opened = (box.open(secret, 1, SIGNING) for secret in sealed[1])
        return ["whsec_" + base64.b64encode(secret).decode() for secret in opened]

    async def _close(self) -> None:
        """All at once, since each may take its time."""
        await asyncio.gather(*(asyncio.to_thread(member.close) for member in self.members))
        for member in self.members:
            print(f"--- {member.role} {member.pid}\n{member.log[-6000:]}")
        self._api_socket.close()
