"""All parts, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from bench.figures import Rows
from bench.options import Options
from bench.parts.caps import many_waiting, one_key
from bench.parts.carrying import drain, start_latency, webhook
from bench.parts.fairness import flood, shares
from bench.parts.leases import long
from bench.parts.posting import bulk, post, quotas
from bench.parts.quiet import idle, memory
from bench.parts.ranks import ranks
from bench.parts.rates import rates
from bench.parts.steady import held_snapshot, overload
from bench.parts.timers import herd, tick_scale

Part = Callable[[Options], Coroutine[Any, Any, Rows]]

PARTS: Final[dict[str, Part]] = {
    part.__name__: part
    for part in (
        *(post, bulk, drain, webhook, start_latency, tick_scale, held_snapshot, herd, overload),
        *(idle, memory, flood, shares, one_key, many_waiting, ranks, rates, quotas, long),
    )
}
