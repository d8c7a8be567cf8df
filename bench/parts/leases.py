"""Very many runs under way for long: what their leases cost."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from bench import filling, harness
from bench.figures import Rows, per_job, spread
from bench.options import Options
from noonday.domain.model import Attempt, HttpTarget, Outcome, OutcomeKind
from noonday.domain.pools import Pool
from noonday.executors import Sent
from noonday.loops import Loop
from noonday.loops.flight import BEAT_SEC
from noonday.loops.worker import Worker
from noonday.store import Row, Store, Tx, runs
from noonday.store.blobs import LocalBlobs
from noonday.store.secretbox import read_key_file
from noonday.store.signing import SigningKeys
from noonday.telemetry import Metrics


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
    async def transaction(self, opening: str = "") -> AsyncIterator[Tx]:
        began = time.perf_counter()
        async with super().transaction(opening) as tx:
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


async def long(options: Options) -> Rows:
    """10,000 runs of the lane `long` under way in one worker: per lease and minute.

    Claimed in one go, and then as if over a third of their lease. One scheduler reaps.
    """
    count, seconds, found = 10_000, options.pick(120.0, 5.0), Rows()
    async with harness.service(options, "api", "scheduler") as running:
        target = {"type": "http", "url": "http://127.0.0.1:1/", "timeout_sec": 3_600}
        one = filling.job("", filling.NOW, target=target)
        await filling.fill(running, one, count)
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
        # (Those of one claim are extended after 20 s: too long for a quick run.)
        for how in ("spread",) if options.quick else ("together", "spread"):
            if how == "spread":
                for flight in worker._flights.values():
                    flight.extended -= random.random() * flight.lease_sec / 3
            beats.took = []
            before, used, began = await running.usage(store), time.process_time(), time.monotonic()
            await asyncio.sleep(seconds)
            taken = time.monotonic() - began
            rows = per_job(count, 1, before, await running.usage(store)) | spread(beats.took)
            rows["noonday_us"] = (time.process_time() - used) / count * 1e6
            rows["generator_us"] = 0.0
            for name in ("postgres_us", "noonday_us", "cpu_us", "wal_bytes", "commits"):
                rows[name] *= 60 / taken
            rows["per_sec"] = len(beats.took) / taken
            rows["heartbeats"], rows["seconds"] = len(beats.took), taken
            found[f"10,000 leases, {how}"] = rows
        if worker.pools["long"].busy != count:
            raise RuntimeError("leases were lost")
        await beating.finish()
        await store.close()
        await beats.close()
    return found
