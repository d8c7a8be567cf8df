from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from noonday.settings import load, write_client_file
from tests.support.scripted_server import Answer, ScriptedServer

Call = Callable[..., Any]
HOOK = "https://example.com/hook"


def page(*documents: Any, cursor: str | None = None) -> Answer:
    return Answer(200, {"data": list(documents), "next_cursor": cursor, "has_more": bool(cursor)})


def problem(status: int, **headers: str) -> Answer:
    body = {
        "code": "some_code",
        "detail": "so it is",
        "request_id": "r1",
        "errors": [{"pointer": "/schedule/cron", "code": "invalid", "detail": "has 4 fields"}],
    }
    return Answer(status, body, headers)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, 7), (401, 4), (403, 4), (404, 3), (409, 5), (412, 5), (413, 7), (415, 7),
        (422, 7), (428, 5), (429, 6), (500, 1), (502, 6), (503, 6),
    ],
)  # fmt: skip
def test_the_exit_code_says_what_kind_of_failure_it_was(
    call: Call, server: ScriptedServer, status: int, code: int
) -> None:
    server.will(problem(status, **{"Retry-After": "3600"}))
    result = call("jobs", "get", "a")
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "noonday: so it is",
        "  /schedule/cron: has 4 fields",
        "  request r1",
    ]


def test_a_server_that_is_not_there_is_code_6(run: Call) -> None:
    result = run("workers", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 6
    assert "cannot be reached" in result.stderr


def test_address_and_key_come_from_options_then_variables_then_what_up_has_left(
    run: Call, server: ScriptedServer, here: Path
) -> None:
    server.will(*[page()] * 3)
    write_client_file(load(None, {}), url=server.url, key="nd_file")
    assert run("workers").exit_code == 0
    assert run("workers", NOONDAY_API_KEY="nd_variable").exit_code == 0
    assert run("workers", "--key", "nd_option", NOONDAY_API_KEY="nd_variable").exit_code == 0
    keys = [received.headers["Authorization"] for received in server.received]
    assert keys == ["Bearer nd_file", "Bearer nd_variable", "Bearer nd_option"]


@pytest.mark.parametrize(
    ("arguments", "request_line"),
    [
        ("jobs get j", "GET /v1/jobs/j"),
        ("jobs cancel j", "DELETE /v1/jobs/j"),
        ("jobs trigger j", "POST /v1/jobs/j/trigger"),
        ("jobs backfill j --from a --to b", "POST /v1/jobs/j/backfill"),
        ("jobs pause j --until 2027-01-31T09:00:00Z", "POST /v1/jobs/j/pause"),
        ("jobs resume j --catch-up", "POST /v1/jobs/j/resume"),
        ("jobs update j --set priority=2", "PATCH /v1/jobs/j"),
        ("jobs update j --set name=x --dry-run", "PATCH /v1/jobs/j?dry_run=true"),
        ("runs get r", "GET /v1/runs/r"),
        ("dlq get r", "GET /v1/dlq/r"),
        ("dlq show r", "GET /v1/dlq/r"),
        ("dlq discard r --why done", "DELETE /v1/dlq/r?reason=done"),
        ("dlq replay r", "POST /v1/dlq/replays"),
        ("dlq replay --all --dry-run", "POST /v1/dlq/replays"),
        ("dlq replays get p", "GET /v1/dlq/replays/p"),
        ("dlq replays pause p", "POST /v1/dlq/replays/p/pause"),
        ("dlq replays resume p", "POST /v1/dlq/replays/p/resume"),
        ("dlq replays abort p", "POST /v1/dlq/replays/p/abort"),
        ("tenants create shop", "POST /v1/tenants"),
        ("tenants set shop --deliveries-per-sec 2.5", "PATCH /v1/tenants/shop"),
        ("tenants set shop --deliveries-per-sec none", "PATCH /v1/tenants/shop"),
        ("keys create --tenant shop", "POST /v1/api-keys"),
        ("keys revoke k", "DELETE /v1/api-keys/k"),
        ("backlog", "GET /v1/backlog"),
    ],
)
def test_a_command_about_one_thing_shows_it(
    call: Call, server: ScriptedServer, arguments: str, request_line: str
) -> None:
    document = {"id": "x", "labels": {"env": "prod"}, "error": None}
    server.will(Answer(200, document), Answer(200, document))
    shown = call(*arguments.split())
    assert shown.exit_code == 0
    assert shown.stdout == 'id\tx\nlabels\t{"env": "prod"}\nerror\t-\n'
    assert json.loads(call(*arguments.split(), "--json").stdout) == document
    assert f"{server.received[0].method} {server.received[0].path}" == request_line


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ("jobs list --status FAILED", "/v1/jobs?status=FAILED&limit=50"),
        ("jobs list --label env=a=b", "/v1/jobs?label=env%3Aa%3Db&limit=50"),
        ("executions j", "/v1/jobs/j/executions?limit=50"),
        ("occurrences j --limit 500", "/v1/jobs/j/occurrences?limit=200"),
        ("dlq list --reason timeout --job j", "/v1/dlq?reason=timeout&job_id=j&limit=50"),
        ("targets list --state OPEN", "/v1/targets?state=OPEN&limit=50"),
        ("lanes list", "/v1/lanes"),
        ("limits list", "/v1/limits"),
        ("operations list", "/v1/operations"),
        ("dlq list --state DEAD", "/v1/dlq?state=DEAD&limit=50"),
        ("dlq replays list", "/v1/dlq/replays?limit=50"),
        ("tenants list", "/v1/tenants"),
        ("keys list", "/v1/api-keys"),
        ("workers", "/v1/workers"),
        ("shards", "/v1/shards"),
        ("alerts", "/v1/alerts"),
        ("audit", "/v1/audit"),
    ],
)
def test_a_list_is_lines_for_people_and_an_array_for_programs(
    call: Call, server: ScriptedServer, arguments: str, path: str
) -> None:
    server.will(page({"id": "x", "name": "n"}), page({"id": "x", "name": "n"}))
    lines = call(*arguments.split()).stdout.splitlines()
    assert len(lines) == 2
    assert len(lines[0].split("\t")) == len(lines[1].split("\t"))
    assert json.loads(call(*arguments.split(), "--json").stdout) == [{"id": "x", "name": "n"}]
    assert server.received[0].path == path


