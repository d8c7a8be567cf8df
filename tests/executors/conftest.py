from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from noonday.executors.http import HttpExecutor
from tests.support.receivers import RecordingReceiver


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run everything on both loops: they differ most where connections fail."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def receiver() -> AsyncIterator[RecordingReceiver]:
    async with RecordingReceiver() as running:
        yield running


@pytest.fixture
async def executor() -> AsyncIterator[HttpExecutor]:
    """One that may call receivers on loopback, on any port."""
    opened = HttpExecutor(allow_private=True, ports=None)
    await opened.open()
    yield opened
    await opened.close()
