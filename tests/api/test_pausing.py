"""A job is paused and resumed; each nominal time is in its ledger once, as a line or in a range."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from noonday.api.documents import stamp
from noonday.domain.roles import Role
from noonday.loops.resuming import Resuming
from tests.support.changing import MINUTE, T, after, fires, lines, minutely, parent_at, slow, tick
from tests.support.database_locks import value
from tests.support.invariants import broken
from tests.support.outcomes import bring
from tests.support.servers import NOW, Api

SECOND = timedelta(seconds=1)
HALF = timedelta(seconds=30)


async def made(api: Api, schedule: dict[str, Any] | None = None, **changes: Any) -> str:
    """A job created at ``T``."""
    api.store.now = T
    return await api.admin.create(schedule=schedule or minutely(), **changes)


async def pause(api: Api, job: str, **body: Any) -> Any:
    answer = await api.admin.post(f"/v1/jobs/{job}/pause", body)
    assert answer.status == 200, answer
    shown = await api.admin.get(f"/v1/jobs/{job}")
    assert (shown.body, shown.headers["etag"]) == (answer.body, answer.headers["etag"])
    return answer.body


async def resume(api: Api, job: str, **body: Any) -> Any:
    answer = await api.admin.post(f"/v1/jobs/{job}/resume", body)
    assert answer.status == 200, answer
    return answer.body


async def refusal(api: Api, job: str, verb: str, **body: Any) -> tuple[int, str]:
    answer = await api.admin.post(f"/v1/jobs/{job}/{verb}", body)
    return answer.status, answer.code


async def test_a_paused_job_fires_nothing_and_what_it_left_out_is_one_line(api: Api) -> None:
    job = await made(api)
    await tick(api.store, T + 2 * MINUTE)
    api.store.now = T + 2 * MINUTE + HALF
    shown = await pause(api, job, reason="stocktaking")
    assert (shown["status"], shown["state_reason"]) == ("PAUSED", "stocktaking")
    assert (shown["next_fires"], shown["paused_until"]) == ([], None)
    assert shown["next_run_at"] == stamp(T + 2 * MINUTE), "of a run that is there"
    (listed,) = (await api.admin.get("/v1/jobs?status=PAUSED")).body["data"]
    assert listed == shown
    assert (await api.admin.get("/v1/jobs?status=PENDING")).body["data"] == []
    await tick(api.store, T + 5 * MINUTE)
    ran = [(0, None, None), (1, "MISSED", "superseded"), (2, None, None)]
    assert await lines(api, job) == ran
    api.store.now = T + 9 * MINUTE + HALF
    shown = await resume(api, job, reason="done")
    assert (shown["status"], shown["state_reason"]) == ("PENDING", None)
    assert fires(shown)[:2] == [10, 11]
    await tick(api.store, T + 10 * MINUTE)
    assert await lines(api, job) == [*ran, ((3, 9), "SKIPPED", "paused"), (10, None, None)]
    (line,) = [
        line
        for line in (await api.admin.get(f"/v1/jobs/{job}/occurrences")).body["data"]
        if line["range"]
    ]
    assert (line["run_id"], line["range"]["by"]) == (None, api.admin.key_id)
    versions = [
        line["schedule_version"]
        for line in (await api.admin.get(f"/v1/jobs/{job}/occurrences")).body["data"]
    ]
    assert versions == [3, 2, 1, 1, 1]
    assert await value(api.store, "SELECT count(schedule_version) FROM occurrences") == 1
    assert not await broken(api.store)


async def test_what_was_due_before_the_pause_is_fired_on_the_way(api: Api) -> None:
    job = await made(api)
    api.store.now = T + 3 * MINUTE + HALF
    await pause(api, job)
    expected = [(0, None, None), ((1, 2), "MISSED", "superseded"), (3, None, None)]
    assert await lines(api, job) == expected
    await tick(api.store, T + 4 * MINUTE)
    assert await lines(api, job) == expected
    assert not await broken(api.store)


async def test_what_overlaps_is_skipped_as_a_tick_would(api: Api) -> None:
    job = await made(api, minutely(overlap="skip"))
    api.store.now = T + MINUTE + HALF
    await pause(api, job)
    assert await lines(api, job) == [(0, None, None), (1, "SKIPPED", "overlap")]


@pytest.mark.parametrize(
    "limits", [{"max_occurrences": 4}, {"ends_at": stamp(T + 3 * MINUTE)}], ids=str
)
async def test_a_job_whose_last_occurrence_falls_into_its_pause_has_ended(
    api: Api, limits: dict[str, Any]
) -> None:
    job = await made(api, minutely(**limits))
    await tick(api.store, T + MINUTE)
    shown = await pause(api, job, until=stamp(T + 3 * MINUTE))
    assert fires(shown) == [3]
    api.store.now = T + 9 * MINUTE
    shown = await resume(api, job)
    assert (shown["next_fires"], shown["status"]) == ([], "PENDING"), "runs of it are there"
    assert await lines(api, job) == [
        (0, None, None),
        (1, None, None),
        ((2, 3), "SKIPPED", "paused"),
    ]
    assert await value(api.store, "SELECT state FROM jobs") == "ENDED"
    assert await refusal(api, job, "pause") == (409, "job_ended")
    assert (await resume(api, job))["version"] == shown["version"]
    path, body = f"/v1/jobs/{job}", {"priority": 1}
    assert (await api.admin.call("PATCH", path, body, if_match="*")).code == "job_ended"
    assert not await broken(api.store)


async def test_what_was_left_out_counts_among_a_limited_number(api: Api) -> None:
    job = await made(api, minutely(max_occurrences=6))
    await pause(api, job)
    api.store.now = T + 3 * MINUTE + HALF
    assert fires(await resume(api, job)) == [4, 5]
    answer = await api.admin.call("PATCH", f"/v1/jobs/{job}", {"priority": 1}, if_match="*")
    assert fires(answer.body) == [4, 5]
    for n in range(4, 9):
        await tick(api.store, T + n * MINUTE)
    assert [n for n, _, _ in await lines(api, job)] == [0, (1, 3), 4, 5]
    assert await value(api.store, "SELECT state FROM jobs") == "ENDED"


async def test_a_pause_in_which_nothing_would_have_fired_leaves_no_trace_in_the_ledger(
    api: Api,
) -> None:
    job = await made(api)
    before = (await api.admin.get(f"/v1/jobs/{job}")).body
    await pause(api, job)
    shown = await resume(api, job)
    assert shown["next_fires"] == before["next_fires"]
    assert shown["next_run_at"] == before["next_run_at"]
    assert await lines(api, job) == [(0, None, None)]
    await tick(api.store, T + MINUTE)
    assert await lines(api, job) == [(0, None, None), (1, None, None)]
    assert await value(api.store, "SELECT max(seq) FROM timers") == 3


async def test_what_waits_for_its_jitter_is_left_out_only_if_it_was_due(api: Api) -> None:
    job = await slow(api, minutely(interval_sec=3600, jitter_sec=3599))
    shown = (await api.admin.get(f"/v1/jobs/{job}")).body
    due_at = datetime.fromisoformat(shown["next_run_at"])
    await pause(api, job)
    api.store.now = due_at - SECOND
    assert (await resume(api, job))["next_run_at"] == shown["next_run_at"]
    await pause(api, job)
    api.store.now = due_at + SECOND
    await resume(api, job)
    assert await lines(api, job) == [((0, 0), "SKIPPED", "paused")]


async def test_with_catch_up_what_was_left_out_is_decided_as_after_an_outage(api: Api) -> None:
    job = await made(api)
    await pause(api, job)
    api.store.now = T + 4 * MINUTE + HALF
    assert fires(await resume(api, job, catch_up=True))[0] == 1
    await tick(api.store, T + 4 * MINUTE + HALF)
    missed = ((1, 3), "MISSED", "superseded")
    assert await lines(api, job) == [(0, None, None), missed, (4, None, None)]
    assert not await broken(api.store)


async def test_a_job_goes_on_by_itself_as_of_the_time_that_was_named(api: Api) -> None:
    job = await made(api)
    await bring(api.store, job, "complete")
    shown = await pause(api, job, until=stamp(T + 3 * MINUTE))
    assert shown["paused_until"] == stamp(T + 3 * MINUTE)
    assert fires(shown) == [3, 4, 5, 6, 7]
    assert shown["next_run_at"] == stamp(T + 3 * MINUTE)
    await tick(api.store, T + 2 * MINUTE + HALF)
    assert (await api.admin.get(f"/v1/jobs/{job}")).body["status"] == "PAUSED"
    # Nobody was there when the time came.
    await tick(api.store, T + 5 * MINUTE)
    assert await lines(api, job) == [
        (0, "COMPLETE", None),
        ((1, 2), "SKIPPED", "paused"),
        ((3, 4), "MISSED", "superseded"),
        (5, None, None),
    ]
    assert (await api.admin.get(f"/v1/jobs/{job}")).body["paused_until"] is None
    entry = (await api.admin.get("/v1/audit?limit=1")).body["data"][0]
    assert (entry["actor"], entry["action"]) == ("noonday scheduler", "job.resume")
    assert not await broken(api.store)


async def test_two_processes_that_let_jobs_go_on_do_it_once(api: Api) -> None:
    jobs = [await made(api) for _ in range(3)]
    for job in jobs:
        await pause(api, job, until=stamp(T + MINUTE))
    api.store.now = T + 2 * MINUTE
    assert await Resuming(api.store).tick() == 3
    assert await Resuming(api.store).tick() == 0
    resumed = "SELECT count(*) FROM audit_log WHERE action = 'job.resume'"
    assert await value(api.store, resumed) == 3


async def test_one_that_was_resumed_or_paused_for_longer_does_not_go_on_by_itself(
    api: Api,
) -> None:
    resumed, longer, cancelled = [await made(api) for _ in range(3)]
    for job in (resumed, longer, cancelled):
        await pause(api, job, until=stamp(T + MINUTE))
    await resume(api, resumed)
    await pause(api, resumed)
    await pause(api, longer, until=stamp(T + 10 * MINUTE))
    assert (await api.admin.delete(f"/v1/jobs/{cancelled}")).status == 200
    api.store.now = T + 5 * MINUTE
    assert await Resuming(api.store).tick() == 0


async def test_a_pause_may_be_given_another_reason_or_end(api: Api) -> None:
    job = await made(api)
    first = await pause(api, job, reason="one")
    assert await pause(api, job, reason="one") == first, "nothing new, no new version"
    second = await pause(api, job, reason="two", until=stamp(T + MINUTE))
    assert (second["state_reason"], second["paused_until"]) == ("two", stamp(T + MINUTE))
    assert second["version"] == first["version"] + 1
    entries = (await api.admin.get("/v1/audit")).body["data"]
    assert [entry["action"] for entry in entries] == ["job.pause", "job.pause", "job.create"]
    assert entries[0]["before"] == {"state": "PAUSED", "reason": "one", "until": "resumed"}


@pytest.mark.parametrize("until", [T, T - MINUTE, datetime(2200, 1, 1, tzinfo=T.tzinfo)])
async def test_a_pause_ends_later_than_now_and_before_the_end_of_time(
    api: Api, until: datetime
) -> None:
    job = await made(api)
    answer = await api.admin.post(f"/v1/jobs/{job}/pause", {"until": stamp(until)})
    assert (answer.status, answer.body["errors"][0]["pointer"]) == (422, "/until")
    assert (await api.admin.get(f"/v1/jobs/{job}")).body["status"] == "PENDING"


async def test_a_job_of_one_run_goes_on_however_late_unless_it_has_a_grace(api: Api) -> None:
    once = {"type": "once", "run_at": stamp(T + MINUTE)}
    late = await made(api, once)
    missed = await made(api, once | {"grace_sec": 60})
    early = await made(api, {"type": "once", "run_at": stamp(T + 9 * MINUTE)})
    for job in (late, missed, early):
        await pause(api, job)
    await tick(api.store, T + 5 * MINUTE)
    for job in (late, missed, early):
        assert await lines(api, job) == []
        await resume(api, job)
    await tick(api.store, T + 5 * MINUTE)
    assert await lines(api, late) == [(1, None, None)]
    assert await lines(api, missed) == [(1, "MISSED", "grace")]
    assert await lines(api, early) == []
    await tick(api.store, T + 9 * MINUTE)
    assert await lines(api, early) == [(9, None, None)]
    assert not await broken(api.store)


async def test_what_has_nothing_left_to_fire_cannot_be_paused(api: Api) -> None:
    running = await made(api, NOW)
    assert await refusal(api, running, "pause") == (409, "job_ended")
    cancelled = await made(api)
    assert (await api.admin.delete(f"/v1/jobs/{cancelled}")).status == 200
    assert await refusal(api, cancelled, "pause") == (409, "job_cancelled")
    assert await refusal(api, cancelled, "resume") == (409, "job_cancelled")
    parent = await parent_at(api, 60)
    child = await made(api, NOW, after=[parent])
    assert await refusal(api, child, "pause") == (409, "job_waits")
    assert (await resume(api, parent))["status"] == "PENDING", "it was not paused"
    assert not await broken(api.store)


async def test_children_wait_for_a_paused_parent_and_are_told_of_its_end(api: Api) -> None:
    parent, other = await parent_at(api, 1), await parent_at(api, 1)
    early = await made(api, NOW, after=[parent])
    await pause(api, parent)
    late = await made(api, NOW, after=[parent])
    assert not await broken(api.store)
    await pause(api, other)
    cut_off = await made(api, NOW, after=[other])
    await resume(api, parent)
    assert not await broken(api.store)
    assert (await api.admin.delete(f"/v1/jobs/{other}")).status == 200
    waits = [(await api.admin.get(f"/v1/jobs/{job}")).body["waits_for"] for job in (early, late)]
    assert waits == [[parent], [parent]]
    noted = await value(api.store, "SELECT array_agg(parent_id::text) FROM endings")
    assert noted == [other], "who waits for it is told"
    assert (await api.admin.get(f"/v1/jobs/{cut_off}")).body["status"] == "PENDING"
    await tick(api.store, T + MINUTE)
    assert await value(api.store, "SELECT count(*) FROM runs WHERE awaited") == 1
    assert not await broken(api.store)


async def test_a_paused_job_that_is_cancelled_has_all_on_record_up_to_its_end(api: Api) -> None:
    job = await made(api)
    once = await made(api, {"type": "once", "delay": "PT1M"})
    await pause(api, job)
    await pause(api, once)
    api.store.now = T + 3 * MINUTE + HALF
    for each in (job, once):
        answer = await api.admin.delete(f"/v1/jobs/{each}")
        assert (answer.status, answer.body["status"]) == (200, "CANCELLED")
    reason = f"cancelled by {api.admin.key_id}"
    assert await lines(api, job) == [(0, "CANCELLED", reason), ((1, 3), "SKIPPED", "paused")]
    assert await lines(api, once) == [(1, "CANCELLED", reason)]
    assert await value(api.store, "SELECT count(*) FROM pauses") == 0
    assert not await broken(api.store)


async def test_a_paused_job_can_be_triggered_and_its_runs_go_on(api: Api) -> None:
    job = await made(api)
    await pause(api, job)
    answer = await api.admin.post(f"/v1/jobs/{job}/trigger")
    assert answer.status == 202
    runs = await value(api.store, "SELECT array_agg(state || kind ORDER BY kind) FROM runs")
    assert runs == ["READY0", "READY1"]


async def test_what_a_pause_has_not_decided_yet_is_not_backfilled(api: Api) -> None:
    job = await made(api)
    await pause(api, job)
    api.store.now = T + 3 * MINUTE + HALF
    past = {"from": stamp(T), "to": stamp(T + 3 * MINUTE), "dry_run": True}

    async def found() -> tuple[int, int]:
        answer = await api.admin.post(f"/v1/jobs/{job}/backfill", past)
        assert answer.status == 200, answer
        return answer.body["to_run"], answer.body["left_out"]

    assert await found() == (0, 3)
    await resume(api, job)
    assert await found() == (3, 0)


async def test_it_is_explained_that_a_job_is_paused_and_until_when(api: Api) -> None:
    job = await made(api, {"type": "once", "delay": "PT1H"})
    await pause(api, job, reason="stocktaking", until=stamp(T + MINUTE))
    found = (await api.admin.get(f"/v1/jobs/{job}/explain")).body
    assert (found["constraint"], found["until"]) == ("paused", stamp(T + MINUTE))
    assert "stocktaking" in found["detail"]


async def test_of_a_job_that_cannot_be_computed_the_one_time_that_is_known_is_on_record(
    api: Api,
) -> None:
    job = await made(api)
    async with api.store.transaction() as tx:
        await tx.execute("UPDATE jobs SET spec = replace(spec::text, ':60', ':0')::json")
    await tick(api.store, T + MINUTE)
    assert (await api.admin.delete(f"/v1/jobs/{job}")).status == 200
    line = (await api.admin.get(f"/v1/jobs/{job}/occurrences")).body["data"][0]
    assert (line["occurrence_at"], line["reason"]) == (stamp(T + MINUTE), "suspended")
    assert line["range"]["count"] is None
    assert line["range"]["by"] == "noonday scheduler"


async def test_a_suspended_job_goes_on_once_it_can_be_computed(api: Api) -> None:
    job = await made(api)
    async with api.store.transaction() as tx:
        sound = await tx.value("SELECT spec::text FROM jobs")
        broken_spec = sound.replace('"interval_sec":60', '"interval_sec":0')
        assert broken_spec != sound
        await tx.execute("UPDATE jobs SET spec = $1", broken_spec)
    await tick(api.store, T + MINUTE)
    shown = (await api.admin.get(f"/v1/jobs/{job}")).body
    assert shown["status"] == "SUSPENDED"
    assert await refusal(api, job, "resume") == (409, "not_computable")
    assert await refusal(api, job, "pause") == (409, "job_suspended")
    async with api.store.transaction() as tx:
        await tx.execute("UPDATE jobs SET spec = $1", sound)
    api.store.now = T + 4 * MINUTE + HALF
    assert fires(await resume(api, job))[0] == 5
    assert await lines(api, job) == [(0, None, None), ((1, 4), "SKIPPED", "suspended")]
    assert not await broken(api.store)


async def test_one_suspended_before_anybody_noted_where_it_stood_goes_on_from_now(
    api: Api,
) -> None:
    job = await made(api)
    once = await made(api, {"type": "once", "delay": "PT1M"})
    async with api.store.transaction() as tx:
        await tx.execute("UPDATE jobs SET state = 'SUSPENDED'")
        await tx.execute("DELETE FROM timers")
    api.store.now = T + 4 * MINUTE + HALF
    assert fires(await resume(api, job))[0] == 5
    assert fires(await resume(api, once)) == [1]
    assert not await broken(api.store)


async def test_a_pause_that_cannot_end_by_itself_suspends_the_job(api: Api) -> None:
    job = await made(api)
    await pause(api, job, until=stamp(T + MINUTE))
    async with api.store.transaction() as tx:
        await tx.execute("""UPDATE jobs SET spec = replace(spec::text, ':60', ':0')::json""")
    api.store.now = T + 2 * MINUTE
    assert await Resuming(api.store).tick() == 1
    assert await Resuming(api.store).tick() == 0
    shown = (await api.admin.get(f"/v1/jobs/{job}")).body
    assert shown["status"] == "SUSPENDED"
    assert "interval_sec" in shown["state_reason"]


async def test_ranges_stand_in_their_place_on_every_page(api: Api) -> None:
    job = await made(api)
    for n in (1, 4, 7):
        await tick(api.store, T + n * MINUTE)
        await pause(api, job)
        api.store.now = T + (n + 2) * MINUTE + HALF
        await resume(api, job)
    api.store.now = T + 8 * MINUTE
    assert (await api.admin.post(f"/v1/jobs/{job}/trigger")).status == 202
    whole = (await api.admin.get(f"/v1/jobs/{job}/occurrences")).body["data"]
    places = [line["occurrence_at"] for line in whole]
    assert places == sorted(places, reverse=True)
    assert [after(line["range"]["from_at"]) for line in whole if line["range"]] == [8, 5, 2]
    for limit in (1, 2, 3):
        paged, path = [], f"/v1/jobs/{job}/occurrences?limit={limit}"
        cursor: str | None = ""
        while cursor is not None:
            answer = (await api.admin.get(path + (f"&cursor={cursor}" if cursor else ""))).body
            paged += answer["data"]
            cursor = answer["next_cursor"]
        assert paged == whole


async def test_who_may_not_pause_changes_nothing(api: Api) -> None:
    job = await made(api)
    submitter = await api.client(Role.SUBMITTER)
    for verb in ("pause", "resume"):
        assert (await submitter.post(f"/v1/jobs/{job}/{verb}")).status == 403
    stranger = await api.client(Role.OPERATOR, "beta")
    assert (await stranger.post(f"/v1/jobs/{job}/pause")).status == 404
    assert (await api.admin.get(f"/v1/jobs/{job}")).body["status"] == "PENDING"


async def test_more_overdue_than_is_decided_at_once_falls_to_the_pause(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noonday.store.firing.MOST_FIRED", 6)
    job = await made(api)
    api.store.now = T + 20 * MINUTE + HALF
    await pause(api, job)
    api.store.now = T + 22 * MINUTE + HALF
    await resume(api, job)
    assert await lines(api, job) == [
        (0, None, None), ((1, 6), "MISSED", "superseded"), ((7, 22), "SKIPPED", "paused"),
    ]  # fmt: skip
    assert not await broken(api.store)
