"""Deliveries keep to the rates of their tenant and of their host, smoothly, whoever sends them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from noonday.domain.breaker import HALF_OPEN_RUNS
from noonday.domain.model import Attempt, Outcome, OutcomeKind, RunKey
from noonday.domain.rates import burst
from noonday.loops import rates as loop_rates
from noonday.loops.worker import Worker
from noonday.store import Row, Store, cancels, gauges, rates, targets
from noonday.store.cancels import Which
from tests.support import seeds
from tests.support.invariants import broken
from tests.support.scripted import Hanging, Parts, Scripted, carry_out, counted, landed

T = datetime.now(UTC).replace(microsecond=0)
SECOND = timedelta(seconds=1)
STEP = timedelta(seconds=0.1)
SLOW, WELL = "http://slow.example/hook", "http://well.example/hook"
HOST, TENANT = "host:1:slow.example", "tenant:1"
HOLD = f"rate:{HOST}"
LIMIT = """
INSERT INTO limits (key, tenant_id, kind, name, rate_per_sec, changed_at)
VALUES ('host:1:' || $1, 1, 'host', $1, $2, now())
ON CONFLICT (key) DO UPDATE SET rate_per_sec = excluded.rate_per_sec
"""
TENANTS = """
INSERT INTO tenants (id, name, signing_secrets, secrets_rotated_at, created_at, deliveries_per_sec)
OVERRIDING SYSTEM VALUE VALUES (1, 'one', '{}', now(), now(), $1)
"""
TOO_FAST = Outcome(OutcomeKind.TRANSIENT, http_status=429, error="answered 429")


class World:
    """Some worker processes and a scheduler, at a time that is set."""

    def __init__(self, store: Store, parts: Parts) -> None:
        store.now = T
        self.store = store
        self.parts = parts
        self.pacing = parts.pacing()
        self.granted: dict[RunKey, datetime] = {}

    def worker(self, executor: Scripted | None = None, slots: int = 1_000) -> Worker:
        """With many slots, as their runs wait for real while the time that is set jumps."""
        return self.parts.worker(executor or Scripted(), slots=slots)

    async def limit(self, per_sec: float | None, host: str = "slow.example") -> None:
        async with self.store.transaction() as tx:
            await tx.execute(LIMIT, host, per_sec)

    async def limit_tenant(self, per_sec: float | None) -> None:
        async with self.store.transaction() as tx:
            await tx.execute(TENANTS, per_sec)

    async def make(self, count: int = 1, url: str = SLOW, priority: int = 5) -> list[RunKey]:
        async with self.store.transaction() as tx:
            return await seeds.ready(tx, url=url, count=count, priority=priority)

    def pass_on(self, by: timedelta = STEP) -> None:
        assert self.store.now is not None
        self.store.now += by

    async def claim(self, *workers: Worker) -> list[datetime]:
        """Each claims once; the instants that what they claimed was given."""
        new: list[datetime] = []
        for worker in workers:
            await worker.tick()
            for flight in worker._flights.values():
                if flight.granted_at is not None and flight.lease.run not in self.granted:
                    self.granted[flight.lease.run] = flight.granted_at
                    new.append(flight.granted_at)
        return sorted(new)

    async def step(self, *workers: Worker) -> list[datetime]:
        self.pass_on()
        await self.pacing.tick()
        return await self.claim(*workers)

    async def held(self, key: str = HOLD) -> int:
        async with self.store.transaction() as tx:
            return int(await tx.value("SELECT count(*) FROM runs WHERE hold_key = $1", key))

    async def stands(self, key: str = HOST) -> Row:
        async with self.store.transaction() as tx:
            return (await rates.stand(tx, [key]))[key]


@pytest.fixture
def world(store: Store, parts: Parts) -> World:
    return World(store, parts)


async def finish(*workers: Worker) -> None:
    for worker in workers:
        await landed(worker)
        while await worker.settling.tick():
            pass


def for_long(worker: Worker) -> None:
    """What waits for its instant does so for an hour: none of it has begun to."""
    for flight in worker._flights.values():
        if flight.not_before is not None:
            flight.not_before += 3_600


def gaps(instants: Iterable[datetime]) -> list[float]:
    ordered = sorted(instants)
    return [round((after - before).total_seconds(), 4) for before, after in pairwise(ordered)]


def keeps(instants: Iterable[datetime], per_sec: float) -> bool:
    """The k-th and the n-th are at least (n - k + 1 - burst) / rate apart."""
    at = sorted(instants)
    return all(
        (last - first).total_seconds() >= (n + 1 - burst(per_sec)) / per_sec - 1e-4
        for k, first in enumerate(at)
        for n, last in enumerate(at[k:])
    )


# --- never faster -----------------------------------------------------------------------------


async def test_several_workers_together_never_send_faster_than_the_rate_of_a_host(
    world: World, store: Store
) -> None:
    await world.limit(40)
    workers = [world.worker() for _ in range(3)]
    await world.make(100)
    for step in range(25):
        if step % 5 == 0:
            await world.make(4)
        await world.step(*workers)
    sent = list(world.granted.values())
    assert len(sent) >= 100 - 8, "nor does any of it pass unused while runs wait"
    assert keeps(sent, 40)
    await finish(*workers)
    assert not await broken(store)


async def test_a_rate_is_kept_evenly_without_a_burst_at_any_window(world: World) -> None:
    await world.limit(10)
    worker = world.worker()
    await world.make(40)
    for _ in range(30):
        await world.step(worker)
    assert set(gaps(world.granted.values())) == {0.1}
    await finish(worker)


async def test_a_tenant_and_a_host_with_rates_are_both_kept_to(world: World) -> None:
    await world.limit_tenant(30)
    await world.limit(10)
    worker, sent = world.worker(), list[datetime]()
    slow = set(await world.make(30))
    await world.make(60, WELL)
    for _ in range(30):
        sent += await world.step(worker)
    at_slow = [at for run, at in world.granted.items() if run in slow]
    assert keeps(sent, 30)
    assert keeps(at_slow, 10)
    assert len(sent) >= 0.9 * 30 * 3
    assert len(at_slow) >= 0.9 * min(30, 10 * 3)
    await finish(worker)


async def test_a_worker_that_dies_takes_its_instants_with_it_and_strands_no_run(
    world: World, store: Store
) -> None:
    await world.limit(20)
    dead, alive, reaper = world.worker(), world.worker(), world.parts.reaper()
    await world.make(30)
    await world.claim(dead)  # and is never heard of again
    lost = list(world.granted.values())
    assert len(lost) > 2
    world.granted.clear()
    world.pass_on(seeds.LEASE_SEC * SECOND + 10 * SECOND)
    for _ in range(40):
        while await reaper.tick():
            pass
        await world.step(alive)
    assert len(world.granted) == 30
    assert keeps([*lost, *world.granted.values()], 20)
    await finish(alive)
    async with store.transaction() as tx:
        assert await tx.value("SELECT count(*) FROM runs") == 0
    assert not await broken(store)
    await landed(dead)


async def test_the_instants_of_a_claim_that_is_rolled_back_are_given_out_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.limit(1)
    await world.make(2)
    worker = world.worker()

    async def fails(*_: object) -> None:
        raise LookupError

    with monkeypatch.context() as patched:
        patched.setattr(rates, "move", fails)
        with pytest.raises(LookupError):
            await worker.tick()
    assert await world.claim(world.worker()) == [T, T + SECOND]


# --- what waits -------------------------------------------------------------------------------


async def test_what_has_no_instant_soon_waits_on_hold_and_spends_no_attempt(
    world: World, store: Store
) -> None:
    await world.limit(2)
    await world.make(10)
    worker = world.worker()
    assert await world.claim(worker) == [T, T + SECOND / 2, T + SECOND]
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT * FROM runs WHERE hold IS NOT NULL")
    assert {(row["state"], row["hold"], row["hold_key"], row["attempt"]) for row in rows} == {
        ("READY", "rate", HOLD, 0)
    }
    assert len(rows) == 7
    assert counted(worker, "runs_held") == 7
    assert not await broken(store)
    await finish(worker)


async def test_what_waits_goes_before_what_comes_later_unless_that_is_more_urgent(
    world: World,
) -> None:
    await world.limit(10)
    worker = world.worker()
    first = await world.make(20)
    await world.claim(worker)
    urgent: list[RunKey] = []
    for step in range(15):
        later = await world.make(2)
        if step == 3:
            urgent = await world.make(1, priority=0)
        await world.step(worker)
        assert not set(later) & world.granted.keys()
    assert set(first) <= world.granted.keys() | set(first[16:])
    assert world.granted[urgent[0]] <= T + 1.3 * SECOND
    await finish(worker)


async def test_waiting_for_an_instant_takes_a_quarter_of_the_slots_at_most(world: World) -> None:
    await world.limit(50)
    worker = world.worker(slots=16)
    await world.make(16)
    await world.claim(worker)
    assert len(world.granted) <= 4 + burst(50)
    await world.make(4, WELL)
    executor = worker._executors[seeds.TARGET.__class__]
    assert isinstance(executor, Scripted)
    await world.claim(worker)
    await landed(worker)
    assert sum(attempt.target.url == WELL for attempt in executor.attempts) == 4
    await finish(worker)


class Timed(Scripted):
    """Remembers when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[RunKey, float] = {}

    async def answer(self, attempt: Attempt) -> Outcome:
        self.asked[attempt.run] = time.monotonic()
        return await super().answer(attempt)


