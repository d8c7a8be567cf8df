"""F11: the wall clock of one process is wrong; its monotonic clock and Postgres's are right."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from noonday.drill.marks import Mark
from noonday.drill.world import World

STEPS_SEC = (3, -3, 90, -90, 3_600, -3_600, 28_800)
LIBRARIES = (
    *Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"),
    *Path("/usr/lib64").glob("faketime/libfaketimeMT.so.1"),
    *Path("/usr/local/lib").glob("faketime/libfaketimeMT.so.1"),
)


def library() -> Path | None:
    """Where libfaketime is, if it is installed."""
    return next((path for path in LIBRARIES if path.exists()), None)


async def step(world: World, chance: random.Random, mark: Mark) -> None:
    """Step the clock of one process, and set it right again."""
    error_sec, seconds = chance.choice(STEPS_SEC), chance.uniform(4, 9)
    async with world.victim(None, chance) as member:
        mark.at(member.name, detail=f"{error_sec:+} s for {seconds:.1f} s")
        member.step_clock(error_sec)
        try:
            await asyncio.sleep(1.5)
            shown = await member.clock_error()
            await asyncio.sleep(seconds - 1.5)
        finally:
            member.step_clock(0)
        if shown is not None and abs(shown - error_sec) < 1.5 + abs(error_sec) / 100:
            mark.effect = f"its own clock was wrong by {shown:+.0f} s"


async def strobe(world: World, chance: random.Random, mark: Mark) -> None:
    """Let the clock of one process jump to and fro, ten times a second."""
    async with world.victim(None, chance) as member:
        mark.at(member.name, detail="±200 ms, ten times a second for 4 s")
        try:
            for n in range(40):
                member.step_clock(0.2 if n % 2 else -0.2)
                await asyncio.sleep(0.1)
        finally:
            member.step_clock(0)