def test_a_backfill_is_asked_for_as_it_is_given(call: Call, server: ScriptedServer) -> None:
    server.will(Answer(200, {"to_run": 3}), Answer(202, {"id": "o"}))
    both = [
        "jobs",
        "backfill",
        "j",
        "--from",
        "2027-01-01T00:00:00Z",
        "--to",
        "2027-01-02T00:00:00Z",
    ]
    assert call(*both, "--dry-run").stdout == "to_run\t3\n"
    terms = ["--rate", "2.5", "--lane", "default", "--priority", "9", "--reason", "outage"]
    assert call(*both, *terms).exit_code == 0
    ends = {"from": "2027-01-01T00:00:00Z", "to": "2027-01-02T00:00:00Z"}
    assert [received.json for received in server.received] == [
        {**ends, "dry_run": True, "reason": ""},
        {**ends, "dry_run": False, "reason": "outage", "rate_per_sec": 2.5, "lane": "default",
         "priority": 9},
    ]  # fmt: skip


def test_a_list_stops_at_the_limit_and_says_so(call: Call, server: ScriptedServer) -> None:
    server.will(page({"id": 1}, {"id": 2}, cursor="c"), page({"id": 3}, {"id": 4}))
    result = call("jobs", "list", "--limit", "3")
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["ID", "1", "2", "3"]
    assert "only the first 3" in result.stderr


# --- jobs create ------------------------------------------------------------------------------


def created(call: Call, server: ScriptedServer, *arguments: str) -> Any:
    server.will(Answer(202, {"id": "j"}))
    result = call("jobs", "create", *arguments)
    assert result.exit_code == 0, result.stderr
    return server.received[-1].json


def test_a_job_with_nothing_but_a_url_runs_now(call: Call, server: ScriptedServer) -> None:
    assert created(call, server, HOOK) == {
        "schedule": {"type": "once"},
        "target": {"type": "http", "url": HOOK},
    }
    assert server.received[-1].headers["Idempotency-Key"]


