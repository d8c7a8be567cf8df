"""``noonday up`` as a whole, killed and started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import groupby
from pathlib import Path

import pytest

from noonday.embedded import running_dsn
from tests.support.cluster import Cluster
from tests.support.holds import eventually
from tests.support.postgres import open_folder
from tests.support.receivers import Answer
from tests.support.trees import descendants, living

EVERY_SECOND = {"type": "interval", "interval_sec": 1, "overlap": "allow"}
SETTINGS = """
allow_private_targets = true
allowed_ports = []
worker_grace_sec = 1.0
"""


SCALED = """
workers = "1..2"
worker_pools = ["default=4", "long=1"]
lane_objective_sec = 4
scale_down_sec = 5
"""
TWO_APIS = """
SELECT array_agg(pid) FROM workers WHERE role = 'api' AND pid <> ALL ($1::int[])
HAVING count(*) = 2
"""
RUNNING = "SELECT count(*) FROM runs WHERE state = 'RUNNING'"
NOT_WELL = "SELECT count(*) FROM executions WHERE status <> 'SUCCESS' OR attempt > 1"
OF_WORKERS = """
SELECT j.name, w.pid, w.started_at FROM runs AS r JOIN jobs AS j ON j.id = r.job_id
JOIN workers AS w ON w.id = r.worker_id ORDER BY w.started_at, j.name
"""


class Up:
    """One ``noonday up`` and what it says."""

    def __init__(self, home: Path, *options: str) -> None:
        self._log = home / "up.log"
        self._log.unlink(missing_ok=True)
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "noonday", "up", "--home", str(home), *options],
                stdout=log,
                stderr=log,
                cwd=home,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    async def said(self, pattern: str) -> str:
        """What the group of ``pattern`` matched, once it has been said."""

        def ask() -> str | None:
            assert self.process.poll() is None, self._log.read_text()
            found = re.search(pattern, self._log.read_text())
            return found and found[1]

        return str(await eventually(ask, 30))

    def times(self, event: str) -> int:
        """How often it has said that."""
        return self._log.read_text().count(f'"event":"{event}"')

    @property
    def lost(self) -> int:
        """How many of its processes have ended by themselves."""
        return self._log.read_text().count("child.ended")

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        print(self._log.read_text())


@contextmanager
def an_up(home: Path, *options: str) -> Iterator[Up]:
    up = Up(home, *options)
    try:
        yield up
    finally:
        up.close()


@pytest.fixture
def home() -> Iterator[Path]:
    with open_folder() as folder:
        (folder / "noonday.toml").write_text(SETTINGS)
        yield folder


async def test_nothing_outlives_a_killed_supervisor_and_the_next_one_goes_on_where_it_was(
    home: Path,
) -> None:
    with an_up(home) as first:
        key = await first.said(r"admin key, shown once: (\S+)")
        async with Cluster.over(running_dsn(home), home, token=key) as cluster:
            cluster.address = await first.said(r"API: +(\S+)")
            cluster.receiver.answer("/held", Answer(hold=True), 200)
            await cluster.post("/held")
            await cluster.post("/often", schedule=EVERY_SECOND)
            await cluster.receiver.wait_for(4, 20)
            tree = descendants(first.pid)
            assert len(tree) > 6, "api, scheduler, worker, Postgres and what it consists of"
            first.process.kill()
            await eventually(lambda: not living(tree), 20)
            with an_up(home) as second:
                cluster.address = await second.said(r"API: +(\S+)")
                await cluster.post("/again")
                await cluster.drain(30)
                assert await cluster.check() == []
                tree = descendants(second.pid)
            assert second.process.returncode == 0
            assert not living(tree)


async def test_api_processes_share_the_port_and_one_that_is_killed_is_not_missed(
    home: Path,
) -> None:
    with an_up(home, "--apis", "2") as up:
        key = await up.said(r"admin key, shown once: (\S+)")
        async with Cluster.over(running_dsn(home), home, token=key) as cluster:
            cluster.address = await up.said(r"API: +(\S+)")
            killed = [0]
            for _ in range(3):  # more often than there are processes at first
                pid, _ = await cluster.until(TWO_APIS, killed)
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                for n in range(8):  # each by a connection of its own
                    await cluster.post(f"/{n}")
            await eventually(lambda: up.lost == 3)
            await cluster.drain(30)
            assert await cluster.check() == []


async def test_nothing_outlives_a_supervisor_that_is_killed_while_its_processes_start(
    home: Path,
) -> None:
    with an_up(home) as up:
        await up.said(r"API: +(\S+)")
        tree = descendants(up.pid)
        up.process.kill()
        await eventually(lambda: not living(tree), 10)


async def test_a_postgres_that_is_killed_is_started_again_and_everything_goes_on(
    home: Path,
) -> None:
    with an_up(home) as up:
        key = await up.said(r"admin key, shown once: (\S+)")
        async with Cluster.over(running_dsn(home), home, token=key) as cluster:
            cluster.address = await up.said(r"API: +(\S+)")
            await cluster.post("/often", schedule=EVERY_SECOND)
            await cluster.receiver.wait_for(2, 20)
            postmaster = int((home / "postgres/data/postmaster.pid").read_text().split()[0])
            os.kill(postmaster, signal.SIGKILL)
            await up.said(r"(postgres\.ended)")
            await cluster.post("/again")
            await cluster.drain(30)
            assert up.lost == 0
            assert await cluster.check() == []


# --- as many workers as are needed ------------------------------------------------------------


@asynccontextmanager
async def a_scaled_up(home: Path) -> AsyncIterator[tuple[Up, Cluster]]:
    """One that has as many workers as it may, of which each carries out some of 8 runs."""
    (home / "noonday.toml").write_text(SETTINGS + SCALED)
    with an_up(home) as up:
        key = await up.said(r"admin key, shown once: (\S+)")
        async with Cluster.over(running_dsn(home), home, token=key) as cluster:
            cluster.address = await up.said(r"API: +(\S+)")
            for path in (f"/held/{n}" for n in range(8)):
                cluster.receiver.answer(path, Answer(hold=True), 200)
                await cluster.post(path)
            await cluster.receiver.wait_for(4, 30)
            await up.said(r"(worker\.added)")
            await cluster.receiver.wait_for(8, 60)
            yield up, cluster


async def paths(cluster: Cluster) -> dict[int, list[str]]:
    """What each worker carries out, by pid, the one that came first before."""
    async with cluster.store.transaction() as tx:
        rows = await tx.rows(OF_WORKERS)
    return {pid: [row["name"] for row in of] for pid, of in groupby(rows, lambda row: row["pid"])}


async def test_load_brings_another_worker_which_goes_when_it_is_idle_and_interrupts_nothing(
    home: Path,
) -> None:
    async with a_scaled_up(home) as (up, cluster):
        first, second = (await paths(cluster)).values()
        for path in first[1:] + second[1:]:
            cluster.receiver.release(path)
        await up.said(r"(worker\.leaves)")
        assert await cluster.value(RUNNING) == 2, "one that it still carries out is among them"
        assert up.times("worker.left") == 0
        await cluster.post("/meanwhile")
        cluster.receiver.release(second[0])
        await up.said(r"(worker\.left)")
        cluster.receiver.release()
        await cluster.drain(30)
        assert await cluster.value(NOT_WELL) == 0
        assert up.lost == 0
        assert await cluster.check() == []


async def test_a_worker_that_is_killed_while_there_are_many_is_replaced_and_loses_nothing(
    home: Path,
) -> None:
    async with a_scaled_up(home) as (up, cluster):
        (_, second), lost = await paths(cluster), len(cluster.receiver.requests)
        os.kill(second, signal.SIGKILL)
        await up.said(r"(child\.ended)")
        await cluster.receiver.wait_for(lost + 4, 60)
        cluster.receiver.release()
        await cluster.drain(30)
        assert up.lost == 1
        assert await cluster.check() == []
