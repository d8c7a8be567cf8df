"""Fairness between processes: what each has to know of the others to rank, once a second."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from noonday.domain.fair import Ranker, Told
from noonday.domain.model import EPOCH
from noonday.store import Store, charges

REFRESH_SEC: Final = 1.0
OVERLAP: Final = timedelta(seconds=5)
"""What was written so long ago may have been committed since it was last looked for."""


class Fairness:
    """Keeps the ranker of one process up to date, and tells the others what it has charged."""

    def __init__(self, store: Store, id: UUID, ranker: Ranker) -> None:
        self._store = store
        self._id = id
        self._ranker = ranker
        self._since: datetime = EPOCH
        self._told: dict[str, Told] = {}

    async def tick(self) -> int:
        """Read what has changed, and tell what we have charged, if that has."""
        ranker = self._ranker
        async with self._store.in_turn() as tx:
            news = await charges.news(tx, self._id, self._since)
        ranker.weigh(news.rules.weights)
        ranker.heed(news.rules.caps)
        ranker.learn(news.costs)
        ranker.refresh(news.now, news.rules.ageing, news.reports)
        ranker.hear(news.charged)
        self._since = news.now - OVERLAP
        await self._tell()
        return 0

    async def _tell(self) -> None:
        told = self._ranker.tell()
        news = {lane: each for lane, each in told.items() if each != self._told.get(lane, {})}
        if not news:
            return
        async with self._store.transaction() as tx:
            for lane, each in sorted(news.items()):
                await charges.put(tx, self._id, lane, each)
        self._told = told
