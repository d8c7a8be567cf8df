"""Replays over a real database: what is reopened, how fast, and what stops them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from noonday.domain.breaker import target_of
from noonday.domain.model import Interval, Outcome, OutcomeKind, RetryPolicy, RunKey
from noonday.domain.ranking import Ranks
from noonday.domain.replay import Letters, ReplayState, StopWhen
from noonday.drill.checks.received import Received
from noonday.executors.http import HttpExecutor
from noonday.loops import Loop, replays
from noonday.receiver import Delivery, Receiver, SqliteStore, Verdict
from noonday.store import Store, Tx, dead_letters, jobs, runs, tenants
from noonday.store import replays as replay_rows
from noonday.store.secretbox import SecretBox
from noonday.telemetry import Metrics
from tests.support import seeds
from tests.support.holds import eventually
from tests.support.invariants import broken
from tests.support.letters import (
    URL,
    Played,
    ask,
    letters,
    lie_there,
    loop_over,
    shown,
)
from tests.support.receivers import Answer, RecordingReceiver
from tests.support.scripted import Hanging, Parts, Scripted, carry_out
from tests.support.seeds import FAILURE, SUCCESS

T = datetime.now(UTC).replace(microsecond=0)
SECOND = timedelta(seconds=1)
GOOD = Outcome(OutcomeKind.SUCCESS, http_status=200)


@pytest.fixture(autouse=True)
def _bound_time(store: Store) -> None:
    store.now = T


def played(store: Store, parts: Parts, executor: Scripted, loops: int = 1) -> Played:
    return Played(store, parts.worker(executor), [loop_over(store) for _ in range(loops)])


async def lie(store: Store, count: int = 1, **how: object) -> list[RunKey]:
    async with store.transaction() as tx:
        return await lie_there(tx, count, **how)  # type: ignore[arg-type]


def pass_time(store: Store, seconds: float) -> None:
    assert store.now is not None
    store.now += timedelta(seconds=seconds)


async def execute(store: Store, statement: str, *args: object) -> None:
    async with store.transaction() as tx:
        await tx.execute(statement, *args)


async def running(store: Store) -> int:
    async with store.transaction() as tx:
        count: int = await tx.value("SELECT count(*) FROM runs WHERE state = 'RUNNING'")
    return count


# --- to the end -------------------------------------------------------------------------------


async def test_every_letter_is_reopened_once_oldest_first_and_under_its_own_name(
    store: Store, parts: Parts
) -> None:
    made = await lie(store, 40)
    executor = Scripted()
    row = await played(store, parts, executor).go(await ask(store, rate_per_sec=20))
    counted = [row[name] for name in ("state", "matched", "replayed", "succeeded", "failed")]
    assert counted == ["DONE", 40, 40, 40, 0]
    assert [attempt.run for attempt in executor.attempts] == made
    assert {(each.number, each.lease_version) for each in executor.attempts} == {(2, 2)}
    assert await letters(store) == ["REPLAYED"] * 40
    assert await letters(store, "replay_outcome") == ["SUCCEEDED"] * 40
    assert not row["active"]
    assert not await broken(store)


async def test_letters_that_came_after_it_was_asked_for_are_left_alone(
    store: Store, parts: Parts
) -> None:
    await lie(store, 3)
    replay_id = await ask(store)
    await lie(store, 2, before=-SECOND)
    store.now = T + 10 * SECOND
    row = await played(store, parts, Scripted()).go(replay_id)
    assert (row["matched"], row["replayed"]) == (3, 3)
    assert sorted(await letters(store)) == ["DEAD", "DEAD", "REPLAYED", "REPLAYED", "REPLAYED"]


@pytest.mark.parametrize("scanned", [1, 7, 5_000])
@pytest.mark.parametrize(
    "by", [Letters(fingerprint="f"), Letters(reason="timeout"), Letters(target_host="a.b")]
)
async def test_only_what_the_filter_names_is_reopened_however_rare_it_is(
    store: Store, parts: Parts, monkeypatch: pytest.MonkeyPatch, scanned: int, by: Letters
) -> None:
    monkeypatch.setattr(replay_rows.walk, "__defaults__", (scanned,))
    wanted = []
    for n in range(6):
        hours = timedelta(hours=20 - 2 * n)
        await lie(store, 4, before=hours)
        rare = {"reason": "timeout", "fingerprint": "f", "host": "a.b"}
        wanted += await lie(store, 1, before=hours - timedelta(minutes=30), **rare)
    between = replace(by, dead_from=T - timedelta(hours=19), dead_to=T - timedelta(hours=10))
    executor = Scripted()
    row = await played(store, parts, executor).go(await ask(store, filter=between))
    assert [attempt.run for attempt in executor.attempts] == wanted[1:-1]
    assert row["replayed"] == row["matched"] == 4


async def test_letters_that_are_named_are_reopened_and_no_others(
    store: Store, parts: Parts
) -> None:
    made = await lie(store, 5)
    await lie(store, 1, tenant=2)
    names = [str(made[3]), str(made[1]), str(seeds.held(made[0]).job_id.hex) + "-s1"]
    row = await played(store, parts, executor := Scripted()).go(await ask(store, ids=tuple(names)))
    assert [attempt.run for attempt in executor.attempts] == [made[1], made[3]]
    assert (row["matched"], row["replayed"], row["skipped"]) == (2, 2, {"not_found": 1})


async def test_another_tenants_letters_are_not_there(store: Store, parts: Parts) -> None:
    (theirs,) = await lie(store, 1, tenant=2)
    for ids in (None, (str(theirs),)):
        row = await played(store, parts, executor := Scripted()).go(await ask(store, ids=ids))
        assert (row["state"], row["matched"], executor.attempts) == ("DONE", 0, [])
    assert await letters(store) == ["DEAD"]


# --- the gate ---------------------------------------------------------------------------------


@pytest.fixture
async def receiver() -> AsyncIterator[RecordingReceiver]:
    async with RecordingReceiver() as receiving:
        yield receiving


@pytest.fixture
async def executor() -> AsyncIterator[HttpExecutor]:
    made = HttpExecutor(allow_private=True, ports=None, limit=64)
    await made.open()
    yield made
    await made.close()


@pytest.mark.parametrize(("rate", "count"), [(10, 3_000), (1_000, 50_000)])
async def test_a_receiver_that_dies_again_sees_a_handful_and_the_rest_stays(
    store: Store, parts: Parts, receiver: RecordingReceiver, executor: HttpExecutor, rate: float,
    count: int,
) -> None:  # fmt: skip
    async with store.transaction() as tx:
        await tenants.create(tx, SecretBox([bytes(32)]), "alpha")
    for _ in range(0, count, 1_000):
        await lie(store, 1_000, url=f"{receiver.url}/hook")
    receiver.answer("/hook", *[200] * 30, 503)
    replay_id = await ask(store, rate_per_sec=rate)
    row = await played(store, parts, executor).go(replay_id)  # type: ignore[arg-type]
    assert row["state"] == "STOPPED"
    assert row["state_reason"].startswith("too many failed")
    window = StopWhen().window
    assert len(receiver.requests) == row["replayed"] < 30 + window
    assert row["succeeded"] == 30
    assert 3 <= row["failed"] < window
    assert row["unfinished"] == 0
    assert (await letters(store)).count("DEAD") == count - 30
    assert not await broken(store)


async def test_a_canary_that_fails_stops_it_before_anything_else_is_reopened(
    store: Store, parts: Parts
) -> None:
    await lie(store, 20)
    playing = played(store, parts, Scripted(GOOD, GOOD, FAILURE))
    row = await playing.go(await ask(store, canary=3, rate_per_sec=1_000))
    assert (row["state"], row["replayed"]) == ("STOPPED", 3)
    assert row["state_reason"] == "the canary failed: 1 of 3"
    assert row["canary_passed_at"] is None


async def test_nothing_but_the_canary_is_reopened_while_it_is_unfinished(
    store: Store, parts: Parts
) -> None:
    await lie(store, 20)
    hanging = Hanging()
    worker, loop = parts.worker(hanging), loop_over(store)
    replay_id = await ask(store, canary=2, rate_per_sec=1_000)
    for _ in range(5):
        await loop.tick()
        await worker.tick()
        pass_time(store, 1)
    assert (await shown(store, replay_id))["replayed"] == await running(store) == 2
    hanging.free.set()
    row = await Played(store, worker, [loop]).go(replay_id)
    assert (row["state"], row["succeeded"]) == ("DONE", 20)


async def test_no_more_are_unfinished_than_the_window_however_slow_the_receiver(
    store: Store, parts: Parts
) -> None:
    await lie(store, 60)
    hanging = Hanging()
    worker, loop = parts.worker(hanging), loop_over(store)
    replay_id = await ask(store, canary=0, rate_per_sec=1_000, stop_when=StopWhen(0.2, 7))
    for _ in range(10):
        await loop.tick()
        await worker.tick()
        pass_time(store, 1)
    assert (await shown(store, replay_id))["unfinished"] == await running(store) == 7
    hanging.free.set()
    row = await Played(store, worker, [loop]).go(replay_id)
    assert (row["state"], row["succeeded"]) == ("DONE", 60)


async def test_the_first_failure_counts_even_though_the_run_will_be_tried_again(
    store: Store, parts: Parts
) -> None:
    await lie(store, 5, policy=RetryPolicy(max_attempts=8))
    playing = played(store, parts, Scripted(FAILURE))
    row = await playing.go(await ask(store))
    assert (row["state"], row["failed"], row["unfinished"]) == ("STOPPED", 1, 0)
    async with store.transaction() as tx:
        assert await tx.value("SELECT state FROM runs") == "RETRYING"
    assert not row["active"]


OPEN_BREAKER = """
INSERT INTO targets (hold_key, tenant_id, host, port, state, reason, since, released_at, permits,
                     probe_at)
