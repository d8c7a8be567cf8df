"""Jobs that are changed through the API, on a clock that a test sets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from noonday.api.documents import stamp
from noonday.loops.resuming import Resuming
from noonday.loops.scheduler import Scheduler
from noonday.store import Store
from noonday.store.wakeups import Wakeups
from noonday.telemetry import Metrics
from tests.support.servers import Api

MINUTE = timedelta(minutes=1)
T = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


def minutely(**changes: Any) -> dict[str, Any]:
    """A schedule that fires at ``T`` and each minute after it."""
    each = {"type": "interval", "interval_sec": 60, "starts_at": stamp(T), "overlap": "allow"}
    return each | changes


async def parent_at(api: Api, minutes: int | None) -> str:
    """A job that fires once, so many minutes after ``T`` or at once, and is older than its
    children: ids of one millisecond are in no order."""
    api.store.now = T - timedelta(seconds=1)
    once: dict[str, Any] = {"type": "once"}
    if minutes is not None:
        once["run_at"] = stamp(T + minutes * MINUTE)
    return await api.admin.create(schedule=once)


async def slow(api: Api, schedule: dict[str, Any]) -> str:
    """A job created at ``T`` whose jitter is longer than ten minutes; it is drawn from the id."""
    api.store.now = T
    while True:
        job = await api.admin.create(schedule=schedule)
        shown = (await api.admin.get(f"/v1/jobs/{job}")).body
        if shown["next_run_at"] > stamp(T + 10 * MINUTE):
            return job


async def tick(store: Store, now: datetime) -> None:
    """Be the scheduler at that time: fire what is due, and let go on what was paused."""
    store.now = now
    await Resuming(store).tick()
    scheduler = Scheduler(store, uuid4(), "scheduler", Metrics(), Wakeups(store))
    await scheduler.keep_shards()
    while await scheduler.tick():
        pass
    await scheduler.leave()


async def lines(api: Api, job: str) -> list[tuple[int | tuple[int, int], str | None, str | None]]:
    """The ledger of a job, oldest first: minutes after ``T``, of a range the first and the last;
    outcome and reason."""
    answer = await api.admin.get(f"/v1/jobs/{job}/occurrences?limit=200")
    assert answer.status == 200, answer
    found = [line for line in answer.body["data"] if line["kind"] == "schedule"]
    return [(_minutes(line), line["outcome"], line["reason"]) for line in reversed(found)]


def _minutes(line: dict[str, Any]) -> int | tuple[int, int]:
    if line["range"] is None:
        return after(line["occurrence_at"])
    ends = after(line["range"]["from_at"]), after(line["range"]["to_at"])
    assert line["range"]["count"] == ends[1] - ends[0] + 1, line
    return ends


def after(text: str) -> int:
    """Whole minutes from ``T``."""
    minutes, rest = divmod(datetime.fromisoformat(text) - T, MINUTE)
    assert not rest, text
    return minutes


def fires(job: Any) -> list[int]:
    """The next fires of a job, in minutes after ``T``."""
    return [after(at) for at in job["next_fires"]]
