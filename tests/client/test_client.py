from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from noonday.client import (
    AsyncClient,
    Client,
    NoondayApiError,
    NoondayConnectionError,
)
from tests.support.scripted_server import HANG_UP, Answer, ScriptedServer, scripted_server

JOB = {"schedule": {"type": "once"}, "target": {"type": "http", "url": "https://example.com/"}}
BUSY = Answer(503, headers={"Retry-After": "0"})


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        yield server


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[Client]:
    with Client(server.url, "nd_id_secret", timeout_sec=5) as client:
        yield client


def page(numbers: list[int], cursor: str | None) -> Answer:
    data = [{"id": number} for number in numbers]
    return Answer(200, {"data": data, "next_cursor": cursor, "has_more": cursor is not None})


def problem(status: int, code: str, **more: Any) -> Answer:
    return Answer(status, {"code": code, "detail": "so it is", "request_id": "r1", **more})


def test_a_job_is_sent_with_the_key_and_a_fresh_idempotency_key(
    server: ScriptedServer, client: Client
) -> None:
    server.will(Answer(202, {"id": "a"}), Answer(202, {"id": "b"}))
    assert client.jobs.create(JOB) == {"id": "a"}
    assert client.jobs.create(JOB) == {"id": "b"}
    first, second = server.received
    assert (first.method, first.path, first.json) == ("POST", "/v1/jobs", JOB)
    assert first.headers["Authorization"] == "Bearer nd_id_secret"
    assert first.headers["Content-Type"] == "application/json"
    assert first.headers["Idempotency-Key"] != second.headers["Idempotency-Key"]


@pytest.mark.parametrize("trouble", [HANG_UP, BUSY, Answer(429, headers={"Retry-After": "0"})])
def test_a_job_whose_answer_was_lost_is_sent_again_under_the_same_key(
    server: ScriptedServer, client: Client, trouble: Answer
) -> None:
    server.will(trouble, trouble, Answer(202, {"id": "a"}))
    assert client.jobs.create(JOB) == {"id": "a"}
    assert len(server.received) == 3
    assert len({received.headers["Idempotency-Key"] for received in server.received}) == 1
    assert len({received.body for received in server.received}) == 1


def test_a_key_still_in_flight_is_waited_for_but_a_conflict_is_not(
    server: ScriptedServer, client: Client
) -> None:
    in_flight = Answer(409, {"code": "idempotency_in_flight"}, {"Retry-After": "0"})
    server.will(in_flight, Answer(202, {"id": "a"}), problem(409, "idempotency_conflict"))
    assert client.jobs.create(JOB, idempotency_key="mine") == {"id": "a"}
    with pytest.raises(NoondayApiError, match="idempotency_conflict"):
        client.jobs.create(JOB, idempotency_key="mine")
    assert [received.headers["Idempotency-Key"] for received in server.received] == ["mine"] * 3


@pytest.mark.parametrize("trouble", [HANG_UP, problem(503, "unavailable")])
def test_what_has_no_key_and_may_have_been_carried_out_is_not_sent_again(
    server: ScriptedServer, client: Client, trouble: Answer
) -> None:
    server.will(trouble)
    with pytest.raises((NoondayConnectionError, NoondayApiError)):
        client.api_keys.create(tenant="shop")
    assert len(server.received) == 1


def test_retries_are_bounded(server: ScriptedServer) -> None:
    server.will(*[BUSY] * 10)
    with Client(server.url, retries=2) as client, pytest.raises(NoondayApiError) as raised:
        client.jobs.get("a")
    assert raised.value.status == 503
    assert len(server.received) == 3


def in_seconds() -> str:
    return "1"


def as_a_date() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)


@pytest.mark.parametrize("asked", [in_seconds, as_a_date])
def test_retry_after_is_honoured(
    server: ScriptedServer, client: Client, asked: Callable[[], str]
) -> None:
    before = time.monotonic()
    server.will(Answer(429, headers={"Retry-After": asked()}), Answer(200, {}))
    client.jobs.get("a")
    assert time.monotonic() - before > 0.9


def test_a_longer_pause_than_one_wants_to_wait_is_raised_at_once(server: ScriptedServer) -> None:
    server.will(Answer(429, {"code": "quota"}, {"Retry-After": "3600"}))
    with Client(server.url) as client, pytest.raises(NoondayApiError, match="quota"):
        client.jobs.get("a")


