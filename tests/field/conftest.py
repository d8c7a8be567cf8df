"""Faults that hit users of other schedulers, as cases against the whole product."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from noonday.store import Store
from tests.support.cluster import Cluster
from tests.support.scripted import Parts


@pytest.fixture
async def cluster(database_url: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster over a fresh database, without processes yet."""
    async with Cluster.over(database_url, tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def parts(store: Store, tmp_path: Path) -> AsyncIterator[Parts]:
    """Loops over a fresh database, to be ticked by hand."""
    made = Parts(store, tmp_path)
    yield made
    made.close()
