from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from noonday.embedded import EmbeddedPostgres, EmbeddedPostgresError, PgBinaries, running_dsn
from tests.embedded.conftest import copied
from tests.support.postgres import psql


def test_what_was_written_is_there_after_a_restart(server: EmbeddedPostgres) -> None:
    server.start()
    psql(server.dsn(), "CREATE TABLE kept AS SELECT 42 AS n")
    server.stop()
    assert server.pid is None
    server.start()
    assert psql(server.dsn(), "SELECT n FROM kept") == "42"


def test_clients_find_the_server_under_the_same_url_after_a_restart(
    server: EmbeddedPostgres,
) -> None:
    server.start()
    before = server.dsn()
    server.stop_immediate()
    server.start()
    assert server.dsn() == before


def test_a_new_database_is_durable_private_and_sorts_by_code_point(
    folder: Path, binaries: PgBinaries
) -> None:
    with EmbeddedPostgres(folder / "new", binaries=binaries) as server:
        for setting, value in {
            "fsync": "on",
            "synchronous_commit": "on",
            "full_page_writes": "on",
            "data_checksums": "on",
            "listen_addresses": "",
            "server_encoding": "UTF8",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "max_connections": "100",
        }.items():
            assert psql(server.dsn(), f"SHOW {setting}") == value, setting
        words = "SELECT string_agg(w, '' ORDER BY w) FROM unnest(array['b', 'a', 'ä', 'B']) w"
        assert psql(server.dsn(), words) == "Babä"


def test_the_role_owns_its_database_and_is_no_superuser(server: EmbeddedPostgres) -> None:
    server.start()
    rights = (
        "SELECT rolsuper, rolcreatedb, rolcreaterole, pg_has_role('pg_monitor', 'member'),"
        " pg_get_userbyid(datdba) FROM pg_roles, pg_database"
        " WHERE rolname = current_user AND datname = 'noonday'"
    )
    assert psql(server.dsn(), rights) == "f|t|f|t|noonday"
    psql(server.dsn(), "CREATE DATABASE another")
    assert psql(server.dsn("another"), "SELECT current_database()") == "another"


def test_statement_statistics_are_at_hand(server: EmbeddedPostgres) -> None:
    server.start()
    assert int(psql(server.dsn(), "SELECT count(*) FROM pg_stat_statements")) >= 0


@pytest.mark.parametrize("login", ["noonday:wrong", "noonday", "postgres", "postgres:"])
def test_nobody_gets_in_without_the_password(server: EmbeddedPostgres, login: str) -> None:
    server.start()
    where = server.dsn().partition("@")[2]
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        psql(f"postgresql://{login}@{where}", "SELECT 1")
    assert "password" in refusal.value.stderr


def test_the_password_is_for_the_owner_of_the_state_only(state: Path) -> None:
    assert (state / "postgres" / "password").stat().st_mode & 0o777 == 0o600


def test_a_lost_password_is_replaced_and_the_old_one_is_void(
    server: EmbeddedPostgres, state: Path
) -> None:
    server.start()
    old = server.dsn()
    server.stop()
    (state / "postgres" / "password").unlink()
    server.start()
    assert psql(server.dsn(), "SELECT 1") == "1"
    with pytest.raises(subprocess.CalledProcessError):
        psql(old, "SELECT 1")


def test_settings_of_the_caller_win(state: Path, binaries: PgBinaries) -> None:
    with EmbeddedPostgres(
        state, binaries=binaries, settings={"work_mem": "7MB", "shared_buffers": "16MB"}
    ) as server:
        assert psql(server.dsn(), "SHOW work_mem") == "7MB"
        assert psql(server.dsn(), "SHOW shared_buffers") == "16MB"


def test_a_long_state_path_is_no_hindrance(template: tuple[PgBinaries, Path], folder: Path) -> None:
    deep = folder / ("d" * 100) / ("e" * 100)
    deep.parent.mkdir()
    copied(template[1], deep)
    with EmbeddedPostgres(deep, binaries=template[0]) as server:
        assert psql(server.dsn(), "SELECT 1") == "1"


