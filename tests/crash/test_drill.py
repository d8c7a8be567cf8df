"""A drill: everything at once, for a minute, with real processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from noonday.drill import options
from noonday.drill.entry import run
from noonday.drill.faults import FAULTS, NUMBERS
from noonday.drill.nemesis import rounds
from noonday.drill.options import CannotDrill, choose
from tests.support.trees import descendants, living
from tests.support.waiting import wait_until

SEED = int(os.environ.get("NOONDAY_TEST_SEED", "20270314"))
"""A drill of the tests draws the same faults each time; what it meets is new each time."""


def test_a_minute_of_faults_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    code = run(choose(60, SEED, None, tmp_path / "drill"), said.append)
    print("\n".join(said))
    report = json.loads((tmp_path / "drill" / "report.json").read_text())
    assert report["violations"] == []
    assert report["empty"] == []
    assert code == 0
    assert (tmp_path / "drill" / "timeline.svg").read_text().startswith("<svg")
    assert not (tmp_path / "drill" / "data").exists()


def test_an_interrupted_drill_ends_all_that_it_has_started(tmp_path: Path) -> None:
    out = tmp_path / "drill"
    with drilling(out) as drill:
        started = descendants(drill.pid)
        assert len(started) > 12  # the service, the receivers, Postgres and its processes
        drill.send_signal(signal.SIGINT)
        drill.communicate(timeout=60)
    assert drill.returncode == 130
    wait_until(lambda: not living(started))
    assert not (out / "data").exists()


def test_a_killed_drill_takes_all_along_that_it_has_started(tmp_path: Path) -> None:
    with drilling(tmp_path / "drill") as drill:
        started = descendants(drill.pid)
        drill.kill()
    wait_until(lambda: not living(started), 60)


@contextmanager
def drilling(out: Path) -> Iterator[subprocess.Popen[str]]:
    """A drill as people start it, when its load has begun."""
    argv = [sys.executable, "-m", "noonday", "drill", "--out", str(out)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as drill:
        assert drill.stdout is not None
        assert any("without a fault" in line for line in drill.stdout)
        yield drill


def test_the_same_seed_draws_the_same_faults() -> None:
    def drawn(seed: int) -> list[list[str]]:
        return [[fault.name for fault in each] for each in islice(rounds(seed, set(NUMBERS)), 60)]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_each_kind_of_fault_is_drawn_before_any_is_drawn_again() -> None:
    seed = random.randrange(2**32)
    drawn = [fault.name for each in islice(rounds(seed, set(NUMBERS)), 60) for fault in each]
    assert set(drawn[: len(FAULTS)]) == {fault.name for fault in FAULTS}
    assert all(1 <= len(each) <= 3 for each in islice(rounds(seed, set(NUMBERS)), 60))


@pytest.mark.parametrize("number", ["F11", "F17"])
def test_what_cannot_strike_here_is_left_out_and_refused_when_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: str
) -> None:
    why = options.NEEDS[number][1]
    monkeypatch.setitem(options.NEEDS, number, (lambda: None, why))
    left = choose(60, 1, None, tmp_path / "new")
    assert number not in left.faults
    assert left.left_out == {number: why} | {n: w for n, w in left.left_out.items() if n != number}
    with pytest.raises(CannotDrill, match=number):
        choose(60, 1, ["F1", number], tmp_path / "new")


def test_what_is_asked_wrongly_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "of").touch()
    with pytest.raises(CannotDrill, match="no fault is called F99"):
        choose(60, 1, ["F99"], tmp_path / "new")
    with pytest.raises(CannotDrill, match="not empty"):
        choose(60, 1, None, tmp_path / "full")
    with pytest.raises(CannotDrill, match="20 s"):
        choose(5, 1, None, tmp_path / "new")
