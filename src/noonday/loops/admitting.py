"""Gives the slots of caps to those that wait for them.

Every process does so for what its own transactions have inserted, freed or let go: its store tells
it the caps. What is lost with a process that dies is found by the schedulers, who look through all
that wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from noonday.domain.caps import KINDS, admit, is_job, is_key, is_tenant, tenant_of
from noonday.domain.ranking import Ranks, by_time
from noonday.store import Store, Tx, caps, holds, locks, overlaps
from noonday.store.caps import Waiting
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics

BATCH: Final = 200
"""Caps that one transaction looks at, at most."""
EACH: Final = 200
"""Runs that it looks at for each of them, at most."""
LOOK: Final = 1_000
"""Caps that are looked through at a time for what nobody has told of."""


class Pass(NamedTuple):
    """What one transaction came to."""

    admitted: int
    again: set[str]
    """Caps of which more may be waiting that there is room for."""


class Admitting:
    """One process's part. Safe in any number of them: a lock lets one at a time give a tenant's
    slots."""

    def __init__(
        self, store: Store, metrics: Metrics, wakeups: Wakeups, ranks: Ranks = by_time
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._wakeups = wakeups
        self._ranks = ranks
        self._told: dict[int, set[str]] = {}
        self._after: dict[str, str] = {}
        self.wake: Callable[[], None] = lambda: None
        """Called when there is something to look at."""
        self.admitted: Callable[[], None] = wakeups.runs
        """Called when runs have become claimable."""
        store.caps_moved = self.tell

    def tell(self, moved: Iterable[str]) -> None:
        """Somebody may wait for these caps who can have a slot."""
        for cap in moved:
            self._told.setdefault(tenant_of(cap), set()).add(cap)
        self.wake()

    # --- what was told --------------------------------------------------------------------

    async def tick(self) -> int:
        """Give slots of the caps that were told, in one transaction for each tenant; how many
        runs have got theirs. What it does not come to is looked at in the next tick, and one
        tenant that fails does not keep the others from being looked at."""
        told, self._told = self._told, {}
        count, failed = 0, None
        for tenant_id, moved in told.items():
            now, later = _split(moved)
            try:
                admitted, again = await self._give(tenant_id, now)
            except Exception as error:
                failed, admitted, again = error, 0, set(now)
            count += admitted
            if later or again:
                self._told.setdefault(tenant_id, set()).update(later, again)
        self._metrics.admitted("slot", count)
        if count:
            self.admitted()
        if failed is not None:
            raise failed
        return count + sum(map(len, self._told.values()))

    async def _give(self, tenant_id: int, moved: Sequence[str]) -> Pass:
        jobs = [cap for cap in moved if is_job(cap)]
        slots = [cap for cap in moved if not is_job(cap)]
        async with self._store.transaction() as tx:
            await locks.own_tenant(tx, tenant_id, to_give=True)
            # Read in later statements, which see what the holder of the lock before has given.
            followed = await self._follow(tx, jobs) if jobs else 0
            if not slots:
                return Pass(followed, set())
            given = await self._let_go(tx, await caps.waiting(tx, tenant_id, slots, EACH))
            return given._replace(admitted=given.admitted + followed)

    async def _follow(self, tx: Tx, jobs: Sequence[str]) -> int:
        """Have the next of those begin that wait for another run of their job."""
        await overlaps.supersede(tx, jobs)
        await overlaps.replace(tx, jobs)
        return await overlaps.follow(tx, jobs, self._ranks)

    async def _let_go(self, tx: Tx, found: Waiting) -> Pass:
        waits_for = admit(found.rooms, found.candidates)
        chosen = [row for row, cap in zip(found.rows, waits_for, strict=True) if cap is None]
        moved = [
            (row, cap)
            for row, cap in zip(found.rows, waits_for, strict=True)
            if cap is not None and cap != row["hold_key"]
        ]
        admitted = await caps.admit(tx, chosen, self._ranks)
        await caps.rekey(tx, moved)
        # Those that have made way, or were cancelled just now, leave room for others. (Where the
        # tenant has none, there is none for anybody; a slot of a key is kept.)
        again = {
            row["hold_key"]
            for row, cap in moved
            if not is_key(row["hold_key"]) and not is_tenant(cap)
        }
        if admitted < len(chosen):
            again |= {row["hold_key"] for row in chosen}
        return Pass(admitted, again | _cut_off(found))

    # --- what was not told ----------------------------------------------------------------

    async def sweep(self) -> int:
        """Look through the next caps that somebody waits for, and give what slots are free that
        nobody has told of; how many runs have got theirs."""
        count, failed = 0, None
        for tenant_id, waited_for in (await self._next()).items():
            for start in range(0, len(waited_for), BATCH):
                some = waited_for[start : start + BATCH]
                try:
                    if await self._is_lost(tenant_id, some):
                        admitted, again = await self._give(tenant_id, some)
                        self.tell(again)
                        count += admitted
                except Exception as error:
                    failed = error
        self._metrics.admitted("slot_found", count)
        if count:
            self.admitted()
        if failed is not None:
            raise failed
        return count

    async def _next(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        async with self._store.transaction() as tx:
            for kind in KINDS:
                prefix = f"{kind}:"
                keys = await holds.keys(tx, prefix, self._after.get(kind, ""), LOOK)
                self._after[kind] = keys[-1] if len(keys) == LOOK else ""
                for key in keys:
                    found.setdefault(tenant_of(key), []).append(key)
        return found

    async def _is_lost(self, tenant_id: int, waited_for: Sequence[str]) -> bool:
        """Whether somebody could go on, or waits under the wrong cap. Without the lock this may
        be wrong; it costs nobody anything."""
        jobs = [cap for cap in waited_for if is_job(cap)]
        slots = [cap for cap in waited_for if not is_job(cap)]
        async with self._store.transaction() as tx:
            if jobs and await overlaps.to_do(tx, jobs):
                return True
            return bool(slots and (await caps.waiting(tx, tenant_id, slots, 1)).rows)


def _split(moved: set[str]) -> tuple[list[str], list[str]]:
    every = sorted(moved)
    return every[:BATCH], every[BATCH:]


def _cut_off(found: Waiting) -> set[str]:
    """Caps of which no more was looked at than :data:`EACH`, though there was room."""
    counts: dict[str, int] = {}
    for row in found.rows:
        counts[row["hold_key"]] = counts.get(row["hold_key"], 0) + 1
    return {cap for cap, count in counts.items() if count >= EACH}
