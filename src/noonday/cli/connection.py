"""Where the API is and with which key, for the commands that act through it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from noonday.cli.failures import Code, client_failures, fail, settings_failures

if TYPE_CHECKING:
    from noonday.client import Client

Config: TypeAlias = Annotated[
    Path | None,
    typer.Option("--config", help="The settings file [NOONDAY_CONFIG, else ./noonday.toml]."),
]
Url: TypeAlias = Annotated[
    str | None,
    typer.Option("--url", help="Where the API is [NOONDAY_URL, else what `up` has left]."),
]
Key: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="The API key [NOONDAY_API_KEY, else what `init` has left]. "
        "Others on this machine can see options; prefer the variable.",
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")]
Limit: TypeAlias = Annotated[int, typer.Option("--limit", min=1, help="Show at most so many.")]


@contextmanager
def connect(config: Path | None, url: str | None, key: str | None) -> Iterator[Client]:
    """A client; whatever it fails with ends the command with a message and an exit code."""
    from noonday.client import Client
    from noonday.settings import load, read_client_file

    with settings_failures():
        settings = load(config, options={"url": url, "api_key": key})
        remembered = read_client_file(settings)
    address = settings.url or remembered.url
    if address is None:
        fail(
            Code.USAGE,
            "it is not known where the API is",
            "give --url or NOONDAY_URL, or start one here with `noonday up`",
            "or NOONDAY_HOME, if one was started with --home",
        )
    key = settings.api_key or remembered.key
    # A person waits: give up soon.
    with client_failures(), Client(address, key, retries=2) as client:
        yield client
