"""F1 to F4: ``kill -9``, at random and at the moments that hurt most."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Literal

from noonday.domain.model import parse_run_id
from noonday.drill.checks.evidence import Evidence
from noonday.drill.links import Trap
from noonday.drill.marks import Later, Mark
from noonday.drill.members import Member
from noonday.drill.witnesses import HeldRequest
from noonday.drill.world import World

PATIENCE_SEC = 6.0
"""How long a moment is waited for."""
START_SEC = 10.0
HOLDER = """
SELECT w.pid FROM runs AS r JOIN workers AS w ON w.id = r.worker_id
WHERE r.job_id = $1 AND r.occurrence_at = $2 AND r.kind = $3
"""
OWNS_MOST = """
SELECT w.name FROM shards AS s JOIN workers AS w ON w.id = s.owner_id
GROUP BY w.name ORDER BY count(*) DESC, w.name
"""


async def any_of(world: World, chance: random.Random, mark: Mark, role: str) -> None:
    """Kill a process of ``role``, wherever it is just now."""
    async with world.victim(role, chance) as member:
        await kill(member, mark)


async def all_schedulers(world: World, chance: random.Random, mark: Mark) -> None:
    """Kill every scheduler at once: whoever leads, whoever stands by, and who would take over."""
    del chance
    members = [m for m in world.members if m.role == "scheduler"]
    async with AsyncExitStack() as struck:
        for member in members:
            await struck.enter_async_context(member.struck)
        await asyncio.gather(*(kill(member, mark) for member in members))
    mark.effect = f"{len(members)} processes died"


async def kill(member: Member, mark: Mark, detail: str = "") -> None:
    """Kill and start again; it suffers nothing else until it is ready."""
    mark.at(member.name, detail=detail)
    pid = member.pid
    await asyncio.to_thread(member.kill)
    mark.effect = f"process {pid} died"
    member.start()
    await member.settled(START_SEC)


async def worker_in_request(world: World, chance: random.Random, mark: Mark) -> None:
    """Kill a worker whose request a receiver holds."""
    witness = chance.choice(world.witnesses)
    async with witness.holding(PATIENCE_SEC) as held:
        member = await holder(world, held)
        if member is None or held is None:
            return
        async with member.struck:
            await kill(member, mark, f"while {held.run_id}, attempt {held.attempt}, was out")
            mark.effect, mark.later = None, expired(held)


async def holder(world: World, held: HeldRequest | None) -> Member | None:
    """The process whose request a receiver holds; None while a fault has it already."""
    run = parse_run_id(held.run_id) if held is not None else None
    if run is None:
        return None
    pid = await world.value(HOLDER, run.job_id, run.occurrence_at, run.kind)
    member = world.member(pid)
    return None if member is None or member.struck.locked() else member


def expired(held: HeldRequest) -> Later:
    """Whether the attempt ended by its lease, or (of an answer nobody got) by the reaper."""
    run = parse_run_id(held.run_id)
    assert run is not None

    def look(evidence: Evidence) -> str | None:
        for row in evidence.executions.get(run, []):
            if row["attempt"] == held.attempt and row["status"] == "LEASE_EXPIRED":
                return f"the lease of attempt {held.attempt} of {run} ran out"
        return None

    return look


async def at_commit(
    world: World,
    chance: random.Random,
    mark: Mark,
    role: str,
    what: str,
    act: Literal["hold before", "hold after"],
) -> None:
    """Kill a process in the moment before or after it commits what it does."""
    when = "before" if act == "hold before" else "after"
    trap = Trap(what, act, drop=True)
    async with world.victim(role, chance) as member:
        member.link.set(trap)
        try:
            async with asyncio.timeout(PATIENCE_SEC):
                await trap.sprung.wait()
            await kill(member, mark, f"{when} the commit of a {what}")
            mark.effect = f"died {when} the commit of a {what}"
        except TimeoutError:
            mark.detail = f"no {what} came"
        finally:
            member.link.disarm(trap)


async def reaper(world: World, chance: random.Random, mark: Mark) -> None:
    """Let a lease run out, and kill the scheduler process that reaps it, in the act."""
    witness = chance.choice(world.witnesses)
    async with witness.holding(PATIENCE_SEC) as held:
        member = await holder(world, held)
        if member is None:
            return
        async with member.struck:
            await kill(member, mark)
    mark.effect = None
    await _in_the_act(world, mark, "settle", 12.0)


async def janitor(world: World, chance: random.Random, mark: Mark) -> None:
    """Restart the scheduler process that leads, and kill it while it cleans up."""
    async with world.victim("scheduler", chance) as member:
        await member.stop(10)
        member.start()
        await member.settled(START_SEC)
    await _in_the_act(world, mark, "janitor", PATIENCE_SEC)


async def _in_the_act(world: World, mark: Mark, what: str, patience_sec: float) -> None:
    traps = {
        member: Trap(what, "hold before", drop=True)
        for member in world.members
        if member.role == "scheduler"
    }
    waits = {asyncio.create_task(trap.sprung.wait()): member for member, trap in traps.items()}
    for member, trap in traps.items():
        member.link.set(trap)
    try:
        done, _ = await asyncio.wait(
            waits, timeout=patience_sec, return_when=asyncio.FIRST_COMPLETED
        )
        for task in list(done)[:1]:
            member = waits[task]
            async with member.struck:
                await kill(member, mark, f"in the act of a {what}")
                mark.effect = f"died in the act: {what}"
    finally:
        for task in waits:
            task.cancel()
        for member, trap in traps.items():
            member.link.disarm(trap)
