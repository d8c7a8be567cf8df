"""Postgres crashes while everything is going on; the processes of the service stay."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from noonday.client import NoondayApiError, NoondayConnectionError
from noonday.embedded import EmbeddedPostgres
from tests.support.cluster import Cluster
from tests.support.holds import eventually
from tests.support.postgres import WHEEL_MAJOR, open_folder, start_postgres

END_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'noonday%'
"""
EVERY_SECOND = {"type": "interval", "interval_sec": 1, "overlap": "allow"}


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """A server of its own, which a test may crash."""
    with open_folder() as folder:
        major = int(os.environ.get("NOONDAY_TEST_POSTGRES", WHEEL_MAJOR))
        server = start_postgres(folder, major)
        yield server
        server.stop()


class Load:
    """Posts one job after the other and keeps count of the answers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.answers: Counter[int] = Counter()
        """By status; 0 is no answer."""

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._post_on())
        yield
        task.cancel()
        await asyncio.wait([task])

    async def more(self, status: int, count: int = 1) -> None:
        """Return when ``count`` more were answered so."""
        wanted = self.answers[status] + count
        await eventually(lambda: self.answers[status] >= wanted, 30)

    async def _post_on(self) -> None:
        body = self._cluster.body("/load")
        async with self._cluster.client(retries=0) as client:
            while True:
                try:
                    self._cluster.acknowledge(await client.jobs.create(body))
                    self.answers[202] += 1
                except NoondayApiError as error:
                    self.answers[error.status] += 1
                except NoondayConnectionError:
                    self.answers[0] += 1


async def test_everything_recovers_by_itself_when_postgres_crashes_under_load(
    server: EmbeddedPostgres, tmp_path: Path
) -> None:
    async with Cluster.over(server.dsn(), tmp_path) as cluster:
        members = await cluster.start("api", "scheduler", "worker")
        pids = [member.pid for member in members]
        for _ in range(3):
            await cluster.post("/often", schedule=EVERY_SECOND)
        load = Load(cluster)
        async with load.going_on():
            for _ in range(2):
                await load.more(202, 20)
                await cluster.receiver.wait_for(len(cluster.receiver.requests) + 20, 20)
                server.stop_immediate()
                for member in members:
                    await eventually(member.is_red)
                await load.more(503)
                server.start()
                await asyncio.gather(*(member.ready(30) for member in members))
                await load.more(202)
            await cluster.execute(END_SESSIONS)
            await load.more(202, 20)
        assert load.answers.keys() <= {202, 503, 0}
        await cluster.drain(30)
        assert [member.pid for member in members if member.runs] == pids
        assert await cluster.check() == []
