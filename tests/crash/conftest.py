from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster


@pytest.fixture
async def cluster(database_url: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster over a fresh database, without processes yet."""
    async with Cluster.over(database_url, tmp_path) as cluster:
        yield cluster
