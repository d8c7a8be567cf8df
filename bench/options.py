"""What a run of the benchmark is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T", int, float)
PROFILES: Final = ("py", "sql", "wal")
_SIZES: Final = {"K": 1_000, "M": 1_000_000}


@dataclass(frozen=True)
class Options:
    """``quick``: sizes that fit into five minutes in all; ``minutes``: how long a snapshot is held;
    ``timers``: the most future timers; ``out``: where profiles go."""

    quick: bool = False
    seed: int = 1
    minutes: float = 30.0
    timers: int = 10_000_000
    peers: bool = True
    profile: frozenset[str] = frozenset()
    out: Path = Path("bench-profile")

    def pick(self, full: T, quick: T) -> T:
        """The size of a full run, or of a quick one."""
        return quick if self.quick else full


def size(text: str) -> int:
    """``10M`` as a number. Raises ``ValueError``."""
    unit = _SIZES.get(text[-1:].upper())
    return int(text) if unit is None else int(float(text[:-1]) * unit)


def profiles(text: str) -> frozenset[str]:
    """``py,sql`` as a set. Raises ``ValueError`` for a kind that there is not."""
    found = frozenset(name for name in text.split(",") if name)
    if unknown := found - set(PROFILES):
        raise ValueError(f"no such profile: {', '.join(sorted(unknown))}")
    return found