def test_an_unreadable_retry_after_counts_as_none(server: ScriptedServer, client: Client) -> None:
    server.will(Answer(503, headers={"Retry-After": "soon"}), Answer(200, {"id": "a"}))
    assert client.jobs.get("a") == {"id": "a"}


def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with Client(url, retries=1) as client, pytest.raises(NoondayConnectionError):
            client.jobs.create(JOB)


def test_a_slow_answer_ends_with_the_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            Client(url, timeout_sec=0.1, retries=0) as client,
            pytest.raises(NoondayConnectionError),
        ):
            client.jobs.get("a")


def test_an_error_carries_all_that_the_problem_says(server: ScriptedServer, client: Client) -> None:
    faults = [{"pointer": "/schedule/cron", "code": "invalid", "detail": "has 4 fields"}]
    server.will(problem(422, "invalid", errors=faults))
    with pytest.raises(NoondayApiError) as raised:
        client.jobs.create(JOB)
    error = raised.value
    assert (error.status, error.code, error.detail) == (422, "invalid", "so it is")
    assert (error.errors, error.request_id) == (faults, "r1")
    assert "/schedule/cron: has 4 fields" in str(error)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, b"<html>"),
        Answer(200, [1]),
        Answer(302, b""),
        Answer(400, {"errors": "none of ours"}),
        Answer(502, b"<html>"),
    ],
)
def test_an_answer_that_is_not_noondays_is_an_error(server: ScriptedServer, answer: Answer) -> None:
    server.will(answer)
    with Client(server.url, retries=0) as client, pytest.raises(NoondayApiError) as raised:
        client.jobs.get("a")
    assert raised.value.status == answer.status


def test_a_list_is_fetched_page_by_page_as_it_is_consumed(
    server: ScriptedServer, client: Client
) -> None:
    server.will(page([1, 2], "c&1"), page([3], None))
    jobs = client.jobs.list(status="FAILED", label=None)
    assert [next(jobs)["id"], next(jobs)["id"]] == [1, 2]
    assert [received.path for received in server.received] == ["/v1/jobs?status=FAILED"]
    assert [job["id"] for job in jobs] == [3]
    assert server.received[1].path == "/v1/jobs?status=FAILED&cursor=c%261"


def test_a_batch_gives_each_job_a_key_of_its_own(server: ScriptedServer, client: Client) -> None:
    server.will(BUSY, Answer(202, {"created": 2}))
    client.jobs.create_many([JOB, JOB], atomic=True)
    first, again = server.received
    assert first.body == again.body
    assert first.json["atomic"] is True
    assert len({item["idempotency_key"] for item in first.json["jobs"]}) == 2


def test_a_trigger_whose_answer_was_lost_is_sent_again_under_the_same_key(
    server: ScriptedServer, client: Client
) -> None:
    server.will(HANG_UP, Answer(202, {"id": "r"}))
    assert client.jobs.trigger("a", reason="by hand") == {"id": "r"}
    assert [received.json for received in server.received] == [{"reason": "by hand"}] * 2
    assert len({received.headers["Idempotency-Key"] for received in server.received}) == 1


def test_a_change_for_one_version_is_not_sent_again_and_one_for_any_is(
    server: ScriptedServer, client: Client
) -> None:
    server.will(HANG_UP, Answer(200, {"id": "j"}), HANG_UP)
    assert client.jobs.update("j", {"priority": None}) == {"id": "j"}
    assert [received.headers["If-Match"] for received in server.received] == ["*", "*"]
    assert server.received[0].json == {"priority": None}
    with pytest.raises(NoondayConnectionError):
        client.jobs.update("j", {"priority": 1}, version=4)
    assert len(server.received) == 3
    assert server.received[2].headers["If-Match"] == '"v4"'


def test_ids_cannot_change_the_path(server: ScriptedServer, client: Client) -> None:
    server.will(Answer(200, {}))
    client.runs.get("../jobs?x=1#y")
    assert server.received[0].path == "/v1/runs/..%2Fjobs%3Fx%3D1%23y"


def test_a_document_as_bytes_is_sent_as_it_is(server: ScriptedServer, client: Client) -> None:
    server.will(Answer(202, {}))
    document = b'{"payload": {"n": 1.10, "n": 12345678901234567890}}'
    client.jobs.create(document)
    assert server.received[0].body == document


