"""Receivers that fail are left alone, tried again, and get their runs back slowly; nobody else
notices."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from noonday.domain.breaker import HALF_OPEN_RUNS, MIN_REQUESTS, released
from noonday.domain.errors import StoreUnavailable
from noonday.domain.model import Attempt, Outcome, OutcomeKind, RetryPolicy, RunKey
from noonday.loops.admission import Admission
from noonday.loops.worker import Worker
from noonday.store import Row, Store, cancels, targets, tenants
from noonday.store.cancels import Which
from noonday.store.secretbox import SecretBox
from tests.support import seeds
from tests.support.invariants import broken
from tests.support.links import Link
from tests.support.scripted import Parts, Scripted, carry_out, counted, landed

T = datetime.now(UTC).replace(microsecond=0)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
DEAD, WELL = "http://dead.example/hook", "http://well.example/hook"
KEY = "target:1:dead.example"
DOWN = Outcome(OutcomeKind.TRANSIENT, http_status=503, error="answered 503")
UP = seeds.SUCCESS
GONE = Outcome(OutcomeKind.GONE, http_status=410, error="answered 410")


class Receivers(Scripted):
    """Answers for each URL as it was told last; well, unless told."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[str, Outcome] = {}

    async def answer(self, attempt: Attempt) -> Outcome:
        return self.at.get(attempt.target.url, UP)

    def calls(self, url: str) -> int:
        return sum(attempt.target.url == url for attempt in self.attempts)


async def make(store: Store, url: str, count: int = 1, **how: object) -> list[RunKey]:
    async with store.transaction() as tx:
        return await seeds.ready(tx, url=url, count=count, **how)  # type: ignore[arg-type]


async def state(store: Store, key: str = KEY) -> str | None:
    async with store.transaction() as tx:
        found = await tx.row("SELECT state FROM targets WHERE hold_key = $1", key)
    return None if found is None else str(found["state"])


async def held(store: Store, key: str = KEY) -> int:
    async with store.transaction() as tx:
        return int(await tx.value("SELECT count(*) FROM runs WHERE hold_key = $1", key))


async def ledger(store: Store) -> Counter[str | None]:
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT outcome, reason FROM occurrences")
    return Counter(row["reason"] or row["outcome"] for row in rows)


async def rows_of(store: Store) -> list[Row]:
    async with store.transaction() as tx:
        return await tx.rows("SELECT * FROM runs ORDER BY job_id")


async def work(worker: Worker) -> None:
    """Claim and carry out until nothing is READY, and tell of the targets."""
    while await worker.tick():
        await landed(worker)
        while await worker.settling.tick():
            pass
        await worker.breakers.tick()


async def fail(store: Store, worker: Worker, executor: Receivers, url: str = DEAD) -> None:
    """As many failures as it takes."""
    executor.at[url] = DOWN
    await make(store, url, MIN_REQUESTS)
    await work(worker)


def after(store: Store, wait: timedelta) -> datetime:
    assert store.now is not None
    return store.now + wait


class World:
    """One worker and one scheduler process, at a time that is set."""

    def __init__(self, store: Store, parts: Parts) -> None:
        store.now = T
        self.store = store
        self.executor = Receivers()
        self.worker = parts.worker(self.executor)
        self.admission: Admission = parts.admission()
        self.retries = parts.retries()
        self.parts = parts

    async def step(self, by: timedelta) -> None:
        self.store.now = after(self.store, by)
        while await self.retries.tick():
            pass
        await self.admission.tick()
        await work(self.worker)

    async def fail(self, url: str = DEAD) -> None:
        await fail(self.store, self.worker, self.executor, url)

    async def close(self, url: str = DEAD) -> None:
        """The receiver is well again, and that is found out."""
        self.executor.at.pop(url)
        await self.step(6 * MINUTE)
        assert await state(self.store) == "CLOSED"


@pytest.fixture
def world(store: Store, parts: Parts) -> World:
    return World(store, parts)


# --- an outage --------------------------------------------------------------------------------