def test_a_copy_of_a_state_directory_runs_beside_the_original(
    server: EmbeddedPostgres, state: Path, binaries: PgBinaries, folder: Path
) -> None:
    server.start()
    server.stop()
    server.start()
    running = psql(server.dsn(), "SELECT pg_postmaster_start_time()")
    copy = copied(state, folder / "copy")
    (copy / "postgres" / "data" / "postmaster.pid").unlink()
    with EmbeddedPostgres(copy, binaries=binaries) as other:
        assert other.dsn() != server.dsn()
        assert psql(other.dsn(), "SELECT 1") == "1"
    assert psql(server.dsn(), "SELECT pg_postmaster_start_time()") == running


def test_data_of_another_major_version_is_refused(server: EmbeddedPostgres, state: Path) -> None:
    (state / "postgres" / "data" / "PG_VERSION").write_text("16\n")
    with pytest.raises(EmbeddedPostgresError, match=r"made by Postgres 16.*pg_dump"):
        server.start()


def test_a_folder_that_is_no_data_directory_is_refused_and_kept(
    folder: Path, binaries: PgBinaries
) -> None:
    something = folder / "postgres" / "data" / "thesis.txt"
    something.parent.mkdir(parents=True)
    something.write_text("mine")
    with pytest.raises(EmbeddedPostgresError, match="not a data directory"):
        EmbeddedPostgres(folder, binaries=binaries).start()
    assert something.read_text() == "mine"


def test_a_data_directory_whose_making_was_cut_short_is_made_anew(
    folder: Path, binaries: PgBinaries
) -> None:
    half_made = folder / "postgres" / "data.new-123"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text(f"{binaries.major}\n")
    with EmbeddedPostgres(folder, binaries=binaries) as server:
        assert psql(server.dsn(), "SELECT 1") == "1"
    assert not half_made.exists()


def test_a_start_that_fails_says_why_and_leaves_nothing_behind(
    state: Path, binaries: PgBinaries
) -> None:
    server = EmbeddedPostgres(state, binaries=binaries, settings={"shared_buffers": "plenty"})
    with pytest.raises(EmbeddedPostgresError, match="shared_buffers"):
        server.start()
    assert server.pid is None
    with EmbeddedPostgres(state, binaries=binaries) as another:
        assert psql(another.dsn(), "SELECT 1") == "1"


def test_a_start_past_its_deadline_is_called_off(server: EmbeddedPostgres, state: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="no connections after 0 s"):
        server.start(deadline_sec=0)
    assert server.pid is None
    assert not (state / "postgres" / "data" / "postmaster.pid").exists()


def test_a_second_start_of_the_same_server_is_refused(server: EmbeddedPostgres) -> None:
    server.start()
    with pytest.raises(EmbeddedPostgresError, match="started already"):
        server.start()
    assert psql(server.dsn(), "SELECT 1") == "1"


def test_only_the_main_thread_may_start_it(server: EmbeddedPostgres) -> None:
    refusals: list[EmbeddedPostgresError] = []

    def start() -> None:
        try:
            server.start()
        except EmbeddedPostgresError as refusal:
            refusals.append(refusal)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(refusals)


def test_stopping_takes_the_socket_away_and_may_be_repeated(server: EmbeddedPostgres) -> None:
    server.start()
    sockets = Path(psql(server.dsn(), "SHOW unix_socket_directories"))
    assert sockets.stat().st_mode & 0o777 == 0o700
    server.stop()
    server.stop()
    assert not sockets.exists()


def test_a_terminals_interrupt_does_not_reach_the_server(server: EmbeddedPostgres) -> None:
    server.start()
    assert server.pid is not None
    assert os.getpgid(server.pid) != os.getpgid(0)


def test_an_url_is_given_only_while_somebody_owns_the_server(
    server: EmbeddedPostgres, state: Path
) -> None:
    with pytest.raises(EmbeddedPostgresError, match="no process runs"):
        running_dsn(state)
    server.start()
    assert running_dsn(state) == server.dsn()
    server.stop()
    with pytest.raises(EmbeddedPostgresError, match="no process runs"):
        running_dsn(state)