async def test_nothing_is_sent_before_its_instant(world: World) -> None:
    await world.limit(20)
    executor = Timed()
    worker = world.worker(executor)
    await world.make(10)
    await world.claim(worker)
    waits = {
        flight.lease.run: flight.not_before
        for flight in worker._flights.values()
        if flight.not_before is not None
    }
    await finish(worker)
    assert len(waits) == 8
    assert all(executor.asked[run] >= not_before for run, not_before in waits.items())


async def test_a_run_that_is_cancelled_while_it_waits_for_its_instant_is_never_sent(
    world: World, store: Store
) -> None:
    await world.limit(1)
    executor = Scripted()
    worker = world.worker(executor)
    runs = await world.make(2)
    await world.claim(worker)
    for_long(worker)
    waiting = next(run for run in runs if world.granted[run] > T)
    async with store.transaction() as tx:
        await cancels.request(tx, Which.run(waiting), "by hand", stop=True)
    await worker.beats.tick()
    await finish(worker)
    assert [attempt.run for attempt in executor.attempts] == [run for run in runs if run != waiting]
    async with store.transaction() as tx:
        words = await tx.rows("SELECT outcome FROM occurrences ORDER BY outcome")
    assert [row["outcome"] for row in words] == ["CANCELLED", "COMPLETE"]


