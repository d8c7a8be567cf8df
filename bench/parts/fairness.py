"""Parts of the benchmark about tenants that share a lane: a flood beside payments, and shares."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from bench import filling, harness, wire
from bench.figures import Figures, Rows
from bench.harness import Section, Service
from bench.options import Options
from bench.sink import Sink
from noonday.store import Store

RATE = 20
"""Payments per second, beside the flood."""


async def _tenant(running: Service, name: str, **terms: object) -> str:
    """A key of a new tenant."""
    admin = running.caller()
    await admin.call("POST", "/v1/tenants", {"name": name, **terms})
    made = await admin.call("POST", "/v1/api-keys", {"tenant": name, "role": "submitter"})
    admin.close()
    return str(made["key"])


async def _payments(caller: wire.Caller, url: str, until: Callable[[float], bool]) -> int:
    """Open loop: one due now each ``1 / RATE`` seconds; how many."""
    raw = wire.post(caller.token, "/v1/jobs", filling.job(url, filling.NOW))
    began, count = time.perf_counter(), 0
    while until(time.perf_counter() - began):
        await asyncio.sleep(max(0.0, began + count / RATE - time.perf_counter()))
        await caller.ask(raw)
        count += 1
    return count


async def flood(options: Options) -> Rows:
    """One tenant's payments, from due to receiver, and from due to their lease: quiet, and while
    another floods the lane."""
    messages, quiet_sec = options.pick(100_000, 3_000), options.pick(15.0, 3.0)
    found: Rows = {}
    async with harness.service(options, "api", "scheduler", "worker") as running:
        store = await running.store()
        payments = running.caller(await _tenant(running, "payments"))
        newsletter = await _tenant(running, "newsletter")
        for name, count in (("quiet", 0), (f"beside {messages:,}", messages)):
            mine, theirs = Sink(), Sink()
            one = filling.job(theirs.url, filling.NOW)
            async with running.measuring(store, f"flood {name}") as section:
                flooding = asyncio.create_task(filling.fill(running, one, count, newsletter))
                drain = asyncio.create_task(_gone(flooding, store))
                made = await _payments(
                    payments,
                    mine.url,
                    lambda t, d=drain: t < quiet_sec or not d.done(),  # type: ignore[misc]
                )
                await drain
                await filling.drained(store)
            late = mine.stop().late
            theirs.stop()
            found[f"payments, {name}"] = _row(section, made, count, late)
            starts = await _starts(store, "payments", made)
            found[f"payments' start, {name}"] = _row(section, made, count, starts)
        await store.close()
    return found


def _row(section: Section, made: int, others: int, late: Sequence[float]) -> Figures:
    return section.figures(made + others, late) | {"count": made}


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


SHARES = """
SELECT t.name, count(*) AS count FROM executions AS e JOIN tenants AS t ON t.id = e.tenant_id
WHERE e.finished_at > (SELECT min(finished_at) FROM executions) + interval '1 second'
  AND e.finished_at < (SELECT min(finished_at) FROM executions) + $1 * interval '1 second'
  AND t.name LIKE 'weight-%'
GROUP BY 1 ORDER BY 1
"""


async def shares(options: Options) -> Rows:
    """Two tenants of weights 1 and 3 that both flood a lane: what each gets in 10 seconds."""
    count, seconds, found = options.pick(80_000, 20_000), options.pick(10.0, 2.0), Rows()
    async with harness.service(options, "api") as running:
        store, sink = await running.store(), Sink()
        one = filling.job(sink.url, filling.NOW)
        keys = [await _tenant(running, f"weight-{n}", weight=n) for n in (1, 3)]
        await asyncio.sleep(3)  # weights are read once a second
        await asyncio.gather(*(filling.fill(running, one, count, key) for key in keys))
        async with running.measuring(store, "shares") as section:
            running.start("worker")
            await asyncio.sleep(seconds + 2)
            async with store.transaction() as tx:
                rows = await tx.rows(SHARES, seconds + 1)
        every = section.figures(sum(row["count"] for row in rows))
        for row in rows:
            shown = {"count": row["count"], "per_sec": row["count"] / seconds}
            found[f"share of {row['name']}"] = every | shown
        await store.close()
        sink.stop()
    return found
