"""Processes of the product whose loops a test ticks by hand.

They are put together by ``server`` itself, so that a loop that comes to a role is in here as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from noonday import server
from noonday.loops import Loop
from noonday.settings import Settings
from noonday.store.backlogs import Backlogs
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics

Tick = Callable[[], Awaitable[int]]


@dataclass
class HandNode(server.Node):
    """A process in which nothing runs by itself, but for the API's answers."""

    ticks: dict[str, Tick] = field(default_factory=dict)
    """One bounded pass of each loop, by its name."""

    def loop(self, name: str, tick: Tick, **how: Any) -> Loop:
        self.ticks[name] = tick
        return Loop(name, tick, self.metrics, **how)


@asynccontextmanager
async def by_hand(role: str, settings: Settings, api_socket: Any = None) -> AsyncIterator[HandNode]:
    """A process of ``role``; it leaves in order after the block."""
    async with AsyncExitStack() as stack:
        store = await server._open_store(settings, size=settings.pool_size, name=f"by hand {role}")
        stack.push_async_callback(store.close)
        metrics = Metrics("by hand")
        wakeups = Wakeups(store, metrics.notified)
        process_id = uuid4()
        node = HandNode(
            role, settings, process_id, role, store, metrics, wakeups,
            Backlogs(store, process_id), [], stack, api_socket,
        )  # fmt: skip
        await server.ROLES[role](node)
        yield node
