"""A worker whose claims, settles and heartbeats go wrong in every way that they can."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from noonday.domain.errors import CommitUnknown, StoreUnavailable
from noonday.domain.model import Attempt, Excerpt, Outcome, OutcomeKind, RetryPolicy, RunKey
from noonday.loops import flight
from noonday.loops.worker import Worker
from noonday.store import Store, cancels, runs, tenants, workers
from noonday.store.cancels import Which
from noonday.store.secretbox import SecretBox
from tests.support import seeds
from tests.support.holds import eventually
from tests.support.invariants import broken
from tests.support.links import Link
from tests.support.scripted import Hanging, Parts, Scripted, carry_out, counted, landed
from tests.support.seeds import FAILURE, OTHER_WORKER

T = datetime.now(UTC)
SECOND = timedelta(seconds=1)


async def ready(store: Store, **how: object) -> list[RunKey]:
    async with store.transaction() as tx:
        return await seeds.ready(tx, **how)  # type: ignore[arg-type]


async def only_run(store: Store) -> tuple[str, int, int, int, int]:
    """State, attempt, lease version, failures, interruptions of the one run there is."""
    async with store.transaction() as tx:
        row = await tx.one(
            "SELECT state, attempt, lease_version, failures, interruptions FROM runs"
        )
    return tuple(row.values())


async def history(store: Store) -> list[str]:
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT status FROM executions ORDER BY finished_at, lease_version")
    return [row["status"] for row in rows]


async def outcomes(store: Store) -> list[str | None]:
    async with store.transaction() as tx:
        rows = await tx.rows("SELECT outcome FROM occurrences ORDER BY job_id")
    return [row["outcome"] for row in rows]


# --- claim, carry out, settle -----------------------------------------------------------------


async def test_a_worker_carries_out_what_is_ready_and_writes_what_came_of_it(
    store: Store, parts: Parts
) -> None:
    made = await ready(store, count=3)
    executor = Scripted()
    worker = parts.worker(executor)
    assert await carry_out(worker) == 3
    assert {attempt.run for attempt in executor.attempts} == set(made)
    assert {(each.number, each.lease_version) for each in executor.attempts} == {(1, 1)}
    assert await outcomes(store) == ["COMPLETE"] * 3
    assert not await broken(store)


async def test_a_worker_claims_no_more_than_it_has_slots_for(store: Store, parts: Parts) -> None:
    await ready(store, count=5)
    executor = Hanging()
    worker = parts.worker(executor, slots=3)
    assert [await worker.tick(), await worker.tick()] == [3, 0]
    executor.free.set()
    await landed(worker)
    assert await worker.tick() == 2
    await landed(worker)


async def test_the_last_free_slots_are_used_too_while_the_others_are_busy_for_long(
    store: Store, parts: Parts
) -> None:
    worker = parts.worker(Hanging(), slots=64)
    await ready(store, count=60)
    assert await worker.tick() == 60
    await ready(store, count=6)
    await eventually(worker.tick)
    assert worker.pools["default"].free == 0
    async with store.transaction() as tx:
        assert await tx.value("SELECT count(*) FROM runs WHERE state = 'READY'") == 2


async def test_a_full_worker_is_woken_when_a_slot_is_free_and_more_waits(
    store: Store, parts: Parts
) -> None:
    await ready(store, count=3)
    executor = Hanging()
    worker = parts.worker(executor, slots=2)
    woken: list[str] = []
    worker.wake_claim = woken.append
    worker.settling.wake = lambda: woken.append("settle")
    await worker.tick()
    executor.free.set()
    await landed(worker)
    assert sorted(woken) == ["default", "default", "settle", "settle"]


async def test_failures_are_retried_until_the_budget_is_used_up(store: Store, parts: Parts) -> None:
    store.now = T
    policy = RetryPolicy(max_attempts=3, base_sec=1, factor=1, max_age_sec=None)
    await ready(store, policy=policy)
    executor = Scripted(FAILURE)
    worker, retries = parts.worker(executor), parts.retries()
    for number in (1, 2, 3):
        await carry_out(worker)
        assert len(executor.attempts) == number
        store.now += 2 * SECOND
        assert await retries.tick() == (number < 3)
    assert [attempt.number for attempt in executor.attempts] == [1, 2, 3]
    assert await outcomes(store) == ["FAILED"]
    assert counted(worker, "dead_letters") == 1
    assert counted(worker, "retries") == 2
    assert not await broken(store)


# --- executors that break ---------------------------------------------------------------------


class Raising(Scripted):
    async def answer(self, attempt: Attempt) -> Outcome:
        raise RuntimeError(f"secret of {attempt.run}")


async def test_an_executor_that_raises_costs_its_own_run_one_failure_and_nobody_else_anything(
    store: Store, parts: Parts
) -> None:
    await ready(store)
    worker = parts.worker(Raising())
    assert await carry_out(worker) == 1
    assert await only_run(store) == ("RETRYING", 1, 1, 1, 0)
    async with store.transaction() as tx:
        row = await tx.one("SELECT error, unknown FROM executions")
    assert (row["error"], row["unknown"]) == ("RuntimeError in the worker", True)
    assert worker.pools["default"].free == 64


async def test_a_worker_with_the_wrong_key_sends_nothing_and_lets_the_run_be_tried_again(
    store: Store, parts: Parts
) -> None:
    (run,) = await ready(store)
    other = SecretBox([b"\1" * 32])
    async with store.transaction() as tx:
        made = await tenants.create(tx, other, "sealed-elsewhere")
        assert made is not None
        await tx.execute("UPDATE runs SET tenant_id = $1", made[0])
    executor = Scripted()
    assert await carry_out(parts.worker(executor)) == 1
    assert executor.attempts == []
    assert await only_run(store) == ("RETRYING", 1, 1, 1, 0)
    async with store.transaction() as tx:
        row = await tx.one("SELECT job_id, error, unknown FROM executions")
    assert tuple(row.values()) == (
        run.job_id,
        "a signing_secret was sealed with a key that is not at hand",
        False,
    )


async def test_an_executor_that_does_not_keep_its_deadline_is_cut_off(
    store: Store, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noonday.loops.worker.OVERTIME_SEC", -29.95)  # of a timeout of 30 s
    await ready(store)
    executor = Hanging()
    worker = parts.worker(executor)
    assert await carry_out(worker) == 1
    assert len(executor.cancelled) == 1
    async with store.transaction() as tx:
        row = await tx.one("SELECT status, error, unknown FROM executions")
    assert tuple(row.values()) == ("FAILED", "the attempt did not end in time", True)


@pytest.mark.parametrize("text", ["a\x00b", "half \ud800 a pair"])
async def test_a_text_that_cannot_be_stored_loses_itself_and_nothing_else(
    store: Store, parts: Parts, text: str
) -> None:
    await ready(store, count=3)
    bad = Outcome(OutcomeKind.PERMANENT, http_status=400, error=text)
    worker = parts.worker(Scripted(seeds.SUCCESS, bad, seeds.SUCCESS))
    assert await carry_out(worker) == 3
    assert sorted(map(str, await outcomes(store))) == ["COMPLETE", "COMPLETE", "None"]
    assert await worker.settling.tick() == 1
    assert sorted(map(str, await outcomes(store))) == ["COMPLETE", "COMPLETE", "FAILED"]
    assert counted(worker, "stale_settles") == 0
    assert not await broken(store)


@pytest.mark.parametrize("text", ["a\x00b", "half \ud800 a pair"])
async def test_no_excerpt_of_an_answer_keeps_an_outcome_from_being_stored(
    store: Store, parts: Parts, text: str
) -> None:
    async with store.transaction() as tx:
        await tenants.create(tx, SecretBox([bytes(32)]), "one")
    await ready(store)
    odd = msgspec.structs.replace(seeds.SUCCESS, response=Excerpt({"server": text}, text))
    assert await carry_out(parts.worker(Scripted(odd))) == 1
    assert await outcomes(store) == ["COMPLETE"]


async def test_an_outcome_that_cannot_be_stored_at_all_is_left_to_the_reaper(
    store: Store, parts: Parts
) -> None:
    await ready(store, count=2)
    bad = Outcome(OutcomeKind.TRANSIENT, http_status=70_000, error="no smallint")
    worker = parts.worker(Scripted(bad, seeds.SUCCESS))
    await carry_out(worker)
    while await worker.settling.tick():
        pass
    assert await only_run(store) == ("RUNNING", 1, 1, 0, 0)
    store.now = datetime.now(UTC) + 100 * SECOND
    assert await parts.reaper().tick() == 1
    assert await only_run(store) == ("READY", 1, 1, 1, 0)


# --- jobs that cannot be read -----------------------------------------------------------------


async def test_a_job_that_cannot_be_read_becomes_a_dead_letter_and_stops_nobody(
    store: Store, parts: Parts
) -> None:
    made = await ready(store, count=3)
    async with store.transaction() as tx:
        await tx.execute(
            'UPDATE jobs SET spec = \'{"target": {"type": "carrier pigeon"}}\' WHERE id = $1',
            made[1].job_id,
        )
    executor = Scripted()
    worker = parts.worker(executor)
    assert await carry_out(worker) == 3
    assert await outcomes(store) == ["COMPLETE", "FAILED", "COMPLETE"]
    async with store.transaction() as tx:
        letter = await tx.one("SELECT reason, error FROM dead_letters")
    assert letter["reason"] == "bad_payload"
    assert "job cannot be read" in letter["error"]
    assert len(executor.attempts) == 2
    assert not await broken(store)


# --- the answer to a claim is lost ------------------------------------------------------------


async def test_what_an_unknown_claim_took_is_handed_back_and_costs_nothing(
    store: Store, parts: Parts, linked: Store, link: Link
) -> None:
    await ready(store)
    executor = Scripted()
    worker = parts.worker(executor, store=linked)
    link.fault = "after commit"
    with pytest.raises(CommitUnknown):
        await worker.tick()
    assert await only_run(store) == ("RUNNING", 1, 1, 0, 0)
    assert await worker.tick() == 1, "handed back, and claimed again at once"
    await landed(worker)
    assert [(each.number, each.lease_version) for each in executor.attempts] == [(1, 2)]
    await worker.settling.tick()
    assert await outcomes(store) == ["COMPLETE"]
    assert not await broken(store)


async def test_handing_back_an_unknown_claim_keeps_what_the_worker_knows_it_holds(
    store: Store, parts: Parts, linked: Store, link: Link
) -> None:
    await ready(store)
    executor = Hanging()
    worker = parts.worker(executor, store=linked)
    assert await worker.tick() == 1
    await ready(store, count=2)
    link.fault = "after commit"
    with pytest.raises(CommitUnknown):
        await worker.tick()
    assert await worker.tick() == 2
    await eventually(lambda: len(executor.attempts) == 3)
    versions = sorted(attempt.lease_version for attempt in executor.attempts)
    assert versions == [1, 2, 2]
    executor.free.set()
    await landed(worker)
    assert await worker.settling.tick() == 3
    assert await outcomes(store) == ["COMPLETE"] * 3


async def test_a_clock_that_went_back_makes_no_known_run_an_unknown_one(
    store: Store, parts: Parts, linked: Store, link: Link
) -> None:
    (run,) = await ready(store)
    executor = Hanging()
    worker = parts.worker(executor, store=linked)
    assert await worker.tick() == 1
    async with store.transaction() as tx:  # as if claimed by a clock that was ahead
        await tx.execute("UPDATE runs SET leased_at = leased_at + interval '3 seconds'")
    link.fault = "before commit"
    with pytest.raises(StoreUnavailable):
        await worker.tick()
    assert await worker.tick() == 0
    assert await only_run(store) == ("RUNNING", 1, 1, 0, 0)
    executor.free.set()
    await landed(worker)
    assert await worker.settling.tick() == 1
    assert [attempt.run for attempt in executor.attempts] == [run]


async def test_an_unknown_claim_of_a_job_that_was_cancelled_meanwhile_is_its_end(
    store: Store, parts: Parts, linked: Store, link: Link
) -> None:
    (run,) = await ready(store)
    executor = Scripted()
    worker = parts.worker(executor, store=linked)
    link.fault = "after commit"
    with pytest.raises(CommitUnknown):
        await worker.tick()
    async with store.transaction() as tx:
        assert await cancels.request(tx, Which(run.job_id), "deleted") == 1
    assert await worker.tick() == 0
    assert await outcomes(store) == ["CANCELLED"]
    assert executor.attempts == []
    assert not await broken(store)


async def test_a_claim_that_never_happened_leaves_nothing_to_hand_back(
    store: Store, parts: Parts, linked: Store, link: Link
) -> None:
    await ready(store)
    executor = Scripted()
    worker = parts.worker(executor, store=linked)
    link.fault = "before commit"
    with pytest.raises(CommitUnknown):
        await worker.tick()
    assert await worker.tick() == 1
    await landed(worker)
    assert executor.attempts[0].lease_version == 1


async def test_a_worker_that_leaves_in_doubt_hands_back_what_it_may_hold(
    store: Store, parts: Parts, linked: Store, link: Link
) -> None:
    await ready(store)
    worker = parts.worker(Scripted(), store=linked)
    link.fault = "after commit"
    with pytest.raises(CommitUnknown):
        await worker.tick()
    await worker.stop(0)
    await worker.leave()
    assert await only_run(store) == ("READY", 0, 1, 0, 0)


# --- the answer to a settle is lost -----------------------------------------------------------


@pytest.mark.parametrize("fault", ["after commit", "before commit"])
@pytest.mark.parametrize(
    ("outcome", "left"),
    [
        (seeds.SUCCESS, "COMPLETE"),
        (FAILURE, "RETRYING"),
        (Outcome(OutcomeKind.PERMANENT), "FAILED"),
        (Outcome(OutcomeKind.INTERRUPTED), "READY"),
        (Outcome(OutcomeKind.NOT_SENT), "READY"),
    ],
)
async def test_a_settle_whose_answer_is_lost_is_written_once_and_is_not_called_stale(
    store: Store,
    parts: Parts,
    linked: Store,
    link: Link,
    fault: str,
    outcome: Outcome,
    left: str,
) -> None:
    await ready(store)
    worker = parts.worker(Scripted(outcome), store=linked)
    await worker.tick()
    await landed(worker)
    link.fault = fault  # type: ignore[assignment]
    with pytest.raises(CommitUnknown):
        await worker.settling.tick()
    assert await worker.settling.tick() == 1
    assert counted(worker, "stale_settles") == 0
    async with store.transaction() as tx:
        stands = await tx.value(
            "SELECT coalesce(r.state, o.outcome) FROM occurrences o "
            "LEFT JOIN runs r USING (job_id, occurrence_at, kind)"
        )
    assert stands == left
    assert len(await history(store)) == (outcome.kind is not OutcomeKind.NOT_SENT)
    assert await worker.settling.tick() == 0
    assert not await broken(store)


async def test_outcomes_wait_while_the_database_is_away(
    store: Store, parts: Parts, linked: Store, link: Link
) -> None:
    await ready(store, count=2)
    worker = parts.worker(Scripted(), store=linked)
    await worker.tick()
    await landed(worker)
    link.fault = "down"
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await worker.settling.tick()
    link.fault = "none"
    assert await worker.settling.tick() == 2
    assert await outcomes(store) == ["COMPLETE"] * 2


async def test_a_settle_that_is_cancelled_keeps_its_outcomes(store: Store, parts: Parts) -> None:
    await ready(store)
    worker = parts.worker(Scripted())
    await worker.tick()
    await landed(worker)
    settling = asyncio.create_task(worker.settling.tick())
    await asyncio.sleep(0)
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling
    await worker.leave()
    assert await outcomes(store) == ["COMPLETE"]
    assert counted(worker, "stale_settles") == 0


# --- leases that are lost ---------------------------------------------------------------------


async def test_a_worker_that_came_too_late_changes_nothing_and_is_counted(
    store: Store, parts: Parts
) -> None:
    store.now = T
    await ready(store)
    executor = Hanging()
    worker = parts.worker(executor)
    await worker.tick()
    store.now = T + 61 * SECOND
    assert await parts.reaper().tick() == 1
    async with store.transaction() as tx:
        assert len(await seeds.claim(tx, worker=OTHER_WORKER)) == 1
    executor.free.set()
    await landed(worker)
    assert await worker.settling.tick() == 1
    assert counted(worker, "stale_settles") == 1
    assert await only_run(store) == ("RUNNING", 2, 2, 1, 0)
    assert await history(store) == ["LEASE_EXPIRED"]


def backdate(worker: Worker, by_sec: float) -> None:
    """As if the leases had been asked for so much earlier, by the worker's own clock."""
    for each in worker._flights.values():
        each.extended -= by_sec