VALUES ($1, $2, 'h', 1, $3, 'a test', now(), now(), 100,
        CASE WHEN $3 IN ('OPEN', 'HALF_OPEN') THEN now() END)
"""


async def set_breaker(
    store: Store, state: str, url: str = URL, tenant: int = 1, *, only_url: bool = False
) -> None:
    target = target_of(tenant, url)
    assert target is not None
    await execute(store, OPEN_BREAKER, target.url_key if only_url else target.key, tenant, state)


@pytest.mark.parametrize(
    ("state", "url", "tenant", "only_url", "stops"),
    [
        ("OPEN", URL, 1, False, True),
        ("OPEN", "http://127.0.0.1/other", 1, False, True),
        ("SUSPENDED", URL, 1, False, True),
        ("SUSPENDED", URL, 1, True, True),
        ("HALF_OPEN", URL, 1, False, False),
        ("CLOSED", URL, 1, False, False),
        ("SUSPENDED", "http://127.0.0.1/other", 1, True, False),
        ("SUSPENDED", f"{URL}?a=b", 1, True, False),
        ("OPEN", "http://127.0.0.2/hook", 1, False, False),
        ("OPEN", "http://127.0.0.1:8080/hook", 1, False, False),
        ("OPEN", URL, 2, False, False),
    ],
)
async def test_an_open_breaker_of_its_target_stops_it_with_nothing_spent(
    store: Store, parts: Parts, state: str, url: str, tenant: int, only_url: bool, stops: bool
) -> None:
    await lie(store, 10)
    await set_breaker(store, state, url, tenant, only_url=only_url)
    row = await played(store, parts, executor := Scripted()).go(await ask(store))
    if stops:
        assert row["state_reason"] == "breaker open: 127.0.0.1"
        assert (row["state"], row["replayed"], executor.attempts) == ("STOPPED", 0, [])
    else:
        assert (row["state"], row["replayed"]) == ("DONE", 10)


async def test_a_breaker_that_opens_over_runs_that_are_held_stops_it(
    store: Store, parts: Parts
) -> None:
    await lie(store, 10)
    loop, replay_id = loop_over(store), await ask(store, canary=3, rate_per_sec=1_000)
    await loop.tick()
    await set_breaker(store, "OPEN")
    pass_time(store, 1)
    await loop.tick()
    row = await shown(store, replay_id)
    assert (row["state"], row["unfinished"], row["active"]) == ("STOPPED", 3, True)


# --- how fast ---------------------------------------------------------------------------------

RELEASED = """
SELECT extract(epoch FROM replayed_at)::float8 AS at, count(*) AS count FROM dead_letters
WHERE replayed_at IS NOT NULL GROUP BY 1 ORDER BY 1
"""


async def released(store: Store) -> list[tuple[float, int]]:
    async with store.transaction() as tx:
        return [(row["at"], row["count"]) for row in await tx.rows(RELEASED)]


@pytest.mark.parametrize("rate", [7, 90, 400])
async def test_two_processes_together_never_release_faster_than_the_rate(
    store: Store, parts: Parts, rate: int
) -> None:
    store.now = None  # real time, real loops
    await lie(store, count := min(rate * 2, 400))
    loops = [
        Loop(f"replays {n}", part.tick, Metrics(), pause_sec=0.02, sleep_for=part.sleep_for)
        for n, part in enumerate([loop_over(store), loop_over(store)])
    ]
    worker = parts.worker(Scripted())
    wide = StopWhen(0.2, 1_000)
    replay_id = await ask(store, canary=0, rate_per_sec=rate, stop_when=wide)
    for loop in loops:
        loop.start()

    async def is_done() -> bool:
        await carry_out(worker)
        return bool((await shown(store, replay_id))["state"] == "DONE")

    await eventually(is_done, 30)
    for loop in loops:
        await loop.finish()
    instants = await released(store)
    assert sum(number for _, number in instants) == count
    for start, _ in instants:
        for width in (1.0, 1.3, 2.0):
            held = sum(number for at, number in instants if start <= at < start + width - 1e-6)
            assert held <= math.ceil(rate * width)


async def test_to_have_been_stopped_for_long_is_no_licence_to_catch_up(
    store: Store, parts: Parts
) -> None:
    await lie(store, 50)
    playing = played(store, parts, Scripted())
    replay_id = await ask(store, canary=0, rate_per_sec=10)
    await playing.step(replay_id, 3_600)
    await playing.step(replay_id, 0.1)
    assert (await shown(store, replay_id))["replayed"] == 2


async def test_the_canary_and_the_ramp_begin_at_a_tenth_of_the_rate(
    store: Store, parts: Parts
) -> None:
    await lie(store, 50)
    playing = played(store, parts, Scripted())
    await playing.go(await ask(store, rate_per_sec=10, ramp_sec=5))
    instants = [at for at, _ in await released(store)]
    gaps = [later - earlier for earlier, later in pairwise(instants)]
    assert gaps[0] == pytest.approx(1, abs=0.2)
    assert gaps[-1] == pytest.approx(0.1, abs=0.06)
    assert min(gaps) >= 0.1 - 1e-6


# --- what cannot be reopened ------------------------------------------------------------------


async def test_runs_of_a_job_that_does_not_overlap_itself_follow_one_another(
    store: Store, parts: Parts
) -> None:
    made = await lie(store, 5, schedule=Interval(60, T))
    others = await lie(store, 3)
    hanging = Hanging()
    worker, loop = parts.worker(hanging), loop_over(store)
    replay_id = await ask(store, canary=0, rate_per_sec=1_000)
    for _ in range(4):
        await loop.tick()
        await worker.tick()
        pass_time(store, 2)
    await eventually(lambda: len(hanging.attempts) == 4)
    assert {each.run for each in hanging.attempts} == {made[0], *others}
    hanging.free.set()
    row = await Played(store, worker, [loop]).go(replay_id, step_sec=1)
    assert (row["state"], row["succeeded"], row["skipped"]) == ("DONE", 8, {})
    assert [each.run for each in hanging.attempts if each.run in made] == made
    assert not await broken(store)


async def test_letters_behind_a_run_that_is_not_its_own_are_left_when_nothing_else_moves(
    store: Store, parts: Parts
) -> None:
    made = await lie(store, 2, schedule=Interval(60, T))
    await lie(store, 2, of=made[0].job_id, before=timedelta(hours=2))
    async with store.transaction() as tx:
        assert len(await dead_letters.replay(tx, made[:1], 1, seeds.job_id())) == 1
    await lie(store, 3)
    playing = played(store, parts, executor := Scripted())
    await execute(store, "UPDATE runs SET claimable = false, hold = 'lane', hold_key = 'x'")
    row = await playing.go(await ask(store, canary=0))
    assert (row["state"], row["replayed"], row["skipped"]) == ("DONE", 3, {"busy": 3})
    assert len(executor.attempts) == 3


LOSE_LEDGER = "DELETE FROM occurrences WHERE job_id = $1"


async def test_what_cannot_be_reopened_is_counted_by_why_and_lies_there_still(
    store: Store, parts: Parts
) -> None:
    made = await lie(store, 6)
    async with store.transaction() as tx:
        await jobs.cancel(tx, made[1].job_id, "a test")
        await tx.execute(LOSE_LEDGER, made[2].job_id)
        await tx.execute(
            "UPDATE dead_letters SET replayed_at = now() WHERE job_id = $1", made[3].job_id
        )
    replay_id = await ask(store)
    async with store.transaction() as tx:
        assert await dead_letters.discard(tx, made[4], 1, "key", "no use")
    row = await played(store, parts, Scripted()).go(replay_id)
    assert (row["state"], row["matched"], row["replayed"]) == ("DONE", 6, 2)
    assert row["skipped"] == {
        "job_cancelled": 1, "ledger_gone": 1, "replayed_before": 1, "not_dead": 1,
    }  # fmt: skip
    assert await letters(store) == ["REPLAYED", "DEAD", "DEAD", "DEAD", "DISCARDED", "REPLAYED"]


async def test_a_second_replay_leaves_what_the_first_has_reopened(
    store: Store, parts: Parts
) -> None:
    await lie(store, 4)
    first, second = await ask(store), await ask(store)
    playing = played(store, parts, executor := Scripted())
    rows = [await playing.go(first), await playing.go(second)]
    assert [row["state"] for row in rows] == ["DONE", "DONE"]
    assert sum(row["replayed"] for row in rows) == len(executor.attempts) == 4
    assert sum(row["skipped"].get("not_dead", 0) for row in rows) == 4


# --- what dies again --------------------------------------------------------------------------


async def test_a_run_that_dies_again_keeps_its_name_and_counts_on_and_is_not_replayed_again(
    store: Store, parts: Parts
) -> None:
    (run,) = await lie(store)
    executor = Scripted(FAILURE)
    playing = played(store, parts, executor)
    row = await playing.go(first := await ask(store))
    assert (row["state"], row["failed"]) == ("STOPPED", 1)
    async with store.transaction() as tx:
        letter = await tx.one("SELECT * FROM dead_letters")
    assert (letter["state"], letter["deaths"], letter["attempts"]) == ("DEAD", 2, 2)
    assert letter["first_dead_at"] < letter["dead_at"]
    assert (letter["replay_id"], letter["replay_outcome"]) == (first, "FAILED")
    pass_time(store, 1)
    row = await playing.go(await ask(store))
    assert (row["state"], row["matched"]) == ("DONE", 1)
    assert row["skipped"] == {"replayed_before": 1}
    executor.outcomes = []
    row = await playing.go(await ask(store, again=True))
    assert (row["state"], row["succeeded"]) == ("DONE", 1)
    assert {each.run for each in executor.attempts} == {run}
    assert [(each.number, each.lease_version) for each in executor.attempts] == [(2, 2), (3, 3)]
    assert not await broken(store)


async def test_what_one_replay_has_still_to_count_no_other_takes_away(
    store: Store, parts: Parts
) -> None:
    await lie(store)
    first = await ask(store)
    loop = loop_over(store)
    await loop.tick()
    await carry_out(parts.worker(Scripted(FAILURE)))  # dead again, and nobody has looked
    pass_time(store, 1)
    async with store.transaction() as tx:
        (run,) = [runs.key_of(row) for row in await tx.rows("SELECT * FROM dead_letters")]
        assert await dead_letters.replay(tx, [run], 1, seeds.job_id(), again=True) == set()
    await loop.tick()
    async with store.transaction() as tx:
        assert await dead_letters.replay(tx, [run], 1, seeds.job_id(), again=True) == {run}
    assert (await shown(store, first))["failed"] == 1


# --- a receiver that dedupes ------------------------------------------------------------------


class Deduping(RecordingReceiver):
    """Makes its effects happen once, whatever becomes of its answers."""

    def __init__(self, secret: str, file: Path) -> None:
        super().__init__()
        # (The time that a test binds lies as far behind as its run has lasted.)
        self._receiver = Receiver(secret, SqliteStore(file), tolerance_sec=86_400)
        self.effects: list[Delivery] = []
        self.verdicts: list[Verdict] = []
        self.loses_answers = True

    def _record(self, request: Received) -> None:
        verdict, delivery = self._receiver.accept(dict(request.headers), request.body)
        self.verdicts.append(verdict)
        if verdict is Verdict.NEW:
            self.effects.append(delivery)
            assert self._receiver.done(delivery)
        self.answer(
            request.path,
            Answer(
                verdict.status,
                tuple(verdict.headers.items()),
                drop="before" if self.loses_answers else "no",
            ),
        )
        super()._record(request)


async def test_an_effect_whose_every_answer_was_lost_happens_once_also_when_it_is_replayed(
    store: Store, parts: Parts, executor: HttpExecutor, tmp_path: Path
) -> None:
    policy = RetryPolicy(max_attempts=3, base_sec=1, factor=1)
    async with store.transaction() as tx:
        made = await tenants.create(tx, SecretBox([bytes(32)]), "alpha")
        assert made is not None
        tenant, secret = made
    async with Deduping(tenants.written(secret), tmp_path / "receiver.db") as receiver:
        await the_job(store, receiver.url, policy, tenant)
        worker, retries = parts.worker(executor), parts.retries()  # type: ignore[arg-type]
        for _ in range(3):
            await carry_out(worker)
            pass_time(store, 2)
            await retries.tick()
        assert await letters(store, "reason") == ["transient"]
        assert receiver.verdicts == [Verdict.NEW, Verdict.DUPLICATE, Verdict.DUPLICATE]
        receiver.loses_answers = False
        row = await Played(store, worker, [loop_over(store)]).go(await ask(store, tenant))
    assert (row["state"], row["succeeded"]) == ("DONE", 1)
    assert len(receiver.effects) == 1
    assert receiver.verdicts[-1] is Verdict.DUPLICATE
    seen = [(each.run_id, each.attempt, each.lease_version) for each in receiver.requests]
    assert seen == [(receiver.effects[0].run_id, n, n) for n in (1, 2, 3, 4)]
    async with store.transaction() as tx:
        assert await tx.value("SELECT outcome FROM occurrences") == "COMPLETE"
    assert not await broken(store)


async def the_job(store: Store, url: str, policy: RetryPolicy, tenant: int) -> None:
    async with store.transaction() as tx:
        await seeds.ready(tx, policy=policy, tenant=tenant)
        await tx.execute(
            "UPDATE jobs SET spec = jsonb_set(spec::jsonb, '{target,url}', to_jsonb($1::text))",
            f"{url}/hook",
        )


# --- turns ------------------------------------------------------------------------------------


async def test_what_a_paused_replay_has_reopened_is_counted_still(
    store: Store, parts: Parts
) -> None:
    await lie(store, 5)
    playing = played(store, parts, Scripted())
    replay_id = await ask(store, canary=3, rate_per_sec=1_000)
    await playing.loops[0].tick()
    async with store.transaction() as tx:
        replay = await replay_rows.locked(tx, replay_id, 1)
        assert replay is not None
        replay.turn(ReplayState.PAUSED, None, T)
        await replay_rows.save(tx, replay)
    await playing.step(replay_id, 2)
    row = await playing.step(replay_id, 2)
    assert (row["state"], row["replayed"], row["succeeded"]) == ("PAUSED", 3, 3)
    assert not row["active"]


async def test_a_step_that_fails_changes_nothing_and_keeps_no_other_from_going_on(
    store: Store, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lie(store, 2)
    bad, good = await ask(store), await ask(store)
    whole = replays.release

    async def failing(tx: Tx, replay: replay_rows.Replay, ranks: Ranks) -> replays.Step:
        step = await whole(tx, replay, ranks)
        if replay.id == bad:
            raise RuntimeError("dies after it has written")
        return step

    monkeypatch.setattr(replays, "release", failing)
    with pytest.raises(RuntimeError):
        await loop_over(store).tick()
    assert (await shown(store, bad))["replayed"] == 0
    assert (await shown(store, good))["replayed"] == 1
    assert (await letters(store)).count("REPLAYED") == 1


async def test_the_attempts_of_a_replay_are_counted_by_what_came_of_them(
    store: Store, parts: Parts
) -> None:
    await lie(store, 3)
    playing = played(store, parts, Scripted(SUCCESS))
    await playing.go(await ask(store))
    text = playing.loops[0]._metrics.render().decode()
    assert 'noonday_replayed_runs_total{outcome="reopened"} 3.0' in text
    assert 'noonday_replayed_runs_total{outcome="succeeded"} 3.0' in text
