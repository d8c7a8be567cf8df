"""All parts, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from bench.figures import Rows
from bench.options import Options
from bench.parts.calendar import calendar
from bench.parts.caps import many_waiting, one_key
from bench.parts.carrying import drain, start_latency, webhook
from bench.parts.fairness import flood, shares
from bench.parts.hosts import hosts
from bench.parts.leases import long
from bench.parts.posting import bulk, post, quotas
from bench.parts.quiet import idle, memory
from bench.parts.ranks import ranks
from bench.parts.rates import rates
from bench.parts.steady import held_snapshot, overload
from bench.parts.timers import herd, tick_scale

Part = Callable[[Options], Coroutine[Any, Any, Rows]]

_WITH_GOALS = (
    *(post, bulk, drain, webhook, start_latency, tick_scale, held_snapshot, herd, overload),
    *(idle, memory, calendar),
)
_OTHERS = (flood, shares, one_key, many_waiting, ranks, rates, quotas, long, hosts)
PARTS: Final[dict[str, Part]] = {part.__name__: part for part in (*_WITH_GOALS, *_OTHERS)}
IF_THERE_IS_TIME: Final = {part.__name__ for part in _OTHERS}
"""What a quick run of everything leaves out when it has taken long already."""