async def test_a_lease_is_extended_when_a_third_of_it_has_passed(
    store: Store, parts: Parts
) -> None:
    store.now = T
    await ready(store)
    worker = parts.worker(Hanging())
    await worker.tick()
    store.now = T + 21 * SECOND
    await worker.beats.tick()
    assert await locked_until(store) == T + 60 * SECOND, "not yet"
    backdate(worker, 25)
    await worker.beats.tick()
    assert await locked_until(store) == T + 81 * SECOND
    store.now = T + 22 * SECOND
    await worker.beats.tick()
    assert await locked_until(store) == T + 81 * SECOND, "not again"
    await worker.stop(0)


async def locked_until(store: Store) -> datetime:
    async with store.transaction() as tx:
        at: datetime = await tx.value("SELECT locked_until FROM runs")
    return at


async def test_an_attempt_whose_lease_is_somebody_elses_is_stopped_and_settles_nothing(
    store: Store, parts: Parts
) -> None:
    store.now = T
    await ready(store)
    executor = Hanging()
    worker = parts.worker(executor)
    await worker.tick()
    await eventually(lambda: executor.attempts)
    store.now = T + 61 * SECOND
    assert await parts.reaper().tick() == 1
    backdate(worker, 25)
    await worker.beats.tick()
    await landed(worker)
    assert len(executor.cancelled) == 1
    assert await worker.settling.tick() == 0
    assert await only_run(store) == ("READY", 1, 1, 1, 0)
    assert worker.pools["default"].free == 64
    assert worker._flights == {}


