"""The open load charges a server for all of a pause; figures, goals, profiles are what they say."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from itertools import pairwise

import pytest

from bench import goals, load, options, profiling, table, wire
from bench.figures import Usage, per_job, spread


class Stalling(asyncio.Protocol):
    """A server that answers nobody until it is let go, and everybody from then on."""

    def __init__(self, gate: asyncio.Event, came: list[bytes]) -> None:
        self._gate = gate
        self._came = came
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._came.append(data)
        task = asyncio.create_task(self._answer())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self) -> None:
        await self._gate.wait()
        assert isinstance(self._transport, asyncio.Transport)
        self._transport.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}")


async def everything_is_due(opened: load.Open, count: int) -> None:
    async with asyncio.timeout(20):
        while opened.sent < count:  # noqa: ASYNC110 - it has no event to wait for
            await asyncio.sleep(0.005)


async def test_requests_that_were_due_while_the_server_stood_still_count_from_then() -> None:
    gate, came = asyncio.Event(), list[bytes]()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(Stalling, gate, came), "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    raw = wire.request("POST", "/", b"{}", {})
    opened = load.Open([address], 200.0, lambda: raw, connections=1, even=True)
    running = asyncio.create_task(opened.run(0.2))
    await everything_is_due(opened, 40)
    assert len(came) == 1  # there is one connection: the others wait, and their clocks run
    let_go = time.perf_counter()
    gate.set()
    answers = await running
    server.close()
    assert answers.count == opened.sent >= 40
    # Each was due at its own instant, and is charged for the pause from then to its end at least.
    due = [opened._due - n / 200.0 for n in range(opened.sent, 0, -1)]
    waited = [max(let_go - at, 0.0) for at in due]
    assert all(later < earlier for earlier, later in pairwise(waited[:40]))
    assert all(took >= least for took, least in zip(answers.took, waited, strict=True))


async def test_an_answer_that_nobody_expects_ends_the_load() -> None:
    gate, came = asyncio.Event(), list[bytes]()
    gate.set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(Stalling, gate, came), "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    raw = wire.request("POST", "/", b"{}", {})
    with pytest.raises(wire.Refused, match="answered 202"):
        await load.closed([address], 2, 60.0, lambda: raw, want=200)
    server.close()


def test_figures_are_per_job_and_leave_the_bench_out() -> None:
    after = Usage(postgres_sec=2, noonday_sec=1, generator_sec=7, wal_bytes=4_000, commits=10)
    row = per_job(1_000, 2.0, Usage(), after)
    assert row["per_sec"] == 500
    assert row["cpu_us"] == row["postgres_us"] + row["noonday_us"] == 3_000
    assert row["wal_bytes"] == 4
    assert spread([]) == {}
    assert spread([0.001] * 99 + [1.0]) == {"p50_ms": 1.0, "p99_ms": 1_000.0}


def test_a_goal_is_reached_or_not_or_nothing_is_known() -> None:
    goal = goals.least("per_sec", 100)
    assert goal.reached({"per_sec": 100})
    assert goal.reached({"per_sec": 99}) is False
    assert goal.reached({}) is None
    assert goals.of("tick_scale", "tick: 10,000 timers") == goals.of("tick_scale", "tick")


def test_a_peer_that_is_not_here_is_no_failure() -> None:
    rows = {"webhook": {"2 workers": {"per_sec": 12_000.0}, "pg-boss": {}}}
    told = table.document(rows)["webhook"]
    assert told["pg-boss"] == table.NOT_HERE
    ours = told["2 workers"]
    assert isinstance(ours, dict)
    assert ours["goals"]["per_sec ≥ 11,000"] is True
    assert ours["goals"]["times_best_peer ≥ 1.6"] is None


def test_write_ahead_log_is_told_by_record_and_relation() -> None:
    head = "rmgr: Heap        len (rec/tot):     54/   {}, tx:  733, lsn: 0/1, prev 0/0, desc: {} "
    lines = [
        head.format(154, "INSERT off: 5, flags: 0x00,") + "blkref #0: rel 1663/5/401 blk 0",
        head.format(146, "INSERT off: 6, flags: 0x00,") + "blkref #0: rel 1663/5/402 blk 0 FPW",
        "rmgr: Transaction len (rec/tot):  34/    34, tx: 7, lsn: 0/2, prev 0/1, desc: COMMIT 2026",
    ]
    names = {"401": "executions_d20261130", "402": "executions_d20261201"}
    told = profiling.wal_report(lines, names).splitlines()
    assert told[1].split() == ["300", "2", "89.8%", "Heap", "INSERT", "executions"]
    assert told[2].split() == ["34", "1", "10.2%", "Transaction", "COMMIT"]


@pytest.mark.parametrize(
    ("text", "count"), [("500", 500), ("10K", 10_000), ("1M", 1_000_000), ("1.5m", 1_500_000)]
)
def test_sizes_are_read(text: str, count: int) -> None:
    assert options.size(text) == count
