"""Taking jobs in: one by one, by 1,000, and with quotas."""

from __future__ import annotations

import asyncio

from bench import filling, harness, load, peers, wire
from bench.figures import Figures, Rows, median, spread
from bench.harness import Service
from bench.options import Options
from bench.progress import say
from bench.role import NOOP
from noonday.api.auth import KNOWN_SEC
from noonday.domain.quotas import Quotas
from noonday.store import Store, tenants

CONNECTIONS, BULK = 64, 4
OPEN_AT = 0.8
"""An open load asks for this part of what the closed one reached."""


async def post(options: Options) -> Rows:
    """POST /v1/jobs over HTTP with a body of 400 bytes: all that 64 connections can ask for, and
    then four fifths of that at random instants."""
    found: Rows = {}
    seconds = options.pick(20.0, 2.0)
    for name, schedule in (("due later", filling.LATER), ("due now", filling.NOW)):
        async with harness.service(options, "api", "api") as running:
            store = await running.store()
            one, _ = filling.body_of_400(NOOP, schedule)
            raw = wire.post(running.token, "/v1/jobs", one)
            await load.closed(running.addresses, CONNECTIONS, 1.0, lambda raw=raw: raw)  # type: ignore[misc]
            async with running.measuring(store, f"post {name}") as section:
                answers = await load.closed(
                    running.addresses,
                    CONNECTIONS,
                    seconds,
                    lambda raw=raw: raw,  # type: ignore[misc]
                )
            found[name] = section.figures(answers.count, answers.took)
            asked = OPEN_AT * answers.count / answers.seconds
            opened = load.Open(
                running.addresses, asked, lambda raw=raw: raw,  # type: ignore[misc]
                connections=CONNECTIONS, seed=options.seed,
            )  # fmt: skip
            async with running.measuring(store, f"post {name} open") as section:
                late = await opened.run(seconds)
            found[f"{name}, open load"] = section.figures(late.count, late.took)
            await store.close()
    return found


async def bulk(options: Options) -> Rows:
    """POST /v1/jobs:batch by 1,000, four connections; beside what peers insert by their own."""
    async with harness.service(options, "api", "api") as running:
        store = await running.store()
        raw = filling.batch(running.token, filling.job(NOOP, filling.LATER), 1_000)
        await load.closed(running.addresses, BULK, 0.5, lambda: raw)
        async with running.measuring(store, "bulk") as section:
            calls = await load.closed(running.addresses, BULK, options.pick(20.0, 2.0), lambda: raw)
        row = section.figures(calls.count * 1_000) | spread(calls.took)
        await store.close()
        running.stop()
        count = options.pick(100_000, 20_000)
        others = await peers.each(options, lambda peer: peer.bulk(running, count))
    return {"by 1,000": row | peers.compared(row, others)} | others


AMPLE = Quotas(100_000.0, None, 100_000_000, 100_000_000)
COUNTED = "UPDATE pending_bases SET counted_at = now() - interval '1 minute'"


async def quotas(options: Options) -> Rows:
    """POST /v1/jobs of a tenant without quotas and with all of them, in turns; none is used up."""
    turns, names = options.pick(3, 1), ("without", "with")
    parts: dict[str, list[Figures]] = {name: [] for name in names}
    async with harness.service(options, "api") as running:
        store = await running.store()
        raw = wire.post(running.token, "/v1/jobs", filling.job(NOOP, filling.LATER))
        warm = options.pick(1, 0)
        for name in (*names[:warm], *names * turns):
            parts[name].append(await _with_quotas(running, store, raw, name == "with"))
            say(f"{name} quotas")
        await store.close()
    return {f"{name} quotas": median(found[-turns:]) for name, found in parts.items()}


async def _with_quotas(running: Service, store: Store, raw: bytes, with_them: bool) -> Figures:
    async with store.transaction() as tx:
        await tenants.set_quotas(tx, 1, AMPLE if with_them else Quotas())
        await tx.execute(COUNTED)
    await asyncio.sleep(KNOWN_SEC + 1)
    async with running.measuring(store, f"quotas {with_them}") as section:
        answers = await load.closed(
            running.addresses, CONNECTIONS, running.options.pick(20.0, 2.0), lambda: raw
        )
    return section.figures(answers.count, answers.took)