async def test_an_attempt_without_a_confirmed_heartbeat_is_stopped_before_its_lease_ends(
    store: Store, parts: Parts, linked: Store, link: Link
) -> None:
    await ready(store, lease_sec=1)
    executor = Hanging()
    worker = parts.worker(executor, store=store, beats=linked)
    await worker.tick()
    await eventually(lambda: executor.attempts)
    link.fault = "down"
    beating = asyncio.create_task(beat_on(worker))
    await eventually(lambda: executor.cancelled)
    async with store.transaction() as tx:
        assert await tx.value("SELECT locked_until > now() FROM runs"), "it was stopped in time"
    beating.cancel()
    assert await worker.settling.tick() == 0


async def test_not_even_a_database_that_keeps_silent_holds_that_up(
    store: Store, parts: Parts, linked: Store, link: Link
) -> None:
    await ready(store, lease_sec=1)
    executor = Hanging()
    worker = parts.worker(executor, store=store, beats=linked)
    await worker.tick()
    await eventually(lambda: executor.attempts)
    link.fault = "silent"
    beating = asyncio.create_task(beat_on(worker))
    await eventually(lambda: executor.cancelled)
    async with store.transaction() as tx:
        assert await tx.value("SELECT locked_until > now() FROM runs"), "it was stopped in time"
    beating.cancel()


