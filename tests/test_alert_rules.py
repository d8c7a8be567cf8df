"""``deploy/alerts.yml``: the same alerts as the service's own, on metrics that there are."""

from __future__ import annotations

import re
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from noonday.domain import vitals
from noonday.domain.alerts import RULES, AlertName
from noonday.domain.model import SHARDS
from noonday.domain.notices import alertname, runbook
from noonday.settings import Settings
from noonday.telemetry import CAUSES, Depth, Metrics

DEPLOY = Path(__file__).parents[1] / "deploy"
FILE, TESTS = DEPLOY / "alerts.yml", DEPLOY / "alerts_test.yml"
NAMES = {alertname(name): name for name in AlertName}


def rules() -> dict[str, dict[str, Any]]:
    (group,) = yaml.safe_load(FILE.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


@pytest.mark.debian("prometheus")
def test_each_alert_fires_when_it_should_and_not_otherwise() -> None:
    for command in (["check", "rules", str(FILE)], ["test", "rules", str(TESTS)]):
        shown = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        assert shown.returncode == 0, shown.stdout + shown.stderr


def test_each_alert_has_a_case_where_it_fires_and_one_where_it_does_not() -> None:
    cases = [
        (case["alertname"], bool(case["exp_alerts"]))
        for test in yaml.safe_load(TESTS.read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    assert set(cases) == {(name, fires) for name in rules() for fires in (True, False)}


# What makes each case that fires stop firing: one that still does proves nothing.
@pytest.mark.debian("prometheus")
@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_cases_notice_a_rule_that_never_fires(name: str, tmp_path: Path) -> None:
    broken = yaml.safe_load(FILE.read_text())
    for rule in broken["groups"][0]["rules"]:
        if rule["alert"] == name:
            rule["expr"] = "vector(1) > 2"
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(broken))
    (tmp_path / "test.yml").write_text(TESTS.read_text())
    command = ["promtool", "test", "rules", str(tmp_path / "test.yml")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


def test_the_rules_are_the_services_own_alerts() -> None:
    assert set(rules()) == set(NAMES)
    for name, rule in rules().items():
        own = RULES[NAMES[name]]
        assert rule["labels"] == {"severity": own.severity}, name
        assert rule["annotations"]["runbook"] == runbook(NAMES[name]), name
        assert rule["annotations"]["description"], name
        if NAMES[name] is not AlertName.ROLE_ABSENT:  # Prometheus cannot tell whether there was one
            assert rule["annotations"]["summary"] == own.summary
        if NAMES[name] is not AlertName.NO_SCHEDULER:  # of which the service knows only afterwards
            assert waits(rule) == own.after, name


def waits(rule: dict[str, Any]) -> timedelta:
    number, unit = re.fullmatch(r"(\d+)([sm])", rule.get("for", "0s")).groups()  # type: ignore[union-attr]
    return timedelta(**{"s": {"seconds": int(number)}, "m": {"minutes": int(number)}}[unit])


def test_the_limits_are_the_services_own() -> None:
    limits = {
        AlertName.DEAD_LETTERS: vitals.DEAD_LETTERS,
        AlertName.TICK_SLOW: vitals.TICK_SEC,
        AlertName.PAST_LEASE: vitals.PAST_LEASE_SEC,
        AlertName.LEASES_EXPIRE: vitals.LEASES_EXPIRED,
        AlertName.LOOP_FAILING: vitals.LOOP_ERRORS,
    }
    for name, limit in limits.items():
        assert f"> {limit:g}" in rules()[alertname(name)]["expr"], name
    assert f"< {SHARDS}" in rules()[alertname(AlertName.SHARDS_UNOWNED)]["expr"]
    assert f">= {vitals.LEAST_TICKS}" in rules()[alertname(AlertName.TICK_SLOW)]["expr"]
    windows = re.findall(r"\[(\w+)\]", FILE.read_text())
    assert set(windows) == {f"{vitals.WINDOW // timedelta(minutes=1)}m"}


def test_the_rules_name_metrics_and_labels_that_there_are() -> None:
    metrics = Metrics("1", "worker")
    metrics.lanes_stand_at({"default": Depth(1, 1.0)})
    metrics.watch_loops(lambda: {"claim": False})
    metrics.dead_lettered("timeout")
    metrics.attempted(1, "success")
    metrics.ticked("scheduler", 0.1, 1)
    metrics.loop_failed("claim")
    known: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            known.setdefault(sample.name, {"instance"}).update(sample.labels)
    used = 0
    for rule in rules().values():
        grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([\w, ]+)\)", rule["expr"]))))
        names = re.findall(r"(noonday_\w+)(?:{([^}]*)})?", rule["expr"])
        for metric, matchers in names:
            used += 1
            assert metric in known, metric
            labels = set(re.findall(r"(\w+)!?=", matchers))
            assert labels | grouped <= known[metric] | {"le"}, (metric, labels, grouped)
    assert used >= len(NAMES)


def test_causes_of_duplicates_are_there_from_the_start() -> None:
    shown = Metrics().render().decode()
    for cause in CAUSES:
        assert f'noonday_duplicates_total{{cause="{cause}"}} 0.0' in shown


# --- scaling ----------------------------------------------------------------------------------


def test_what_scales_by_the_metrics_has_a_trigger_for_each_pool_of_one_worker() -> None:
    scaled = yaml.safe_load((DEPLOY / "keda.yml").read_text())["spec"]
    asked = [trigger["metadata"] for trigger in scaled["triggers"]]
    assert [int(each["threshold"]) for each in asked] == [slots for _, slots in Settings().pools]
    shown = Metrics().render().decode()
    for each in asked:
        (series,) = re.findall(r"noonday_\w+", each["query"])
        assert f"# TYPE {series} gauge\n" in shown