def test_every_option_ends_up_in_its_field(call: Call, server: ScriptedServer) -> None:
    document = created(
        call, server, HOOK, "--name", "n", "--cron", "0 3 * * *", "--timezone", "Europe/Paris",
        "--overlap", "allow", "--jitter-sec", "5", "--method", "PUT", "-H", "x-team: a: b",
        "-H", "x-env:prod", "--timeout-sec", "2.5", "--max-attempts", "3", "--priority", "1",
        "--on-unknown", "dead_letter", "--cancel-url", "https://example.com/cancel",
        "--label", "env=prod", "--lane", "long", "--idempotency-key", "mine",
    )  # fmt: skip
    assert document == {
        "name": "n",
        "schedule": {
            "type": "cron", "cron": "0 3 * * *", "timezone": "Europe/Paris", "overlap": "allow",
            "jitter_sec": 5,
        },
        "target": {
            "type": "http", "url": HOOK, "method": "PUT", "timeout_sec": 2.5,
            "headers": {"x-team": "a: b", "x-env": "prod"},
        },
        "priority": 1,
        "on_unknown": "dead_letter",
        "cancel_url": "https://example.com/cancel",
        "lane": "long",
        "labels": {"env": "prod"},
        "retry_policy": {"max_attempts": 3},
    }  # fmt: skip
    assert server.received[-1].headers["Idempotency-Key"] == "mine"


def test_a_preview_is_a_sentence_and_a_line_for_each_occurrence(
    call: Call, server: ScriptedServer
) -> None:
    fire = {"at": "2027-03-28T01:00:00Z", "local": "…", "runs": True, "note": None}
    document = {"sentence": "At 02:30 every day.", "fires": [fire, fire]}
    server.will(*[Answer(200, document)] * 3)
    shown = call(
        "schedule", "preview", "30 2 * * *", "--timezone", "Europe/Paris", "--dst-gap", "skip",
        "--dst-fold", "both", "--starts-at", "2027-01-01T00:00:00Z", "--count", "2",
        "--after", "2027-03-27T00:00:00Z",
    )  # fmt: skip
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[0] == "At 02:30 every day."
    assert len(shown.stdout.splitlines()) == 4, "with a heading"
    assert json.loads(server.received[0].body) == {
        "schedule": {
            "type": "cron", "cron": "30 2 * * *", "timezone": "Europe/Paris", "dst_gap": "skip",
            "dst_fold": "both", "starts_at": "2027-01-01T00:00:00Z",
        },
        "count": 2,
        "after": "2027-03-27T00:00:00Z",
    }  # fmt: skip
    assert json.loads(call("schedule", "preview", "--every", "900", "--json").stdout) == document
    assert json.loads(server.received[1].body)["schedule"] == {
        "type": "interval", "interval_sec": 900,
    }  # fmt: skip


FORECAST: dict[str, Any] = {
    "computed_at": "2027-03-01T09:40:12.113Z",
    "starts_at": "2027-03-01T09:41:00.000Z",
    "ends_at": "2027-03-01T11:41:00.000Z",
    "estimated": True,
    "occurrences": 2_406.0,
    "outlook": {"hot_minutes": 1, "busiest_at": "2027-03-01T10:00:00.000Z", "busiest": 1_202.0},
    "with_jitter": {"hot_minutes": 0, "busiest_at": "2027-03-01T10:00:00.000Z", "busiest": 241.5},
    "minutes": [
        {"at": "2027-03-01T10:00:00.000Z", "occurrences": 1_202.0, "hot": True},
        {"at": "2027-03-01T10:01:00.000Z", "occurrences": 1.5, "hot": False},
    ],
    "hot": [
        {
            "at": "2027-03-01T10:00:00.000Z",
            "occurrences": 1_202.0,
            "tenants": [{"name": "shop", "occurrences": 1_200.0}],
            "lanes": [{"name": "default", "occurrences": 1_202.0}],
            "target_hosts": [{"name": "a.b", "occurrences": 9.0}, {"name": None, "occurrences": 2}],
        }
    ],
}


