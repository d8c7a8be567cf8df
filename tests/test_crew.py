"""How many workers ``noonday up`` runs, and what it goes by."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from noonday.crew import OLD_SEC, Crew, wanted_slots, workers_for
from noonday.telemetry import Depth, Metrics
from tests.support.holds import eventually

POOLS = [(("critical",), 16), (("default", "batch", "*"), 48), (("long",), 32)]


@pytest.mark.parametrize(
    ("wanted", "workers"),
    [
        ({}, 0),
        ({"default": 1}, 1),
        ({"default": 48, "long": 32, "critical": 16}, 1),
        ({"default": 48, "batch": 1}, 2),
        ({"default": 24, "batch": 24, "of our own": 48}, 2),
        ({"default": 1, "long": 100}, 4),
        ({"critical": 17}, 2),
    ],
)
def test_there_are_as_many_workers_as_the_pool_that_needs_most_of_them(
    wanted: dict[str, int], workers: int
) -> None:
    assert workers_for(wanted, POOLS) == workers


def test_a_lane_without_slots_of_ours_is_for_others() -> None:
    assert workers_for({"long": 10, "x": 10}, [(("default",), 64), (("long",), 0)]) == 0


def test_what_is_wanted_is_read_from_the_metrics_of_a_scheduler() -> None:
    metrics = Metrics()
    assert wanted_slots(metrics.render().decode()) is None, "it has not looked yet"
    metrics.lanes_stand_at({"default": Depth(0, 0.0)})
    assert wanted_slots(metrics.render().decode()) is None, "nobody has told it"
    metrics.wanted_stand_at({"default": 130, "long": 0}, {})
    assert wanted_slots(metrics.render().decode()) == {"default": 130, "long": 0}


def test_what_is_old_says_nothing() -> None:
    metrics = Metrics()
    metrics.lanes_stand_at({})
    metrics.wanted_stand_at({"default": 130}, {})
    assert metrics._lanes.read_at is not None
    metrics._lanes.read_at -= OLD_SEC + 1
    assert wanted_slots(metrics.render().decode()) is None


# --- the crew ---------------------------------------------------------------------------------

# Writes down what it is told, and goes on until it is killed.
SCRIPT = """
trap 'echo leave >> "$0"' USR1
trap 'echo stay >> "$0"' USR2
echo here >> "$0"
while :; do sleep 0.02; done
"""
MUCH = {"default": 2 * 48}


class Listener:
    """A real process in the place of a worker."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.is_closed = False

    def look_after(self) -> None:
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(["sh", "-c", SCRIPT, str(self._log)])

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def close(self) -> None:
        self.is_closed = True

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    @property
    def heard(self) -> list[str]:
        return self._log.read_text().split() if self._log.exists() else []

    async def hears(self, *words: str) -> None:
        await eventually(lambda: self.heard == list(words))


class Yard:
    """A crew of one to three, and all that were ever hired for it."""

    def __init__(self, folder: Path) -> None:
        self.hired: list[Listener] = []
        self.is_full = False
        self._folder = folder
        self.crew = Crew(self._hire, POOLS, 1, 3)

    def _hire(self, number: int) -> Listener:
        if self.is_full:
            raise OSError("no port")
        self.hired.append(Listener(self._folder / f"{len(self.hired)}-{number}"))
        return self.hired[-1]

    def look(self, wanted: dict[str, int] | None) -> int:
        self.crew.look_after(wanted)
        return len(self.crew.members)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path)
    yield made
    for each in made.hired:
        each.kill()


def test_it_begins_with_the_least_and_never_has_more_than_the_most(yard: Yard) -> None:
    assert yard.look(None) == 1
    assert yard.look({"default": 1_000_000}) == 3
    assert yard.look(None) == 3, "nobody tells: it stays as it is"


async def test_one_that_is_not_needed_is_told_to_leave_once_and_gone_when_it_has_ended(
    yard: Yard,
) -> None:
    yard.look(MUCH)
    first, second = yard.hired
    await second.hears("here")
    for _ in range(3):
        assert yard.look({}) == 2, "it ends what it carries out"
    await second.hears("here", "leave")
    second.kill()
    assert yard.look({}) == 1
    assert (second.is_closed, first.is_closed) == (True, False)
    assert len(yard.hired) == 2


async def test_one_that_is_on_its_way_out_stays_when_it_is_needed(yard: Yard) -> None:
    yard.look(MUCH)
    second = yard.hired[1]
    await second.hears("here")
    yard.look({})
    await second.hears("here", "leave")
    assert yard.look(MUCH) == 2
    await second.hears("here", "leave", "stay")
    assert len(yard.hired) == 2, "nobody else was hired"
    second.kill()
    assert yard.look(MUCH) == 2
    await second.hears("here", "leave", "stay", "here")


def test_one_that_cannot_be_had_at_the_start_is_an_error_and_later_is_tried_again(
    yard: Yard,
) -> None:
    yard.is_full = True
    with pytest.raises(OSError, match="no port"):
        yard.crew.begin()
    yard.is_full = False
    yard.crew.begin()
    yard.is_full = True
    assert yard.look(MUCH) == 1
    yard.is_full = False
    assert yard.look(MUCH) == 1, "not at once"
    yard.crew._hire_again_at = 0.0
    assert yard.look(MUCH) == 2
