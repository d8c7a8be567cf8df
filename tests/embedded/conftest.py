from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from noonday.embedded import EmbeddedPostgres, PgBinaries
from tests.support import postgres_owner
from tests.support.postgres import binaries_of, open_folder, start_postgres


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new folder that any account may enter; sockets go into it too."""
    with open_folder() as path:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
        yield path


@pytest.fixture(
    scope="session",
    params=[18, pytest.param(15, marks=pytest.mark.debian("postgresql"))],
    ids=lambda major: f"postgres-{major}",
)
def template(request: pytest.FixtureRequest) -> Iterator[tuple[PgBinaries, Path]]:
    """A state directory that was used once, to be copied: making one takes a second."""
    with open_folder() as path:
        start_postgres(path, request.param).stop()
        yield binaries_of(request.param), path


@pytest.fixture
def binaries(template: tuple[PgBinaries, Path]) -> PgBinaries:
    return template[0]


@pytest.fixture
def state(template: tuple[PgBinaries, Path], folder: Path) -> Path:
    """A state directory with a database, of which no server runs."""
    return copied(template[1], folder / "state")


@pytest.fixture
def server(state: Path, binaries: PgBinaries) -> Iterator[EmbeddedPostgres]:
    """A server that is not started yet; stopped after the test."""
    server = EmbeddedPostgres(state, binaries=binaries)
    yield server
    server.stop()


@pytest.fixture
def start_owner() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start another process that owns a server; its first line of output is the server's pid."""
    with ExitStack() as started:

        def start(
            state: Path, binaries: PgBinaries, *user: str, path: Path | None = None
        ) -> subprocess.Popen[str]:
            owner = subprocess.Popen(
                [sys.executable, postgres_owner.__file__, state, binaries.bin_dir, *user],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | ({} if path is None else {"PATH": str(path)}),
            )
            started.callback(owner.communicate, timeout=30)  # its input ends, then it does
            return owner

        yield start


def copied(state: Path, to: Path) -> Path:
    """A copy of a state directory, owners included."""
    subprocess.run(["cp", "-a", state, to], check=True)
    return to
