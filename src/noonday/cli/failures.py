"""How commands fail: a message for people, and an exit code for programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NoReturn

import typer


class Code(IntEnum):
    """What the exit code of a command says."""

    WELL = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    CONFLICT = 5
    UNAVAILABLE = 6
    INVALID = 7


_OF_STATUS = {
    400: Code.INVALID,
    401: Code.REFUSED,
    403: Code.REFUSED,
    404: Code.NOT_FOUND,
    409: Code.CONFLICT,
    412: Code.CONFLICT,
    413: Code.INVALID,
    415: Code.INVALID,
    422: Code.INVALID,
    428: Code.CONFLICT,
    429: Code.UNAVAILABLE,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.UNAVAILABLE,
}


def fail(code: Code, *lines: str) -> NoReturn:
    """End the command, saying why on standard error."""
    from noonday.cli.output import printable

    for number, line in enumerate(lines):
        typer.echo(f"{'  ' if number else 'noonday: '}{printable(line)}", err=True)
    raise typer.Exit(code)


@contextmanager
def settings_failures() -> Iterator[None]:
    """Wrong settings end the command with all of them listed."""
    from noonday.settings import SettingsError

    try:
        yield
    except SettingsError as error:
        fail(Code.USAGE, "the settings are wrong:", *error.faults)


@contextmanager
def client_failures() -> Iterator[None]:
    """What the API or the way to it refuses ends the command with the code that says so."""
    from noonday.client import NoondayApiError, NoondayConnectionError

    try:
        yield
    except NoondayConnectionError as error:
        fail(Code.UNAVAILABLE, f"the server cannot be reached: {error}")
    except NoondayApiError as error:
        faults = [f"{fault.get('pointer') or '/'}: {fault.get('detail')}" for fault in error.errors]
        if error.request_id:
            faults.append(f"request {error.request_id}")
        fail(_OF_STATUS.get(error.status, Code.FAILED), error.detail, *faults)
