"""Several API processes over one database, whose clocks a test moves together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp

from noonday.api.app import create_app
from noonday.api.quotas import QuotaKeeper
from noonday.domain.roles import Role
from noonday.listening import bind, serving
from noonday.store import Store
from tests.support.database import open_store
from tests.support.servers import Client, a_context, new_key

START = datetime(2026, 11, 29, 12, tzinfo=UTC)


@dataclass
class Processes:
    """``clients`` has one for each process, all of the same tenant."""

    admin: Client
    clients: list[Client]
    stores: list[Store]
    seconds: float = 0.0

    def forward(self, seconds: float) -> None:
        """Let time pass, for the database and for the processes."""
        self.seconds += seconds
        for store in self.stores:
            store.now = START + timedelta(seconds=self.seconds)

    async def set(self, **settings: Any) -> None:
        """Change the tenant; each process has forgotten what it knew of it."""
        answer = await self.admin.call("PATCH", "/v1/tenants/alpha", settings)
        assert answer.status == 200, answer


@asynccontextmanager
async def processes(url: str, folder: Path, count: int) -> AsyncIterator[Processes]:
    """So many API processes at 12:00:00, with a submitter of the tenant ``alpha``."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        made = Processes(Client(session, "", None), [], [])
        for n in range(count):
            store = await open_store(url, size=4)
            stack.push_async_callback(store.close)
            context = a_context(store, folder / str(n))
            app = create_app(context)
            app.state.quotas = QuotaKeeper(context, clock=lambda: made.seconds)
            address = await stack.enter_async_context(serving(app, bind("127.0.0.1", 0)))
            made.stores.append(store)
            made.forward(0)
            client = replace(made.admin, address=address)
            if n == 0:
                made.admin = replace(client, token=await new_key(context, Role.ADMIN))
                token = await new_key(context, Role.OPERATOR)
            made.clients.append(replace(client, token=token))
        yield made
