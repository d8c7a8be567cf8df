"""A Postgres of our own: find the programs, make the data, run the server as a child process."""

from __future__ import annotations

from noonday.embedded.binaries import PgBinaries, find_binaries
from noonday.embedded.errors import EmbeddedPostgresError
from noonday.embedded.postgres import EmbeddedPostgres, running_dsn

__all__ = [
    "EmbeddedPostgres",
    "EmbeddedPostgresError",
    "PgBinaries",
    "find_binaries",
    "running_dsn",
]