async def beat_on(worker: Worker) -> None:
    while True:
        await worker.beats.tick()
        await asyncio.sleep(0.01)


async def test_a_worker_trusts_its_lease_for_less_long_than_the_database_does(
    store: Store, parts: Parts
) -> None:
    await ready(store)
    worker = parts.worker(Hanging())
    await worker.tick()
    (mine,) = worker._flights.values()
    assert flight.MARGIN == 0.2
    mine.extended = time.monotonic() - 47.9
    lost: list[flight.Flight] = []
    watch = flight.Watch(lost.append, [mine])
    watch.look()
    assert lost == []
    mine.extended -= 0.2
    watch.look()
    assert lost == [mine]
    await worker.stop(0)


async def test_attempts_that_share_a_timer_end_each_in_its_own_time(
    store: Store, parts: Parts
) -> None:
    await ready(store, count=3)
    worker = parts.worker(Hanging())
    await worker.tick()
    lost, late, fine = worker._flights.values()
    watch = fine.watch
    assert watch is not None
    assert lost.watch is late.watch is watch
    await eventually(lambda: fine.deadline < float("inf"))
    await eventually(lambda: late.deadline < float("inf"))
    lost.extended -= 60
    late.deadline -= 60
    watch.look()
    assert [each.lost for each in (lost, late, fine)] == [True, False, False]
    assert [each.overtime for each in (lost, late, fine)] == [False, True, False]
    await asyncio.wait([each.task for each in (lost, late) if each.task is not None])
    assert not fine.landed
    await worker.settling.tick()
    assert await history(store) == ["FAILED"], "the other is somebody else's by now"
    await worker.stop(0)
    assert watch._alarm is None


