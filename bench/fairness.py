"""Parts of the benchmark about tenants that share a lane: a flood beside payments, and shares."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine

from bench import harness, wire
from bench.harness import Service, Sink, Usage
from bench.parts import Figures, drained, figures, job, ready
from noonday.store import Store

RATE = 20
"""Payments per second, beside the flood."""


class Caller:
    """One connection to the API, with the key of one tenant."""

    def __init__(self, running: Service, token: str) -> None:
        self._running = running
        self._token = token
        self._connection: wire.Connection | None = None

    async def call(self, method: str, path: str, body: object) -> dict[str, object]:
        """The answer's body; an error if it is none of success."""
        if self._connection is None:
            host, port = self._running.address.removeprefix("http://").rsplit(":", 1)
            _, self._connection = await asyncio.get_running_loop().create_connection(
                wire.Connection, host, int(port)
            )
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        raw = wire.request(method, path, json.dumps(body).encode(), headers)
        status, answer = await self._connection.ask(raw)
        if not 200 <= status < 300:
            raise RuntimeError(f"answered {status}: {answer[:300]!r}")
        found: dict[str, object] = json.loads(answer)
        return found


async def _tenant(running: Service, name: str, **terms: object) -> Caller:
    """A caller with a key of a new tenant."""
    admin = Caller(running, running.token)
    await admin.call("POST", "/v1/tenants", {"name": name, **terms})
    made = await admin.call("POST", "/v1/api-keys", {"tenant": name, "role": "submitter"})
    return Caller(running, str(made["key"]))


async def _flood(caller: Caller, url: str, count: int) -> None:
    one = {"job": job(url, {"type": "once"})}
    for _ in range(count // 1_000):
        await caller.call("POST", "/v1/jobs:batch", {"atomic": False, "jobs": [one] * 1_000})


async def _payments(caller: Caller, url: str, until: Callable[[float], bool]) -> int:
    """Open loop: one due now each ``1 / RATE`` seconds; how many."""
    began, count = time.perf_counter(), 0
    while until(time.perf_counter() - began):
        await asyncio.sleep(max(0.0, began + count / RATE - time.perf_counter()))
        await caller.call("POST", "/v1/jobs", job(url, {"type": "once"}))
        count += 1
    return count


async def flood(scale: float) -> dict[str, Figures]:
    """One tenant's payments, from due to receiver, and from due to their lease: quiet, and while
    another floods the lane."""
    messages, quiet_sec = max(int(100_000 * scale), 5_000), max(15 * scale, 5.0)
    found: dict[str, Figures] = {}
    async with harness.service("api", "scheduler", "worker") as running:
        await ready(running)
        store = await running.store()
        payments = await _tenant(running, "payments")
        newsletter = await _tenant(running, "newsletter")
        for name, count in (("quiet", 0), (f"beside {messages:,}", messages)):
            mine, theirs = Sink(), Sink()
            before, began = await running.usage(store), time.perf_counter()
            flooding = asyncio.create_task(_flood(newsletter, theirs.url, count))
            drain = asyncio.create_task(_gone(flooding, store))
            made = await _payments(
                payments,
                mine.url,
                lambda t, d=drain: t < quiet_sec or not d.done(),  # type: ignore[misc]
            )
            await drain
            await drained(store)
            seconds = time.perf_counter() - began
            after = await running.usage(store)
            late = mine.stop()["late_sec"]
            theirs.stop()
            assert isinstance(late, list)
            found[f"payments, {name}"] = _row(made, count, seconds, before, after, late)
            starts = await _starts(store, "payments", made)
            found[f"payments' start, {name}"] = _row(made, count, seconds, before, after, starts)
        await store.close()
    return found


def _row(
    made: int, others: int, seconds: float, before: Usage, after: Usage, late: list[float]
) -> Figures:
    row = figures(made + others, seconds, before, after, late)
    row["count"] = made
    return row


async def _starts(store: Store, tenant: str, last: int) -> list[float]:
    """From due to lease, in seconds, of a tenant's last attempts."""
    async with store.transaction() as tx:
        rows = await tx.rows(
            "SELECT extract(epoch FROM e.leased_at - o.due_at)::float8 AS sec "
            "FROM executions AS e JOIN occurrences AS o USING (job_id, occurrence_at, kind) "
            "JOIN tenants AS t ON t.id = e.tenant_id "
            "WHERE t.name = $1 ORDER BY e.leased_at DESC LIMIT $2",
            tenant, last,
        )  # fmt: skip
    return [row["sec"] for row in rows]


async def _gone(flooding: asyncio.Task[None], store: Store) -> None:
    """Until the flood is posted and nearly all of it has been carried out."""
    await flooding
    while True:
        async with store.transaction() as tx:
            if await tx.value("SELECT count(*) < 100 FROM (SELECT FROM runs LIMIT 100) AS few"):
                return
        await asyncio.sleep(0.1)


async def shares(scale: float) -> dict[str, Figures]:
    """Two tenants of weights 1 and 3 that both flood a lane: what each gets in 10 seconds."""
    count, found = max(int(60_000 * scale), 20_000), {}
    async with harness.service("api") as running:
        await ready(running)
        store, sink = await running.store(), Sink()
        callers = [await _tenant(running, f"weight-{n}", weight=n) for n in (1, 3)]
        await asyncio.sleep(3)  # weights are read once a second
        await asyncio.gather(*(_flood(caller, sink.url, count) for caller in callers))
        before, began = await running.usage(store), time.perf_counter()
        running.start("worker")
        await asyncio.sleep(12)
        async with store.transaction() as tx:
            rows = await tx.rows(
                "SELECT t.name, count(*) AS count FROM executions AS e "
                "JOIN tenants AS t ON t.id = e.tenant_id "
                "WHERE e.finished_at > (SELECT min(finished_at) FROM executions) "
                "+ interval '1 second' "
                "AND e.finished_at < (SELECT min(finished_at) FROM executions) "
                "+ interval '11 seconds' GROUP BY 1 ORDER BY 1"
            )
        after, seconds = await running.usage(store), time.perf_counter() - began
        for row in rows:
            found[f"share of {row['name']}"] = figures(row["count"], seconds, before, after, [])
        await store.close()
        sink.stop()
    return found


PARTS: dict[str, Callable[[float], Coroutine[object, None, dict[str, Figures]]]] = {
    "flood": flood,
    "shares": shares,
}
