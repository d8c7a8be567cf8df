"""How connections are made, and the settings they must have."""

from __future__ import annotations

import socket
from typing import Any, Final

import asyncpg

ROLE_SETTINGS: Final = {
    # A generic plan of the claim is three times slower than a plan for the values at hand.
    "plan_cache_mode": "force_custom_plan",
    "jit": "off",
    # At most half a shard's lease: a process stopped inside its transaction must not hold
    # up the one that takes its shards over.
    "statement_timeout": "5s",
    "idle_in_transaction_session_timeout": "5s",
    "lock_timeout": "4s",
    "tcp_user_timeout": "5s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "timezone": "UTC",
}
"""Given to the role in the database, since SET leaks and start-up parameters are refused behind
a transaction pooler; checked again at each start."""

BOUNDED_MS: Final = {
    "statement_timeout": 5_000,
    "idle_in_transaction_session_timeout": 5_000,
    "lock_timeout": 5_000,
}
"""Settings that must be on, and at most this: takeover of a shard waits for them."""

SILENCE: Final = (
    ("TCP_KEEPIDLE", 5),
    ("TCP_KEEPINTVL", 2),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 10_000),
)
"""Seconds (the last: milliseconds) after which a silent peer counts as gone, as the role's
settings have it for the other direction."""

SERVER_SETTINGS: Final = ("fsync", "full_page_writes")
"""With one of these off, a committed job can be lost."""


class PlainConnection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that is given back as it is: nothing of ours outlives a transaction."""

    __slots__ = ()

    def get_reset_query(self) -> str:
        """Nothing to reset: no session locks, no SET, no LISTEN on pooled connections."""
        return ""


def connect_arguments(pgbouncer: bool, name: str) -> dict[str, Any]:
    """Arguments for the driver; behind a pooler, none that it would refuse."""
    arguments: dict[str, Any] = {
        "connection_class": PlainConnection,
        "timeout": 5.0,
        "command_timeout": 10.0,
        "server_settings": {"application_name": name},
    }
    if pgbouncer:
        arguments["statement_cache_size"] = 0
    return arguments


def notice_silence(connection: asyncpg.Connection) -> None:
    """Have the kernel end a connection whose other end has gone silent.

    Statements of the pool are bounded by a timeout; a connection that only waits to be told
    something would never notice that its packets are dropped.
    """
    listener = connection._transport.get_extra_info("socket")
    if listener is None or listener.family == socket.AF_UNIX:
        return
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in SILENCE:
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def host_name() -> str:
    """The name of this machine, as processes register themselves with it."""
    return socket.gethostname()
