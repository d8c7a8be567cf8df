"""The data directory: made whole or not at all, and refused to the programs of another major."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path

from noonday.embedded.account import RunAs
from noonday.embedded.binaries import PgBinaries
from noonday.embedded.errors import EmbeddedPostgresError

ROLE = DATABASE = "noonday"
PASSWORD_FILE = "password"  # noqa: S105
UNFINISHED = "data.new-"
# The superuser has no password, so nobody can log in as such over the socket.
ACCESS = "# type  database  user  method\nlocal   all       all   scram-sha-256\n"


def prepare(home: Path, binaries: PgBinaries, run_as: RunAs) -> Path:
    """The data directory in ``home``, made first where there is none.

    Raises ``EmbeddedPostgresError`` when what is there belongs to another major version.
    """
    data = home / "data"
    if not data.exists():
        _create(home, data, binaries, run_as)
        return data
    _check_version(data, binaries)
    run_as.own(data)
    if not (home / PASSWORD_FILE).exists():
        password = secrets.token_urlsafe(32)
        alter = f"ALTER ROLE {ROLE} PASSWORD '{password}';\n"
        _execute(alter, "postgres", data, binaries, run_as)
        _keep_password(home, password)
    return data


def password(home: Path) -> str:
    """The generated password of the role ``noonday``."""
    try:
        return (home / PASSWORD_FILE).read_text()
    except OSError as error:
        raise EmbeddedPostgresError(f"no password of the embedded Postgres: {error}") from error


def _create(home: Path, data: Path, binaries: PgBinaries, run_as: RunAs) -> None:
    for cut_short in home.glob(f"{UNFINISHED}*"):
        shutil.rmtree(cut_short, ignore_errors=True)
    # A name of its own: an initdb whose starter was killed may still be writing into the last one.
    unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=home))
    run_as.own(unfinished)
    _initdb(unfinished, binaries, run_as)
    (unfinished / "pg_hba.conf").write_text(ACCESS)
    password = secrets.token_urlsafe(32)
    roles = (
        f"CREATE ROLE {ROLE} LOGIN CREATEDB PASSWORD '{password}';\n"
        f"GRANT pg_monitor TO {ROLE};\n"
        f"CREATE DATABASE {DATABASE} OWNER {ROLE};\n"
    )
    _execute(roles, "postgres", unfinished, binaries, run_as)
    if binaries.has_extension("pg_stat_statements"):
        extension = "CREATE EXTENSION pg_stat_statements;\n"
        _execute(extension, DATABASE, unfinished, binaries, run_as)
    _keep_password(home, password)
    unfinished.rename(data)
    _sync_folder(home)


def _initdb(data: Path, binaries: PgBinaries, run_as: RunAs) -> None:
    # Sort order must not depend on the host: code points, by Postgres itself where it can.
    locale = ["--locale=C"]
    if binaries.major >= 17:
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    options = ["--username=postgres", "--auth=reject", "--data-checksums", "--encoding=UTF8"]
    done = run_as.run([binaries.program("initdb"), f"--pgdata={data}", *options, *locale])
    if done.returncode != 0:
        raise EmbeddedPostgresError(f"initdb failed:\n{done.stdout}")


def _execute(script: str, database: str, data: Path, binaries: PgBinaries, run_as: RunAs) -> None:
    """Run SQL as superuser without a server, hence without a moment of open access."""
    options = ["--single", "-c", "exit_on_error=on", "-D", str(data), database]
    done = run_as.run([binaries.program("postgres"), *options], script)
    if done.returncode != 0:
        raise EmbeddedPostgresError(f"setting up {data} failed:\n{done.stdout}")


def _check_version(data: Path, binaries: PgBinaries) -> None:
    try:
        found = (data / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        raise EmbeddedPostgresError(f"{data} is not a data directory of Postgres") from None
    if found != str(binaries.major):
        raise EmbeddedPostgresError(
            f"{data} was made by Postgres {found}, but the programs in {binaries.bin_dir} are "
            f"{binaries.version}: use those of Postgres {found}, or move the data with pg_dump"
        )


def _keep_password(home: Path, password: str) -> None:
    unfinished = home / f"{PASSWORD_FILE}.new"
    unfinished.unlink(missing_ok=True)
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(password)
        file.flush()
        os.fsync(fd)
    unfinished.rename(home / PASSWORD_FILE)
    _sync_folder(home)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
