"""Commands about bulk actions."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from noonday.cli.connection import Config, Json, Key, Limit, Url, connect
from noonday.cli.output import show, show_list

app = typer.Typer(no_args_is_help=True, help="Look at bulk actions, and abort them.")

OperationId: TypeAlias = Annotated[
    str, typer.Argument(help="The operation's id.", metavar="OPERATION")
]

COLUMNS: Final = (
    "id", "kind", "job_id", "state", "total", "looked_at", "done", "created_at", "ended_at",
)  # fmt: skip


@app.command("list")
def list_operations(
    limit: Limit = 50,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List bulk actions, newest first."""
    with connect(config, url, key) as noonday:
        show_list(noonday.operations.list(), COLUMNS, limit, as_json)


@app.command()
def get(
    operation_id: OperationId,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Show a bulk action, and how far it is."""
    with connect(config, url, key) as noonday:
        show(noonday.operations.get(operation_id), as_json)


@app.command()
def abort(
    operation_id: OperationId,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Stop a bulk action where it is; what it has done stays done."""
    with connect(config, url, key) as noonday:
        show(noonday.operations.abort(operation_id), as_json)
