"""The command line.

Commands act over HTTP through the client; only those that run the service reach inside. What a
command needs is imported when it runs, so that ``--help`` is quick.
"""

from __future__ import annotations

from typing import Annotated

import typer

from noonday import __version__
from noonday.cli import (
    admin,
    dlq,
    drill,
    forecast,
    jobs,
    lanes,
    limits,
    operations,
    roles,
    runs,
    schedules,
    targets,
)

app = typer.Typer(
    name="noonday",
    no_args_is_help=True,
    # Tracebacks made pretty show the values of local variables, and those may be secrets.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

for name, command in roles.COMMANDS.items():
    app.command(name, rich_help_panel=None)(command)
app.command("drill")(drill.drill)
app.add_typer(jobs.app, name="jobs")
for name, command in jobs.COMMANDS.items():
    app.command(name)(command)
app.add_typer(runs.app, name="runs")
app.add_typer(dlq.app, name="dlq")
app.add_typer(operations.app, name="operations")
app.add_typer(schedules.app, name="schedule")
app.command("forecast")(forecast.forecast)
app.add_typer(targets.app, name="targets")
app.add_typer(lanes.app, name="lanes")
app.add_typer(limits.app, name="limits")
app.add_typer(admin.tenants, name="tenants")
app.add_typer(admin.keys, name="keys")
for name, command in admin.COMMANDS.items():
    app.command(name)(command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"noonday {__version__}")
        raise typer.Exit


@app.callback()
def noonday(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """A job scheduler on Postgres: durable, fenced, open about what it did.

    \b
    A first look, with an embedded Postgres and a job that runs each minute:
      noonday up
      noonday jobs create https://example.com/hook --cron "* * * * *"
      noonday jobs list

    \b
    Settings come from options, NOONDAY_* variables and noonday.toml, in this order.
    Exit codes: 0 well, 1 failed, 2 wrong usage or settings, 3 not found, 4 refused (no valid
    key, or too weak a role), 5 conflict, 6 server unavailable, 7 invalid input.
    """
