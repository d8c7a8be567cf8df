"""The one error of the embedded Postgres."""

from __future__ import annotations


class EmbeddedPostgresError(Exception):
    """The embedded Postgres cannot do what was asked; the message says what to change."""
