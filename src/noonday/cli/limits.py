"""Commands about what hosts and concurrency keys are limited to."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from noonday.cli.connection import Config, Json, Key, Limit, Url, connect
from noonday.cli.documents import NONE
from noonday.cli.failures import Code, fail
from noonday.cli.output import show, show_list

app = typer.Typer(
    no_args_is_help=True, help="Say how much of a host or a concurrency key goes on at a time."
)

COLUMNS: Final = ("kind", "name", "max_running", "rate_per_sec", "used", "waiting")


class Kind(StrEnum):
    """What is limited."""

    HOST = "host"
    KEY = "key"


Which = Annotated[Kind, typer.Argument(help="What is limited.", show_default=False)]
Name = Annotated[str, typer.Argument(help="The host without its port, or the key.", metavar="NAME")]


def number_or_none(text: str) -> int | None:
    """The value of an option that takes a whole number, or ``none``."""
    if text == NONE:
        return None
    if not text.isascii() or not text.isdigit():
        fail(Code.USAGE, f"{text!r} is neither a whole number nor none")
    return int(text)


@app.command("list")
def list_limits(
    limit: Limit = 200,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List the tenant's own cap and its limits, with the slots in use and how many runs wait."""
    with connect(config, url, key) as noonday:
        show_list(noonday.limits.list(), COLUMNS, limit, as_json)


@app.command("set")
def set_limit(
    kind: Which,
    name: Name,
    max_running: Annotated[
        str | None, typer.Option(help="Runs at a time; none: any number.", metavar="N|none")
    ] = None,
    rate_per_sec: Annotated[
        float | None, typer.Option(help="For a host: deliveries in a second.")
    ] = None,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Set the limits of a host or a concurrency key; what is not given is not limited.

    \b
    Examples:
      noonday limits set host example.com --max-running 3
      noonday limits set key invoices --max-running 5
    """
    document: dict[str, Any]
    most = None if max_running is None else number_or_none(max_running)
    if kind is Kind.KEY and (max_running is None or rate_per_sec is not None):
        fail(Code.USAGE, "a concurrency key takes --max-running, and no rate")
    with connect(config, url, key) as noonday:
        if kind is Kind.HOST:
            document = noonday.limits.set_host(name, max_running=most, rate_per_sec=rate_per_sec)
        else:
            document = noonday.limits.set_key(name, max_running=most)
        show(document, as_json)


@app.command()
def clear(
    kind: Which,
    name: Name,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Take the limits of a host away, or have a concurrency key run one at a time again."""
    with connect(config, url, key) as noonday:
        limits = noonday.limits
        clear = limits.clear_host if kind is Kind.HOST else limits.clear_key
        show(clear(name), as_json)
