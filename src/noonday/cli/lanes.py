"""Commands about lanes."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from noonday.cli.connection import Config, Json, Key, Limit, Url, connect
from noonday.cli.documents import NONE, given
from noonday.cli.failures import Code, fail
from noonday.cli.output import show, show_list

app = typer.Typer(no_args_is_help=True, help="Streams of runs with limits of their own.")

COLUMNS: Final = (
    "name", "state", "counts.ready", "counts.oldest_age_sec", "counts.objective_sec",
    "counts.running", "scaling.wanted_slots", "max_running", "weight", "sheddable", "jitter_sec",
    "since", "reason",
)  # fmt: skip

Name: TypeAlias = Annotated[str, typer.Argument(help="The lane's name.", metavar="LANE")]
Reason: TypeAlias = Annotated[str, typer.Option(help="Why, for the audit log.")]


@app.command("list")
def list_lanes(
    limit: Limit = 100,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List lanes: how much waits in each and for how long, what runs, and whether it is claimed."""
    with connect(config, url, key) as noonday:
        show_list(noonday.lanes.list(), COLUMNS, limit, as_json)


@app.command("set")
def set_lane(
    name: Name,
    weight: Annotated[
        float | None, typer.Option(help="Its share of slots that serve other lanes as well.")
    ] = None,
    max_running: Annotated[
        str | None, typer.Option(help="Never do more of its runs run; none takes the cap away.")
    ] = None,
    ageing_sec: Annotated[
        float | None, typer.Option(help="A step of priority is worth so much waiting.")
    ] = None,
    objective_sec: Annotated[
        str | None, typer.Option(help="Its runs may wait so long; none: as the settings say.")
    ] = None,
    jitter_sec: Annotated[
        str | None,
        typer.Option(help="Of recurring jobs that name no jitter; none: as their tenant's."),
    ] = None,
    sheddable: Annotated[
        bool | None, typer.Option(help="Whether it waits while others miss their objective.")
    ] = None,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Make a lane, or change one; what is not given stays.

    \b
    Examples:
      noonday lanes set reports --weight 0.5 --sheddable
      noonday lanes set batch --max-running 20
      noonday lanes set batch --max-running none
    """
    settings = given(
        weight=weight,
        max_running=_number("--max-running", max_running, int),
        ageing_sec=ageing_sec,
        objective_sec=_number("--objective-sec", objective_sec, float),
        jitter_sec=_number("--jitter-sec", jitter_sec, int),
        sheddable=sheddable,
    )
    with connect(config, url, key) as noonday:
        show(noonday.lanes.put(name, **settings), as_json)


def _number(option: str, text: str | None, kind: type[int] | type[float]) -> float | str | None:
    if text is None or text == NONE:
        return text
    try:
        return kind(text)
    except ValueError:
        fail(Code.USAGE, f"{option} {text!r}: give a number, or none")


@app.command()
def pause(
    name: Name,
    reason: Reason = "",
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Start nothing more of a lane. What runs goes on; what waits, waits."""
    with connect(config, url, key) as noonday:
        show(noonday.lanes.pause(name, reason), as_json)


@app.command()
def resume(
    name: Name,
    reason: Reason = "",
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Let the runs of a lane start again."""
    with connect(config, url, key) as noonday:
        show(noonday.lanes.resume(name, reason), as_json)


@app.command()
def delete(
    name: Name,
    config: Config = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Delete a lane that is not ready-made and that no job belongs to."""
    with connect(config, url, key) as noonday:
        show(noonday.lanes.delete(name), as_json)
