from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from noonday.executors.http import HttpExecutor
from tests.support.receivers import RecordingReceiver


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
