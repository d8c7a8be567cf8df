"""The parts of the benchmark. Each answers with figures per job: CPU, WAL, commits, latency."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise
from uuid import uuid4

from bench import harness, wire
from bench.harness import Service, Sink, Usage
from bench.ranks import ranks
from noonday.api.auth import KNOWN_SEC
from noonday.domain.model import Attempt, HttpTarget, Outcome, OutcomeKind
from noonday.domain.pools import Pool
from noonday.domain.quotas import Quotas
from noonday.executors import Sent
from noonday.loops import Loop
from noonday.loops.flight import BEAT_SEC
from noonday.loops.worker import Worker
from noonday.store import Row, Store, Tx, runs, tenants
from noonday.store.blobs import LocalBlobs
from noonday.store.secretbox import read_key_file
from noonday.store.signing import SigningKeys
from noonday.telemetry import Metrics

Figures = dict[str, float]

PAYLOAD = {"pad": "x" * 348}
"""About 360 bytes on the wire."""


def job(url: str, schedule: dict[str, object], name: str = "bench") -> dict[str, object]:
    return {
        "name": name,
        "schedule": schedule,
        "target": {"type": "http", "url": url},
        "payload": PAYLOAD,
    }


def figures(count: int, seconds: float, before: Usage, after: Usage, took: list[float]) -> Figures:
    """Per job; ``took`` are seconds, of which the percentiles are given in milliseconds."""
    found = {
        "count": float(count),
        "per_sec": count / seconds,
        "postgres_us": (after.postgres_sec - before.postgres_sec) / count * 1e6,
        "noonday_us": (after.noonday_sec - before.noonday_sec) / count * 1e6,
        "wal_bytes": (after.wal_bytes - before.wal_bytes) / count,
        "commits": (after.commits - before.commits) / count,
    }
    if took:
        took = sorted(took)
        found["p50_ms"] = took[len(took) // 2] * 1e3
        found["p99_ms"] = took[int(len(took) * 0.99)] * 1e3
    return found


def _post(running: Service, path: str, body: object) -> bytes:
    headers = {"Authorization": f"Bearer {running.token}", "Content-Type": "application/json"}
    return wire.request("POST", path, json.dumps(body).encode(), headers)


async def ready(running: Service) -> None:
    """Wait until the API answers."""
    raw = _post(running, "/v1/jobs", job("http://127.0.0.1:1/", {"type": "once", "delay": "P30D"}))
    for _ in range(200):
        try:
            await wire.hammer(running.address, 1, 0.01, lambda: raw)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            return
    raise RuntimeError("the API did not come up")


async def post(scale: float) -> dict[str, Figures]:
    """POST /v1/jobs over HTTP, 64 connections: due later, and due now."""
    found = {}
    for name, schedule in (("later", {"type": "once", "delay": "P30D"}), ("now", {"type": "once"})):
        async with harness.service("api") as running:
            await ready(running)
            store = await running.store()
            raw = _post(running, "/v1/jobs", job("http://127.0.0.1:1/", dict(schedule)))
            before, began = await running.usage(store), time.perf_counter()
            count, took = await wire.hammer(running.address, 64, 20 * scale, lambda raw=raw: raw)  # type: ignore[misc]
            seconds = time.perf_counter() - began
            found[f"post {name}"] = figures(
                count, seconds, before, await running.usage(store), took
            )
            await store.close()
    return found


AMPLE = Quotas(100_000.0, None, 100_000_000, 100_000_000)
COUNTED = "UPDATE pending_bases SET counted_at = now() - interval '1 minute'"


async def quotas(scale: float) -> dict[str, Figures]:
    """POST /v1/jobs of a tenant without quotas and with all of them, in turns; none is used up."""
    turns, names = 3, ("without", "with")
    parts: dict[str, list[Figures]] = {name: [] for name in names}
    async with harness.service("api") as running:
        await ready(running)
        store = await running.store()
        due = {"type": "once", "delay": "P30D"}
        raw = _post(running, "/v1/jobs", job("http://127.0.0.1:1/", dict(due)))
        for name in ("without", *names * turns):  # the first one is to warm up
            async with store.transaction() as tx:
                await tenants.set_quotas(tx, 1, AMPLE if name == "with" else Quotas())
                await tx.execute(COUNTED)
            await asyncio.sleep(KNOWN_SEC + 1)
            before, began = await running.usage(store), time.perf_counter()
            count, took = await wire.hammer(running.address, 64, 20 * scale, lambda: raw)
            seconds = time.perf_counter() - began
            parts[name].append(figures(count, seconds, before, await running.usage(store), took))
        await store.close()
    return {f"post {name} quotas": _median(found[-turns:]) for name, found in parts.items()}


def _median(found: list[Figures]) -> Figures:
    return {key: sorted(part[key] for part in found)[len(found) // 2] for key in found[0]}


async def bulk(scale: float) -> dict[str, Figures]:
    """POST /v1/jobs:batch by 1,000, two connections."""
    async with harness.service("api") as running:
        await ready(running)
        store = await running.store()
        one = {"job": job("http://127.0.0.1:1/", {"type": "once", "delay": "P30D"})}
        raw = _post(running, "/v1/jobs:batch", {"atomic": False, "jobs": [one] * 1_000})
        before, began = await running.usage(store), time.perf_counter()
        calls, _ = await wire.hammer(running.address, 2, 20 * scale, lambda: raw)
        seconds = time.perf_counter() - began
        rows = figures(calls * 1_000, seconds, before, await running.usage(store), [])
        await store.close()
    return {"bulk by 1,000": rows}


async def fill(running: Service, url: str, count: int, **fields: object) -> None:
    """Jobs that are due now, with their runs READY."""
    one = {"job": job(url, {"type": "once"}) | fields}
    raw = _post(running, "/v1/jobs:batch", {"atomic": False, "jobs": [one] * 1_000})
    host, port = running.address.removeprefix("http://").rsplit(":", 1)
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(wire.Connection, host, int(port))
    for _ in range(count // 1_000):
        status, body = await connection.ask(raw)
        if status != 202:
            raise RuntimeError(f"answered {status}: {body[:300]!r}")
    connection.close()


async def drained(store: Store) -> None:
    """Wait until no run is left."""
    while True:
        async with store.transaction() as tx:
            if not await tx.value("SELECT EXISTS (SELECT FROM runs)"):
                return
        await asyncio.sleep(0.02)


class Nothing:
    """An executor for which every attempt succeeds at once."""

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def cancel(self, attempt: Attempt, url: str, reason: str = "") -> Outcome:
        return Outcome(OutcomeKind.SUCCESS)

    async def execute(self, attempt: Attempt, sent: Sent) -> Outcome:
        sent.maybe = True
        return Outcome(OutcomeKind.SUCCESS, http_status=200)


class Endless(Nothing):
    """An executor whose attempts take for ever."""

    async def execute(self, attempt: Attempt, sent: Sent) -> Outcome:
        await asyncio.Event().wait()
        return await super().execute(attempt, sent)


class Watched(Store):
    """A store that notes how long each transaction took that says more than a process is alive."""

    took: list[float]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Tx]:
        began = time.perf_counter()
        async with super().transaction() as tx:
            counting = Counting(tx)
            yield counting
        if counting.heartbeats:
            self.took.append(time.perf_counter() - began)


class Counting(Tx):
    """A transaction that counts its statements about leases."""

    __slots__ = ("heartbeats",)

    def __init__(self, tx: Tx) -> None:
        super().__init__(tx._connection, tx.now)
        self.heartbeats = 0

    async def rows(self, statement: str, *args: object) -> list[Row]:
        self.heartbeats += statement is runs.HEARTBEAT
        return await super().rows(statement, *args)


async def long(scale: float) -> dict[str, Figures]:
    """10,000 runs of the lane `long` under way in one worker: per lease and minute.

    Claimed in one go, and then as if over a third of their lease. One scheduler reaps.
    """
    count, seconds, found = 10_000, max(120 * scale, 30), {}
    async with harness.service("api", "scheduler") as running:
        await ready(running)
        target = {"type": "http", "url": "http://127.0.0.1:1/", "timeout_sec": 3_600}
        await fill(running, "", count, target=target)
        store = await running.store(4)
        beats = await Watched.open(str(running.settings.database_url), size=1)
        metrics = Metrics()
        worker = Worker(
            store, beats, uuid4(), "bench", executors={HttpTarget: Endless()},
            blobs=LocalBlobs(running.settings.blobs_folder),
            keys=SigningKeys(store, read_key_file(running.settings.secret_key_path)),
            metrics=metrics, plan=[Pool(("long",), count)],
        )  # fmt: skip
        beating = Loop("heartbeat", worker.beats.tick, metrics, pause_sec=BEAT_SEC, steady=True)
        beating.start()
        while worker.pools["long"].free:
            await worker.tick()
        for how in ("together", "spread"):
            if how == "spread":
                for flight in worker._flights.values():
                    flight.extended -= random.random() * flight.lease_sec / 3
            beats.took = []
            before, used, began = await running.usage(store), time.process_time(), time.monotonic()
            await asyncio.sleep(seconds)
            taken = time.monotonic() - began
            rows = figures(count, 1, before, await running.usage(store), beats.took)
            rows["noonday_us"] = (time.process_time() - used) / count * 1e6
            for name in ("postgres_us", "noonday_us", "wal_bytes", "commits"):
                rows[name] *= 60 / taken
            rows["per_sec"] = len(beats.took) / taken
            found[f"10,000 leases, {how}: {len(beats.took)} heartbeats in {taken:.0f} s"] = rows
        if worker.pools["long"].busy != count:
            raise RuntimeError("leases were lost")
        await beating.finish()
        await store.close()
        await beats.close()
    return found


async def drain(scale: float) -> dict[str, Figures]:
    """No-op runs that are due already, claimed and settled by one worker in this process."""
    count = max(int(200_000 * scale), 10_000)
    async with harness.service("api") as running:
        await ready(running)
        await fill(running, "http://127.0.0.1:1/", count)
        store, beats = await running.store(4), await running.store(1)
        metrics = Metrics()
        worker = Worker(
            store, beats, uuid4(), "bench", executors={HttpTarget: Nothing()},
            blobs=LocalBlobs(running.settings.blobs_folder),
            keys=SigningKeys(store, read_key_file(running.settings.secret_key_path)),
            metrics=metrics, plan=[Pool(("default",), 1_000)],
        )  # fmt: skip
        claim, settle = (
            Loop("claim", worker.tick, metrics),
            Loop("settle", worker.settling.tick, metrics),
        )
        worker.wake_claim, worker.settling.wake = lambda _: claim.wake(), settle.wake
        before, used, began = await running.usage(store), time.process_time(), time.perf_counter()
        claim.start()
        settle.start()
        await drained(beats)
        seconds = time.perf_counter() - began
        rows = figures(count, seconds, before, await running.usage(store), [])
        rows["noonday_us"] = (time.process_time() - used) / count * 1e6
        await claim.finish()
        await settle.finish()
        await store.close()
        await beats.close()
    return {"drain, no-op": rows}


async def webhook(scale: float) -> dict[str, Figures]:
    """Signed POSTs of 360 bytes to a local sink, two worker processes."""
    count = max(int(40_000 * scale), 4_000)
    sink = Sink()
    async with harness.service("api") as running:
        await ready(running)
        await fill(running, sink.url, count)
        store = await running.store()
        before, began = await running.usage(store), time.perf_counter()
        running.start("worker")
        running.start("worker")
        await drained(store)
        seconds = time.perf_counter() - began
        rows = figures(count, seconds, before, await running.usage(store), [])
        await store.close()
    seen = sink.stop()
    if seen["count"] != count:
        raise RuntimeError(f"{count} jobs, but {seen['count']} deliveries")
    return {"webhook, 2 workers": rows}


async def start_latency(scale: float) -> dict[str, Figures]:
    """From due to the receiver: one-off jobs a second ahead, 20 a second, all else idle."""
    count = max(int(400 * scale), 60)
    sink = Sink()
    async with harness.service("api", "scheduler", "worker") as running:
        await ready(running)
        store = await running.store()
        host, port = running.address.removeprefix("http://").rsplit(":", 1)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(wire.Connection, host, int(port))
        before, began = await running.usage(store), time.perf_counter()
        for n in range(count):
            await asyncio.sleep(max(0.0, began + n * 0.05 - time.perf_counter()))
            await connection.ask(
                _post(running, "/v1/jobs", job(sink.url, {"type": "once", "delay": "PT1S"}))
            )
        await asyncio.sleep(1.5)
        await drained(store)
        seconds = time.perf_counter() - began
        after = await running.usage(store)
        await store.close()
    late = sink.stop()["late_sec"]
    assert isinstance(late, list)
    return {"due to receiver, idle": figures(count, seconds, before, after, late)}


LIMIT = """
INSERT INTO limits (key, tenant_id, kind, name, rate_per_sec, changed_at)
VALUES ('host:1:127.0.0.1', 1, 'host', '127.0.0.1', $1, now())
"""
HELD = "SELECT coalesce(sum(lease_version), 0)::int FROM executions"


async def rates(scale: float) -> dict[str, Figures]:
    """A backlog of a host with a rate, two worker processes: the gaps between arrivals, by how many
    runs more than the rate allows came within any time, and claims per delivery."""
    found = {}
    for per_sec, count in ((100, 1_000), (1_000, max(int(10_000 * scale), 2_000))):
        sink = Sink()
        async with harness.service("api") as running:
            await ready(running)
            store = await running.store()
            async with store.transaction() as tx:
                await tx.execute(LIMIT, float(per_sec))
            await fill(running, sink.url, count)
            before, began = await running.usage(store), time.perf_counter()
            for role in ("scheduler", "worker", "worker"):
                running.start(role)
            await drained(store)
            seconds = time.perf_counter() - began
            after = await running.usage(store)
            async with store.transaction() as tx:
                claims = await tx.value(HELD)
            await store.close()
        came = sink.stop()["came_at"]
        assert isinstance(came, list)
        gaps = [after - before for before, after in pairwise(came)]
        row = figures(count, seconds, before, after, gaps)
        row["per_sec"] = (len(came) - 1) / (came[-1] - came[0])
        row["more_than_allowed"] = _excess(came, per_sec)
        row["claims"] = claims / count
        found[f"a rate of {per_sec}/s, arrivals"] = row
    return found


def _excess(came: list[float], per_sec: float) -> float:
    """By how many the arrivals within any time are more than the rate gives in it."""
    most, lowest = 0.0, float("inf")
    for n, at in enumerate(came):
        ahead = n - at * per_sec
        lowest = min(lowest, ahead)
        most = max(most, ahead - lowest)
    return most


PARTS: dict[str, Callable[[float], Coroutine[object, None, dict[str, Figures]]]] = {
    "post": post,
    "quotas": quotas,
    "bulk": bulk,
    "drain": drain,
    "long": long,
    "webhook": webhook,
    "start_latency": start_latency,
    "ranks": ranks,
    "rates": rates,
}