async def test_at_shutdown_what_waits_for_its_instant_is_handed_back_without_an_attempt(
    world: World, store: Store
) -> None:
    await world.limit(1)
    executor = Hanging()
    worker = world.worker(executor)
    await world.make(2)
    await world.claim(worker)
    for_long(worker)
    await worker.stop(0.0)
    await worker.leave()
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT state, attempt FROM runs ORDER BY attempt")
    assert (rows[0]["state"], rows[0]["attempt"]) == ("READY", 0)
    assert len(executor.attempts) <= 1


async def test_two_schedulers_together_let_no_more_go_than_one_would(world: World) -> None:
    await world.limit(10)
    worker, other = world.worker(), world.parts.pacing()
    await world.make(60)
    await world.claim(worker)
    before = await world.held()
    world.pass_on(2 * SECOND)
    for _ in range(10):
        world.pass_on()
        await world.pacing.tick()
        await other.tick()
        await world.pacing.tick()
    assert before - await world.held() <= 10 * 1.2 + 2
    await finish(worker)


# --- limits that change -----------------------------------------------------------------------


async def test_nothing_is_asked_of_rates_for_what_has_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.limit(1)
    worker, asked = world.worker(), list[object]()
    await worker.rates.tick()

    async def lock(*args: object) -> list[Row]:
        asked.append(args)
        return []

    monkeypatch.setattr(rates, "lock", lock)
    monkeypatch.setattr(rates, "limited", lock)
    await world.make(3, WELL)
    assert await carry_out(worker) == 3
    assert asked == []


async def test_a_flood_goes_on_hold_without_keeping_others_from_the_rate(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.limit(0.01)
    worker = world.worker(Hanging())
    await world.make(2)
    await world.claim(worker)
    await world.pacing.tick()

    async def lock(*_: object) -> list[Row]:
        raise AssertionError("it is known already")

    monkeypatch.setattr(rates, "lock", lock)
    await world.make(50)
    await worker.tick()
    assert await world.held() == 51
    await worker.stop(0.0)


async def test_a_rate_that_is_newly_set_holds_from_the_next_look_on_and_one_that_is_taken_away_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_rates, "READ_SEC", 0.0)
    worker = world.worker()
    await worker.rates.tick()
    await world.limit(2)
    await worker.rates.tick()
    await world.make(20)
    assert len(await world.claim(worker)) == 3
    await world.limit(None)
    await worker.rates.tick()
    await world.step(worker)
    assert await world.held() == 0
    assert await carry_out(worker) == 20