def test_instants_are_sent_with_their_offset_and_naive_ones_refused(
    server: ScriptedServer, client: Client
) -> None:
    at = datetime(2027, 1, 31, 9, tzinfo=UTC)
    server.will(Answer(202, {}))
    client.jobs.create({"schedule": {"type": "once", "run_at": at}})
    assert server.received[0].json["schedule"]["run_at"] == "2027-01-31T09:00:00+00:00"
    with pytest.raises(ValueError, match="time zone"):
        client.jobs.create({"schedule": {"type": "once", "run_at": at.replace(tzinfo=None)}})
    with pytest.raises(ValueError, match="JSON"):
        client.jobs.create({"payload": float("nan")})


DAY = datetime(2027, 1, 1, tzinfo=UTC)


def test_a_backfill_is_asked_for_under_a_key(server: ScriptedServer, client: Client) -> None:
    server.will(BUSY, Answer(202, {"id": "o"}))
    made = client.jobs.backfill("j", from_at=DAY, to_at=DAY, rate_per_sec=2, dry_run=False)
    assert made == {"id": "o"}
    first, second = server.received
    at = "2027-01-01T00:00:00+00:00"
    assert first.json == {"from": at, "to": at, "rate_per_sec": 2, "dry_run": False}
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]


def test_every_call_reaches_its_route(server: ScriptedServer, client: Client) -> None:
    empty = page([], None)
    calls: list[tuple[Any, Answer, str]] = [
        (lambda: client.jobs.get("j"), Answer(), "GET /v1/jobs/j"),
        (lambda: client.jobs.delete("j"), Answer(), "DELETE /v1/jobs/j"),
        (lambda: client.jobs.trigger("j"), Answer(202), "POST /v1/jobs/j/trigger"),
        (
            lambda: client.jobs.backfill("j", from_at=DAY, to_at="2027-01-02T00:00:00Z"),
            Answer(202),
            "POST /v1/jobs/j/backfill",
        ),
        (lambda: client.jobs.update("j", {}), Answer(), "PATCH /v1/jobs/j"),
        (lambda: client.jobs.pause("j"), Answer(), "POST /v1/jobs/j/pause"),
        (lambda: client.jobs.resume("j"), Answer(), "POST /v1/jobs/j/resume"),
        (lambda: list(client.jobs.executions("j")), empty, "GET /v1/jobs/j/executions"),
        (lambda: list(client.jobs.occurrences("j")), empty, "GET /v1/jobs/j/occurrences"),
        (
            lambda: client.jobs.delete("j", running="cancel"),
            Answer(),
            "DELETE /v1/jobs/j?running=cancel",
        ),
        (lambda: client.jobs.cancel_many(lane="long"), Answer(202), "POST /v1/jobs:cancel"),
        (lambda: client.runs.get("r"), Answer(), "GET /v1/runs/r"),
        (lambda: client.runs.cancel("r"), Answer(), "POST /v1/runs/r/cancel"),
        (lambda: list(client.operations.list()), empty, "GET /v1/operations"),
        (lambda: client.operations.get("o"), Answer(), "GET /v1/operations/o"),
        (lambda: client.operations.abort("o"), Answer(), "POST /v1/operations/o/abort"),
        (lambda: client.tenants.change("t", keep_responses=False), Answer(), "PATCH /v1/tenants/t"),
        (lambda: list(client.dlq.list()), empty, "GET /v1/dlq"),
        (lambda: client.dlq.get("r"), Answer(), "GET /v1/dlq/r"),
        (lambda: client.dlq.groups("reason"), Answer(), "GET /v1/dlq?group_by=reason"),
        (lambda: client.dlq.discard("r", reason="x"), Answer(), "DELETE /v1/dlq/r?reason=x"),
        (lambda: client.replays.create({"filter": {}}), Answer(), "POST /v1/dlq/replays"),
        (lambda: client.replays.get("p"), Answer(), "GET /v1/dlq/replays/p"),
        (lambda: list(client.replays.list()), empty, "GET /v1/dlq/replays"),
        (lambda: client.replays.pause("p"), Answer(), "POST /v1/dlq/replays/p/pause"),
        (lambda: client.replays.resume("p"), Answer(), "POST /v1/dlq/replays/p/resume"),
        (lambda: client.replays.abort("p"), Answer(), "POST /v1/dlq/replays/p/abort"),
        (lambda: list(client.tenants.list()), empty, "GET /v1/tenants"),
        (lambda: client.tenants.create("t"), Answer(201), "POST /v1/tenants"),
        (lambda: list(client.api_keys.list()), empty, "GET /v1/api-keys"),
        (lambda: client.api_keys.create(tenant="t"), Answer(201), "POST /v1/api-keys"),
        (lambda: client.api_keys.revoke("k"), Answer(), "DELETE /v1/api-keys/k"),
        (lambda: client.schedules.preview({}), Answer(), "POST /v1/schedules/preview"),
        (lambda: list(client.targets.list()), empty, "GET /v1/targets"),
        (lambda: client.targets.resume("a.b"), Answer(), "POST /v1/targets/a.b/resume"),
        (lambda: list(client.lanes.list()), empty, "GET /v1/lanes"),
        (lambda: client.lanes.put("own", weight=2), Answer(), "PUT /v1/lanes/own"),
        (lambda: client.lanes.pause("own", "why"), Answer(), "POST /v1/lanes/own/pause"),
        (lambda: client.lanes.resume("own"), Answer(), "POST /v1/lanes/own/resume"),
        (lambda: client.lanes.delete("own"), Answer(), "DELETE /v1/lanes/own"),
        (lambda: list(client.limits.list()), empty, "GET /v1/limits"),
        (lambda: client.limits.set_host("a.b"), Answer(), "PUT /v1/limits/hosts/a.b"),
        (lambda: client.limits.clear_host("a.b"), Answer(), "DELETE /v1/limits/hosts/a.b"),
        (
            lambda: client.limits.set_key("a/b c", max_running=5),
            Answer(),
            "PUT /v1/limits/keys/a%2Fb%20c",
        ),
        (lambda: client.limits.clear_key("k"), Answer(), "DELETE /v1/limits/keys/k"),
        (lambda: list(client.service.workers()), empty, "GET /v1/workers"),
        (lambda: list(client.service.shards()), empty, "GET /v1/shards"),
        (client.service.backlog, Answer(), "GET /v1/backlog"),
        (
            lambda: client.service.forecast(hours=2, jitter_sec=60),
            Answer(),
            "GET /v1/forecast?hours=2&jitter_sec=60",
        ),
        (lambda: list(client.service.alerts()), empty, "GET /v1/alerts"),
        (lambda: list(client.service.audit()), empty, "GET /v1/audit"),
    ]
    for call, answer, _ in calls:
        server.will(answer)
        call()
    seen = [f"{received.method} {received.path}" for received in server.received]
    assert seen == [expected for _, _, expected in calls]