def test_a_forecast_says_what_is_hot_and_whose_it_is(call: Call, server: ScriptedServer) -> None:
    server.will(*[Answer(200, FORECAST)] * 3)
    lines = call("forecast", "--hours", "2", "--jitter-sec", "300").stdout.splitlines()
    assert server.received[0].path == "/v1/forecast?hours=2&jitter_sec=300&hot_only=true"
    assert "about 2,406 occurrences; 1 hot minute, 1,202 in the busiest, 2027-" in lines[0]
    assert lines[1].startswith("With a jitter of 300 s: 0 hot minutes, 242 in the busiest")
    assert "a.b 9, others 2" in lines[3]
    assert len(lines) == 4
    lines = call("forecast", "--minutes", "--lane", "batch", "--tenant", "shop").stdout.splitlines()
    assert server.received[1].path == "/v1/forecast?hours=72&lane=batch&tenant=shop"
    assert lines[-1].startswith("2027-03-01T10:01:00.000Z\t1.5\tno")
    assert json.loads(call("forecast", "--json").stdout) == FORECAST


def test_a_forecast_that_was_not_made_yet_is_said_to_be_none(
    call: Call, server: ScriptedServer
) -> None:
    server.will(Answer(200, {"computed_at": None, "hot": [], "minutes": []}))
    assert call("forecast").stdout.splitlines()[0] == "No scheduler has counted yet."


def test_settings_of_jitter_are_sent_as_they_are_given(call: Call, server: ScriptedServer) -> None:
    server.will(*[Answer(200, {})] * 3)
    call("tenants", "set", "shop", "--jitter-sec", "300")
    call("lanes", "set", "batch", "--jitter-sec", "0")
    call("lanes", "set", "batch", "--jitter-sec", "none")
    assert [json.loads(each.body) for each in server.received] == [
        {"jitter_sec": 300}, {"jitter_sec": 0}, {"jitter_sec": None},
    ]  # fmt: skip


def test_a_job_may_be_told_to_wait_for_others(call: Call, server: ScriptedServer) -> None:
    document = created(call, server, HOOK, "--after", "a", "--after", "b")
    assert document["after"] == {"jobs": ["a", "b"]}
    rules = ("--after-on", "any", "--cascade-cancel")
    document = created(call, server, HOOK, "--after", "a", *rules)
    assert document["after"] == {"jobs": ["a"], "on": "any", "cascade_cancel": True}
    assert call("jobs", "create", HOOK, *rules).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "schedule"),
    [
        (["--at", "2027-01-31T09:00:00Z"], {"type": "once", "run_at": "2027-01-31T09:00:00Z"}),
        (["--delay", "PT30S"], {"type": "once", "delay": "PT30S"}),
        (["--every", "300"], {"type": "interval", "interval_sec": 300}),
    ],
)
def test_the_options_choose_the_kind_of_schedule(
    call: Call, server: ScriptedServer, arguments: list[str], schedule: Any
) -> None:
    assert created(call, server, HOOK, *arguments)["schedule"] == schedule


@pytest.mark.parametrize("from_file", [False, True])
def test_a_payload_is_sent_byte_for_byte_as_it_was_given(
    call: Call, server: ScriptedServer, here: Path, from_file: bool
) -> None:
    text = '{ "n": 1.10, "big": 12345678901234567890123, "é": "\\u00e9" }'
    (here / "payload.json").write_text(text, "utf-8")
    document = created(call, server, HOOK, "-d", "@payload.json" if from_file else text)
    assert b64decode(document["payload_base64"]).decode() == text
    assert document["content_type"] == "application/json"


def test_a_whole_job_from_a_file_is_sent_as_it_is(
    call: Call, server: ScriptedServer, here: Path
) -> None:
    (here / "job.json").write_bytes(b'{ "schedule": {"type": "once"}, "payload": 1.10 }')
    created(call, server, "--file", "job.json")
    assert server.received[-1].body == (here / "job.json").read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [HOOK, "--cron", "* * * * *", "--every", "5"],
        [HOOK, "-H", "no colon"],
        [HOOK, "--label", "no sign"],
        [HOOK, "-d", "{"],
        [HOOK, "-d", "@missing.json"],
        [HOOK, "--file", "job.json"],
        ["--file", "missing.json"],
    ],
)
def test_what_cannot_be_meant_is_wrong_usage_and_nothing_is_sent(
    call: Call, server: ScriptedServer, arguments: list[str]
) -> None:
    result = call("jobs", "create", *arguments)
    assert result.exit_code == 2
    assert result.stderr
    assert server.received == []


