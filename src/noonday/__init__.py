"""Noonday: a self-hosted job scheduler service on Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noonday.client import AsyncClient as AsyncClient
    from noonday.client import Client as Client

__version__ = "0.1.0"

__all__ = ["AsyncClient", "Client", "__version__"]


def __getattr__(name: str) -> Any:
    """The clients, imported when they are first asked for, so that ``import noonday`` is cheap."""
    if name in ("AsyncClient", "Client"):
        from noonday import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
