"""``noonday drill``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noonday.cli.failures import Code, fail


def drill(
    seconds: Annotated[
        float, typer.Option(help="How long clients work and faults strike; at least 20.")
    ] = 60,
    seed: Annotated[
        int | None,
        typer.Option(help="Draws the same faults and the same load again. [default: the time]"),
    ] = None,
    faults: Annotated[
        str | None, typer.Option(help="Which faults strike, such as F1,F5. [default: all]")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A new folder for the report. [default: noonday-drill-SEED]"),
    ] = None,
) -> None:
    """Break things on purpose, here, and see whether every promise is kept.

    Starts a Postgres, API, scheduler and worker processes and receivers of its own, lets clients
    work, and strikes. Then it checks the invariants by what receivers and clients saw and by what
    the database holds. It touches nothing that it has not started. Needs the extra "embedded".

    \b
    Faults:
      F1  kill -9 workers          F6  pauses beyond leases      F12 stolen shards
      F2  kill -9 schedulers       F7  rolling restarts          F13 failing commits
      F3  kill -9 APIs             F8  network to Postgres       F14 unreported commits
      F4  kill reaper, janitor     F9  lost answers to COMMIT    F15 no connections left
      F5  Postgres crashes         F10 network to receivers      F17 disk full (as root)
                                   F11 wrong clocks (faketime)   F19 hostile receivers

    \b
    Exit codes: 0 passed, 1 an invariant was broken or too little happened to tell.

    \b
    Examples:
      noonday drill
      noonday drill --seconds 1800 --seed 7 --faults F1,F2,F6 --out soak
    """
    from noonday.domain.errors import NoondayError
    from noonday.drill.entry import run
    from noonday.drill.options import CannotDrill, choose
    from noonday.embedded import EmbeddedPostgresError

    try:
        options = choose(seconds, seed, faults.split(",") if faults else None, out)
        code = run(options, _say)
    except CannotDrill as error:
        fail(Code.USAGE, str(error))
    except (NoondayError, EmbeddedPostgresError, OSError) as error:
        fail(Code.FAILED, str(error))
    raise typer.Exit(code)


def _say(line: str) -> None:
    typer.echo(line)