# --- shutdown ---------------------------------------------------------------------------------


async def test_what_was_not_sent_is_handed_back_at_shutdown_and_keeps_its_number(
    store: Store, parts: Parts
) -> None:
    await ready(store)
    second = Scripted()
    await restart(parts, sends=False)
    assert await only_run(store) == ("READY", 0, 1, 0, 0)
    assert await history(store) == []
    await carry_out(parts.worker(second))
    assert [(each.number, each.lease_version) for each in second.attempts] == [(1, 2)]
    assert not await broken(store)


async def test_what_may_have_been_sent_is_interrupted_and_uses_no_budget(
    store: Store, parts: Parts
) -> None:
    await ready(store, policy=RetryPolicy(max_attempts=1))
    for number in range(1, 4):
        await restart(parts)
        assert await only_run(store) == ("READY", number, number, 0, number)
    assert await history(store) == ["INTERRUPTED"] * 3
    executor = Scripted()
    await carry_out(parts.worker(executor))
    assert executor.attempts[0].number == 4
    assert await outcomes(store) == ["COMPLETE"]
    assert not await broken(store)


async def test_the_tenth_interruption_is_a_dead_letter(store: Store, parts: Parts) -> None:
    await ready(store)
    for _ in range(10):
        await restart(parts)
    assert await outcomes(store) == ["FAILED"]
    async with store.transaction() as tx:
        assert await tx.value("SELECT reason FROM dead_letters") == "interrupted"


