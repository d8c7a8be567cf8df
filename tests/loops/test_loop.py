"""A loop drives its tick, whatever that does, until it is told to finish."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from noonday import loops
from noonday.loops import Loop
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
