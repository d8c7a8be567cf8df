"""F6 and F7: processes that stand still for longer than their leases, or stop in order."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import UUID

from noonday.domain.errors import StoreUnavailable
from noonday.drill.checks.evidence import Evidence
from noonday.drill.checks.journal import moment
from noonday.drill.faults.databases import OURS, POSTGRES
from noonday.drill.faults.kills import PATIENCE_SEC, START_SEC, expired, holder
from noonday.drill.links import Trap
from noonday.drill.marks import Later, Mark
from noonday.drill.members import Member
from noonday.drill.world import LEASE_SEC, World
from noonday.store import shards

OWNER = """
SELECT id FROM workers WHERE pid = $1 AND role = 'scheduler'
AND EXISTS (SELECT FROM shards WHERE owner_id = id AND leased_until > now())
"""
SHARD_SEC = shards.LEASE.total_seconds()


@asynccontextmanager
async def frozen(member: Member) -> AsyncIterator[None]:
    """SIGSTOP while the block lasts."""
    member.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        member.signal(signal.SIGCONT)


async def worker(world: World, chance: random.Random, mark: Mark) -> None:
    """Stop a worker whose request is out for longer than its lease."""
    seconds = LEASE_SEC + chance.uniform(2.5, 5)
    witness = chance.choice(world.witnesses)
    async with witness.holding(PATIENCE_SEC) as held:
        member = await holder(world, held)
        if member is None or held is None:
            return
        async with member.struck:
            mark.at(member.name, detail=f"for {seconds:.1f} s, with {held.run_id} out")
            mark.later = expired(held)
            async with frozen(member):
                await asyncio.sleep(seconds)


async def scheduler(world: World, chance: random.Random, mark: Mark) -> None:
    """Stop a scheduler for longer than the lease on its shards."""
    seconds = SHARD_SEC + chance.uniform(4, 7)
    async with world.victim("scheduler", chance) as member:
        owner = await _owner(world, member)
        if owner is None:
            return
        mark.at(member.name, detail=f"for {seconds:.1f} s")
        mark.later = taken_over(owner)
        async with frozen(member):
            await asyncio.sleep(seconds)


async def scheduler_in_transaction(world: World, chance: random.Random, mark: Mark) -> None:
    """Stop a scheduler that is about to commit what fell due, for longer than its lease."""
    seconds = SHARD_SEC + chance.uniform(4, 7)
    trap = Trap("materialize", "hold before")
    async with world.victim("scheduler", chance) as member:
        owner = await _owner(world, member)
        member.link.set(trap)
        try:
            async with asyncio.timeout(PATIENCE_SEC):
                await trap.sprung.wait()
            mark.at(member.name, detail=f"for {seconds:.1f} s, inside its transaction")
            mark.later = taken_over(owner)
            async with frozen(member):
                await asyncio.sleep(seconds)
        except TimeoutError:
            mark.detail = "nothing fell due"
        finally:
            member.link.disarm(trap)


async def _owner(world: World, member: Member) -> UUID | None:
    """Its id, once it owns a shard: one that has just been started has to wait for the leases of
    those before it. None when that lasts too long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SHARD_SEC + PATIENCE_SEC):
            while (owner := await world.value(OWNER, member.pid)) is None:
                await asyncio.sleep(0.2)
            return UUID(str(owner))
    return None


def taken_over(owner: UUID | None) -> Later:
    """Whether somebody else took a shard while this process still stood as its owner."""

    def look(evidence: Evidence) -> str | None:
        count = sum(
            entry.before is not None
            and entry.before["owner_id"] == str(owner)
            and entry.row["owner_id"] not in (None, str(owner))
            and moment(entry.before["leased_until"]) <= entry.at
            for entry in evidence.journal
            if entry.source == "shards"
        )
        return f"{count} of its shards were taken over" if count else None

    return look


async def api(world: World, chance: random.Random, mark: Mark) -> None:
    """Stop an API process, with whatever it has begun."""
    seconds = chance.uniform(2, 7)
    async with world.victim("api", chance) as member:
        mark.at(member.name, detail=f"for {seconds:.1f} s")
        async with frozen(member):
            answered = await member.is_ready()
            await asyncio.sleep(seconds)
        mark.effect = None if answered else "it did not answer meanwhile"


async def backend(world: World, chance: random.Random, mark: Mark) -> None:
    """Stop a session of Postgres in whatever it does; its locks stay."""
    seconds = chance.uniform(3, 9)
    async with world.upset:
        pid = chance.choice([row["pid"] for row in await world.rows(OURS)])
        mark.at(POSTGRES, detail=f"session {pid} for {seconds:.1f} s")
        started = _stat(pid)
        if started[2:] != [str(world.database.pid)]:
            return  # it has ended since, and the number may be somebody else's
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
            stands = _stat(pid)
            mark.effect = f"session {pid} stood still" if stands[:1] == ["T"] else None
        finally:
            if started[1:] == _stat(pid)[1:]:  # still the same process
                os.kill(pid, signal.SIGCONT)


def _stat(pid: int) -> list[str]:
    """State, start time and parent of a process; empty when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return [fields[0], fields[19], fields[1]]


async def rolling(world: World, chance: random.Random, mark: Mark) -> None:
    """SIGTERM to each process of a role, one after the other, as a roll-out does."""
    role = chance.choice(["api", "scheduler", "worker"])
    codes: list[int | None] = []
    for member in [member for member in world.members if member.role == role]:
        async with member.struck:
            mark.at(member.name, detail=role)
            codes.append(await member.stop(20))
            member.start()
            await member.settled(START_SEC)
    mark.effect = f"{len(codes)} processes stopped, with codes {codes}"


async def hasty(world: World, chance: random.Random, mark: Mark) -> None:
    """SIGTERM twice, then ``kill -9`` before its grace period is over."""
    async with world.victim("worker", chance) as member:
        mark.at(member.name, detail="SIGTERM twice, then SIGKILL")
        for number in (signal.SIGTERM, signal.SIGTERM):
            member.signal(number)
            await asyncio.sleep(0.2)
        await asyncio.to_thread(member.kill)
        mark.effect = "it was stopped twice and killed"
        member.start()
        await member.settled(START_SEC)


async def steal(world: World, chance: random.Random, mark: Mark) -> None:
    """F12: take shards away from owners that are alive, as one that thinks they are not would."""
    thief = UUID(int=chance.getrandbits(128))
    wanted = chance.sample(range(64), 12)
    taken = 0
    mark.at(*(m.name for m in world.members if m.role == "scheduler"))
    for shard in wanted:
        try:
            async with world.store.transaction() as tx:
                if await tx.value("SELECT pg_try_advisory_xact_lock(1, $1)", shard):
                    taken += await tx.execute(STEAL, shard, thief)
        except StoreUnavailable:
            continue
    mark.detail = f"{taken} shards, for 2 s"
    mark.effect = f"{taken} living leases were taken away" if taken else None
    await asyncio.sleep(2)


STEAL = """
UPDATE shards SET owner_id = $2, epoch = epoch + 1, leased_until = now() + interval '2 s'
WHERE shard = $1 AND owner_id IS NOT NULL AND leased_until > now()
"""
