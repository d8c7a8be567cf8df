"""Loops over a real database, ticked by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from noonday.store import Store
from tests.support.database import open_store
from tests.support.links import Link
from tests.support.scripted import Parts


@pytest.fixture
async def parts(store: Store, tmp_path: Path) -> AsyncIterator[Parts]:
    made = Parts(store, tmp_path)
    yield made
    made.close()


@pytest.fixture
async def link(database_url: str) -> AsyncIterator[Link]:
    """A link to the database that can be cut."""
    async with Link(database_url).open() as opened:
        yield opened


@pytest.fixture
async def linked(link: Link) -> AsyncIterator[Store]:
    """A store that reaches the database over the link."""
    store = await Store.open(link.url, size=4)
    yield store
    await store.close()


@pytest.fixture
async def beats(database_url: str) -> AsyncIterator[Store]:
    """A worker's connection for heartbeats."""
    store = await open_store(database_url, size=1)
    yield store
    await store.close()