async def test_a_rate_that_is_raised_holds_up_nothing_for_as_long_as_the_old_one(
    world: World,
) -> None:
    await world.limit(0.001)
    await world.make(3)
    assert await world.claim(world.worker()) == [T]
    await world.limit(10)
    worker = world.worker()
    world.pass_on()
    await world.pacing.tick()
    world.pass_on(61 * SECOND)
    await world.step(worker)
    await world.step(worker)
    assert len(world.granted) == 3
    await finish(worker)


# --- receivers that want less -----------------------------------------------------------------


async def answer(world: World, outcome: Outcome, count: int = 1) -> Worker:
    worker = world.worker(Scripted(outcome))
    await world.make(count)
    await world.claim(worker)
    await finish(worker)
    await worker.rates.tick()
    return worker


async def test_a_429_halves_a_rate_once_in_a_while_down_to_a_64th_and_it_comes_back_by_itself(
    world: World, store: Store
) -> None:
    await world.limit(100)
    worker = await answer(world, TOO_FAST, 5)
    assert (await world.stands())["slowed"] == 0.5
    assert counted(worker, "target_changes") == 1
    for expected in (1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 64):
        world.pass_on(4 * SECOND)
        await answer(world, TOO_FAST)
        world.pass_on(SECOND)
        await answer(world, TOO_FAST)
        assert (await world.stands())["slowed"] == expected
    async with store.transaction() as tx:
        assert await gauges.slowed(tx) == 1
    seen = []
    for _ in range(17):
        seen.append((await world.stands())["slowed"])
        world.pass_on(10 * SECOND)
    assert seen == [min(1, 1 / 64 + n / 16) for n in range(17)]
    async with store.transaction() as tx:
        assert await gauges.slowed(tx) == 0


async def test_a_slowed_rate_gives_out_instants_accordingly(world: World) -> None:
    await world.limit(10)
    await answer(world, TOO_FAST)
    world.pass_on(2 * SECOND)
    worker = world.worker()
    await world.make(10)
    found = await world.claim(worker)
    assert gaps(found) == [0.2] * 5
    await finish(worker)


@pytest.mark.parametrize(("asked", "held"), [(3, 3), (600, 60)])
async def test_retry_after_stops_a_host_for_as_long_as_it_says_but_not_for_ever(
    world: World, asked: float, held: float
) -> None:
    await world.limit(10)
    outcome = Outcome(
        OutcomeKind.TRANSIENT, http_status=429, retry_after=timedelta(seconds=asked), error="429"
    )
    await answer(world, outcome)
    assert (await world.stands())["next_at"] == T + held * SECOND
    await world.make()
    worker = world.worker()
    assert await world.claim(worker) == []
    world.pass_on((held - 0.5) * SECOND)
    assert await world.step(worker) == []
    world.pass_on()
    assert await world.step(worker) == [T + held * SECOND]
    await finish(worker)


async def test_a_429_of_a_host_without_a_rate_slows_nothing_down(
    world: World, store: Store
) -> None:
    await world.limit(10, "well.example")
    await answer(world, TOO_FAST)
    async with store.transaction() as tx:
        assert await tx.value("SELECT count(*) FROM rates") == 0


async def test_a_run_that_is_to_try_a_target_and_has_no_instant_leaves_that_to_another(
    world: World, store: Store
) -> None:
    await world.limit(0.5)
    async with store.transaction() as tx:
        await tx.execute(
            "INSERT INTO targets (hold_key, tenant_id, host, port, state, reason, since, permits, "
            "released_at, probe_at) VALUES ('target:1:slow.example', 1, 'slow.example', 80, "
            "'HALF_OPEN', '', $1, $2, $1, $1::timestamptz + interval '1 minute')",
            T, HALF_OPEN_RUNS,
        )  # fmt: skip
    await world.make(HALF_OPEN_RUNS)
    worker = world.worker(Hanging())
    assert await world.claim(worker) == [T]
    async with store.transaction() as tx:
        found = await targets.permit(tx, {"target:1:slow.example": 0})
        left = await tx.value("SELECT permits FROM targets")
    assert (list(found), left) == (["target:1:slow.example"], HALF_OPEN_RUNS - 1)
    await worker.stop(0.0)