async def test_an_outage_of_twenty_minutes_fills_no_dead_letters_and_costs_few_attempts(
    world: World, store: Store
) -> None:
    executor = world.executor
    executor.at[DEAD] = DOWN
    step, made = 5 * SECOND, 0
    while after(store, step) <= T + 20 * MINUTE:
        await make(store, DEAD, 15)
        await make(store, WELL, 1)
        made += 15
        await world.step(step)
        assert executor.calls(WELL) == made / 15, "another target is not affected"
    attempts = executor.calls(DEAD)
    assert await held(store) > made - 50
    assert attempts < 60, f"{attempts} attempts at {made} runs"
    assert set(await ledger(store)) == {"COMPLETE", None}
    assert not await broken(store)

    # It comes back: at the next look a few are let through, and the rest follows at the ramp.
    executor.at.clear()
    while await state(store) != "CLOSED":
        await world.step(SECOND)
    closed_at, before = store.now, executor.calls(DEAD)
    assert closed_at is not None
    while await held(store):
        await world.step(SECOND)
        since = (after(store, 0 * SECOND) - closed_at).total_seconds()
        # (What failed before and waited for its retry is not held any more.)
        assert executor.calls(DEAD) - before <= released(since) + 40
    while await rows_of(store):
        await world.step(MINUTE)
    assert await ledger(store) == {"COMPLETE": made + made // 15}
    assert counted(world.worker, "dead_letters") == 0
    assert not await broken(store)


async def test_a_flood_at_a_dead_host_costs_each_run_one_claim_and_one_hold_and_no_attempt(
    world: World, store: Store
) -> None:
    await world.fail()
    sent = world.executor.calls(DEAD)
    await make(store, DEAD, 500)
    await work(world.worker)
    await work(world.worker)
    assert world.executor.calls(DEAD) == sent
    waiting = [row for row in await rows_of(store) if row["hold"]]
    assert len(waiting) == 500
    assert {
        (row["state"], row["hold"], row["hold_key"], row["attempt"], row["lease_version"])
        for row in waiting
    } == {("READY", "breaker", KEY, 0, 1)}
    assert counted(world.worker, "runs_held") == 500
    assert not await broken(store)


async def test_a_breaker_is_a_tenants_own_and_one_ports_own(world: World, store: Store) -> None:
    await world.fail()
    async with store.transaction() as tx:
        await tenants.create(tx, SecretBox([bytes(32)]), "one")
        made = await tenants.create(tx, SecretBox([bytes(32)]), "another")
    assert made is not None
    for url, tenant in ((DEAD, made[0]), ("http://dead.example:8080/hook", 1), (WELL, 1)):
        before = len(world.executor.attempts)
        async with store.transaction() as tx:
            await seeds.ready(tx, url=url, tenant=tenant)
        await world.worker.tick()
        await landed(world.worker)
        await world.worker.settling.tick()
        assert len(world.executor.attempts) == before + 1, (url, tenant)


# --- trying again -----------------------------------------------------------------------------


async def test_after_its_pause_a_target_is_tried_with_a_few_runs_and_left_for_longer_each_time(
    world: World, store: Store
) -> None:
    await world.fail()
    await make(store, DEAD, 50, policy=RetryPolicy(max_age_sec=None))
    await work(world.worker)
    for pause in (30, 60, 120, 240, 300, 300):
        before = world.executor.calls(DEAD)
        await world.step((pause - 1) * SECOND)
        assert (await state(store), world.executor.calls(DEAD)) == ("OPEN", before)
        await world.step(SECOND)
        assert await state(store) == "OPEN"
        assert 1 <= world.executor.calls(DEAD) - before <= HALF_OPEN_RUNS


async def test_it_closes_when_all_that_were_let_through_went_well(
    world: World, store: Store
) -> None:
    await world.fail()
    await make(store, DEAD, 50)
    await work(world.worker)
    world.executor.at.clear()
    before = world.executor.calls(DEAD)
    await world.step(30 * SECOND)
    assert await state(store) == "CLOSED"
    assert world.executor.calls(DEAD) == before + HALF_OPEN_RUNS
    await world.step(SECOND)
    assert world.executor.calls(DEAD) == before + HALF_OPEN_RUNS + released(1)


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(OutcomeKind.TRANSIENT, http_status=429, error="answered 429"),
        Outcome(OutcomeKind.BLOCKED),
        Outcome(OutcomeKind.INTERRUPTED, unknown=True),
    ],
)
async def test_permits_that_come_to_nothing_are_given_again_after_a_pause(
    world: World, store: Store, outcome: Outcome
) -> None:
    await world.fail()
    await make(store, DEAD, 20)
    await work(world.worker)
    world.executor.at[DEAD] = outcome
    before = world.executor.calls(DEAD)
    await world.step(30 * SECOND)
    for _ in range(4):
        assert await state(store) == "HALF_OPEN"
        assert world.executor.calls(DEAD) == before + HALF_OPEN_RUNS
        await world.step(7 * SECOND)
    world.executor.at.clear()
    await world.step(2 * SECOND)
    assert await state(store) == "CLOSED"


