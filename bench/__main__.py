"""``make bench``: measure the service on this machine and print one table.

``ONLY=post,drain`` runs parts of it, ``QUICK=1`` fits all into five minutes, ``JSON=path`` writes
all figures with the machine, the versions and the settings, ``PROFILE=py,sql,wal`` with
``OUT=folder`` says what they were spent on. Nothing here is ever asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import uvloop
from rich.console import Console

from bench import filling, harness, options, table
from bench.figures import Rows
from bench.parts.all import IF_THERE_IS_TIME, PARTS
from bench.progress import say
from bench.sink import OPEN
from noonday.telemetry import configure_logs

WIDTH = 190
QUICK_SEC = 270.0
"""After so long, a quick run of everything begins nothing more that has no goal."""


def main() -> int:
    asked = _arguments()
    configure_logs("warning", "console", role="bench")
    chosen = [name for name in asked.only.split(",") if name] or list(PARTS)
    wanted = options.Options(
        quick=asked.quick, seed=asked.seed, minutes=asked.minutes, timers=asked.scale,
        peers=not asked.no_peers, profile=asked.profile, out=asked.out,
    )  # fmt: skip
    about = harness.machine() | {
        "began_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_1_min": os.getloadavg()[0],
    }
    found: dict[str, Rows] = {}
    took: dict[str, float] = {}
    failed = []
    until = time.monotonic() + QUICK_SEC
    for number, name in enumerate(chosen, start=1):
        late = wanted.quick and not asked.only and time.monotonic() > until
        if late and name in IF_THERE_IS_TIME:
            say(f"{name}: left out, since this was to be quick; ONLY={name} has it")
            continue
        say(f"[bold]{name}[/] ({number} of {len(chosen)})")
        began = time.monotonic()
        try:
            found[name] = uvloop.run(PARTS[name](wanted))
        except Exception as error:  # the parts before it are not lost
            say(f"[red]{name} failed: {type(error).__name__}: {error}[/]")
            failed.append(name)
        for sink in list(OPEN):
            sink.stop()
        took[name] = time.monotonic() - began
        say(f"{name} took {took[name]:.0f} s")
    _show(found, about, wanted)
    if asked.json:
        asked.json.write_text(json.dumps(_document(found, about, took, wanted), indent=2))
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--only", default="", help=f"parts, comma-separated: {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="all in five minutes")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn by lot")
    parser.add_argument("--minutes", type=float, default=30.0, help="to hold the snapshot")
    parser.add_argument("--scale", type=options.size, default="10M", help="the most future timers")
    parser.add_argument("--no-peers", action="store_true", help="leave other schedulers out")
    parser.add_argument(
        "--profile", type=options.profiles, default=frozenset(), help="py, sql, wal, or several"
    )
    parser.add_argument("--out", type=Path, default=Path("bench-profile"), help="of profiles")
    asked = parser.parse_args()
    unknown = {name for name in asked.only.split(",") if name} - PARTS.keys()
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return asked


def _show(found: dict[str, Rows], about: dict[str, object], wanted: options.Options) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    console.print(table.table(found))
    console.print(f"[dim]{_line(about)}\n{_line(harness.DATABASE)}\n{_line(_terms(wanted))}[/]")


def _line(told: object) -> str:
    assert isinstance(told, dict)
    return ", ".join(f"{name} {value}" for name, value in told.items())


def _terms(wanted: options.Options) -> dict[str, object]:
    return {
        "quick": wanted.quick,
        "seed": wanted.seed,
        "payload_bytes": len(json.dumps(filling.PAYLOAD)),
        "history": "kept",
        "profiled": ",".join(sorted(wanted.profile)) or "no",
    }


def _document(
    found: dict[str, Rows],
    about: dict[str, object],
    took: dict[str, float],
    wanted: options.Options,
) -> dict[str, object]:
    return {
        "machine": about,
        "database": harness.DATABASE,
        "terms": _terms(wanted),
        "seconds": took,
        **table.document(found),
    }


if __name__ == "__main__":
    sys.exit(main())
