"""A loop drives its tick, whatever that does, until it is told to finish."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from noonday import loops
from noonday.loops import Loop
from noonday.server import Node
from noonday.settings import Settings
from noonday.store import Store
from noonday.store.backlogs import Backlogs
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics
from tests.support.holds import eventually


class Tick:
    """Answers as told, the last one for good; an exception is raised."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.calls = 0

    async def __call__(self) -> int:
        self.calls += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_tick_that_did_something_is_followed_by_another_at_once() -> None:
    tick = Tick(*[1] * 50, 0)
    loop = Loop("a", tick, Metrics(), pause_sec=60, sleep_for=lambda: 60)
    loop.start()
    await eventually(lambda: tick.calls == 51)
    await loop.finish()
    assert tick.calls == 51


async def test_a_wake_up_ends_the_pause() -> None:
    tick = Tick(0)
    loop = Loop("a", tick, Metrics(), pause_sec=60, sleep_for=lambda: 60)
    loop.start()
    await eventually(lambda: tick.calls == 1)
    loop.wake()
    await eventually(lambda: tick.calls == 2)
    await loop.finish()


async def test_a_wake_up_during_a_tick_is_not_lost() -> None:
    class Waking(Tick):
        async def __call__(self) -> int:
            if self.calls == 0:
                loop.wake()
            return await super().__call__()

    tick = Waking(0)
    loop = Loop("a", tick, Metrics(), pause_sec=60, sleep_for=lambda: 60)
    loop.start()
    await eventually(lambda: tick.calls == 2)
    await loop.finish()


async def test_a_tick_that_fails_is_told_and_tried_again_however_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # An outage of hours: thousands of failures in a row.
    monkeypatch.setattr(loops, "LONGEST_BACKOFF_SEC", 0.0)
    tick = Tick(*[OSError("away")] * 2_000, 0)
    metrics = Metrics()
    with capture_logs() as lines:
        loop = Loop("a", tick, metrics, pause_sec=60, sleep_for=lambda: 60)
        loop.start()
        await eventually(lambda: tick.calls == 2_001)
        await loop.finish()
    assert len([line for line in lines if line["event"] == "loop.failed"]) == 2_000
    assert b'noonday_loop_errors_total{loop="a"} 2000.0' in metrics.render()


async def test_finishing_lets_the_tick_under_way_end_and_begins_no_other() -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    ended = []

    async def tick() -> int:
        begun.set()
        await go.wait()
        ended.append(True)
        return 1

    loop = Loop("a", tick, Metrics())
    loop.start()
    await begun.wait()
    finishing = asyncio.create_task(loop.finish())
    await asyncio.sleep(0)
    assert not finishing.done()
    go.set()
    await finishing
    assert ended == [True]


@pytest.mark.parametrize("how", ["hangs", "fails", "is killed"])
async def test_a_loop_that_does_not_tick_makes_its_process_unready(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    now, go = [1_000.0], asyncio.Event()
    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter)
    monkeypatch.setattr(loops, "time", clock)
    healthy, calls = Tick(0), 0

    async def tick() -> int:
        nonlocal calls
        calls += 1
        if calls > 1 and how == "hangs":
            await go.wait()
        if calls > 1 and how == "fails":
            raise OSError("away")
        return 0

    async with AsyncExitStack() as stack:
        id = uuid4()
        node = Node(
            "scheduler", Settings(home=tmp_path), id, "a node", store, Metrics(), Wakeups(store),
            Backlogs(store, id), [], stack, None,
        )  # fmt: skip
        well = node.loop("well", healthy, pause_sec=1.0, sleep_for=lambda: 60)
        ill = node.loop("ill", tick, pause_sec=1.0, sleep_for=lambda: 60)
        await eventually(lambda: calls == 1 and healthy.calls == 1)
        assert set((await node.checks()).values()) == {None}
        if how == "is killed":
            assert ill._task is not None
            ill._task.cancel()
        else:
            ill.wake()
            await eventually(lambda: calls > 1)
        now[0] += 16.0  # 15 s and the longest pause
        ticked = healthy.calls
        well.wake()
        await eventually(lambda: healthy.calls > ticked and well.is_ticking())
        stalled = {name for name, fault in (await node.checks()).items() if fault}
        assert stalled == {"loop ill"}
        go.set()
