"""The first thing that anybody sees, as they start it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.postgres import open_folder
from tests.support.waiting import wait_until

EXPECTED = "all 6 jobs did as expected"
COMMANDS = re.compile(r"^  ((?:curl|NOONDAY_URL)(?:.*\\\n)*.*)$", re.MULTILINE)


class Demo:
    """``noonday up --demo``, and what it has printed so far."""

    def __init__(self, home: Path, *options: str) -> None:
        self._output = home.with_suffix(".out")
        program = Path(sys.executable).with_name("noonday")
        settings = {"NOONDAY_HOME": str(home), "NOONDAY_LOG_LEVEL": "warning"}
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [program, "up", "--demo", *options],
                env=os.environ | settings,
                stdout=output,
                stderr=output,
            )

    @property
    def printed(self) -> str:
        return self._output.read_text()

    def has_printed(self, pattern: str) -> bool:
        assert self.process.poll() is None, self.printed
        return re.search(pattern, self.printed) is not None


@pytest.fixture
def start() -> Iterator[Callable[..., Demo]]:
    started: list[Demo] = []
    with open_folder() as folder:

        def start(*options: str) -> Demo:
            started.append(Demo(folder / "home", *options))
            return started[-1]

        yield start
        for demo in started:
            demo.process.terminate()
            demo.process.wait(60)


@pytest.mark.debian("curl")
def test_the_demo_does_as_it_says_and_again_on_the_data_of_the_last_time(
    start: Callable[..., Demo],
) -> None:
    first = start()
    wait_until(lambda: first.has_printed("Ctrl-C stops all"), 60)
    assert EXPECTED in first.printed

    create, show, list_jobs = COMMANDS.findall(first.printed)
    for command in (create, show, list_jobs):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        assert "mine" in done.stdout, done
    wait_until(lambda: first.has_printed(r"Z mine .* 200  verified"), 30)

    first.process.send_signal(signal.SIGINT)
    assert first.process.wait(60) == 0
    second = start("--once")
    assert second.process.wait(90) == 0, second.printed
    assert EXPECTED in second.printed
