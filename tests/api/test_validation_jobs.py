"""Every field of a job: what is good, what is refused, and under which name."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from noonday.api.reading import MOST_FAULTS
from noonday.api.schemas import read_job
from noonday.domain.model import Cron, HttpTarget, Interval, Once, RetryPolicy
from tests.support.bodies import GONE, GOOD, changed, every, faults, job, once

NOW = datetime(2027, 3, 1, 12, 0, 0, 250, tzinfo=UTC)
YEARS_100 = 36_525 * 86_400


def test_what_is_not_given_has_its_default() -> None:
    request = job({"schedule": {"type": "once"}, "target": {"type": "http", "url": "https://a.b/"}})
    assert request.name == ""
    assert request.schedule_type == "once"
    assert request.schedule(NOW) == Once(NOW)
    assert request.target == HttpTarget("https://a.b/", "POST", {}, 30.0)
    assert request.secret_headers == {}
    assert (request.payload, request.content_type) == (b"", "application/json")
    assert (request.priority, request.lane, request.lease_sec) == (5, "default", 60)
    assert request.retry_policy == RetryPolicy()
    assert request.labels == {}


def test_every_field_is_carried_over() -> None:
    request = job(
        {
            "name": "näme 😀",
            "schedule": {
                "type": "cron",
                "cron": "30 2 * * MON-FRI",
                "timezone": "Europe/Kiev",
                "jitter_sec": 300,
                "misfire": "one",
                "overlap": "allow",
                "grace_sec": 7,
                "dst_gap": "run",
                "dst_fold": "first",
                "starts_at": "2027-05-01T00:00:00+02:00",
                "ends_at": None,
                "max_occurrences": None,
            },
            "target": {
                "type": "http",
                "url": "https://Example.COM:443/run?a=b",
                "method": "PUT",
                "headers": {"x-team": "payments", "Authorization": "Bearer s"},
                "timeout_sec": 0.5,
            },
            "payload": [1],
            "priority": 0,
            "lane": "default",
            "retry_policy": {
                "max_attempts": 1,
                "base_sec": 0.25,
                "factor": 1,
                "cap_sec": 60,
                "max_age_sec": None,
            },
            "lease_sec": 5,
            "on_unknown": "dead_letter",
            "cancel_url": "https://Example.COM/cancel?run=a",
            "after": [],
            "concurrency_key": None,
            "labels": {"env": "prod", "a/b~c:d": ""},
        }
    )
    starts_at = datetime(2027, 4, 30, 22, tzinfo=UTC)
    assert request.schedule(NOW) == Cron(
        "30 2 * * MON-FRI", "Europe/Kiev", 300, "one", "allow", 7, starts_at=starts_at
    )
    url = "https://Example.COM:443/run?a=b"
    assert request.target == HttpTarget(url, "PUT", {"x-team": "payments"}, 0.5)
    assert request.target_host == "example.com"
    assert request.secret_headers == {"Authorization": "Bearer s"}
    assert request.on_unknown == "dead_letter"
    assert request.cancel_url == "https://Example.COM/cancel?run=a"
    assert request.payload == b"[1]"
    assert (request.name, request.priority, request.lease_sec) == ("näme 😀", 0, 5)
    assert request.retry_policy == RetryPolicy(1, 0.25, 1.0, 60.0, None)
    assert request.labels == {"env": "prod", "a/b~c:d": ""}


@pytest.mark.parametrize(
    ("fields", "timeout_sec", "lane"),
    [
        ({}, 30, "default"),
        ({}, 120, "default"),
        ({}, 120.5, "long"),
        ({}, 86_400, "long"),
        ({"lane": "default"}, 86_400, "default"),
        ({"lane": "long"}, 1, "long"),
    ],
)
def test_a_job_that_names_no_lane_goes_by_its_timeout(
    fields: dict[str, str], timeout_sec: float, lane: str
) -> None:
    body = changed("/target/timeout_sec", timeout_sec) | fields
    assert job(body).lane == lane


# --- Field by field ---------------------------------------------------------------------------

NOT_STRINGS: list[Any] = [None, 5, 1.5, True, [], {}]
NOT_NUMBERS: list[Any] = [None, "5", "", True, False, [], [1], {}]
NOT_OBJECTS: list[Any] = [None, "x", 5, True, [], [{}]]

WRONG_TYPES: list[tuple[str, list[Any]]] = [
    ("/name", NOT_STRINGS),
    ("/schedule", NOT_OBJECTS),
    ("/schedule/cron", NOT_STRINGS),
    ("/schedule/timezone", NOT_STRINGS),
    ("/schedule/jitter_sec", [*NOT_NUMBERS, 1.0, 1e3]),
    ("/schedule/grace_sec", [*NOT_NUMBERS, 1.5]),
    ("/schedule/overlap", NOT_STRINGS),
    ("/schedule/misfire", NOT_STRINGS),
    ("/schedule/starts_at", [5, 1.5, True, [], {}]),
    ("/schedule/ends_at", [5, 1.5, True, [], {}]),
    ("/schedule/max_occurrences", ["5", 1.5, True, [], {}]),
    ("/target", NOT_OBJECTS),
    ("/target/type", NOT_STRINGS),
    ("/target/url", NOT_STRINGS),
    ("/target/method", NOT_STRINGS),
    ("/target/headers", NOT_OBJECTS),
    ("/target/headers/x-a", NOT_STRINGS),
    ("/target/timeout_sec", NOT_NUMBERS),
    ("/priority", [*NOT_NUMBERS, 2.0]),
    ("/lane", NOT_STRINGS),
    ("/retry_policy", NOT_OBJECTS),
    ("/retry_policy/max_attempts", [*NOT_NUMBERS, 2.0]),
    ("/retry_policy/base_sec", NOT_NUMBERS),
    ("/retry_policy/factor", NOT_NUMBERS),
    ("/retry_policy/cap_sec", NOT_NUMBERS),
    ("/retry_policy/max_age_sec", ["5", 1.5, True, [], {}]),
    ("/lease_sec", [*NOT_NUMBERS, 60.0]),
    ("/on_unknown", NOT_STRINGS),
    ("/cancel_url", [5, 1.5, True, [], {}]),
    ("/after", [None, "x", 5, True]),
    ("/labels", NOT_OBJECTS),
    ("/labels/env", NOT_STRINGS),
]


@pytest.mark.parametrize(
    ("pointer", "value"),
    [(pointer, value) for pointer, values in WRONG_TYPES for value in values],
)
def test_a_value_of_another_type_is_refused_at_its_place(pointer: str, value: Any) -> None:
    assert faults(changed(pointer, value)) == {pointer: "wrong_type"}


REFUSED: list[tuple[str, str, list[Any]]] = [
    ("/name", "wrong_length", ["x" * 256]),
    ("/name", "nul", ["\0", "a\0b"]),
    ("/schedule/jitter_sec", "out_of_range", [-1, 86_401, 2**31, 2**63, 10**30, -(10**30)]),
    ("/schedule/grace_sec", "out_of_range", [-1, YEARS_100 + 1, 2**63]),
    ("/schedule/overlap", "unknown_value", ["", "SKIP", "skip ", "none"]),
    ("/schedule/starts_at", "naive_time", ["2027-01-01T00:00:00"]),
    ("/schedule/starts_at", "out_of_range", ["2200-01-01T00:00:00Z", "1969-12-31T23:59:59Z"]),
    ("/schedule/ends_at", "out_of_range", ["2200-01-01T00:00:00Z", "1969-12-31T23:59:59Z"]),
    ("/schedule/misfire", "unknown_value", ["", "ALL", "none"]),
    ("/schedule/max_occurrences", "out_of_range", [0, -1, 2_000_000_001, 2**63]),
    ("/target/method", "unknown_value", ["post", "HEAD", "CONNECT", "GET\r\n"]),
    ("/target/type", "unknown_value", ["", "HTTP", "smtp"]),
    ("/target/url", "wrong_length", ["https://a.b/" + "x" * 2048]),
    ("/cancel_url", "wrong_length", ["https://a.b/" + "x" * 2048]),
    ("/target/timeout_sec", "out_of_range", [0, 0.09, -1, 86_400.1, 10**400, 2**63]),
    ("/priority", "out_of_range", [-1, 10, 2**64, 10**400]),
    ("/retry_policy/max_attempts", "out_of_range", [0, -1, 1001]),
    ("/retry_policy/base_sec", "out_of_range", [0, 0.05, -1, 86_401]),
    ("/retry_policy/factor", "out_of_range", [0, 0.99, 101]),
    ("/retry_policy/cap_sec", "out_of_range", [0, 2_592_001]),
    ("/retry_policy/max_age_sec", "out_of_range", [0, -5, YEARS_100 + 1]),
    ("/lease_sec", "out_of_range", [4, 3601, 0, -60]),
    ("/labels", "wrong_length", [{str(n): "x" for n in range(33)}]),
    ("/labels/", "wrong_length", ["empty key"]),
    ("/labels/" + "k" * 64, "wrong_length", ["long key"]),
    ("/labels/env", "wrong_length", ["v" * 256]),
    ("/labels/env", "nul", ["\0"]),
    ("/labels/k\0", "nul", ["x"]),
    ("/target/headers", "wrong_length", [{f"x-{n}": "x" for n in range(65)}]),
]


@pytest.mark.parametrize(
    ("pointer", "code", "value"),
    [(pointer, code, value) for pointer, code, values in REFUSED for value in values],
)
def test_a_value_beyond_its_limits_is_refused_at_its_place(
    pointer: str, code: str, value: Any
) -> None:
    assert faults(changed(pointer, value)) == {pointer: code}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/name", "x" * 255),
        ("/name", "😀" * 255),
        ("/name", "\u202egnp.\u0301" + "\u0301" * 200),
        ("/name", "\x01\x7f\n"),
        ("/schedule/jitter_sec", 86_400),
        ("/schedule/grace_sec", 0),
        ("/schedule/starts_at", None),
        ("/schedule/ends_at", None),
        ("/schedule/max_occurrences", 2_000_000_000),
        ("/target/timeout_sec", 0.1),
        ("/target/timeout_sec", 86_400),
        ("/priority", 9),
        ("/retry_policy", {}),
        ("/retry_policy/max_attempts", 1000),
        ("/lease_sec", 3600),
        ("/labels", {"k" * 63: "v" * 255}),
        ("/labels", {str(n): "x" for n in range(32)}),
        ("/target/headers", {"x-a": "", "x-b": "a b\tc"}),
    ],
)
def test_a_value_at_its_limits_is_taken(pointer: str, value: Any) -> None:
    assert faults(changed(pointer, value)) == {}


@pytest.mark.parametrize(
    ("base", "pointer"),
    [
        (GOOD, "/schedule"),
        (GOOD, "/target"),
        (GOOD, "/schedule/type"),
        (GOOD, "/schedule/cron"),
        (every(60), "/schedule/interval_sec"),
        (GOOD, "/target/type"),
        (GOOD, "/target/url"),
    ],
)
def test_a_field_that_is_needed_is_missed_by_name(base: dict[str, Any], pointer: str) -> None:
    assert faults(changed(pointer, GONE, base)) == {pointer: "missing"}


@pytest.mark.parametrize(
    ("base", "pointer"),
    [
        (GOOD, "/unknown"),
        (GOOD, "/"),
        (GOOD, "/a~1b~0c"),
        (GOOD, "/Priority"),
        (GOOD, "/payload_base_64"),
        (GOOD, "/schedule/every"),
        (GOOD, "/schedule/run_at"),
        (GOOD, "/schedule/interval_sec"),
        (once(), "/schedule/cron"),
        (once(), "/schedule/overlap"),
        (every(60), "/schedule/timezone"),
        (GOOD, "/target/body"),
        (GOOD, "/retry_policy/jitter"),
    ],
)
def test_a_field_that_is_not_known_is_refused_by_name(base: dict[str, Any], pointer: str) -> None:
    assert faults(changed(pointer, None, base)) == {pointer: "unknown_field"}


def test_a_misspelt_field_is_told_its_name() -> None:
    result = read_job(json.dumps(changed("/schedule/timezon", "UTC")).encode(), allow_private=False)
    assert isinstance(result, list)
    assert result[0].detail == "is no field here; timezone is"


def test_all_faults_of_a_body_are_named_at_once() -> None:
    body = {
        "name": 5,
        "schedule": {"type": "cron", "cron": "61 * * * *", "timezone": "Mars/X", "jitter_sec": -1},
        "target": {"type": "http", "url": "http://127.1/", "headers": {"Host": "x", "x-a": 1}},
        "payload_base64": "!",
        "content_type": "text",
        "priority": "high",
        "retry_policy": {"cap_sec": 1},
        "labels": {"a": None},
        "extra": {},
    }
    assert faults(body) == {
        "/name": "wrong_type",
        "/schedule/cron": "invalid",
        "/schedule/timezone": "invalid",
        "/schedule/jitter_sec": "out_of_range",
        "/target/url": "forbidden_target",
        "/target/headers/Host": "reserved_header",
        "/target/headers/x-a": "wrong_type",
        "/payload_base64": "invalid",
        "/priority": "wrong_type",
        "/retry_policy/cap_sec": "out_of_range",
        "/labels/a": "wrong_type",
        "/extra": "unknown_field",
    }


def test_the_fields_of_a_schedule_are_judged_one_by_one() -> None:
    schedule = {"type": "cron", "cron": "x", "timezone": "y", "starts_at": "2300-01-01T00:00:00Z"}
    assert faults(GOOD | {"schedule": schedule}) == {
        "/schedule/cron": "invalid",
        "/schedule/timezone": "invalid",
        "/schedule/starts_at": "out_of_range",
    }


def test_what_rests_on_a_field_at_fault_is_not_held_against_the_client() -> None:
    assert faults(every("60", jitter_sec=4000)) == {"/schedule/interval_sec": "wrong_type"}
    assert faults(changed("/retry_policy", {"base_sec": -1, "cap_sec": 2})) == {
        "/retry_policy/base_sec": "out_of_range"
    }


def test_faults_are_not_listed_without_end() -> None:
    body = GOOD | {f"unknown_{n}": n for n in range(500)}
    assert len(faults(body)) == MOST_FAULTS
    body |= {f"unknown_{n}": n for n in range(10_000)}
    assert faults(body) == {"": "wrong_length"}


def test_the_name_of_an_unknown_field_is_not_repeated_at_any_length() -> None:
    (pointer,) = faults(GOOD | {"x" * 100_000: 1})
    assert len(pointer) < 200


# --- Schedules --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "2027-03-02T00:00:00Z",
        "2027-03-02T01:00:00+01:00",
        "2027-03-01T14:00:00-10:00",
        "2027-03-02T14:00:00+14:00",
    ],
)
def test_a_time_is_an_instant_whatever_its_offset(text: str) -> None:
    assert job(once(run_at=text)).schedule(NOW) == Once(datetime(2027, 3, 2, tzinfo=UTC))


@pytest.mark.parametrize(
    ("run_at", "code"),
    [
        ("2027-03-02T00:00:00", "naive_time"),
        ("2027-03-02", "invalid"),
        ("2027-03-02T00:00:60Z", "invalid"),
        ("2027-02-29T00:00:00Z", "invalid"),
        ("2027-03-02T24:00:00Z", "invalid"),
        ("2027-03-02T00:00:00+24:00", "invalid"),
        ("tomorrow", "invalid"),
        ("", "invalid"),
        ("1", "invalid"),
        ("0000-01-01T00:00:00Z", "invalid"),
        ("0001-01-01T00:00:00+14:00", "out_of_range"),
        ("1969-12-31T23:59:59Z", "out_of_range"),
        ("2200-01-01T00:00:00Z", "out_of_range"),
        ("9999-12-31T23:59:59Z", "out_of_range"),
        ("9999-12-31T23:59:59-14:00", "out_of_range"),
        ("9999-12-31T23:59:59.9999999999Z", "invalid"),
        (4_000_000_000, "wrong_type"),
        (True, "wrong_type"),
        ([], "wrong_type"),
    ],
)
def test_a_time_that_is_none_or_out_of_range_is_refused(run_at: Any, code: str) -> None:
    assert faults(once(run_at=run_at)) == {"/schedule/run_at": code}


def test_a_past_time_and_a_far_one_are_taken() -> None:
    assert faults(once(run_at="1970-01-01T00:00:00Z")) == {}
    assert faults(once(run_at="2199-12-31T23:59:59.999999Z")) == {}


def test_a_time_too_late_for_its_jitter_is_refused() -> None:
    late = once(run_at="2199-12-31T23:00:00Z", jitter_sec=3600)
    assert faults(late) == {"/schedule/run_at": "out_of_range"}


@pytest.mark.parametrize(
    ("delay", "length"),
    [
        ("PT0S", timedelta(0)),
        ("PT30S", timedelta(seconds=30)),
        ("P1D", timedelta(days=1)),
        ("P2W", timedelta(weeks=2)),
        ("P1DT2H3M4S", timedelta(days=1, hours=2, minutes=3, seconds=4)),
        ("PT90M", timedelta(minutes=90)),
        ("PT2147484S", timedelta(seconds=2_147_484)),
        ("PT2147483648S", timedelta(seconds=2**31)),
        ("P36525D", timedelta(days=36_525)),
    ],
)
def test_a_delay_counts_from_the_database_s_time(delay: str, length: timedelta) -> None:
    assert job(once(delay=delay)).schedule(NOW) == Once(NOW + length)


@pytest.mark.parametrize(
    ("delay", "code"),
    [
        *((text, "invalid") for text in ("", "P", "PT", "P1DT", "PT1", "1S", "60", "00:01:00")),
        *((text, "invalid") for text in ("P1Y", "P1M", "P1M1D", "P1W1D", "PT1.5S", "PT1,5S")),
        *((text, "invalid") for text in ("-PT1S", "PT-1S", "+PT1S", "pt1s", "PT1S ", "PT1S1M")),
        *((text, "invalid") for text in ("PT٣S", "P1D T1H", "P36526D", "PT9999999999999S")),
        ("PT" + "0" * 70 + "S", "wrong_length"),
        *((number, "wrong_type") for number in (0, -1, 0.5, 2**31, 1e308, True)),
    ],
)
def test_a_delay_that_is_none_or_too_long_is_refused(delay: Any, code: str) -> None:
    assert faults(once(delay=delay)) == {"/schedule/delay": code}


def test_a_time_and_a_delay_exclude_each_other() -> None:
    both = once(run_at="2027-03-02T00:00:00Z", delay="PT1S")
    assert faults(both) == {"/schedule/delay": "conflict"}
    assert job(once(run_at=None, delay=None)).schedule(NOW) == Once(NOW)


@pytest.mark.parametrize(
    ("interval_sec", "code"),
    [
        (0, "out_of_range"),
        (-1, "out_of_range"),
        (YEARS_100 + 1, "out_of_range"),
        (2**63, "out_of_range"),
        (1e-9, "wrong_type"),
        (60.0, "wrong_type"),
        ("60", "wrong_type"),
        (None, "wrong_type"),
        (True, "wrong_type"),
    ],
)
def test_an_interval_out_of_range_is_refused(interval_sec: Any, code: str) -> None:
    assert faults(every(interval_sec)) == {"/schedule/interval_sec": code}


def test_an_interval_is_anchored_at_its_start_or_its_creation() -> None:
    assert job(every(60)).schedule(NOW) == Interval(60, NOW)
    anchored = job(every(1, starts_at="2027-05-01T00:00:00Z", overlap="allow", grace_sec=3))
    starts_at = datetime(2027, 5, 1, tzinfo=UTC)
    assert anchored.schedule(NOW) == Interval(1, starts_at, overlap="allow", grace_sec=3)


def test_jitter_is_shorter_than_its_interval() -> None:
    assert faults(every(60, jitter_sec=59)) == {}
    assert faults(every(60, jitter_sec=60)) == {"/schedule/jitter_sec": "out_of_range"}


@pytest.mark.parametrize(
    "expression",
    [
        "",
        " ",
        "* * * *",
        "* * * * * * *",
        "61 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "a * * * *",
        "*/0 * * * *",
        "5-1 * * * *",
        "@reboot",
        "@never",
        "0 0 30 2 *",
        "0 0 31 4 *",
        "0 0 31 2,4,6,9,11 *",
        "0 0 15W * *",
        "0 0 * * *\0",
        "０ 0 * * *",
        "\n",
        "H(9-3) * * * *",
    ],
)
def test_an_expression_that_cannot_be_read_or_never_fires_is_refused(expression: str) -> None:
    code = "nul" if "\0" in expression else "invalid"
    assert faults(changed("/schedule/cron", expression)) == {"/schedule/cron": code}


@pytest.mark.parametrize(
    "expression",
    ["0 0 31 4,5 *", "0 0 29 2 *", "@daily", "*/5 * * * * *", "H H * * *", "0 0 LW * 5#2"],
)
def test_an_expression_that_fires_is_taken(expression: str) -> None:
    assert faults(changed("/schedule/cron", expression)) == {}


def test_an_expression_longer_than_any_is_refused_before_it_is_read() -> None:
    assert faults(changed("/schedule/cron", "1," * 200)) == {"/schedule/cron": "wrong_length"}


@pytest.mark.parametrize("name", ["Europe/Kiev", "US/Pacific", "Asia/Calcutta", "UTC"])
def test_an_alias_of_a_zone_is_taken(name: str) -> None:
    schedule = job(changed("/schedule/timezone", name)).schedule(NOW)
    assert isinstance(schedule, Cron)
    assert schedule.timezone == name


@pytest.mark.parametrize(
    "name",
    [
        *("europe/paris", "UTC+3", "+05:30", "Amercia/New_York", "../../etc/passwd", "", "EST5EDT"),
        *("Europe", "Europe/Paris ", "Europe/Paris\n", "/etc/localtime", "localtime", "CET", "Z"),
    ],
)
def test_a_name_that_is_no_zone_is_refused_and_nothing_stands_in_for_it(name: str) -> None:
    assert faults(changed("/schedule/timezone", name)) == {"/schedule/timezone": "invalid"}


# --- Targets ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "code"),
    [
        *((f"http://{host}/", "forbidden_target") for host in (
            "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "[::]",
            "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "169.254.169.254", "100.64.0.1",
            "10.0.0.1", "192.168.1.1", "172.16.0.1", "[64:ff9b::7f00:1]", "[2002:7f00:1::]",
            "[fe80::1]", "[fd00::1]", "localhost", "LOCALHOST.", "a.localhost", "127.0.0.1.",
            "１２７.0.0.1", "example.com:22", "example.com:6379",
        )),
        *((url, "invalid") for url in (
            "", "/", "example.com", "//example.com", "ftp://example.com/", "file:///etc/passwd",
            "javascript:alert(1)", "https://", "https:///x", "https://u:p@example.com/",
            "https://u@example.com/", "https://example.com/#f", "https://example.com:0/",
            "https://example.com:65536/", "https://exa mple.com/", "https://example.com/a b",
            "https://example.com/%zz", "https://example.com/\r\nx: y", "https://example.com\\@b/",
            "https://[::1/", "https://1.2.3.4.5/", "https://-.com/", "https://a..b/",
            "https://example.com/ü", " https://example.com/", "https://exam\u00adple\u200d.com/",
        )),
    ],
)  # fmt: skip
def test_a_url_that_cannot_or_may_not_be_called_is_refused(url: str, code: str) -> None:
    for pointer in ("/target/url", "/cancel_url"):
        assert faults(changed(pointer, url)) == {pointer: code}


def test_private_targets_can_be_allowed_but_never_metadata() -> None:
    for pointer in ("/target/url", "/cancel_url"):
        local = changed(pointer, "http://127.0.0.1/x")
        assert faults(local, allow_private=True) == {}
        metadata = changed(pointer, "http://169.254.169.254/x")
        assert faults(metadata, allow_private=True) == {pointer: "forbidden_target"}


@pytest.mark.parametrize("pointer", ["/target/url", "/cancel_url"])
def test_other_ports_can_be_allowed(pointer: str) -> None:
    document = json.dumps(changed(pointer, "https://example.com:8443/")).encode()
    assert isinstance(read_job(document, allow_private=False), list)
    assert not isinstance(read_job(document, allow_private=False, ports=None), list)
    assert not isinstance(read_job(document, allow_private=False, ports=(443, 8443)), list)


@pytest.mark.parametrize(
    "name",
    [
        *("webhook-signature", "Webhook-Id", "WEBHOOK-TIMESTAMP", "content-length", "host"),
        *("Transfer-Encoding", "connection", "Content-Type", "traceparent", "X-Job-Id", "x-run-id"),
        *("X-ATTEMPT", "x-lease-version", "x-scheduler-signature", "Idempotency-Key", "te"),
        *("Upgrade", "Expect", "user-agent", "x-noonday-anything", "proxy-authorization"),
    ],
)
def test_a_header_of_ours_cannot_be_given(name: str) -> None:
    body = changed(f"/target/headers/{name}", "x")
    assert faults(body) == {f"/target/headers/{name}": "reserved_header"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "x") for name in ("", " ", "a b", "a:b", "ä", "a\r\n", "x" * 257, "(a)")),
        *(("x-a", value) for value in ("a\r\nb: c", "\x00"[1:] + "\x01", " a", "a ", "ä", "\x7f")),
        ("x-a", "x" * 8001),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused(name: str, value: str) -> None:
    body = changed("/target/headers", {name: value})
    (code,) = faults(body).values()
    assert code == "invalid"


def test_a_header_given_twice_in_different_case_is_refused() -> None:
    body = changed("/target/headers", {"X-A": "1", "x-a": "2"})
    assert faults(body) == {"/target/headers/x-a": "conflict"}


def test_headers_that_carry_credentials_are_taken_out_of_the_target() -> None:
    secret = [
        *("Authorization", "COOKIE", "x-api-key", "X-ApiKey", "api_key", "X-Auth-Token", "x-token"),
        *("x-client-secret", "X-Password", "x-hub-signature-256", "x-session-id", "X-Auth"),
        *("Ocp-Apim-Subscription-Key", "x-amz-security-token", "Private-Token", "x-credentials"),
    ]
    plain = ["x-team", "accept", "x-author", "x-keyboard", "x-request-source", "if-match"]
    request = job(changed("/target/headers", dict.fromkeys(secret + plain, "s3cr3t")))
    assert list(request.secret_headers) == secret
    assert list(request.target.headers) == plain


# --- Payloads ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        *(b"null", b"0", b"-0", b'""', b"[]", b"{}", b"true", b"1e999", b"-1E+400", b"1.00"),
        b'{"b" : 1,\n\t"a":  [ 1 ,2 ] }',
        b'{"a":1,"a":2}',
        b'{"schedule":{"type":"once"},"payload":{"payload":null}}',
        b'"\\u0000 \\ud83d\\ude00 \\/ \\u00e4"',
        '"ä😀\u202e"'.encode(),
        b"123456789012345678901234567890123456789012345678901234567890",
        b"[" * 60 + b"]" * 60,
        b'"' + b"x" * 100_000 + b'"',
    ],
)
def test_a_payload_is_kept_byte_for_byte(payload: bytes) -> None:
    document = (
        b'{"schedule":{"type":"once"} , "payload" :  ' + payload + b' \n,"target":'
        b'{"type":"http","url":"https://a.b/"}}'
    )
    request = read_job(document, allow_private=False)
    assert not isinstance(request, list), request
    assert request.payload == payload
    assert request.content_type == "application/json"


def test_a_payload_that_is_not_json_comes_in_base64() -> None:
    raw = bytes(range(256))
    body = changed("/payload", GONE) | {"payload_base64": base64.b64encode(raw).decode()}
    request = job(body)
    assert (request.payload, request.content_type) == (raw, "application/octet-stream")
    request = job(body | {"content_type": 'text/plain; charset="utf-8"'})
    assert request.content_type == 'text/plain; charset="utf-8"'
    assert job(body | {"payload_base64": ""}).payload == b""


@pytest.mark.parametrize("text", ["YQ", "Y", "Y Q==", "Y-_=", "YQ==\n", "!", "YQ=="[:3] + "ä"])
def test_what_is_not_base64_is_refused(text: str) -> None:
    body = changed("/payload", GONE) | {"payload_base64": text}
    assert faults(body) == {"/payload_base64": "invalid"}


@pytest.mark.parametrize(
    ("content_type", "code"),
    [
        *((text, "invalid") for text in ("text", "text/", "/plain", "text/plain;", "a/b c")),
        *((text, "invalid") for text in ("a/b\n", "a/b\r\nx: y", "a/b; q", "ä/b", "a/b, c/d")),
        *((text, "wrong_length") for text in ("", "a/", "a/" + "b" * 254)),
        *((value, "wrong_type") for value in NOT_STRINGS),
    ],
)
def test_what_is_no_media_type_is_refused(content_type: Any, code: str) -> None:
    body = changed("/payload", GONE) | {"payload_base64": "YQ==", "content_type": content_type}
    assert faults(body) == {"/content_type": code}


def test_two_payloads_or_a_type_without_one_are_in_conflict() -> None:
    assert faults(GOOD | {"payload_base64": "YQ=="}) == {"/payload_base64": "conflict"}
    assert faults(GOOD | {"content_type": "text/plain"}) == {"/content_type": "conflict"}


@pytest.mark.parametrize(
    "schedule",
    [
        {"ends_at": "2027-01-01T00:00:00Z", "starts_at": "2027-01-01T00:00:01Z"},
        {"ends_at": "2027-01-01T00:00:00Z", "starts_at": "2199-01-01T00:00:00Z"},
    ],
)
@pytest.mark.parametrize("base", [GOOD, every(60)])
def test_an_end_before_the_start_is_refused_by_its_name(
    base: dict[str, Any], schedule: dict[str, Any]
) -> None:
    body = base | {"schedule": base["schedule"] | schedule}
    assert faults(body) == {"/schedule/ends_at": "out_of_range"}
