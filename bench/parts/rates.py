"""Rates of a host: how evenly what is held back arrives."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from bench import filling, harness
from bench.figures import Rows
from bench.options import Options
from bench.sink import Sink

LIMIT = """
INSERT INTO limits (key, tenant_id, kind, name, rate_per_sec, changed_at)
VALUES ('host:1:127.0.0.1', 1, 'host', '127.0.0.1', $1, now())
"""
HELD = "SELECT coalesce(sum(lease_version), 0)::int FROM executions"


async def rates(options: Options) -> Rows:
    """A backlog of a host with a rate, two worker processes: the gaps between arrivals, by how many
    runs more than the rate allows came within any time, and claims per delivery."""
    found: Rows = {}
    for per_sec, full, quick in ((100, 1_000, 300), (1_000, 10_000, 2_000)):
        count = options.pick(full, quick)
        sink = Sink()
        async with harness.service(options, "api") as running:
            store = await running.store()
            async with store.transaction() as tx:
                await tx.execute(LIMIT, float(per_sec))
            await filling.fill(running, filling.job(sink.url, filling.NOW), count)
            for role in ("scheduler", "worker", "worker"):
                running.start(role)
            async with running.measuring(store, f"rate of {per_sec}") as section:
                await filling.drained(store)
            async with store.transaction() as tx:
                claims = await tx.value(HELD)
            await store.close()
        came = sink.stop().came
        row = section.figures(count, [after - before for before, after in pairwise(came)])
        row["per_sec"] = (len(came) - 1) / (came[-1] - came[0])
        row["more_than_allowed"] = _excess(came, per_sec)
        row["claims"] = claims / count
        found[f"a rate of {per_sec}/s, arrivals"] = row
    return found


def _excess(came: Sequence[float], per_sec: float) -> float:
    """By how many the arrivals within any time are more than the rate gives in it."""
    most, lowest = 0.0, float("inf")
    for n, at in enumerate(came):
        ahead = n - at * per_sec
        lowest = min(lowest, ahead)
        most = max(most, ahead - lowest)
    return most
