"""The service knows by itself what is wrong with it, and says so once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from noonday.domain.alerts import KEEP
from noonday.domain.lifecycle import Event, Transition
from noonday.domain.model import ExecutionStatus, Outcome, OutcomeKind, Reason
from noonday.domain.vitals import WINDOW, Vitals
from noonday.executors.posting import Poster
from noonday.loops import Loop
from noonday.loops.alerts import Alerts
from noonday.loops.vitals import Reporter
from noonday.store import Row, Store, alerts, runs, workers
from noonday.store.settlements import Settlement
from noonday.telemetry import Metrics
from tests.support import seeds
from tests.support.receivers import Answer, RecordingReceiver

START = datetime.now(UTC)
HOUR = timedelta(hours=1)
PATH = "/alerts"
TOKEN = "Bearer geheim"
A_TENANT = """
INSERT INTO tenants (name, signing_secrets, secrets_rotated_at, created_at)
VALUES ('shop', '{}', now(), now())
"""
OWN = "UPDATE shards SET owner_id = gen_random_uuid(), leased_until = 'infinity'"


class Service:
    """A database, the time that it tells, and a receiver of notices."""

    def __init__(self, store: Store, receiver: RecordingReceiver) -> None:
        self.store = store
        self.receiver = receiver
        self.metrics = Metrics()

    def alerts(self, *, leads: bool = True, timeout_sec: float = 10) -> Alerts:
        """What one scheduler process evaluates and tells with."""
        url = f"{self.receiver.url}{PATH}"
        return Alerts(
            self.store,
            self.metrics,
            Poster(url, TOKEN, timeout_sec=timeout_sec),
            objective=lambda _: 60.0,
            repeat=HOUR,
            leads=lambda: leads,
        )

    def at(self, after: timedelta) -> None:
        self.store.now = START + after

    async def step(self, one: Alerts, after: timedelta) -> None:
        """Evaluate and tell at this time."""
        self.at(after)
        await one.tick()
        await one.tell()

    async def standing(self) -> dict[tuple[str, str], Row]:
        async with self.store.transaction() as tx:
            rows = await alerts.every(tx)
        return {(row["name"], row["subject"]): row for row in rows}

    async def states(self) -> dict[str, str]:
        return {name: row["state"] for (name, _), row in (await self.standing()).items()}

    def told(self) -> list[dict[str, Any]]:
        """The notices that came, oldest first."""
        return [json.loads(request.body) for request in self.receiver.of(PATH)]

    def said(self) -> list[tuple[str, str]]:
        """Of each alert that was told: its name and status."""
        return [
            (one["labels"]["alertname"], one["status"])
            for body in self.told()
            for one in body["alerts"]
        ]


@pytest.fixture
async def service(store: Store) -> AsyncIterator[Service]:
    async with RecordingReceiver() as receiver:
        made = Service(store, receiver)
        made.at(timedelta())
        async with store.transaction() as tx:
            await tx.execute(A_TENANT)
            await tx.execute(OWN)
        yield made


async def give_up(service: Service, *errors: str, reason: Reason = Reason.TIMEOUT) -> None:
    """As many runs become dead letters, each for its error."""
    async with service.store.transaction() as tx:
        await seeds.ready(tx, count=len(errors))
        claimed = [runs.held_key(row) for row in await seeds.claim(tx, limit=len(errors))]
        transition = Transition(Event.DEAD_LETTER, ExecutionStatus.FAILED, reason=reason)
        items = [
            Settlement(lease, transition, Outcome(OutcomeKind.TIMEOUT, error=error))
            for lease, error in zip(claimed, errors, strict=True)
        ]
        assert len(await seeds.settle(tx, *items)) == len(errors)


# --- conditions -------------------------------------------------------------------------------


async def test_a_queue_that_nobody_works_on_is_an_alert_while_no_cpu_is_used(
    service: Service,
) -> None:
    one = service.alerts()
    async with service.store.transaction() as tx:
        await seeds.ready(tx)
    await service.step(one, timedelta(seconds=59))
    assert await service.states() == {}
    await service.step(one, timedelta(seconds=61))
    assert await service.states() == {"queue_age": "PENDING"}
    await service.step(one, timedelta(seconds=91))
    assert service.said() == [("NoondayQueueAge", "firing")]
    (told,) = service.told()[0]["alerts"]
    assert told["labels"]["lane"] == "default"
    assert float(told["annotations"]["value"]) == pytest.approx(91, abs=1)


async def test_what_may_not_be_claimed_or_is_being_worked_on_is_no_queue(
    service: Service,
) -> None:
    async with service.store.transaction() as tx:
        (held, *_) = await seeds.ready(tx, count=2)
        await seeds.hold(tx, held)
        await seeds.claim(tx)
    await service.step(service.alerts(), timedelta(hours=1))
    assert "queue_age" not in await service.states()


async def test_a_flood_of_dead_letters_is_one_alert_with_three_samples(service: Service) -> None:
    common = ["no answer within 30 s"] * 1_500 + ["answered 503"] * 900 + ["answered 500"] * 500
    await give_up(service, *common, *(f"odd one {n}" for n in range(100)))
    one = service.alerts()
    for seconds in range(0, 60, 5):
        await service.step(one, timedelta(seconds=seconds))
    (body,) = service.told()
    (told,) = body["alerts"]
    assert told["labels"]["reason"] == "timeout"
    assert told["annotations"]["value"] == "3000"
    assert told["annotations"]["samples"].splitlines() == [
        "no answer within 30 s", "answered 503", "answered 500",
    ]  # fmt: skip


async def test_a_few_dead_letters_and_those_of_long_ago_are_none(service: Service) -> None:
    await give_up(service, *["no"] * 10)
    await service.step(service.alerts(), timedelta())
    await give_up(service, "no")
    await service.step(service.alerts(), WINDOW + timedelta(seconds=1))
    assert service.told() == []
    async with service.store.transaction() as tx:
        assert await tx.value("SELECT count(*) FROM dead_letters") == 11


async def test_a_lease_that_nobody_reaps_is_an_alert(service: Service) -> None:
    async with service.store.transaction() as tx:
        await seeds.ready(tx)
        await seeds.claim(tx)
    await service.step(service.alerts(), timedelta(seconds=seeds.LEASE_SEC + 29))
    assert service.said() == []
    await service.step(service.alerts(), timedelta(seconds=seeds.LEASE_SEC + 31))
    assert service.said() == [("NoondayPastLease", "firing")]


async def test_shards_without_an_owner_are_an_alert(service: Service) -> None:
    async with service.store.transaction() as tx:
        await tx.execute("UPDATE shards SET leased_until = $1 WHERE shard < 2", START)
    for seconds in (1, 32):
        await service.step(service.alerts(), timedelta(seconds=seconds))
    assert service.said() == [("NoondayShardsUnowned", "firing")]


async def test_a_role_is_missed_when_its_last_process_was_lost_and_not_when_it_left(
    service: Service,
) -> None:
    async with service.store.transaction() as tx:
        for number in (1, 2):
            await workers.report(tx, seeds.job_id(), "worker", f"lost {number}")
        await workers.report(tx, seeds.WORKER, "api", "left")
        await workers.gone(tx, seeds.WORKER)
    one = service.alerts()
    for seconds in (0, 16, 47):
        await service.step(one, timedelta(seconds=seconds))
    assert set(await service.standing()) == {("role_absent", "worker")}
    assert service.said() == [("NoondayRoleAbsent", "firing")]


async def test_what_processes_say_of_themselves_counts_while_they_live(service: Service) -> None:
    async with service.store.transaction() as tx:
        await workers.report(tx, seeds.WORKER, "scheduler", "one")
        await workers.note_vitals(
            tx,
            seeds.WORKER,
            Vitals(2.5, 9, 3, 1, {"reaper": 30, "claim": 2}, ("retries",)),
        )
    one = service.alerts()
    await service.step(one, timedelta(seconds=1))
    assert set(await service.standing()) == {
        ("tick_slow", ""), ("leases_expire", ""), ("duplicates", ""),
        ("loop_failing", "reaper"), ("loop_stalled", "retries"),
    }  # fmt: skip
    await service.step(one, timedelta(seconds=16) + KEEP)
    assert set((await service.states()).values()) == {"RESOLVED"}


async def test_a_process_tells_of_the_last_minutes_only(service: Service) -> None:
    metrics, clock = Metrics(), [0.0]
    loop = Loop("claim", service.alerts().tick, metrics)
    reporter = Reporter(service.store, seeds.WORKER, metrics, lambda: [loop.name], lambda: clock[0])
    async with service.store.transaction() as tx:
        await workers.report(tx, seeds.WORKER, "worker", "one")
    metrics.lease_expired(2)
    metrics.attempted(1, "success", 5)
    metrics.attempted(1, "timeout", 7)
    metrics.duplicate("unexplained")
    metrics.duplicate("replay")
    metrics.loop_failed("claim")
    for _ in range(30):
        metrics.ticked("scheduler", 3.0, 1)
        metrics.ticked("janitor", 0.1, 1)
    await reporter.tick()
    async with service.store.transaction() as tx:
        assert await workers.vitals(tx) == [Vitals(5, 2, 5, 1, {"claim": 1}, ("claim",))]
    metrics.lease_expired()
    clock[0] = WINDOW.total_seconds() + 1
    assert reporter.read() == Vitals(None, 1, 0, 0, {}, ("claim",))
    clock[0] *= 2
    assert reporter.read() == Vitals(stalled=("claim",))


# --- telling ----------------------------------------------------------------------------------


async def test_an_alert_is_told_once_repeated_each_hour_and_resolved_once(
    service: Service,
) -> None:
    one = service.alerts()
    firing, resolved = ("NoondayDeadLetters", "firing"), ("NoondayDeadLetters", "resolved")
    for minutes in range(0, 130, 5):
        service.at(timedelta(minutes=minutes))
        await give_up(service, *["no"] * 11)
        await service.step(one, timedelta(minutes=minutes))
    assert service.said() == [firing] * 3
    for minutes in range(130, 300, 5):
        await service.step(one, timedelta(minutes=minutes))
    assert service.said() == [*[firing] * 3, resolved]
    (row,) = (await service.standing()).values()
    assert (row["state"], row["times"], row["tell_at"]) == ("RESOLVED", 1, None)
    async with service.store.transaction() as tx:
        assert await alerts.checked_at(tx) == service.store.now


async def test_alerts_that_begin_together_are_told_together(service: Service) -> None:
    await give_up(service, *["no"] * 11)
    await give_up(service, *["never"] * 11, reason=Reason.EXPIRED)
    await service.step(service.alerts(), timedelta())
    (body,) = service.told()
    assert {one["labels"]["reason"] for one in body["alerts"]} == {"timeout", "expired"}


async def test_only_the_process_that_leads_evaluates_and_tells(service: Service) -> None:
    await give_up(service, *["no"] * 11)
    other = service.alerts(leads=False)
    await service.step(other, timedelta())
    assert await service.states() == {}
    await service.alerts().tick()
    await other.tell()
    assert service.told() == []


async def test_two_that_evaluate_and_tell_at_once_tell_once(service: Service) -> None:
    await give_up(service, *["no"] * 11)
    pair = [service.alerts(), service.alerts()]
    for minutes in (0, 1, 20):
        service.at(timedelta(minutes=minutes))
        await asyncio.gather(*(one.tick() for one in pair))
        await asyncio.gather(*(one.tell() for one in pair))
    assert [status for _, status in service.said()] == ["firing", "resolved"]
    (row,) = (await service.standing()).values()
    assert (row["times"], row["version"]) == (1, 2)


async def test_a_sender_that_dies_after_its_post_is_followed_by_one_that_posts_again(
    service: Service,
) -> None:
    await give_up(service, *["no"] * 11)
    first = service.alerts()
    await first.tick()
    service.receiver.answer(PATH, Answer(hold=True), 200)
    telling = asyncio.create_task(first.tell())
    await service.receiver.wait_for(1)
    telling.cancel()
    await asyncio.wait([telling])
    second = service.alerts()
    await service.step(second, alerts.FIRST_RETRY - timedelta(seconds=1))
    assert len(service.told()) == 1
    await service.step(second, alerts.FIRST_RETRY)
    await service.step(second, 2 * alerts.FIRST_RETRY)
    assert [status for _, status in service.said()] == ["firing", "firing"]


async def test_one_that_may_have_been_told_as_firing_is_told_as_resolved(
    service: Service,
) -> None:
    await give_up(service, *["no"] * 11)
    service.receiver.answer(PATH, Answer(drop="before"), 200)
    one = service.alerts()
    await service.step(one, timedelta())
    await one.tick()
    service.at(WINDOW + KEEP)
    await one.tick()
    await one.tell()
    assert [status for _, status in service.said()] == ["firing", "resolved"]


async def test_one_that_was_never_told_is_not_told_as_resolved(service: Service) -> None:
    await give_up(service, *["no"] * 11)
    one = service.alerts()
    await one.tick()
    await service.step(one, WINDOW + KEEP)
    assert (await service.states(), service.told()) == ({"dead_letters": "RESOLVED"}, [])


async def test_a_resolved_notice_that_is_due_outlives_a_condition_that_comes_and_goes(
    service: Service,
) -> None:
    async with service.store.transaction() as tx:
        await seeds.ready(tx)
    one = service.alerts()
    for seconds in (70, 101):
        await service.step(one, timedelta(seconds=seconds))
    service.receiver.answer(PATH, 500)
    async with service.store.transaction() as tx:
        await tx.execute("DELETE FROM runs")
    over = timedelta(seconds=101) + KEEP
    await service.step(one, over)
    async with service.store.transaction() as tx:
        await seeds.ready(tx)
    await service.step(one, over + timedelta(seconds=61))
    assert await service.states() == {"queue_age": "PENDING"}
    async with service.store.transaction() as tx:
        await tx.execute("DELETE FROM runs")
    service.receiver.answer(PATH, 200)
    await service.step(one, over + timedelta(minutes=5))
    await service.step(one, over + timedelta(minutes=30))
    assert [status for _, status in service.said()] == ["firing", "resolved", "resolved"]


@pytest.mark.parametrize(
    "answer", [500, 404, 302, Answer(drop="before"), Answer(hold=True)], ids=str
)
async def test_a_receiver_that_fails_is_tried_again_with_a_growing_pause_and_stops_nothing(
    service: Service, answer: Answer | int
) -> None:
    await give_up(service, *["no"] * 11)
    service.receiver.answer(PATH, answer)
    one = service.alerts(timeout_sec=0.2)
    tried = []
    for seconds in range(0, 1_200, 5):
        before = len(service.told())
        await service.step(one, timedelta(seconds=seconds))
        tried += [seconds] * (len(service.told()) - before)
        if len(tried) == 5:
            break
    assert tried == [0, 30, 90, 210, 450]
    (row,) = (await service.standing()).values()
    assert row["told_at"] is None
    assert row["tries"] == 5
    assert 'alert_notices_total{outcome="failed"} 5.0' in service.metrics.render().decode()
    service.receiver.answer(PATH, 200)
    await service.step(service.alerts(), timedelta(seconds=750))
    (row,) = (await service.standing()).values()
    assert (row["told_at"], row["tries"]) == (service.store.now, 0)


async def test_while_a_notice_hangs_alerts_are_evaluated(service: Service) -> None:
    await give_up(service, *["no"] * 11)
    one = service.alerts()
    await one.tick()
    service.receiver.answer(PATH, Answer(hold=True))
    telling = asyncio.create_task(one.tell())
    await service.receiver.wait_for(1)
    service.at(WINDOW + KEEP)
    await one.tick()
    assert await service.states() == {"dead_letters": "RESOLVED"}
    service.receiver.release()
    await telling
    await one.tell()
    assert [status for _, status in service.said()] == ["firing", "resolved"]


async def test_without_a_url_alerts_are_kept_all_the_same(service: Service) -> None:
    await give_up(service, *["no"] * 11)
    one = Alerts(
        service.store, service.metrics, None,
        objective=lambda _: 60.0, repeat=HOUR, leads=lambda: True,
    )  # fmt: skip
    await service.step(one, timedelta())
    assert await service.states() == {"dead_letters": "FIRING"}
    await service.step(service.alerts(), timedelta(seconds=5))
    assert [status for _, status in service.said()] == ["firing"]


async def test_alerts_that_are_long_over_are_forgotten(service: Service) -> None:
    await give_up(service, *["no"] * 11)
    one = service.alerts()
    await service.step(one, timedelta())
    await service.step(one, WINDOW + KEEP)
    await service.step(one, WINDOW + KEEP + alerts.FORGOTTEN_AFTER)
    assert await service.states() == {"dead_letters": "RESOLVED"}
    await service.step(one, WINDOW + KEEP + alerts.FORGOTTEN_AFTER + timedelta(seconds=1))
    assert await service.states() == {}


# --- what leaves the service ------------------------------------------------------------------


async def test_nothing_of_a_job_leaves_with_a_notice_but_error_texts(service: Service) -> None:
    texts = (
        "cannot connect to https://user:geheim@host.example/?key=geheim: refused",
        "answered 400",
        "x" * 5_000,
    )
    secret = '{"schedule":{},"target":{"url":"https://a.example/?geheim"},"headers":"geheim"}'
    await give_up(service, *(texts * 4))
    async with service.store.transaction() as tx:
        await tx.execute("UPDATE jobs SET payload = 'geheim', name = 'geheim', spec = $1", secret)
    await service.step(service.alerts(), timedelta())
    (request,) = service.receiver.of(PATH)
    assert request["Authorization"] == TOKEN
    assert request["Content-Type"] == "application/json"
    assert b"geheim" not in request.body
    assert b"answered 400" in request.body
    assert len(request.body) < 4_000
    (row,) = (await service.standing()).values()
    assert "geheim" not in "".join(row["samples"])


async def test_a_notice_that_cannot_be_sent_does_not_show_where_to() -> None:
    for url in ("http://127.0.0.1:1/geheim", "http://169.254.169.254/geheim", "http://geheim:x/"):
        fault = await Poster(url, TOKEN).post(b"{}")
        assert fault is not None
        assert "geheim" not in fault