async def test_the_asynchronous_client_behaves_the_same(server: ScriptedServer) -> None:
    server.will(BUSY, HANG_UP, Answer(202, {"id": "a"}), page([1], "c"), page([2], None))
    async with AsyncClient(server.url, "nd_id_secret") as client:
        assert await client.jobs.create(JOB) == {"id": "a"}
        assert [run["id"] async for run in client.jobs.executions("a")] == [1, 2]
        keys = {received.headers.get("Idempotency-Key") for received in server.received[:3]}
        assert len(keys) == 1
        server.will(*[problem(404, "not_found")] * 2)
        answers = await asyncio.gather(
            client.runs.get("x"), client.runs.get("y"), return_exceptions=True
        )
    assert [answer.code for answer in answers if isinstance(answer, NoondayApiError)] == [
        "not_found",
        "not_found",
    ]


def test_the_client_imports_nothing_else_of_noonday_and_only_when_asked_for() -> None:
    program = (
        "import sys, noonday\n"
        "assert 'httpx2' not in sys.modules\n"
        "noonday.Client\n"
        "print(*sorted(name for name in sys.modules if name.startswith('noonday')))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == ["noonday", "noonday.client"]


async def test_a_backfill_is_asked_for_asynchronously(server: ScriptedServer) -> None:
    server.will(Answer(200, {"to_run": 3}))
    async with AsyncClient(server.url, "nd_id_secret") as client:
        counted = await client.jobs.backfill("j", from_at=DAY, to_at=DAY, dry_run=True)
    assert counted == {"to_run": 3}
    assert server.received[0].json["dry_run"] is True