async def test_a_worker_that_dies_with_permits_costs_a_pause_and_no_more(
    world: World, store: Store, parts: Parts
) -> None:
    await world.fail()
    await make(store, DEAD, 20)
    await work(world.worker)
    store.now = after(store, 30 * SECOND)
    await world.admission.tick()
    dead = parts.worker(Receivers())
    await dead.tick()  # and is never heard of again
    assert (await state(store), len(dead._flights)) == ("HALF_OPEN", HALF_OPEN_RUNS)
    world.executor.at.clear()
    await work(world.worker)
    before = world.executor.calls(DEAD)
    await world.step(29 * SECOND)
    assert (await state(store), world.executor.calls(DEAD)) == ("HALF_OPEN", before)
    await world.step(SECOND)
    assert await state(store) == "CLOSED"
    await landed(dead)


async def test_a_late_result_of_an_earlier_try_changes_nothing(world: World, store: Store) -> None:
    await world.fail()
    async with store.transaction() as tx:
        generation = await tx.value("SELECT generation FROM targets")
    await make(store, DEAD, 10)
    await world.step(30 * SECOND)
    assert await state(store) == "OPEN", "it failed again"
    for later in range(2):
        async with store.transaction() as tx:
            assert not await targets.probe_succeeded(tx, KEY, generation + 1, 9), later
            assert not await targets.probe_failed(tx, KEY, generation + 1, "late", [MINUTE])
        store.now = after(store, MINUTE)
        async with store.transaction() as tx:
            await targets.half_open(tx, KEY, MINUTE)


async def test_what_failed_long_before_it_closed_does_not_open_it_again(
    world: World, store: Store
) -> None:
    world.executor.at[DEAD] = DOWN
    await make(store, DEAD, MIN_REQUESTS, policy=RetryPolicy(max_attempts=1))
    await work(world.worker)
    await make(store, DEAD, HALF_OPEN_RUNS)
    await work(world.worker)
    await world.close()
    world.executor.at[DEAD] = DOWN
    await make(store, DEAD, MIN_REQUESTS - 1)
    await work(world.worker)
    assert await state(store) == "CLOSED", "those of before are not counted"
    store.now = after(store, MINUTE)
    await make(store, DEAD, 1)
    await work(world.worker)
    assert await state(store) == "OPEN"


async def test_a_worker_that_has_missed_an_outage_cannot_open_the_breaker_for_it(
    world: World, store: Store, parts: Parts
) -> None:
    store.now = None
    behind = parts.worker(world.executor)
    await behind.breakers.tick()
    world.executor.at[DEAD] = DOWN
    await make(store, DEAD, MIN_REQUESTS)
    await behind.tick()
    await landed(behind)
    await behind.settling.tick()
    async with store.transaction() as tx:  # meanwhile opened, tried, and closed
        await tx.execute(
            "INSERT INTO targets (hold_key, tenant_id, host, port, state, reason, since, "
            "released_at) VALUES ($1, 1, 'dead.example', 80, 'CLOSED', '', now(), now())",
            KEY,
        )
    await behind.breakers.tick()
    assert await state(store) == "CLOSED"


