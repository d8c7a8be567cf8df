"""A real PgBouncer in transaction mode, in front of a test server's socket."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlencode, urlsplit, urlunsplit

import pytest

from tests.support.waiting import wait_until

POOLER_FOLDER = "NOONDAY_TEST_POOLER_FOLDER"
"""Names the folder of the run's pooler, when it has one."""

PORT = 6432  # only part of the socket's name
CONFIGURATION = """
[databases]
* = host={server} port={port}

[pgbouncer]
pool_mode = transaction
listen_addr =
listen_port = {own_port}
unix_socket_dir = {folder}
auth_type = scram-sha-256
auth_file = {folder}/users
max_client_conn = 1000
default_pool_size = {pool_size}
{prepared}
logfile = {folder}/log
syslog = 0
"""


def keeps_statements() -> bool:
    """Whether the installed pooler can keep prepared statements: from 1.21 on."""
    program = _program()
    if program is None:
        return False
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    version = re.search(r"PgBouncer (\d+)\.(\d+)", said.stdout)
    return version is not None and tuple(map(int, version.groups())) >= (1, 21)


def _program() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


@contextmanager
def pooling(
    server_url: str, folder: Path, *, pool_size: int = 50, prepared: int = 0
) -> Iterator[str]:
    """Run a pooler whose files lie in ``folder``; gives the URL that leads through it.

    It has up to ``pool_size`` connections to a database, and keeps up to ``prepared`` prepared
    statements of each client (which needs one that can: ``keeps_statements``).
    """
    program = _program()
    if program is None:
        raise pytest.UsageError("needs pgbouncer: apt-get install pgbouncer")
    server = Path(_query(server_url)["host"])
    owner = server.stat()  # it refuses to run as root, and has to reach the server's socket
    _write_files(server_url, folder, pool_size, prepared)
    for path in (folder, *folder.iterdir()):
        os.chown(path, owner.st_uid, owner.st_gid)
    process = subprocess.Popen(
        [program, "-q", folder / "configuration"],
        user=owner.st_uid if os.geteuid() == 0 else None,
        group=owner.st_gid if os.geteuid() == 0 else None,
        extra_groups=[] if os.geteuid() == 0 else None,
        start_new_session=True,
    )
    try:
        wait_until(lambda: process.poll() is not None or _answers(folder))
        assert process.poll() is None, (folder / "log").read_text()
        yield pooled(server_url, folder)
    finally:
        process.kill()
        process.wait()


def pooled(server_url: str, folder: Path) -> str:
    """The same database by way of the pooler in ``folder``."""
    where = urlencode({"host": folder, "port": PORT})
    return urlunsplit(urlsplit(server_url)._replace(query=where))


def _write_files(server_url: str, folder: Path, pool_size: int, prepared: int) -> None:
    query, place = _query(server_url), urlsplit(server_url)
    text = CONFIGURATION.format(
        server=query["host"],
        port=query["port"],
        own_port=PORT,
        folder=folder,
        pool_size=pool_size,
        prepared=f"max_prepared_statements = {prepared}" if prepared else "",
    )
    (folder / "configuration").write_text(text)
    # In plain, since it logs in at the server with it, too.
    password = unquote(place.password or "").replace('"', '""')
    (folder / "users").write_text(f'"{place.username}" "{password}"\n')
    (folder / "users").chmod(0o600)


def _query(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


def _answers(folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(folder / f".s.PGSQL.{PORT}")) == 0
