"""``make bench``: measure the service on this machine and print one table.

``--only post,drain`` runs parts of it, ``--quick`` is shorter, ``--json FILE`` writes all figures
with the machine, the versions and the settings. Nothing here is ever asserted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from bench import caps, fairness, harness, parts
from bench.parts import Figures

PARTS = parts.PARTS | fairness.PARTS | caps.PARTS
console = Console(width=132)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--only", default="", help=f"parts, comma-separated: {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    chosen = [name for name in options.only.split(",") if name] or list(PARTS)
    unknown = set(chosen) - PARTS.keys()
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    machine = harness.machine()
    found: dict[str, Figures] = {}
    for name in chosen:
        console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {name} …")
        found |= uvloop.run(PARTS[name](0.1 if options.quick else 1.0))
    console.print(_table(found))
    console.print(
        f"[dim]{machine}\n{harness.DATABASE}\nhistory and ledger kept, 360 bytes of payload[/]"
    )
    if options.json:
        options.json.write_text(
            json.dumps(
                {"machine": machine, "database": harness.DATABASE, "figures": found}, indent=2
            )
        )
    return 0


def _table(found: dict[str, Figures]) -> Table:
    table = Table(
        "what",
        "count",
        "per second",
        "Postgres µs",
        "Noonday µs",
        "WAL B",
        "commits",
        "p50 / p99 ms",
    )
    for name, row in found.items():
        late = f"{row['p50_ms']:.1f} / {row['p99_ms']:.1f}" if "p50_ms" in row else ""
        table.add_row(
            name, f"{row['count']:,.0f}", f"{row['per_sec']:,.0f}", f"{row['postgres_us']:.0f}",
            f"{row['noonday_us']:.0f}", f"{row['wal_bytes']:.0f}", f"{row['commits']:.3f}", late,
        )  # fmt: skip
    return table


if __name__ == "__main__":
    sys.exit(main())
