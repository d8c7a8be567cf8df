"""A claim takes runs in the order in which a worker's clock of the lane has them."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from noonday.domain.lane_clock import LaneClock
from noonday.domain.model import RunKey
from noonday.domain.ranking import Band, Floors, queued
from noonday.store import Store, runs
from tests.support import seeds

NOW = datetime.now(UTC)


@pytest.mark.parametrize("seed", range(4))
async def test_runs_of_both_bands_are_claimed_by_their_keys(store: Store, seed: int) -> None:
    rng, clock = random.Random(seed), LaneClock()
    clock.rate = rng.choice([0.01, 0.5, 3.0])
    clock.claimed({Band(5, True): queued(100.0)}, NOW, everything=True)
    store.now = NOW
    ranks = [NOW - timedelta(seconds=rng.choice([0, 1, 5, 30])) for _ in range(15)]
    ranks += [queued(100.0 + rng.choice([-50, -3, -0.5, 0, 0.5, 3, 50])) for _ in range(15)]
    keys: dict[RunKey, float] = {}
    async with store.transaction() as tx:
        for rank in ranks:
            priority = rng.choice([0, 4, 5, 6, 9])
            (run,) = await seeds.ready(tx, priority=priority, ranks=lambda works, now, r=rank: [r])  # type: ignore[misc]
            keys[run] = round(clock.key(rank, priority, NOW), 6)
    taken = []
    for _ in ranks:
        async with store.transaction() as tx:
            looked_at = clock.ranges(Floors().each())
            claimed = await runs.claim(tx, "default", looked_at, 1, seeds.WORKER)
        taken += [runs.key_of(row) for row in claimed.rows]
    assert [keys[run] for run in taken] == sorted(keys.values())
