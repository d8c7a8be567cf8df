"""Commands about schedules without jobs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from noonday.cli.connection import Config, Json, Key, Url, connect
from noonday.cli.output import show, show_list

app = typer.Typer(no_args_is_help=True, help="Look at what a schedule would do.")


@app.command()
def preview(
    cron: Annotated[
        str | None, typer.Argument(help="The expression: '0 2 * * *'.", show_default=False)
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Whose clock it means: Europe/Paris. [default: UTC]")
    ] = None,
    every: Annotated[
        int | None, typer.Option(help="Every so many seconds, instead of an expression.", min=1)
    ] = None,
    starts_at: Annotated[
        str | None, typer.Option(help="Nothing before, and where --every counts from.")
    ] = None,
    ends_at: Annotated[str | None, typer.Option(help="Nothing after.")] = None,
    max_occurrences: Annotated[
        int | None, typer.Option(help="So many times at most.", min=1)
    ] = None,
    dst_gap: Annotated[
        str | None, typer.Option(help="run or skip what the clock jumps over. [default: run]")
    ] = None,
    dst_fold: Annotated[
        str | None,
        typer.Option(help="first, second or both times that come twice. [default: first]"),
    ] = None,
    after: Annotated[
        str | None, typer.Option(help="The first one is later: 2027-03-27T00:00:00Z.")
    ] = None,
    lane: Annotated[
        str | None, typer.Option(help="The lane of such a job, which may have a jitter for it.")
    ] = None,
    count: Annotated[int, typer.Option(help="How many occurrences.", min=1, max=100)] = 5,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Say in English what a schedule means, and when it would fire next. Nothing is created.

    \b
    Examples:
      noonday schedule preview '0 2 * * *' --timezone Europe/Paris
      noonday schedule preview '30 2 * * *' --timezone Europe/Paris --after 2027-03-27T00:00:00Z
      noonday schedule preview --every 900
    """
    if (cron is None) == (every is None):
        raise typer.BadParameter("give an expression or --every")
    wanted: dict[str, Any] = {
        "type": "cron" if every is None else "interval",
        "cron": cron, "timezone": timezone, "interval_sec": every, "starts_at": starts_at,
        "ends_at": ends_at, "max_occurrences": max_occurrences,
        "dst_gap": dst_gap, "dst_fold": dst_fold,
    }  # fmt: skip
    schedule = {name: value for name, value in wanted.items() if value is not None}
    with connect(config, url, key) as noonday:
        document = noonday.schedules.preview(schedule, count=count, after=after, lane=lane)
    if as_json:
        show(document, as_json)
        return
    for line in (document["sentence"], *document.get("notes", ())):
        typer.echo(line)
    show_list(iter(document["fires"]), ("at", "local", "runs", "note"), count, as_json)