# --- settings that can be taken away -----------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        ("--creates-per-sec 2.5 --creates-burst 10", {"creates_per_sec": 2.5, "creates_burst": 10}),
        ("--create-bytes-per-sec 1000", {"create_bytes_per_sec": 1000}),
        ("--max-pending-jobs none", {"max_pending_jobs": None}),
        ("--creates-per-sec none --keep-responses",
         {"keep_responses": True, "creates_per_sec": None}),
        ("--max-pending-jobs -1", {"max_pending_jobs": -1}),
    ],
)  # fmt: skip
def test_a_quota_is_set_to_a_number_or_taken_away(
    call: Call, server: ScriptedServer, arguments: str, body: dict[str, object]
) -> None:
    server.will(Answer(200, {"id": "x"}))
    assert call("tenants", "set", "shop", *arguments.split()).exit_code == 0
    assert json.loads(server.received[0].body) == body


def test_a_quota_that_is_no_number_is_refused(call: Call, server: ScriptedServer) -> None:
    assert call("tenants", "set", "shop", "--creates-per-sec", "many").exit_code == 2
    assert server.received == []


# --- text from tenants and receivers ------------------------------------------------------------

EVIL = "[red]x[/red] {{7*7}}\x1b[2J\n\t=cmd\u202e"


def test_text_of_a_tenant_cannot_forge_lines_or_steer_the_terminal(
    call: Call, server: ScriptedServer
) -> None:
    server.will(
        page({"id": "x", "name": EVIL}), Answer(200, {"name": EVIL}), Answer(404, {"detail": EVIL})
    )
    for result in (call("jobs", "list"), call("jobs", "get", "x"), call("jobs", "get", "y")):
        assert not set("\x1b\u202e") & set(result.output)
        assert "[red]x[/red] {{7*7}}\\x1b[2J\\n\\t=cmd" in result.output
        assert len(result.output.splitlines()) <= 2


def test_on_a_terminal_a_table_shows_text_literally(here: Path, server: ScriptedServer) -> None:
    server.will(page({"id": "x", "name": EVIL, "status": "PENDING"}))
    environ = {"NOONDAY_URL": server.url, "COLUMNS": "200", "TERM": "xterm", "NO_COLOR": "1"}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "noonday", "jobs", "list"],
        stdout=theirs,
        env={**os.environ, **environ},
    )
    os.close(theirs)
    shown = b""
    while chunk := _read(ours):
        shown += chunk
    os.close(ours)
    assert process.wait() == 0
    assert b"[red]x[/red]" in shown
    assert b"\x1b[2J" not in shown
    assert b"\t" not in shown


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4_096)
    except OSError:  # how Linux says that the other side is closed
        return b""


def test_a_replay_is_sent_with_what_was_said_and_nothing_else(
    call: Call, server: ScriptedServer
) -> None:
    server.will(*[Answer(202, {"id": "p", "state": "RUNNING"})] * 2)
    assert call("dlq", "replay", "a", "b").exit_code == 0
    options = (
        "--target-host shop.example --reason timeout --canary 3 --rate 2.5 --ramp-sec 0 "
        "--failure-ratio 0.5 --window 7 --again --why ok"
    )
    assert call("dlq", "replay", *options.split()).exit_code == 0
    plain = {"again": False, "reason": "", "dry_run": False, "stop_when": {}}
    assert server.received[0].json == {"ids": ["a", "b"], **plain}
    assert server.received[1].json == {
        "filter": {"reason": "timeout", "target_host": "shop.example"},
        "canary": 3, "rate_per_sec": 2.5, "ramp_sec": 0,
        "stop_when": {"failure_ratio": 0.5, "window": 7},
        "again": True, "reason": "ok", "dry_run": False,
    }  # fmt: skip
    assert all(received.headers["Idempotency-Key"] for received in server.received)


@pytest.mark.parametrize("arguments", ["", "r --all", "r --reason timeout"])
def test_what_is_to_be_replayed_has_to_be_said_in_one_way(
    call: Call, server: ScriptedServer, arguments: str
) -> None:
    assert call("dlq", "replay", *arguments.split()).exit_code == 2
    assert server.received == []