# --- 410 --------------------------------------------------------------------------------------


async def test_a_410_suspends_its_url_until_somebody_resumes_it_and_no_other(
    world: World, store: Store
) -> None:
    other = "http://dead.example/other"
    world.executor.at[DEAD] = GONE
    await make(store, DEAD)
    await work(world.worker)
    assert await ledger(store) == {"target_gone": 1}
    await make(store, DEAD, 5)
    await make(store, other, 5)
    await world.step(24 * 60 * MINUTE)
    assert (world.executor.calls(DEAD), world.executor.calls(other)) == (1, 5)
    async with store.transaction() as tx:
        row = await tx.one("SELECT hold_key, host, url, state, reason FROM targets")
    assert tuple(row.values())[1:] == ("dead.example", DEAD, "SUSPENDED", "answered 410")
    assert await held(store, row["hold_key"]) == 5
    world.executor.at.clear()
    async with store.transaction() as tx:
        assert len(await targets.resume(tx, 1, "dead.example", "resumed by me") or ()) == 1
    await world.step(SECOND)
    assert world.executor.calls(DEAD) == 6
    assert await ledger(store) == {"target_gone": 1, "COMPLETE": 10}
    assert not await broken(store)


async def test_a_suspended_url_uses_no_permit_of_its_host(world: World, store: Store) -> None:
    gone = "http://dead.example/gone"
    world.executor.at[gone] = GONE
    await make(store, gone)
    await work(world.worker)
    await world.fail()
    await make(store, gone, 10, priority=0)
    await make(store, DEAD, 10)
    await work(world.worker)
    world.executor.at.pop(DEAD)
    await world.step(30 * SECOND)
    assert await state(store) == "CLOSED"
    assert world.executor.calls(gone) == 1


# --- what waits -------------------------------------------------------------------------------


async def test_a_held_run_can_be_cancelled_and_killed(world: World, store: Store) -> None:
    await world.fail()
    one, other, third = await make(store, DEAD, 3)
    await work(world.worker)
    async with store.transaction() as tx:
        assert await cancels.cancel(tx, Which(one.job_id), "deleted") == 1
        assert await cancels.cancel(tx, Which.run(other), "by hand", kill=True) == 1
    await world.close()
    await world.step(MINUTE)
    async with store.transaction() as tx:
        rows = await tx.rows(
            "SELECT outcome FROM occurrences WHERE job_id = ANY($1) ORDER BY outcome",
            [one.job_id, other.job_id, third.job_id],
        )
    assert [row["outcome"] for row in rows] == ["CANCELLED", "COMPLETE", "FAILED"]
    assert not await broken(store)


async def test_a_run_that_failed_before_and_is_held_beyond_its_age_ends_unsent_as_expired(
    world: World, store: Store
) -> None:
    policy = RetryPolicy(base_sec=1, max_age_sec=120)
    world.executor.at[DEAD] = DOWN
    (old,) = await make(store, DEAD, policy=policy)
    await make(store, DEAD, MIN_REQUESTS)
    await work(world.worker)
    (never_tried,) = await make(store, DEAD, policy=policy)
    await world.step(5 * SECOND)
    await world.close()
    sent = [attempt.run for attempt in world.executor.attempts]
    await world.step(5 * SECOND)
    assert sent.count(old) == 1
    async with store.transaction() as tx:
        rows = await tx.rows(
            "SELECT job_id, coalesce(reason, outcome) AS word FROM occurrences "
            "WHERE job_id = ANY($1)",
            [old.job_id, never_tried.job_id],
        )
    words = {row["job_id"]: row["word"] for row in rows}
    assert words == {old.job_id: "expired", never_tried.job_id: "COMPLETE"}
    assert not await broken(store)


