"""Commands about runs."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from noonday.cli.connection import Config, Json, Key, Url, connect
from noonday.cli.output import show

app = typer.Typer(no_args_is_help=True, help="Look at runs.")

RunId: TypeAlias = Annotated[str, typer.Argument(help="The run's id.", metavar="RUN")]


@app.command()
def get(
    run_id: RunId, config: Config = None, url: Url = None, key: Key = None, as_json: Json = False
) -> None:
    """Show a run, also after it has ended."""
    with connect(config, url, key) as noonday:
        show(noonday.runs.get(run_id), as_json)


@app.command()
def cancel(
    run_id: RunId,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks at it later.")] = "",
    dead_letter: Annotated[
        bool, typer.Option("--dead-letter", help="Set it aside as a dead letter.")
    ] = False,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Cancel a run, or have it cut off where it is under way.

    Under way it goes in stages: requested, told, and then it has ended; `noonday runs get` shows
    how far that is.
    """
    with connect(config, url, key) as noonday:
        show(noonday.runs.cancel(run_id, reason=reason, dead_letter=dead_letter), as_json)