def test_groups_are_a_table_and_say_when_they_are_not_all(
    call: Call, server: ScriptedServer
) -> None:
    group = {
        "reason": "timeout", "fingerprint": "f", "count": 7, "first_seen": "a", "last_seen": "b",
        "sample_id": "r", "sample_error": "no answer",
    }  # fmt: skip
    answer = {"data": [group], "complete": False, "counted_from": "2027-01-01T00:00:00.000Z"}
    server.will(*[Answer(200, answer)] * 2)
    result = call("dlq", "groups", "--by", "reason")
    assert server.received[0].path == "/v1/dlq?state=DEAD&group_by=reason"
    assert result.stdout.splitlines()[1].split("\t") == ["7", "timeout", "f", "a", "b", "no answer"]
    assert "2027-01-01" in result.stderr
    assert json.loads(call("dlq", "groups", "--json").stdout) == answer


@pytest.mark.parametrize(
    ("arguments", "method", "path", "body"),
    [
        (
            "limits set host a.example --max-running 3 --rate-per-sec 2",
            "PUT",
            "/v1/limits/hosts/a.example",
            {"max_running": 3, "rate_per_sec": 2},
        ),
        ("limits set key a/b --max-running 5", "PUT", "/v1/limits/keys/a%2Fb", {"max_running": 5}),
        ("limits set key k --max-running none", "PUT", "/v1/limits/keys/k", {"max_running": None}),
        ("limits clear host a.example", "DELETE", "/v1/limits/hosts/a.example", None),
        ("limits clear key k", "DELETE", "/v1/limits/keys/k", None),
        (
            "tenants set shop --max-running none --weight 2",
            "PATCH",
            "/v1/tenants/shop",
            {"weight": 2, "max_running": None},
        ),
    ],
)
def test_limits_are_set_and_cleared(
    call: Call, server: ScriptedServer, arguments: str, method: str, path: str, body: Any
) -> None:
    server.will(Answer(200, {"name": "x"}))
    assert call(*arguments.split()).exit_code == 0
    (seen,) = server.received
    assert (seen.method, seen.path) == (method, path)
    assert body is None or seen.json == body


@pytest.mark.parametrize(
    "arguments",
    ["limits set key k", "limits set key k --max-running 1 --rate-per-sec 2",
     "limits set host a --max-running x", "limits set lane a"],
)  # fmt: skip
def test_a_limit_that_cannot_be_is_a_wrong_usage(call: Call, arguments: str) -> None:
    assert call(*arguments.split()).exit_code == 2


def test_a_change_says_field_by_field_what_is_other_from_now_on(
    call: Call, server: ScriptedServer
) -> None:
    server.will(Answer(200, {"id": "j"}))
    shown = call(
        "jobs", "update", "j", "--set", "schedule.cron=0 4 * * *", "--set", "priority=2",
        "--set", "labels.env=null", "--set", "schedule.jitter_sec=5", "-d", '{"b": 1}',
        "--version", "3",
    )  # fmt: skip
    assert shown.exit_code == 0, shown
    (received,) = server.received
    assert received.headers["If-Match"] == '"v3"'
    assert received.json == {
        "schedule": {"cron": "0 4 * * *", "jitter_sec": 5},
        "priority": 2,
        "labels": {"env": None},
        "payload_base64": received.json["payload_base64"],
        "content_type": "application/json",
    }
    assert b64decode(received.json["payload_base64"]) == b'{"b": 1}'


def test_a_whole_patch_is_sent_as_it_stands_in_a_file(
    call: Call, server: ScriptedServer, here: Path
) -> None:
    server.will(Answer(200, {"id": "j"}))
    (here / "patch.json").write_text('{"name":  "x"}')
    assert call("jobs", "update", "j", "--file", "patch.json").exit_code == 0
    (received,) = server.received
    assert (received.body, received.headers["If-Match"]) == (b'{"name":  "x"}', "*")


@pytest.mark.parametrize(
    "arguments",
    ["", "--set name", "--set name=x --set name.y=z", "--file patch.json --set name=x"],
)
def test_a_change_that_says_nothing_or_too_much_is_not_sent(
    call: Call, server: ScriptedServer, arguments: str
) -> None:
    assert call("jobs", "update", "j", *arguments.split()).exit_code == 2
    assert server.received == []
