from __future__ import annotations

from pathlib import Path

import pytest

from noonday.receiver import DedupeStore, MemoryStore, SqliteStore


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> DedupeStore:
    """Every store, held to the same promises."""
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "deliveries.db")
