"""Whoever makes one of these mistakes is told: the test that is named for it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from noonday.drill.entry import run as drill
from noonday.drill.options import choose
from tests.planted.mistakes import IN_A_DRILL, MISTAKES, VARIABLE

ROOT = Path(__file__).parents[2]
SITE = Path(__file__).parent / "site"
TESTS_FAILED, ALL_PASSED = 1, 0


def run(found_by: tuple[str, ...], **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "-p", "tests.planted.plugin", *found_by],
        cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(postgres_url: str, name: str) -> None:
    done = run(tuple(MISTAKES[name].found_by), **{VARIABLE: name})
    assert done.returncode == TESTS_FAILED, done.stdout + done.stderr
    assert " error" not in done.stdout.splitlines()[-1], done.stdout


@pytest.mark.parametrize("name", IN_A_DRILL)
def test_a_planted_mistake_is_found_by_a_drill(tmp_path: Path, name: str) -> None:
    faults, broken = IN_A_DRILL[name]
    said: list[str] = []
    folders = f"{SITE}{os.pathsep}{ROOT}"
    environ = {VARIABLE: name, "PYTHONPATH": folders}
    code = drill(choose(20, 1, faults, tmp_path / "drill", environ), said.append)
    print("\n".join(said))
    report = json.loads((tmp_path / "drill" / "report.json").read_text())
    assert code == 1
    assert broken & {violation.partition(":")[0] for violation in report["violations"]}


def test_at_least_twelve_are_planted() -> None:
    assert len(MISTAKES) >= 12
