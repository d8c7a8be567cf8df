"""What a drill is told, and what it can do on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from noonday.drill.faults import NUMBERS, clocks
from noonday.drill.postgres import can_mount

SHORTEST_SEC: Final = 20.0
NEEDS: Final[dict[str, tuple[Callable[[], object], str]]] = {
    "F11": (clocks.library, "libfaketime is not installed (Debian's package faketime)"),
    "F17": (can_mount, "a small file system can only be mounted by root, and not everywhere"),
}


class CannotDrill(Exception):
    """What was asked for cannot be done here; the text says why."""


@dataclass(frozen=True)
class Options:
    """A drill that can be run. ``left_out`` says which faults cannot strike here, and why."""

    seconds: float
    seed: int
    faults: tuple[str, ...]
    out: Path
    all_faults: bool
    left_out: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for the processes of the service; only tests have a use for them."""


def choose(
    seconds: float,
    seed: int | None,
    named: Sequence[str] | None,
    out: Path | None,
    environment: Mapping[str, str] | None = None,
) -> Options:
    """Check what was asked for; raises :class:`CannotDrill`."""
    if seconds < SHORTEST_SEC:
        raise CannotDrill(f"a drill takes at least {SHORTEST_SEC:g} s")
    numbers = tuple(number.strip().upper() for number in named or NUMBERS)
    unknown = [number for number in numbers if number not in NUMBERS]
    if unknown:
        raise CannotDrill(f"no fault is called {', '.join(unknown)}: {', '.join(NUMBERS)}")
    left_out = {
        number: why for number, (can, why) in NEEDS.items() if number in numbers and not can()
    }
    if named and left_out:
        raise CannotDrill("; ".join(f"{number}: {why}" for number, why in left_out.items()))
    seed = int(time.time()) if seed is None else seed
    out = out or Path(f"noonday-drill-{seed}")
    if out.exists() and any(out.iterdir()):
        raise CannotDrill(f"{out} is there already, and not empty")
    chosen = tuple(number for number in numbers if number not in left_out)
    return Options(
        seconds, seed, chosen, out.resolve(), not named, left_out, dict(environment or {})
    )