async def test_what_is_held_under_a_key_that_stands_for_nothing_goes_on_at_once(
    world: World, store: Store
) -> None:
    await make(store, WELL, 5)
    async with store.transaction() as tx:
        await tx.execute(
            "UPDATE runs SET hold = 'breaker', hold_key = 'target:1:nothing', claimable = false"
        )
    await world.step(SECOND)
    assert world.executor.calls(WELL) == 5
    assert counted(world.admission, "runs_admitted") == 5


async def test_other_kinds_of_holds_are_left_alone(world: World, store: Store) -> None:
    (run,) = await make(store, WELL)
    async with store.transaction() as tx:
        await seeds.hold(tx, run)
    await world.step(MINUTE)
    assert await held(store, seeds.HOLD_KEY) == 1


async def test_two_admissions_together_let_no_more_go_than_one_would(
    world: World, store: Store, parts: Parts
) -> None:
    await world.fail()
    await make(store, DEAD, 200)
    await work(world.worker)
    other = parts.admission()
    world.executor.at.clear()
    await world.step(30 * SECOND)
    before = world.executor.calls(DEAD)
    for second in range(1, 8):
        store.now = after(store, SECOND)
        await other.tick()
        await world.admission.tick()
        await other.tick()
        await work(world.worker)
        assert world.executor.calls(DEAD) - before == released(second)


async def test_a_target_is_forgotten_a_week_after_it_closed_unless_runs_are_held_by_it(
    world: World, store: Store
) -> None:
    await world.fail()
    await make(store, DEAD)
    await work(world.worker)
    await world.close()
    async with store.transaction() as tx:
        since = await tx.value("SELECT since FROM targets")
    for days, still_held, expected in ((6, True, 0), (8, True, 0), (8, False, 1)):
        store.now = since + timedelta(days=days)
        while not still_held and await held(store):
            await world.admission.tick()
        async with store.transaction() as tx:
            assert await targets.forget(tx) == expected


# --- where things go wrong --------------------------------------------------------------------


async def test_without_a_database_breakers_wait_and_settles_do_not_wait_for_them(
    store: Store, linked: Store, link: Link, parts: Parts
) -> None:
    executor = Receivers()
    worker = parts.worker(executor, store=linked)
    await worker.breakers.tick()
    executor.at[DEAD] = DOWN
    await make(store, DEAD, MIN_REQUESTS)
    await worker.tick()
    await landed(worker)
    assert await worker.settling.tick() == MIN_REQUESTS, "before anything was told of the target"
    assert await state(store) is None
    link.fault = "down"
    with pytest.raises(StoreUnavailable):
        await worker.breakers.tick()
    link.fault = "none"
    await worker.breakers.tick()
    assert await state(store) == "OPEN"


async def test_a_worker_that_has_just_started_leaves_alone_what_is_open(
    world: World, store: Store, parts: Parts
) -> None:
    await world.fail()
    await make(store, DEAD, 5)
    executor = Receivers()
    fresh = parts.worker(executor)
    assert await carry_out(fresh) == 0
    assert (executor.attempts, await held(store)) == ([], 5)


async def test_a_claim_asks_nothing_of_targets_while_none_is_open(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.worker.breakers.tick()
    asked: list[object] = []

    async def permit(*args: object) -> dict[str, Row]:
        asked.append(args)
        return {}

    monkeypatch.setattr(targets, "permit", permit)
    await make(store, WELL, 3)
    assert await carry_out(world.worker) == 3
    assert asked == []


async def test_only_what_the_executor_says_counts_for_a_target(world: World, store: Store) -> None:
    async with store.transaction() as tx:
        await seeds.ready(tx, url=WELL, count=20)
        await tx.execute("UPDATE jobs SET payload = NULL, payload_ref = md5(id::text)")
    await world.worker.tick()
    await landed(world.worker)
    await world.worker.settling.tick()
    await world.worker.breakers.tick()
    assert world.executor.attempts == []
    assert await state(store, "target:1:well.example") is None, "a blob that is missing is ours"
