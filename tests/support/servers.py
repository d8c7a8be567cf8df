"""The real HTTP API on a loopback port, over a fresh database, and a client for it."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import msgspec
import pytest

from noonday.api.app import create_app
from noonday.api.context import AppContext
from noonday.domain.roles import Role
from noonday.listening import bind, serving
from noonday.store import Store, api_keys, tenants
from noonday.store.backlogs import Backlogs
from noonday.store.blobs import LocalBlobs
from noonday.store.secretbox import SecretBox
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics
from tests.support.database import open_store


@dataclass(frozen=True)
class Answered:
    """An answer that was read to its end."""

    status: int
    headers: dict[str, str]
    """By lower-case name."""
    raw: bytes

    @property
    def body(self) -> Any:
        return msgspec.json.decode(self.raw)

    @property
    def code(self) -> str:
        """The code of a problem."""
        assert self.headers["content-type"] == "application/problem+json", self
        return str(self.body["code"])


@dataclass(frozen=True)
class Client:
    """Calls an API with one key."""

    session: aiohttp.ClientSession
    address: str
    token: str | None

    @property
    def key_id(self) -> str:
        assert self.token is not None
        return api_keys.id_of(self.token)

    async def call(
        self, method: str, path: str, json: Any = None, *, data: Any = None, **headers: str
    ) -> Answered:
        """``Idempotency-Key`` is given as ``idempotency_key=…``."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None:
            sent.setdefault("authorization", f"Bearer {self.token}")
        if json is not None:
            data = io.BytesIO(msgspec.json.encode(json))
        if data is not None:
            sent.setdefault("content-type", "application/json")
        request = self.session.request(method, self.address + path, data=data, headers=sent)
        async with request as response:
            names = {name.lower(): value for name, value in response.headers.items()}
            return Answered(response.status, names, await response.read())

    async def get(self, path: str, **headers: str) -> Answered:
        return await self.call("GET", path, **headers)

    async def post(self, path: str, json: Any = None, **headers: str) -> Answered:
        return await self.call("POST", path, json, **headers)

    async def patch(self, path: str, json: Any) -> Answered:
        return await self.call("PATCH", path, json)

    async def delete(self, path: str) -> Answered:
        return await self.call("DELETE", path)

    async def create(self, **changes: Any) -> str:
        """The id of a new job, due far in the future unless ``changes`` say otherwise."""
        answered = await self.post("/v1/jobs", a_job(**changes))
        assert answered.status == 202, answered
        return str(answered.body["id"])


@dataclass(frozen=True)
class Api:
    """A running API with an admin of the tenant ``alpha``."""

    context: AppContext
    address: str
    session: aiohttp.ClientSession
    admin: Client

    @property
    def store(self) -> Store:
        return self.context.store

    async def client(self, role: Role, tenant: str = "alpha") -> Client:
        """A client with a new key; the tenant is made if it is not there."""
        token = await new_key(self.context, role, tenant)
        return replace(self.admin, token=token)

    def anonymous(self) -> Client:
        return replace(self.admin, token=None)


def a_job(**changes: Any) -> dict[str, Any]:
    """A sound body for ``POST /v1/jobs``, due far in the future."""
    return {
        "name": "nightly",
        "schedule": {"type": "once", "run_at": "2050-01-01T00:00:00Z"},
        "target": {"type": "http", "url": "https://receiver.example/run"},
        "payload": {"n": 1},
        **changes,
    }


NOW = {"type": "once"}
EVERY_HOUR = {"type": "interval", "interval_sec": 3600}
NIGHTLY = {"type": "cron", "cron": "0 0 * * *", "timezone": "Europe/Paris"}


def a_context(store: Store, folder: Path, **changes: Any) -> AppContext:
    """What an API over ``store`` is made with."""
    parts: dict[str, Any] = {
        "store": store,
        "blobs": LocalBlobs(folder),
        "secretbox": SecretBox([os.urandom(32)]),
        "wakeups": Wakeups(store),
        "metrics": Metrics(),
        "backlogs": Backlogs(store, uuid4()),
        **changes,
    }
    return AppContext(**parts)


async def new_key(context: AppContext, role: Role, tenant: str = "alpha") -> str:
    """The token of a new key; the tenant is made if it is not there."""
    async with context.store.transaction() as tx:
        await tenants.create(tx, context.secretbox, tenant)
        row = await tenants.one(tx, tenant)
        assert row is not None
        return await api_keys.create(tx, row["id"], role, "test")


@asynccontextmanager
async def running_api(context: AppContext) -> AsyncIterator[Api]:
    """Serve the API over HTTP until the block ends."""
    token = await new_key(context, Role.ADMIN)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        serving(create_app(context), bind("127.0.0.1", 0)) as address,
        aiohttp.ClientSession(connector=connector) as session,
    ):
        yield Api(context, address, session, Client(session, address, token))


@pytest.fixture
async def api(store: Store, tmp_path: Path) -> AsyncIterator[Api]:
    """A running API over a fresh database."""
    async with running_api(a_context(store, tmp_path / "blobs")) as running:
        yield running


async def _serve_forever(url: str) -> None:
    """A process of its own, to be killed: prints its address."""
    with tempfile.TemporaryDirectory() as folder:
        context = a_context(await open_store(url), Path(folder))
        async with serving(create_app(context), bind("127.0.0.1", 0)) as address:
            print(address, flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve_forever(sys.argv[1]))
