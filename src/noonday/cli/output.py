"""What commands show: tables for people, tab-separated lines in a pipe, JSON for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import typer

# Texts come from tenants and receivers: they must not steer the terminal or forge lines.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(value: object) -> str:
    """A value as one line of text."""
    match value:
        case None:
            text = "-"
        case bool():
            text = "yes" if value else "no"
        case dict() | list():
            text = json.dumps(value, ensure_ascii=False) if value else "-"
        case _:
            text = str(value)
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def show(document: Mapping[str, Any], as_json: bool) -> None:
    """One thing: its fields below each other."""
    if as_json:
        typer.echo(json.dumps(document))
    else:
        _print([(name, printable(value)) for name, value in document.items()], ())


def show_list(
    documents: Iterator[Mapping[str, Any]], columns: Sequence[str], limit: int, as_json: bool
) -> None:
    """At most ``limit`` things of a list, a line each; as JSON an array, with all fields.

    A column may reach into a document: ``schedule.type``.
    """
    shown = list(islice(documents, limit))
    if as_json:
        typer.echo(json.dumps(shown))
        return
    _print([[printable(_reach(one, column)) for column in columns] for one in shown], columns)
    if len(shown) == limit and next(documents, None) is not None:
        typer.echo(f"… only the first {limit}; see --limit", err=True)


def show_rows(
    document: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    as_json: bool,
) -> None:
    """The rows of a document, a line each; as JSON all of it."""
    if as_json:
        typer.echo(json.dumps(document))
    else:
        _print([[printable(_reach(row, column)) for column in columns] for row in rows], columns)


def _reach(document: Mapping[str, Any], column: str) -> object:
    value: Any = document
    for name in column.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _print(rows: Iterable[Sequence[str]], columns: Sequence[str]) -> None:
    heads = [column.replace("_", " ").replace(".", " ").upper() for column in columns]
    if sys.stdout.isatty():
        _print_table(rows, heads)
        return
    for row in [heads, *rows] if heads else rows:
        typer.echo("\t".join(row))


def _print_table(rows: Iterable[Sequence[str]], heads: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=bool(heads), pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # as text: brackets are no markup
    Console().print(table)
