"""The command that shows what is due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from noonday.cli.connection import Config, Json, Key, Url, connect
from noonday.cli.output import printable, show_rows

HOT: Final = ("at", "occurrences", "with_jitter", "tenants", "lanes", "target_hosts")
MINUTES: Final = ("at", "occurrences", "hot", "with_jitter", "hot_with_jitter")


def forecast(
    hours: Annotated[int, typer.Option(help="How far to look.", min=1, max=72)] = 72,
    lane: Annotated[str | None, typer.Option(help="Only what queues in this lane.")] = None,
    target_host: Annotated[str | None, typer.Option(help="Only what calls this host.")] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Only what belongs to this tenant; for admins.")
    ] = None,
    jitter_sec: Annotated[
        int | None,
        typer.Option(help="Say what it would be like with this jitter.", min=0, max=86_400),
    ] = None,
    every_minute: Annotated[
        bool, typer.Option("--minutes", help="List all minutes, not only the hot ones.")
    ] = False,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Say how much is due in the next hours, and which minutes are hot.

    \b
    Examples:
      noonday forecast --hours 24
      noonday forecast --jitter-sec 1200
    """
    with connect(config, url, key) as noonday:
        document = noonday.service.forecast(
            hours=hours, lane=lane, target_host=target_host, tenant=tenant, jitter_sec=jitter_sec,
            hot_only=None if every_minute or as_json else True,
        )  # fmt: skip
    if not as_json:
        for line in _summary(document, jitter_sec):
            typer.echo(line)
    if every_minute:
        show_rows(document, document["minutes"], MINUTES, as_json)
    else:
        rows = [_in_words(minute) for minute in document["hot"]]
        show_rows(document, rows, HOT, as_json)


def _summary(document: Mapping[str, Any], jitter_sec: int | None) -> list[str]:
    if document["computed_at"] is None:
        return ["No scheduler has counted yet."]
    about = "about " if document["estimated"] else ""
    lines = [
        f"From {document['starts_at']} to {document['ends_at']}, as of {document['computed_at']}: "
        f"{about}{_plainly(document['occurrences'])} occurrences; {_outlook(document['outlook'])}."
    ]
    if document["with_jitter"] is not None:
        lines.append(f"With a jitter of {jitter_sec} s: {_outlook(document['with_jitter'])}.")
    return [printable(line) for line in lines]


def _outlook(outlook: Mapping[str, Any]) -> str:
    hot = outlook["hot_minutes"]
    said = f"{hot} hot minute{'' if hot == 1 else 's'}"
    if outlook["busiest_at"] is None:
        return said
    return f"{said}, {_plainly(outlook['busiest'])} in the busiest, {outlook['busiest_at']}"


def _in_words(minute: Mapping[str, Any]) -> dict[str, Any]:
    """A hot minute whose shares are texts."""
    shares = {
        by: ", ".join(
            f"{share['name'] or 'others'} {_plainly(share['occurrences'])}" for share in minute[by]
        )
        for by in ("tenants", "lanes", "target_hosts")
    }
    return {**minute, **shares, "occurrences": _plainly(minute["occurrences"])}


def _plainly(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:g}"
