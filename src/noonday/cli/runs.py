"""Commands about runs and dead letters."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from noonday.cli.connection import Config, Json, Key, Limit, Url, connect
from noonday.cli.output import show, show_list

app = typer.Typer(no_args_is_help=True, help="Look at runs.")
dead_letters = typer.Typer(
    no_args_is_help=True, help="Look at runs that will not be tried again by themselves."
)

RunId: TypeAlias = Annotated[str, typer.Argument(help="The run's id.", metavar="RUN")]

COLUMNS: Final = ("id", "reason", "http_status", "attempts", "target_host", "dead_at", "error")


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


@dead_letters.command("list")
def list_dead_letters(
    reason: Annotated[
        str | None, typer.Option(help="timeout, permanent_answer, lease_expired …")
    ] = None,
    job: Annotated[str | None, typer.Option(help="Of this job.", metavar="JOB")] = None,
    target_host: Annotated[str | None, typer.Option(help="Calls to this host.")] = None,
    limit: Limit = 50,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List dead letters, newest first.

    \b
    Example:
      noonday dlq list --reason timeout --json
    """
    filters = {
        "reason": reason,
        "job_id": job,
        "target_host": target_host,
        "limit": min(limit, 200),
    }
    with connect(config, url, key) as noonday:
        show_list(noonday.dlq.list(**filters), COLUMNS, limit, as_json)


@dead_letters.command("get")
def get_dead_letter(
    run_id: RunId, config: Config = None, url: Url = None, key: Key = None, as_json: Json = False
) -> None:
    """Show a dead letter: why it was given up, and after how many attempts."""
    with connect(config, url, key) as noonday:
        show(noonday.dlq.get(run_id), as_json)