async def restart(parts: Parts, *, sends: bool = True) -> None:
    """A rolling restart: claim, be told to go with no grace, settle, leave."""
    executor = Hanging(sends=sends)
    worker = parts.worker(executor)
    assert await worker.tick() == 1
    await eventually(lambda: executor.attempts)
    await worker.stop(0)
    await worker.leave()


async def test_what_ends_within_the_grace_period_is_settled(store: Store, parts: Parts) -> None:
    await ready(store)
    executor = Hanging()
    worker = parts.worker(executor)
    await worker.tick()
    stopping = asyncio.create_task(worker.stop(10))
    await asyncio.sleep(0)
    executor.free.set()
    await stopping
    assert await worker.tick() == 0, "nothing more is claimed"
    await worker.leave()
    assert await outcomes(store) == ["COMPLETE"]
    assert executor.cancelled == []


async def test_what_a_claim_took_while_the_worker_was_told_to_stop_is_handed_back(
    store: Store, parts: Parts
) -> None:
    await ready(store)
    executor = Hanging()
    worker = parts.worker(executor)
    claiming = asyncio.create_task(worker.tick())
    await asyncio.sleep(0)
    await worker.stop(0)
    await claiming
    await worker.leave()
    assert await only_run(store) == ("READY", 0, 1, 0, 0)
    assert executor.attempts == []


async def test_a_worker_that_left_is_not_registered_any_more(store: Store, parts: Parts) -> None:
    worker = parts.worker(Scripted())
    await worker.beats.tick()
    async with store.transaction() as tx:
        assert await workers.alive(tx, "worker") == 1
    await worker.stop(0)
    await worker.leave()
    async with store.transaction() as tx:
        assert await workers.every(tx) == []


async def test_a_worker_says_how_far_the_reaper_has_to_look(store: Store, parts: Parts) -> None:
    store.now = T
    await ready(store, priority=3)
    worker = parts.worker(Scripted())
    await worker.tick()
    await worker.beats.tick()
    async with store.transaction() as tx:
        assert await workers.granted(tx) == {"default:3": T}
        assert not (await runs.look(tx, {"default": [seeds.span(3)]}))[1]
    await landed(worker)
