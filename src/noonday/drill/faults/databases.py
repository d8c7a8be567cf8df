"""F5, F15, F17: what Postgres suffers as a whole."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

from noonday.domain.errors import StoreUnavailable
from noonday.drill.checks.database import direct
from noonday.drill.marks import Mark
from noonday.drill.world import World
from noonday.embedded import EmbeddedPostgresError

POSTGRES = "postgres"
TAKING_SEC = 20.0
AT_ONCE = 16
OURS = """
SELECT pid FROM pg_stat_activity
WHERE usename = current_user AND application_name LIKE 'noonday %' ORDER BY pid
"""
TERMINATE = "SELECT count(*) FROM unnest($1::int[]) AS p(pid) WHERE pg_terminate_backend(pid)"


async def crash(world: World, chance: random.Random, mark: Mark) -> None:
    """Stop it as a crash would, and start it again after up to two seconds."""
    down_sec = chance.uniform(0, 2)
    async with world.upset:
        old = world.database.pid
        await world.database.ask("stop")
        mark.at(POSTGRES, detail=f"down for {down_sec:.1f} s and its recovery")
        await asyncio.sleep(down_sec)
        await world.database.ask("start")
        mark.effect = f"server {old} went, server {world.database.pid} came"


async def backends(world: World, chance: random.Random, mark: Mark) -> None:
    """End random sessions of the service, several times."""
    ended = 0
    async with world.upset:
        mark.at(POSTGRES)
        for _ in range(chance.randint(2, 6)):
            found = [row["pid"] for row in await world.rows(OURS)]
            chosen = chance.sample(found, min(len(found), chance.randint(1, 4)))
            ended += await world.value(TERMINATE, chosen)
            await asyncio.sleep(chance.uniform(0.1, 1.0))
    mark.detail = f"{ended} sessions"
    mark.effect = f"{ended} sessions were ended" if ended else None


async def exhausted(world: World, chance: random.Random, mark: Mark) -> None:
    """Take every connection that the server gives, so that it refuses the service new ones."""
    seconds = chance.uniform(3, 7)
    async with world.upset, AsyncExitStack() as taken:
        until = asyncio.get_running_loop().time() + TAKING_SEC
        refused = await _take_some(world, taken)
        while not refused and asyncio.get_running_loop().time() < until:
            refused = await _take_some(world, taken)
        mark.at(POSTGRES, detail=f"for {seconds:.1f} s")
        await _cut_all(world)  # so that the service has to ask for new ones
        until = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until:
            refused += await _take_some(world, taken)
            await asyncio.sleep(0.1)
        mark.effect = f"the server refused {refused} connections" if refused else None


async def _take_some(world: World, taken: AsyncExitStack) -> int:
    """Open a few more connections at once; how many were refused."""
    made = [taken.enter_async_context(direct(world.database.dsn)) for _ in range(AT_ONCE)]
    results = await asyncio.gather(*made, return_exceptions=True)
    return sum(isinstance(result, StoreUnavailable) for result in results)


async def _cut_all(world: World) -> None:
    for member in world.members:
        member.link.cut()


async def full(world: World, chance: random.Random, mark: Mark) -> None:
    """Fill the volume of Postgres to its last byte, and free it again."""
    seconds = chance.uniform(3, 8)
    async with world.upset:
        mark.at(POSTGRES, detail=f"for {seconds:.1f} s")
        before = (await world.database.ask("free"))["refusals"]
        try:
            await world.database.ask("fill")
            await asyncio.sleep(seconds)
        finally:
            refusals = (await world.database.ask("free"))["refusals"] - before
        # A server that could not write its log has ended: then whoever runs it starts it again.
        try:
            await world.database.ask("start")
            mark.detail += ", and the server had to be started again"
        except EmbeddedPostgresError as error:
            if "started already" not in str(error):
                raise
        mark.effect = f"{refusals} writes found no space" if refusals else None
