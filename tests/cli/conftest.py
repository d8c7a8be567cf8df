from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from noonday.cli import app
from tests.support.scripted_server import ScriptedServer, scripted_server

Run = Callable[..., Result]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, and an environment that says nothing about Noonday."""
    for name in list(os.environ):
        if name.startswith("NOONDAY_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        yield server


@pytest.fixture
def run(here: Path) -> Run:
    """Run a command in this process: ``run("jobs", "list", NOONDAY_URL=…)``."""

    def run(*arguments: str, **environ: str) -> Result:
        return CliRunner().invoke(app, arguments, env=environ)

    return run


@pytest.fixture
def call(run: Run, server: ScriptedServer) -> Run:
    """Run a client command against the scripted server."""

    def call(*arguments: str, **environ: str) -> Result:
        return run(
            *arguments, **{"NOONDAY_URL": server.url, "NOONDAY_API_KEY": "nd_k_s", **environ}
        )

    return call
