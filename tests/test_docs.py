"""What the pages under docs/ say of the code is so.

Links, dotted names and paths of all pages are checked in ``test_house.py``; here it is what else a
page can be wrong about: tests, settings, metrics, routes, and the times of schedules.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from noonday.api.app import ROUTES
from noonday.api.schemas import JobRequest, read_job
from noonday.domain import schedule
from noonday.domain.alerts import RULES
from noonday.domain.errors import ScheduleError
from noonday.domain.model import Cron
from noonday.settings import Retention, Settings
from noonday.store.connections import ROLE_SETTINGS
from noonday.telemetry import Metrics

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))
JOB = UUID("01a22874-7251-7a19-8efa-d8fba3c1540e")
NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def tables(name: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Each table of a page: its head, and its rows without the line below the head."""
    for block in re.findall(r"(?:^\|.*\|\n)+", page(name), re.MULTILINE):
        head, _, *rows = [cells(line) for line in block.splitlines()]
        yield head, rows


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def rows(name: str, *head: str) -> list[list[str]]:
    """The rows of all tables of a page that have this head."""
    found = [row for named, rows in tables(name) if named == list(head) for row in rows]
    assert found, f"{name} has no table {head}"
    return found


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# --- tests and links --------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_test_that_a_page_names_is_there(path: Path) -> None:
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", path.read_text("utf-8"))
    assert [(file, test) for file, test in named if test not in functions_of(ROOT / file)] == []


