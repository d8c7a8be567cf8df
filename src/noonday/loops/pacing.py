"""Pacing: lets runs go on that are held because a rate is used up, as fast as the rate allows.

What is let go takes its instant when it is claimed. Should others of the same rate be quicker, it
is put on hold once more, at the cost of a claim; so no more are let go than there are instants.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from noonday.domain.ranking import Ranks, by_time
from noonday.domain.rates import KEY_PREFIX, PUSHED_SEC, Release, release
from noonday.store import Row, Store, holds, locks, rates
from noonday.store.rates import LetGo
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics

PASS_SEC: Final = 0.1
"""How often runs are let go while some wait."""
WITHIN_SEC: Final = 0.2
"""Their instants lie no further ahead than this."""
LONGEST_SEC: Final = 0.5
"""How often they are looked at, at least."""
BATCH: Final = 1_000
"""Most runs of one rate, and most rates, in one pass."""
TOGETHER: Final = 50
"""So many rates are dealt with in one transaction."""
_SAME: Final = timedelta(milliseconds=1)
_LONGEST: Final = timedelta(seconds=PUSHED_SEC)


class Pacing:
    """Safe to run in any number of processes: a lock on each key lets one at a time work on it."""

    def __init__(
        self, store: Store, metrics: Metrics, wakeups: Wakeups, ranks: Ranks = by_time
    ) -> None:
        self._store = store
        self._ranks = ranks
        self._metrics = metrics
        self._wakeups = wakeups
        self._after = ""
        self._sleep_sec: float | None = None

    def sleep_for(self) -> float | None:
        """Seconds until there may be something to let go, while anything waits."""
        return self._sleep_sec

    async def tick(self) -> int:
        """Look once at each rate for which runs wait; how many runs were let go.

        Rates that fail do not keep the others from being looked after.
        """
        keys = await self._keys()
        count, failed, soonest = 0, None, LONGEST_SEC
        for start in range(0, len(keys), TOGETHER):
            try:
                admitted, sec = await self._let_go(keys[start : start + TOGETHER])
            except Exception as error:
                failed = error
                continue
            count, soonest = count + admitted, min(soonest, sec)
        self._sleep_sec = max(soonest, PASS_SEC) if keys else None
        if count:
            self._wakeups.runs()
        self._metrics.admitted("rate", count)
        if failed is not None:
            raise failed
        return count

    async def _keys(self) -> list[str]:
        async with self._store.in_turn() as tx:
            found = await holds.keys(tx, KEY_PREFIX, self._after, BATCH)
        self._after = found[-1] if len(found) == BATCH else ""
        return [key.removeprefix(KEY_PREFIX) for key in found]

    async def _let_go(self, keys: Sequence[str]) -> tuple[int, float]:
        """How many runs were let go, and in how many seconds the next one has its instant."""
        async with self._store.transaction() as tx:
            mine = await locks.try_keys(tx, [locks.hashed("hold", KEY_PREFIX, key) for key in keys])
            keys = [key for key, is_mine in zip(keys, mine, strict=True) if is_mine]
            # In a later statement, which sees what the one before us has done.
            limited, stand = await rates.limits_of(tx, keys), await rates.stand(tx, keys)
            count, soonest, changed = 0, LONGEST_SEC, list[LetGo]()
            for key in keys:
                row, wanted = stand.get(key), _wanted(stand.get(key), limited.get(key))
                if wanted.runs:
                    hold_key = f"{KEY_PREFIX}{key}"
                    count += await holds.admit(tx, hold_key, wanted.runs, ranks=self._ranks)
                if row is not None and (noted := _noted(row, wanted)) is not None:
                    changed.append(noted)
                soonest = min(soonest, wanted.let_go_sec - WITHIN_SEC)
            if changed:
                await rates.let_go(tx, changed)  # the last thing: claims wait for these rows
        return count, soonest


def _noted(row: Row, wanted: Release) -> LetGo | None:
    """What to write down of it, unless that stands there already."""
    up_to = row["now"] + timedelta(seconds=wanted.let_go_sec)
    latest = row["now"] + max(timedelta(seconds=wanted.next_sec), _LONGEST)
    before = row["let_go_at"]
    if before is None or abs(before - up_to) > _SAME or row["next_at"] > latest + _SAME:
        return LetGo(row["key"], up_to, latest)
    return None


def _wanted(row: Row | None, per_sec: float | None) -> Release:
    """What to let go of those that wait for a rate: all, where there is none any more."""
    if per_sec is None or row is None:
        return Release(BATCH, 0.0, 0.0)
    next_sec = (row["next_at"] - row["now"]).total_seconds()
    let_go = row["let_go_at"]
    let_go_sec = None if let_go is None else (let_go - row["now"]).total_seconds()
    return release(per_sec, row["slowed"], next_sec, let_go_sec, WITHIN_SEC, BATCH)
