"""What fair queueing costs, and how far several processes are apart.

Ranks are computed in this process; claims and what processes tell each other go through Postgres.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import uuid4

from bench import harness
from bench.figures import Figures, Rows, per_job, spread
from bench.options import Options
from noonday.domain.fair import Ranker
from noonday.domain.lane_clock import LaneClock, LaneReport
from noonday.domain.ranking import Floors, Work, is_queued, seconds, tag_of
from noonday.loops.fairness import Fairness
from noonday.store import Store, runs, workers

LANE, HOST = "default", "receiver.example"
MANY = 10_000
WORKER = uuid4()
BATCH = 64

FILL = """
WITH job AS (
    INSERT INTO jobs (id, tenant_id, created_at, created_by, schedule_type, first_at, name, lane,
                      priority, lease_sec, target_host, labels, spec, payload, payload_bytes,
                      content_type)
    SELECT id, tenant_id, now(), 'bench', 'once', now(), 'bench', $1, priority, 60, $2, '{}', '{}',
           '', 0, 'application/json'
    FROM unnest($3::uuid[], $4::int[], $5::int[]) AS j(id, tenant_id, priority)
)
INSERT INTO runs (job_id, occurrence_at, kind, tenant_id, payload_version, lane, priority, rank,
                  claimable, state, due_at, ready_at)
SELECT id, now(), 0, tenant_id, 1, $1, priority, rank, true, 'READY', now(), now()
FROM unnest($3::uuid[], $4::int[], $5::int[], $6::timestamptz[]) AS j(id, tenant_id, priority, rank)
"""
DONE = "DELETE FROM runs WHERE job_id = ANY ($1::uuid[])"


def _waiting(now: datetime, slots: int = 64) -> dict[str, LaneReport]:
    v = (seconds(now),) * 10
    return {LANE: LaneReport(slots, waiting=True, v=v, rate=0.5, clock=seconds(now))}


def _ranker(now: datetime) -> Ranker:
    ranker = Ranker()
    ranker.refresh(now, {LANE: 6.0}, [_waiting(now)])
    ranker.learn([(tenant, HOST, 0.1) for tenant in range(MANY)])
    return ranker


def _works(count: int, tenants: int, priority: int = 5) -> list[Work]:
    return [Work(n % tenants, LANE, priority, HOST) for n in range(count)]


def ranking(count: int, tenants: int, now: datetime) -> Figures:
    """Ranks for ``count`` runs, in batches as POSTs share a commit, with a refresh at the end."""
    ranker, works = _ranker(now), _works(count, tenants)
    began = time.process_time()
    for start in range(0, count, BATCH):
        ranker.ranks(works[start : start + BATCH], now)
    took = time.process_time() - began
    began = time.process_time()
    ranker.refresh(now, {LANE: 6.0}, [_waiting(now)])
    ranker.tell()
    refresh = time.process_time() - began
    return {
        "count": count, "per_sec": count / took, "noonday_us": took / count * 1e6,
        "refresh_ms": refresh * 1e3,
    }  # fmt: skip


async def _fill(store: Store, works: Sequence[Work], now: datetime) -> None:
    ranks = _ranker(now).ranks(works, now)
    for start in range(0, len(works), 1_000):
        batch, given = works[start : start + 1_000], ranks[start : start + 1_000]
        async with store.transaction() as tx:
            await tx.execute(
                FILL, LANE, HOST, [uuid4() for _ in batch], [each.tenant_id for each in batch],
                [each.priority for each in batch], given,
            )  # fmt: skip


async def claims(running: harness.Service, store: Store, count: int, tenants: int) -> Figures:
    """``count`` queued runs of so many tenants, claimed by 64, in front of nobody."""
    async with store.transaction() as tx:
        now = await tx.clock()
    await _fill(store, _works(count, tenants), now)
    async with store.direct() as connection:
        await connection.execute("VACUUM ANALYZE runs")
    order, floors, worker, took, left = LaneClock(), Floors(), uuid4(), [], count
    before, cpu = await running.usage(store), 0.0
    while left:
        used = floors.each()
        began, used_cpu = time.perf_counter(), time.process_time()
        async with store.transaction() as tx:
            claimed = await runs.claim(tx, LANE, order.ranges(used), BATCH, worker)
            clock = await tx.clock()
        order.claimed(claimed.left, clock, everything=claimed.saw_all)
        floors.claimed(used, claimed.lowest, clock, everything=claimed.saw_all, tags=order.start)
        took.append(time.perf_counter() - began)
        cpu += time.process_time() - used_cpu
        left -= len(claimed.rows)
        async with store.transaction() as tx:
            await tx.execute(DONE, [row["job_id"] for row in claimed.rows])
    row = per_job(count, sum(took), before, await running.usage(store)) | spread(took)
    return row | {"noonday_us": cpu / count * 1e6, "generator_us": 0.0}


async def apart(store: Store, rankers: int, per_sec: int) -> Figures:
    """How far the tags of one tenant are from where one process would put them, in parts of what
    it is charged in ten seconds; ``per_sec`` runs a second over so many processes."""
    async with store.transaction() as tx:
        now = await tx.clock()
        await tx.execute("DELETE FROM charges")  # who starts anew takes over what is told there
        await workers.report(tx, WORKER, "worker", "bench", lanes=_waiting(now))
    made, alone = [_ranker(now) for _ in range(rankers)], _ranker(now)
    loops = [Fairness(store, uuid4(), each) for each in made]
    for loop in loops:
        await loop.tick()
    work, off, expected = Work(1, LANE, 5, HOST), [0.0], 0.0
    for second in range(10):
        moment = now + timedelta(seconds=second)
        for n in range(per_sec):
            (rank,) = made[n % rankers].ranks([work], moment)
            (wanted,) = alone.ranks([work], moment)
            expected = tag_of(wanted) - seconds(now) if is_queued(wanted) else 0.0
            if is_queued(rank) and is_queued(wanted):
                off.append(abs(tag_of(rank) - tag_of(wanted)))
        for loop in loops:
            await loop.tick()
    off.sort()
    return {
        "count": per_sec * 10,
        "p50_per_mille": off[len(off) // 2] / expected * 1e3,
        "most_per_mille": off[-1] / expected * 1e3,
    }


async def ranks(options: Options) -> Rows:
    """Ranks of one tenant and of 10,000, claims of theirs, and processes side by side."""
    count, found = options.pick(200_000, 10_000), Rows()
    async with harness.service(options, "api") as running:
        store = await running.store(4)
        async with store.transaction() as tx:
            now = await tx.clock()
        for tenants in (1, MANY):
            found[f"rank, {tenants:,} tenants"] = ranking(count, tenants, now)
        for tenants in (1, MANY):
            found[f"claim, {tenants:,} tenants"] = await claims(running, store, count, tenants)
        for rankers in (3, 5):
            found[f"{rankers} processes, apart by parts of 10 s"] = await apart(
                store, rankers, 1_000
            )
        await store.close()
    return found