def functions_of(file: Path) -> set[str]:
    if not file.exists():
        return set()
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    tree = ast.parse(file.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


def test_every_promise_names_a_test_that_holds_it() -> None:
    sections = re.split(r"^## ", page("guarantees.md"), flags=re.MULTILINE)
    promises = [text for text in sections if re.match(r"\d+\. ", text)]
    assert len(promises) >= 7
    assert [text[:40] for text in promises if "::test_" not in text] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_heading_that_a_link_points_to_is_there(path: Path) -> None:
    links = re.findall(r"\]\(([^)\s#]*)#([^)\s]+)\)", path.read_text("utf-8"))
    missing = [
        (to, heading)
        for to, heading in links
        if "://" not in to and heading not in headings(path.parent / to if to else path)
    ]
    assert missing == []


def headings(path: Path) -> set[str]:
    """The anchors that a renderer gives to the headings of a page."""
    lines = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def test_the_index_leads_to_every_page() -> None:
    linked = {(DOCS / to).resolve() for to in re.findall(r"\]\(([^)#]+\.md)\)", page("README.md"))}
    assert [path for path in PAGES if path.name != "README.md" and path not in linked] == []


# --- operating --------------------------------------------------------------------------------


def test_every_setting_is_listed_with_its_default_and_no_other_is() -> None:
    listed = {codes(name)[0]: codes(default) for name, default, _ in setting_rows()}
    assert listed == {name: shown(default) for name, default in defaults()}


def setting_rows() -> list[list[str]]:
    return rows("operate.md", "setting", "default", "meaning")


def defaults() -> Iterator[tuple[str, Any]]:
    for field in msgspec.structs.fields(Settings):
        if field.type is not Retention:
            yield field.name, field.default
    for field in msgspec.structs.fields(Retention):
        yield f"retention.{field.name}", field.default


def shown(value: Any) -> list[str]:
    """A default as the table has it: as TOML, and nothing for none."""
    if value is None:
        return []
    plain = list(value) if isinstance(value, tuple) else value
    plain = str(plain) if isinstance(plain, Path) else plain
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    return [json.dumps(plain)]


def test_every_variable_that_a_page_names_is_a_setting() -> None:
    known = {f"NOONDAY_{name.replace('.', '_').upper()}" for name, _ in defaults()}
    text = "".join(path.read_text("utf-8") for path in PAGES)
    named = set(re.findall(r"\bNOONDAY_[A-Z_]*[A-Z]\b", text))
    assert named - known - {"NOONDAY_CONFIG"} == set()


def test_the_settings_of_the_role_are_the_ones_it_is_given() -> None:
    listed = rows("operate.md", "setting of the role", "value")
    assert {codes(name)[0]: codes(value)[0] for name, value in listed} == ROLE_SETTINGS


def test_every_alert_has_its_section_and_its_severity() -> None:
    sections = re.findall(
        r"^### `(\w+)`\n\n(Critical|Warning)(?:, by (\w+))?\.", page("operate.md"), re.M
    )
    assert {(name, severity.lower(), label or None) for name, severity, label in sections} == {
        (name, rule.severity, rule.label) for name, rule in RULES.items()
    }


def test_every_metric_is_listed_and_no_other_is() -> None:
    listed = rows("operate.md", "metric", "says", "alert")
    assert {codes(name)[0] for name, *_ in listed} == set(metric_names())


def test_every_metric_that_a_page_names_is_there() -> None:
    text = "".join(path.read_text("utf-8") for path in PAGES)
    named = set(re.findall(r"`(noonday_\w+)", text))
    suffixes = ("_bucket", "_sum", "_count")
    assert [name for name in named if not is_metric(name, suffixes)] == []


def is_metric(name: str, suffixes: tuple[str, ...]) -> bool:
    known = set(metric_names())
    return name in known or any(name.removesuffix(suffix) in known for suffix in suffixes)


def metric_names() -> list[str]:
    metrics = Metrics("0")
    metrics.lanes_stand_at({})
    metrics.horizon_stands_at(0.0, 0)
    metrics.slowed_stand_at(0)
    return re.findall(r"^# HELP (noonday_\w+)", metrics.render().decode(), re.MULTILINE)


# --- the API ----------------------------------------------------------------------------------


def test_every_route_is_listed_with_its_role_and_no_other_is() -> None:
    listed = {codes(call)[0]: role for call, role, _ in rows("api.md", "call", "role", "does")}
    assert listed == {
        f"{r.method} {r.path}": r.role.word if r.role is not None else "none" for r in ROUTES
    }


def test_every_job_that_the_page_posts_is_one_that_the_api_takes() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", page("api.md"), re.MULTILINE | re.DOTALL)
    calls = [call for block in blocks for call in block.split("curl ")[1:]]
    bodies = [
        match[1]
        for call in calls
        if "/v1/jobs " in call and (match := re.search(r"-d '(.*?)'", call, re.DOTALL))
    ]
    assert len(bodies) >= 3
    for body in bodies:
        assert isinstance(read_job(body.encode(), allow_private=False), JobRequest), body


def test_the_receiver_of_the_page_is_python() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page("api.md"), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        statements = ast.parse(block).body
        imports: list[ast.stmt] = [one for one in statements if isinstance(one, ast.ImportFrom)]
        exec(compile(ast.Module(imports, []), "api.md", "exec"), {})


# --- schedules --------------------------------------------------------------------------------


def fires(expression: str, zone: str, asked_at: datetime, n: int) -> list[str]:
    found = schedule.upcoming(Cron(expression, zone), JOB, asked_at, n)
    return [f"{at:%Y-%m-%dT%H:%M:%SZ}" for at in found]


def test_expressions_fire_when_the_page_says_so() -> None:
    for expression, _, expected in rows("schedules.md", "expression", "meaning", "next fires"):
        times = codes(expected)
        assert fires(codes(expression)[0], "UTC", NEW_YEAR, len(times)) == times, expression


def test_expressions_fire_around_changes_of_the_clock_when_the_page_says_so() -> None:
    listed = rows("schedules.md", "expression", "zone", "asked at", "next fires")
    for expression, zone, asked_at, expected in listed:
        times, start = codes(expected), datetime.fromisoformat(codes(asked_at)[0])
        assert fires(codes(expression)[0], codes(zone)[0], start, len(times)) == times, expression


def test_expressions_are_refused_when_the_page_says_so() -> None:
    for expression, _ in rows("schedules.md", "expression", "refused because"):
        with pytest.raises(ScheduleError):
            schedule.check(Cron(codes(expression)[0]), JOB)


def test_the_jitter_of_the_page_is_that_of_its_job() -> None:
    assert f"{schedule.jitter(JOB, 300).total_seconds() - 180:.1f} s after" in page("schedules.md")
