"""Draws faults from the seed, one round after the other, and lets them strike."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Final

from noonday.drill.faults import FAULTS, HOSTILE, RANDOM_KILLS, Fault
from noonday.drill.marks import Mark
from noonday.drill.moods import HOSTILE as MOODS
from noonday.drill.world import STEADY_TARGETS, TARGETS, World

MOST_AT_ONCE: Final = 3
HOSTILE_PART: Final = 0.3
MOOD_SEC: Final = 6.0
KILL_EACH_SEC: Final = (1.0, 3.5)
CALM_SEC: Final = 5.0
"""After a fault that struck alone nothing else does for so long: how soon is all well again?"""
LAST_SEC: Final = 5.0
"""So long before the end the last round begins."""
ROUND_SEC: Final = 8.0
"""Then the next round begins, beside what goes on of the last one."""
FAULT_SEC: Final = 45.0
"""No fault takes longer; one that does is reported."""


def rounds(seed: int, numbers: Set[str]) -> Iterator[list[Fault]]:
    """Which faults strike together, round after round, without end: each kind comes once before
    any comes again."""
    chance = random.Random(f"{seed}/rounds")
    deck: list[Fault] = []
    while any(fault.number in numbers for fault in FAULTS):
        drawn: list[Fault] = []
        for _ in range(chance.randint(1, MOST_AT_ONCE)):
            if not deck:
                deck = [fault for fault in FAULTS if fault.number in numbers]
                chance.shuffle(deck)
            drawn.append(deck.pop())
        yield drawn


class Nemesis:
    """Strikes for as long as it is let."""

    def __init__(self, world: World, numbers: Sequence[str], say: Callable[[str], None]) -> None:
        self._world = world
        self._numbers = frozenset(numbers)
        self._say = say
        self._calm = False
        self.marks: list[Mark] = []

    async def rage(self, seconds: float) -> None:
        """All kinds of faults until the time is up, and what has begun to its end."""
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            group.create_task(self._rounds(until))
            if any(fault.number in self._numbers for fault in RANDOM_KILLS):
                group.create_task(self._kill_at_random(until))
            if HOSTILE in self._numbers:
                group.create_task(self._change_moods(until))
        for witness in self._world.witnesses:
            await witness.be({})

    async def _rounds(self, until: float) -> None:
        under_way: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:
            for number, faults in enumerate(rounds(self._world.seed, self._numbers)):
                if time.monotonic() >= until - LAST_SEC:
                    return
                self._say("; ".join(f"{fault.number} {fault.name}" for fault in faults))
                for n, fault in enumerate(faults):
                    chance = random.Random(f"{self._world.seed}/{number}/{n}")
                    under_way.add(group.create_task(self._strike(fault, chance)))
                _, under_way = await asyncio.wait(under_way, timeout=ROUND_SEC)
                while len(under_way) >= MOST_AT_ONCE:
                    _, under_way = await asyncio.wait(
                        under_way, return_when=asyncio.FIRST_COMPLETED
                    )
                await self._pause(number, calm=len(faults) == 1 and not under_way)

    async def _pause(self, number: int, *, calm: bool) -> None:
        chance = random.Random(f"{self._world.seed}/pause/{number}")
        self._calm = calm
        await asyncio.sleep(CALM_SEC if calm else chance.uniform(0.3, 1.5))
        self._calm = False

    async def _kill_at_random(self, until: float) -> None:
        chosen = [fault for fault in RANDOM_KILLS if fault.number in self._numbers]
        number = 0
        async with asyncio.TaskGroup() as group:
            while time.monotonic() < until:
                number += 1
                chance = random.Random(f"{self._world.seed}/kill/{number}")
                fault, pause_sec = chance.choice(chosen), chance.uniform(*KILL_EACH_SEC)
                if not self._calm:
                    group.create_task(self._strike(fault, chance))
                await asyncio.sleep(pause_sec)

    async def _change_moods(self, until: float) -> None:
        number = 0
        while time.monotonic() < until:
            number += 1
            chance = random.Random(f"{self._world.seed}/moods/{number}")
            mark = Mark(HOSTILE, "hostile receivers", ["receivers"])
            self.marks.append(mark)
            moods = {
                f"/t{target:02}": chance.choice(MOODS)
                for target in range(STEADY_TARGETS, TARGETS)
                if chance.random() < HOSTILE_PART
            }
            for witness in self._world.witnesses:
                await witness.be(moods)
            mark.detail = ", ".join(f"{path[1:]} {mood}" for path, mood in moods.items())
            await asyncio.sleep(min(MOOD_SEC, max(until - time.monotonic(), 0)))
            mark.ended_at = time.time()
            mark.effect = f"{len(moods)} of {TARGETS} targets were hostile"

    async def _strike(self, fault: Fault, chance: random.Random) -> None:
        mark = Mark(fault.number, fault.name)
        self.marks.append(mark)
        try:
            async with asyncio.timeout(FAULT_SEC):
                await fault.strike(self._world, chance, mark)
        except Exception as error:  # a fault that met another one: on record, and the drill goes on
            mark.error = f"{type(error).__name__}: {error}"
        finally:
            mark.ended_at = time.time()
