"""What can strike. Numbers are those of docs/drill.md; each strikes, ends what it began, and says
by what it was seen."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from noonday.drill.faults import clocks, databases, kills, networks, pauses
from noonday.drill.marks import Mark
from noonday.drill.world import World

Strike = Callable[[World, random.Random, Mark], Awaitable[None]]


class Fault(NamedTuple):
    """One kind of fault."""

    number: str
    name: str
    strike: Strike
    optional: bool = False
    """It may not come about, by chance alone."""


FAULTS: Final = (
    Fault("F1", "kill a worker with a request out", kills.worker_in_request),
    Fault(
        "F1", "kill a worker after a claim",
        partial(kills.at_commit, role="worker", what="claim", act="hold after"),
    ),
    Fault(
        "F1", "kill a worker between answer and settle",
        partial(kills.at_commit, role="worker", what="settle", act="hold before"),
    ),
    Fault(
        "F1", "kill a worker after a settle",
        partial(kills.at_commit, role="worker", what="settle", act="hold after"),
    ),
    Fault(
        "F2", "kill a scheduler in its transaction",
        partial(kills.at_commit, role="scheduler", what="materialize", act="hold before"),
    ),
    Fault(
        "F2", "kill a scheduler after its commit",
        partial(kills.at_commit, role="scheduler", what="materialize", act="hold after"),
    ),
    Fault("F2", "kill every scheduler at once", kills.all_schedulers),
    Fault(
        "F3", "kill an API before a 202 is durable",
        partial(kills.at_commit, role="api", what="create", act="hold before"),
    ),
    Fault(
        "F3", "kill an API after a 202 is durable",
        partial(kills.at_commit, role="api", what="create", act="hold after"),
    ),
    Fault("F4", "kill the reaper at work", kills.reaper),
    Fault("F4", "kill the janitor at work", kills.janitor, optional=True),
    Fault("F5", "crash Postgres", databases.crash),
    Fault("F5", "end sessions of Postgres", databases.backends),
    Fault("F6", "stop a worker beyond its lease", pauses.worker),
    Fault("F6", "stop a scheduler beyond its lease", pauses.scheduler),
    Fault("F6", "stop a scheduler in its transaction", pauses.scheduler_in_transaction),
    Fault("F6", "stop an API", pauses.api),
    Fault("F6", "stop a session of Postgres", pauses.backend),
    Fault("F7", "rolling restart", pauses.rolling),
    Fault("F7", "stop twice, then kill", pauses.hasty),
    Fault("F8", "disturb the network to Postgres", networks.postgres),
    Fault(
        "F9", "lose the answer to a create",
        partial(networks.lost_answer, role="api", what="create"),
    ),
    Fault(
        "F9", "lose the answer to a claim",
        partial(networks.lost_answer, role="worker", what="claim"),
    ),
    Fault(
        "F9", "lose the answer to a settle",
        partial(networks.lost_answer, role="worker", what="settle"),
    ),
    Fault(
        "F9", "lose the answer to a materialization",
        partial(networks.lost_answer, role="scheduler", what="materialize"),
    ),
    Fault("F10", "disturb the network to receivers", networks.receivers),
    Fault("F11", "step a clock", clocks.step),
    Fault("F11", "shake a clock", clocks.strobe, optional=True),
    Fault("F12", "steal shards from the living", pauses.steal),
    Fault("F13", "one commit in a hundred fails", partial(networks.unlucky, kind="cut")),
    Fault("F14", "one commit in a hundred is not reported", partial(networks.unlucky, kind="lost")),
    Fault("F15", "no connections left", databases.exhausted),
    Fault("F17", "disk full", databases.full),
)  # fmt: skip
RANDOM_KILLS: Final = (
    Fault("F1", "kill a worker at random", partial(kills.any_of, role="worker")),
    Fault("F2", "kill a scheduler at random", partial(kills.any_of, role="scheduler")),
    Fault("F3", "kill an API at random", partial(kills.any_of, role="api")),
)
"""These strike all the time as well, beside the others."""
HOSTILE: Final = "F19"
NUMBERS: Final = tuple(dict.fromkeys([*(fault.number for fault in FAULTS), HOSTILE]))
