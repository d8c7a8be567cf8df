"""Commands about what is called."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from noonday.cli.connection import Config, Json, Key, Limit, Url, connect
from noonday.cli.output import show, show_list

app = typer.Typer(
    no_args_is_help=True, help="Look at receivers that are left alone because they failed."
)

COLUMNS: Final = (
    "host", "port", "url", "state", "held", "rate_per_sec", "slowed", "waiting_for_rate", "since",
    "next_try_at", "reason",
)  # fmt: skip


@app.command("list")
def list_targets(
    state: Annotated[str | None, typer.Option(help="OPEN, HALF_OPEN, SUSPENDED or CLOSED.")] = None,
    limit: Limit = 50,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List targets whose breaker has opened before or whose host has a rate, and how many runs
    each holds up.

    \b
    Example:
      noonday targets list --state SUSPENDED
    """
    filters = {"state": state, "limit": min(limit, 200)}
    with connect(config, url, key) as noonday:
        show_list(noonday.targets.list(**filters), COLUMNS, limit, as_json)


@app.command()
def resume(
    host: Annotated[str, typer.Argument(help="The host, without its port.", metavar="HOST")],
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Let the runs of a host go on, those to its suspended URLs too."""
    with connect(config, url, key) as noonday:
        document = noonday.targets.resume(host)
        if as_json:
            show(document, as_json)
        else:
            show_list(iter(document["resumed"]), COLUMNS, len(document["resumed"]), as_json)
