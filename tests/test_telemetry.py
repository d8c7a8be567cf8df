from __future__ import annotations

import ast
import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

import noonday
from noonday.telemetry import FIELDS, TOP_TENANTS, Depth, Metrics, configure_logs

SOURCES = Path(noonday.__file__).parent
LOG_CALLS = {"debug", "info", "warning", "error", "exception", "critical", "bind"}


# --- metrics ----------------------------------------------------------------------------------


def series(metrics: Metrics) -> dict[str, float]:
    """Every series that is shown, by name and labels."""
    return {
        f"{sample.name}{json.dumps(sample.labels, sort_keys=True)}": sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return series(metrics)[f"{name}{json.dumps(labels, sort_keys=True)}"]


def anything_happens(metrics: Metrics, seed: int) -> None:
    """All that can happen, with as much variety as careless callers could bring."""
    random = str(uuid4())
    metrics.jobs_accepted()
    metrics.job_suspended()
    metrics.materialized(1, 1, 1)
    metrics.materialization_lag(seed / 100)
    metrics.started([seed / 10])
    metrics.attempted(random, f"outcome {random}")
    metrics.ended(random)
    metrics.retried()
    metrics.dead_lettered(f"error {random}")
    metrics.lease_expired()
    metrics.stale_settle()
    metrics.suspected_duplicate()
    metrics.duplicate(random)
    metrics.told(random)
    metrics.shards_owned(seed)
    metrics.held(random)
    metrics.admitted(random)
    metrics.target_changed(random)
    metrics.held_stand_at({"breaker": seed})
    metrics.straggler(random)
    metrics.notified(random)
    metrics.ticked(random, 0.1, seed)
    metrics.loop_failed(random)
    metrics.requested(f"/v1/jobs/{random}", random[:6], 200 + seed % 300, 0.1)


def test_series_do_not_grow_with_jobs_tenants_or_errors() -> None:
    metrics = Metrics("1")
    metrics.lanes_stand_at({"default": Depth(1, 0.5)})
    for seed in range(2_000):
        anything_happens(metrics, seed)
    before = len(series(metrics))
    for seed in range(5_000):
        anything_happens(metrics, seed)
    assert len(series(metrics)) == before


def test_each_process_has_metrics_of_its_own() -> None:
    one, other = Metrics(), Metrics()
    one.jobs_accepted(3)
    assert value(one, "noonday_jobs_accepted_total") == 3
    assert value(other, "noonday_jobs_accepted_total") == 0


def test_jobs_accepted_and_occurrences_enqueued_are_counted_apart() -> None:
    metrics = Metrics()
    metrics.jobs_accepted(2)
    metrics.materialized(ready=5, missed=1)
    assert value(metrics, "noonday_jobs_accepted_total") == 2
    assert value(metrics, "noonday_occurrences_enqueued_total") == 5
    assert value(metrics, "noonday_occurrences_missed_total") == 1


def test_lanes_are_shown_as_the_last_query_found_them_and_how_old_that_is() -> None:
    metrics = Metrics()
    assert not any(name.startswith("noonday_lane") for name in series(metrics))
    metrics.lanes_stand_at({"default": Depth(9, 3.5, running=2, past_lease=1), "gone": Depth(1, 1)})
    metrics.lanes_stand_at({"default": Depth(7, 2.5, running=2, past_lease=1)})
    assert value(metrics, "noonday_lane_ready", lane="default") == 7
    assert value(metrics, "noonday_lane_oldest_age_seconds", lane="default") == 2.5
    assert value(metrics, "noonday_lane_past_lease", lane="default") == 1
    assert 0 <= value(metrics, "noonday_lane_age_seconds") < 60
    assert not any("gone" in name for name in series(metrics))


def test_the_busiest_tenants_are_named_and_nothing_is_lost_among_the_others() -> None:
    metrics = Metrics()
    for number in range(TOP_TENANTS + 10):
        metrics.attempted(number, "success", 10)
        metrics.ended(number, 5)
    assert value(metrics, "noonday_tenant_attempts_total", tenant="other") == 100
    shown = series(metrics)
    assert sum(n for name, n in shown.items() if "tenant_runs_total" in name) == 300


def test_a_tenant_that_becomes_busy_is_named_and_other_never_falls() -> None:
    metrics = Metrics()
    for number in range(TOP_TENANTS):
        metrics.attempted(f"quiet {number}", "success", 10)
    metrics.attempted("late", "success", 1_000)
    metrics.render()
    metrics.attempted("late", "success", 7)
    assert value(metrics, "noonday_tenant_attempts_total", tenant="late") == 7
    assert value(metrics, "noonday_tenant_attempts_total", tenant="other") == 1_000
    named = [name for name in series(metrics) if "tenant_attempts_total" in name]
    assert len(named) == TOP_TENANTS + 1


# --- logs -------------------------------------------------------------------------------------


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_line_is_json_with_the_fields_of_its_process(out: io.StringIO) -> None:
    configure_logs("info", "json", out, role="worker", worker="w1")
    structlog.get_logger().info("run.settled", run_id="r", attempt=2, duration_sec=0.5)
    (line,) = lines(out)
    assert datetime.fromisoformat(line.pop("at")).tzinfo is not None
    assert line == {
        "event": "run.settled", "level": "info", "role": "worker", "worker": "w1",
        "run_id": "r", "attempt": 2, "duration_sec": 0.5,
    }  # fmt: skip


def test_a_payload_or_header_that_is_passed_by_mistake_is_left_out(out: io.StringIO) -> None:
    configure_logs("info", "json", out)
    structlog.get_logger().info("sent", payload="geheim", headers={"a": "geheim"}, attempt=1)
    assert "geheim" not in out.getvalue()
    assert lines(out)[0]["left_out"] == "headers,payload"


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_traceback_shows_where_but_no_values_of_variables(out: io.StringIO, style: str) -> None:
    configure_logs("info", style, out)

    def fails(_secret: str) -> None:
        raise LookupError("gone")

    try:
        fails("".join(["ge", "heim"]))
    except LookupError:
        structlog.get_logger().exception("loop.failed", loop="claim")
    assert "LookupError: gone" in out.getvalue()
    assert "in fails" in out.getvalue()
    assert "geheim" not in out.getvalue()


@pytest.mark.parametrize("style", ["json", "console"])
def test_text_from_outside_cannot_forge_lines_or_steer_a_terminal(
    out: io.StringIO, style: str
) -> None:
    configure_logs("info", style, out)
    evil = "x\n2027 [info] all is well\x1b[2J\x9b31m\u2028\ud800"
    structlog.get_logger().error("attempt.failed", error=evil)
    shown = out.getvalue()
    assert shown.count("\n") == 1
    assert not set("\x1b\x9b\u2028\ud800") & set(shown)
    assert r"\x1b[2J" in shown.replace("\\\\", "\\")


def test_long_texts_are_cut_and_other_values_written_as_text(out: io.StringIO) -> None:
    configure_logs("info", "json", out)
    at = datetime(2027, 1, 2, tzinfo=UTC)
    structlog.get_logger().info("x", error="e" * 100_000, job_id=UUID(int=1), retry_at=at)
    (line,) = lines(out)
    assert len(line["error"]) == 2_000
    assert line["job_id"] == "00000000-0000-0000-0000-000000000001"
    assert line["retry_at"] == "2027-01-02T00:00:00+00:00"


def test_less_than_the_level_is_not_logged(out: io.StringIO) -> None:
    configure_logs("warning", "json", out)
    structlog.get_logger().info("chatter")
    logging.getLogger("library").info("chatter")
    assert out.getvalue() == ""


def test_libraries_log_in_the_same_form(out: io.StringIO) -> None:
    configure_logs("info", "json", out, role="api")
    logging.getLogger("asyncio").error("task %s", "lost", exc_info=ValueError("why"))
    (line,) = lines(out)
    assert (line["event"], line["logger"], line["level"]) == ("task lost", "asyncio", "error")
    assert line["role"] == "api"
    assert "ValueError: why" in line["exception"]


def test_every_field_that_is_logged_is_listed() -> None:
    unknown = [
        f"{path.relative_to(SOURCES)}:{call.lineno} {keyword.arg}"
        for path in SOURCES.rglob("*.py")
        for call in log_calls(path)
        for keyword in call.keywords
        if keyword.arg not in FIELDS | {"exc_info", None}
    ]
    assert unknown == []


def log_calls(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LOG_CALLS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id.strip("_") in ("log", "logger")
        ):
            yield node
