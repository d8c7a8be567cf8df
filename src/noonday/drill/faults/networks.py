"""F8 to F10, F13, F14: between processes and Postgres, and between workers and receivers."""

from __future__ import annotations

import asyncio
import random

from noonday.drill.links import Odds, Trap
from noonday.drill.marks import Mark
from noonday.drill.wires import Weather
from noonday.drill.world import World

PATIENCE_SEC = 6.0
BAD = (Weather.CUT, Weather.SILENT, Weather.ONE_WAY, Weather.SLOW)
LOOK_UPS = {"create": "look up job", "settle": "look up settle", "claim": "look up claim"}
RECEIVERS = "receivers"


async def postgres(world: World, chance: random.Random, mark: Mark) -> None:
    """Disturb the network between one process and Postgres."""
    weather, seconds = chance.choice(BAD), chance.uniform(2, 8)
    async with world.victim(None, chance) as member:
        mark.at(member.name, detail=f"{weather} for {seconds:.1f} s")
        before = member.link.disturbed
        member.link.turn(weather)
        try:
            await asyncio.sleep(seconds)
        finally:
            member.link.turn(Weather.FAIR)
        met = member.link.disturbed - before
        mark.effect = f"{met} pieces or connections met it" if met else None


async def receivers(world: World, chance: random.Random, mark: Mark) -> None:
    """Disturb the network between all workers and one receiver."""
    weather, seconds = chance.choice(BAD), chance.uniform(2, 6)
    witness = chance.choice(world.witnesses)
    mark.at(RECEIVERS, detail=f"{weather} for {seconds:.1f} s")
    before = witness.wire.disturbed
    witness.wire.turn(weather)
    try:
        await asyncio.sleep(seconds)
    finally:
        witness.wire.turn(Weather.FAIR)
    met = witness.wire.disturbed - before
    mark.effect = f"{met} pieces or connections met it" if met else None


async def lost_answer(
    world: World, chance: random.Random, mark: Mark, role: str, what: str
) -> None:
    """Let a commit be carried out, and lose its answer."""
    trap = Trap(what, "lose")
    async with world.victim(role, chance) as member:
        link, look_up = member.link, LOOK_UPS.get(what)
        link.set(trap)
        try:
            async with asyncio.timeout(PATIENCE_SEC):
                await trap.sprung.wait()
        except TimeoutError:
            mark.detail = f"no {what} came"
            return
        finally:
            link.disarm(trap)
        mark.at(member.name, detail=f"of a {what}")
        if look_up is None:
            mark.effect = f"the answer to the commit of a {what} was lost"
            return
        before = link.seen[look_up]
        for _ in range(60):
            if link.seen[look_up] > before:
                mark.effect = f"the answer was lost, and the {what} looked up"
                return
            await asyncio.sleep(0.1)


async def unlucky(world: World, chance: random.Random, mark: Mark, kind: str) -> None:
    """For a while one commit in a hundred of every process fails, or fails to be reported."""
    seconds = chance.uniform(6, 10)
    odds = Odds(0.01, 0.0, chance) if kind == "cut" else Odds(0.0, 0.01, chance)
    mark.at(*(member.name for member in world.members), detail=f"for {seconds:.1f} s")
    before = _met(world)
    for member in world.members:
        member.link.odds = odds
    try:
        await asyncio.sleep(seconds)
    finally:
        for member in world.members:
            member.link.odds = None
    met = _met(world) - before
    mark.effect = f"{met} commits met it" if met else None


def _met(world: World) -> int:
    return sum(member.link.cut_off + member.link.lost for member in world.members)
