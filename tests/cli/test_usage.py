from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from noonday import __version__
from noonday.cli import app


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


@pytest.mark.parametrize("path", list(commands(typer.main.get_command(app))), ids=" ".join)
def test_every_command_explains_itself_and_all_its_options(
    run: Callable[..., Any], path: tuple[str, ...]
) -> None:
    result = run(*path, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")
    command: Any = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    assert command.help
    assert all(parameter.help for parameter in command.params if parameter.name != "help")


def test_the_first_help_has_an_example_and_the_exit_codes(run: Callable[..., Any]) -> None:
    shown = run("--help").stdout
    assert "noonday jobs create" in shown
    assert "3 not found" in shown


def test_help_is_quick_because_nothing_heavy_is_imported_for_it() -> None:
    program = (
        "import sys\nfrom noonday.cli import app\n"
        "try: app(['jobs', '--help'])\nexcept SystemExit: pass\n"
        "heavy = {'asyncpg', 'httpx2', 'msgspec', 'rich', 'structlog', 'aiohttp', 'starlette'}\n"
        "print(*heavy & set(sys.modules), file=sys.stderr)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stderr.split() == []


def test_the_version_is_said_by_the_program_and_the_module() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "noonday", "--version"], capture_output=True, text=True, check=True
    )
    assert shown.stdout == f"noonday {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", "frobnicate"),
        ("jobs", "get"),
        ("jobs", "list", "--limit", "0"),
        ("jobs", "list", "--colour"),
        ("worker", "--pool", "default=many"),
        ("up", "--workers", "0"),
        ("up", "--apis", "0"),
        ("schedule", "preview"),
        ("schedule", "preview", "0 2 * * *", "--every", "60"),
    ],
)
def test_wrong_usage_is_code_2(run: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr


@pytest.mark.parametrize("command", ["up", "api", "scheduler", "worker", "init", "migrate"])
def test_wrong_settings_are_listed_all_together_with_code_2(
    run: Callable[..., Any], here: Path, command: str
) -> None:
    (here / "noonday.toml").write_text('hots = "x"\nport = "80"')
    result = run(command, NOONDAY_POOL_SIZE="many")
    assert result.exit_code == 2
    for key in ("hots", "port", "NOONDAY_POOL_SIZE"):
        assert f"{key}: " in result.stderr


def test_an_option_of_a_role_is_checked_like_any_setting(run: Callable[..., Any]) -> None:
    result = run("worker", "--name", "a b", "--grace-sec", "-1")
    assert result.exit_code == 2
    assert "--name: " in result.stderr
    assert "--grace-sec: " in result.stderr


def test_a_worker_without_any_slot_is_refused(run: Callable[..., Any]) -> None:
    result = run("worker", "--pool", "default=0", "--pool", "long,*=0")
    assert result.exit_code == 2
    assert "worker_pools: a worker has to have at least one slot" in result.stderr


def test_without_an_address_a_client_command_says_how_to_give_one(run: Callable[..., Any]) -> None:
    result = run("workers")
    assert result.exit_code == 2
    assert "NOONDAY_URL" in result.stderr
