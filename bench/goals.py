"""What is aimed at on a machine with two cores that does nothing else. Nothing is ever asserted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench.figures import Figures


@dataclass(frozen=True)
class Goal:
    """``least`` or ``most``: a bound of one figure of a row."""

    figure: str
    bound: float
    least: bool = False

    def reached(self, row: Figures) -> bool | None:
        """None where the figure is missing, a peer that is not here for one."""
        found = row.get(self.figure)
        if found is None:
            return None
        return found >= self.bound if self.least else found <= self.bound

    def __str__(self) -> str:
        return f"{self.figure} {'≥' if self.least else '≤'} {self.bound:,g}"


def least(figure: str, bound: float) -> Goal:
    return Goal(figure, bound, least=True)


def most(figure: str, bound: float) -> Goal:
    return Goal(figure, bound)


def _late(p50: float, p99: float) -> tuple[Goal, ...]:
    return most("p50_ms", p50), most("p99_ms", p99)


_POST = (least("per_sec", 8_000), most("cpu_us", 150))
_DRAIN = (least("per_sec", 50_000), most("postgres_us", 25), most("noonday_us", 12))
_LIFE = (most("postgres_us", 40), most("wal_bytes", 1_300))
_TICK = (most("p99_ms", 5),)
_SCALE = (least("drain_of_empty", 0.97),)
_FAR = (least("post_of_empty", 0.9), most("wal_beyond_payload", 300))

GOALS: Final[dict[str, dict[str, tuple[Goal, ...]]]] = {
    "post": {
        "due later": _POST,
        "due later, open load": (most("p99_ms", 50),),
        "due now": _POST,
        "due now, open load": (most("p99_ms", 50),),
    },
    "bulk": {"by 1,000": (least("per_sec", 45_000), least("times_best_peer", 1))},
    "drain": {
        "1 worker": (most("postgres_us", 25), most("noonday_us", 12)),
        "2 workers": _DRAIN,
        "against peers": (
            least("times_graphile_worker", 1),
            least("times_pg_boss", 2),
            least("times_pgqueuer", 2),
        ),
        "whole life, one by one": _LIFE,
        "whole life, by 1,000": _LIFE,
    },
    "webhook": {
        "2 workers": (
            least("per_sec", 11_000),
            least("times_best_peer", 1.6),
            most("noonday_us", 90),
        )
    },
    "start_latency": {
        "idle, 20/s": _late(5, 20),
        "1,000/s": _late(5, 30),
        "80 % of webhook": _late(15, 80),
    },
    "tick_scale": {
        "tick": _TICK,
        "POST": _FAR,
        "drain": _SCALE,
    },
    "calendar": {
        "next fire": (most("next_us", 50),),
        "tick": (most("noonday_us", 20),),
    },
    "held_snapshot": {
        "held": (least("of_offered", 0.98), most("claim_p99_of_clean", 1.5)),
        "pg_dump": (least("of_offered", 0.98), most("claim_p99_of_clean", 1.5)),
        "released": (least("recovered", 1), most("recovery_sec", 120)),
    },
    "herd": {
        "crons": (most("first_ms", 100), most("all_sec", 60)),
        "others": (most("p99_ms", 300),),
    },
    "overload": {
        "twice": (
            least("of_peak", 0.95),
            most("memory_growth", 1.1),
            most("leases_lost", 0),
        )
    },
    "idle": {"nothing due": (most("postgres_core", 0.01), most("noonday_core", 0.01))},
    "memory": {
        "api idle": (most("memory_mb", 70),),
        "scheduler idle": (most("memory_mb", 70),),
        "worker idle": (most("memory_mb", 70),),
        "worker, 10,000 in flight": (most("memory_mb", 250),),
    },
}


def of(part: str, row: str) -> tuple[Goal, ...]:
    """The goals of a row; those of a row that says more than its name goes by its beginning."""
    for name, goals in GOALS.get(part, {}).items():
        if row == name or row.startswith(f"{name}: "):
            return goals
    return ()
