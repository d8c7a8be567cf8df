from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from noonday.embedded import (
    EmbeddedPostgres,
    EmbeddedPostgresError,
    PgBinaries,
    find_binaries,
    running_dsn,
)
from noonday.embedded.account import choose
from noonday.embedded.orphans import servers_on
from noonday.embedded.postgres import takes_connections
from tests.support.postgres import psql
from tests.support.waiting import wait_until

RECOVERED = "not properly shut down"
StartOwner = Callable[..., subprocess.Popen[str]]


def server_pid(owner: subprocess.Popen[str]) -> int:
    assert owner.stdout is not None
    return int(owner.stdout.readline())


def kill(server: EmbeddedPostgres) -> None:
    assert server.process is not None
    server.process.kill()
    server.process.wait()


def spawn_as_server_user(state: Path, binaries: PgBinaries, *argv: str) -> subprocess.Popen[bytes]:
    run_as, _ = choose(binaries, state / "postgres")
    with (state / "stray.log").open("ab") as log:
        return run_as.spawn(argv, log)


def test_a_killed_server_is_started_again_at_once(server: EmbeddedPostgres) -> None:
    server.start()
    psql(server.dsn(), "CREATE TABLE kept AS SELECT 42 AS n")
    kill(server)
    server.start()
    assert psql(server.dsn(), "SELECT n FROM kept") == "42"


def test_a_busy_session_of_a_killed_server_does_not_keep_the_next_from_starting(
    server: EmbeddedPostgres, state: Path
) -> None:
    server.start()
    busy = psql_in_background(server.dsn(), "SELECT count(*) FROM generate_series(1, 1e11::int8)")
    counting = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT count(*) FROM gen%'"
    wait_until(lambda: psql(server.dsn(), counting) == "1")
    kill(server)
    server.start()
    assert psql(server.dsn(), counting) == "0"
    busy.communicate(timeout=10)


def psql_in_background(url: str, sql: str) -> subprocess.Popen[bytes]:
    program = find_binaries().program("psql")
    return subprocess.Popen([program, "-Xc", sql, url], stderr=subprocess.PIPE)


def test_the_server_shuts_down_cleanly_when_its_owner_is_killed(
    state: Path, binaries: PgBinaries, start_owner: StartOwner
) -> None:
    owner = start_owner(state, binaries)
    pid = server_pid(owner)
    children = Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text()
    assert children.split() == [str(pid)]  # so it is the kernel that tells the server
    owner.kill()
    assert_clean_end(state)


def test_the_server_shuts_down_cleanly_without_the_kernels_death_signal(
    state: Path, binaries: PgBinaries, start_owner: StartOwner, folder: Path
) -> None:
    programs = folder / "programs"
    programs.mkdir()
    for name in ("cat", "test", "unshare"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    owner = start_owner(state, binaries, path=programs)
    server_pid(owner)
    owner.kill()
    assert_clean_end(state)


def assert_clean_end(state: Path) -> None:
    data = state / "postgres" / "data"
    wait_until(lambda: not (data / "postmaster.pid").exists())
    wait_until(lambda: not servers_on(data))
    log = (state / "postgres" / "postgres.log").read_text()
    assert log.rstrip().endswith("database system is shut down")
    with pytest.raises(EmbeddedPostgresError, match="no process runs"):
        running_dsn(state)


def test_the_next_owner_takes_over_while_the_last_server_still_ends(
    server: EmbeddedPostgres, state: Path, binaries: PgBinaries, start_owner: StartOwner
) -> None:
    owner = start_owner(state, binaries)
    orphan = server_pid(owner)
    psql(server.dsn(), "CREATE TABLE kept AS SELECT 42 AS n")
    owner.kill()
    owner.wait()
    server.start()
    assert server.pid != orphan
    assert psql(server.dsn(), "SELECT n FROM kept") == "42"
    assert RECOVERED not in (state / "postgres" / "postgres.log").read_text()


def test_a_server_without_an_owner_is_ended_before_the_start(
    server: EmbeddedPostgres, state: Path, binaries: PgBinaries
) -> None:
    data = state / "postgres" / "data"
    stray = spawn_as_server_user(
        state,
        binaries,
        binaries.program("postgres"),
        *("-D", str(data), "-c", "listen_addresses=", "-c", f"unix_socket_directories={data}"),
    )
    wait_until(lambda: takes_connections(data, stray.pid))
    server.start()
    stray.wait(timeout=10)
    assert psql(server.dsn(), "SELECT 1") == "1"
    assert RECOVERED not in (state / "postgres" / "postgres.log").read_text()


def test_a_pid_file_that_names_an_unrelated_process_is_stale(
    server: EmbeddedPostgres, state: Path, binaries: PgBinaries
) -> None:
    server.start()
    sockets = psql(server.dsn(), "SHOW unix_socket_directories")
    pid_file = state / "postgres" / "data" / "postmaster.pid"
    socket_lock = Path(sockets, ".s.PGSQL.5432.lock")
    left = {path: path.read_text() for path in (pid_file, socket_lock)}
    kill(server)
    # Of the same user, so that Postgres could not tell the process from its own by a signal.
    unrelated = spawn_as_server_user(state, binaries, "sleep", "600")
    try:
        for path, text in left.items():
            path.write_text(text.replace(str(server.pid), str(unrelated.pid), 1))
        server.start()
        assert psql(server.dsn(), "SELECT 1") == "1"
        assert unrelated.poll() is None
    finally:
        unrelated.kill()
        unrelated.wait()


def test_another_process_cannot_own_the_server_but_can_connect_to_it(
    server: EmbeddedPostgres, state: Path, binaries: PgBinaries, start_owner: StartOwner
) -> None:
    owner = start_owner(state, binaries)
    server_pid(owner)
    with pytest.raises(EmbeddedPostgresError, match=rf"process {owner.pid} owns"):
        server.start()
    server.stop()
    assert psql(running_dsn(state), "SELECT 1") == "1"


def test_the_owner_stops_the_server_when_it_ends(
    state: Path, binaries: PgBinaries, start_owner: StartOwner
) -> None:
    owner = start_owner(state, binaries)
    server_pid(owner)
    owner.communicate(timeout=30)
    assert owner.returncode == 0
    assert_clean_end(state)
