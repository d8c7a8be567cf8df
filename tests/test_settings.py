from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from noonday.settings import (
    ClientFile,
    Retention,
    Settings,
    SettingsError,
    load,
    read_client_file,
    write_client_file,
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str, name: str = "noonday.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def faults_of(path: Path | None, environ: dict[str, str], **options: object) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        load(path, environ, options)
    return raised.value.faults


def test_without_anything_the_defaults_suit_one_machine(here: Path) -> None:
    settings = load(None, {})
    assert settings.home == here / ".noonday"
    assert settings.database_url is None
    assert settings.host == "127.0.0.1"
    assert settings.allow_private_targets is False
    assert settings.worker_bounds == (1, 1)
    assert settings.retention == Retention(7, 90, 400, 24)
    assert settings.blobs_folder == here / ".noonday/blobs"
    assert settings.secret_key_path == here / ".noonday/secret.key"


def test_options_win_over_the_environment_and_that_over_the_file(here: Path) -> None:
    write(here, 'host = "file"\nport = 1\nadmin_port = 1\nlog_level = "debug"')
    environ = {"NOONDAY_PORT": "2", "NOONDAY_ADMIN_PORT": "2"}
    settings = load(None, environ, {"admin_port": 3, "host": None})
    assert (settings.log_level, settings.host) == ("debug", "file")
    assert (settings.port, settings.admin_port) == (2, 3)


def test_every_field_can_be_set_in_the_environment(here: Path) -> None:
    environ = {
        "NOONDAY_DATABASE_URL": "postgresql://db/noonday",
        "NOONDAY_PGBOUNCER": "false",
        "NOONDAY_WORKER_GRACE_SEC": "2.5",
        "NOONDAY_ALLOWED_PORTS": "443, 8443",
        "NOONDAY_BLOBS": "big",
        "NOONDAY_RETENTION_SUCCESS_DAYS": "3",
        "NOONDAY_ALLOW_PRIVATE_TARGETS": "1",
    }
    settings = load(None, environ)
    assert settings.database_url == "postgresql://db/noonday"
    assert settings.worker_grace_sec == 2.5
    assert settings.allowed_ports == (443, 8443)
    assert settings.blobs == here / "big"
    assert settings.retention.success_days == 3
    assert settings.allow_private_targets is True


def test_paths_in_a_file_are_relative_to_it(here: Path) -> None:
    folder = here / "etc"
    folder.mkdir()
    path = write(folder, 'home = "state"\nsecret_key_file = "/run/secrets/key"')
    settings = load(path, {})
    assert settings.home == folder / "state"
    assert settings.secret_key_file == Path("/run/secrets/key")
    assert load(None, {"NOONDAY_CONFIG": str(path)}) == settings


def test_an_empty_variable_counts_as_not_set(here: Path) -> None:
    assert load(None, {"NOONDAY_DATABASE_URL": "", "NOONDAY_CONFIG": ""}).database_url is None


def test_all_faults_are_reported_together_each_with_its_key(here: Path) -> None:
    write(here, 'hots = "x"\nport = "80"\n[retention]\nidempotency_hours = 1\nweeks = 1')
    faults = faults_of(
        None,
        {"NOONDAY_POOL_SIZE": "many", "NOONDAY_DATABASE_URL": "mysql://x"},
        worker_name="a b",
    )
    keys = [fault.partition(":")[0] for fault in faults]
    assert sorted(keys) == [
        "--name",
        "NOONDAY_POOL_SIZE",
        "database_url",
        "hots",
        "port",
        "retention.idempotency_hours",
        "retention.weeks",
    ]


def test_a_misspelt_key_is_refused_with_the_one_that_was_meant(here: Path) -> None:
    assert faults_of(None, {"NOONDAY_DATABSE_URL": "postgresql://x"}) == [
        "NOONDAY_DATABSE_URL: no such setting; did you mean NOONDAY_DATABASE_URL?"
    ]
    assert faults_of(write(here, "prot = 1"), {}) == [
        "prot: no such setting in noonday.toml; did you mean port?"
    ]


def test_variables_that_a_container_platform_adds_for_a_service_are_not_ours(here: Path) -> None:
    environ = {
        "NOONDAY_PORT": "tcp://10.0.0.1:80",
        "NOONDAY_SERVICE_HOST": "10.0.0.1",
        "NOONDAY_SERVICE_PORT_HTTP": "80",
        "NOONDAY_PORT_80_TCP": "tcp://10.0.0.1:80",
        "NOONDAY_API_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    assert load(None, environ).port == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("port = ", "cannot be read"),
        ("port = true", "port: "),
        ("port = 65536", "port: "),
        ("retention = 7", "retention: "),
        ("allowed_ports = [0]", "allowed_ports"),
        ("allowed_ports = 80", "allowed_ports: "),
        ('log_level = "loud"', "log_level: "),
        ("home = 1", "home: "),
        ("[retention]\nledger_days = 30", "retention.ledger_days: "),
        ('database_direct_url = "postgresql://x"', "database_direct_url: "),
        ('database_url = "postgresql://x"\npgbouncer = true', "pgbouncer: "),
        ('url = "localhost:80"', "url: "),
        ('alert_url = "localhost:80"', "alert_url: "),
        ('alert_authorization = "Bearer x"', "alert_authorization: "),
        ('lane_objectives = ["batch"]', "lane_objectives"),
        ('lane_objectives = ["batch=0"]', "lane_objectives"),
        ("worker_pools = []", "worker_pools: "),
        ('worker_pools = "default=1"', "worker_pools: "),
        ('worker_pools = ["default"]', "worker_pools: each pool is written lane=slots"),
        ('worker_pools = ["default=1", "batch"]', "worker_pools: each pool is written"),
        ('worker_pools = ["default=1=2"]', "worker_pools: each pool is written"),
        ('worker_pools = ["default=1.5"]', "worker_pools: the slots of default"),
        ('worker_pools = ["default=-1"]', "worker_pools: the slots of default"),
        ('worker_pools = ["default="]', "worker_pools: the slots of default"),
        ('worker_pools = ["default=10001"]', "worker_pools: the slots of default"),
        ('worker_pools = ["=1"]', "worker_pools: '' is no name of a lane"),
        ('worker_pools = ["A=1"]', "worker_pools: 'A' is no name of a lane"),
        ('worker_pools = ["a,b=1", "b=1"]', "worker_pools: the lane b is named twice"),
        ('worker_pools = ["*=1", "a,*=1"]', "worker_pools: the lane * is named twice"),
        ('worker_pools = ["default=0", "long=0"]', "worker_pools: a worker has to have at least"),
        ("workers = 0", "workers: "),
        ("workers = 65", "workers: "),
        ("workers = true", "workers: "),
        ('workers = "8..1"', "workers: "),
        ('workers = "1.."', "workers: "),
        ('workers = "1...8"', "workers: "),
        ('workers = "many"', "workers: "),
    ],
)
def test_a_wrong_value_in_the_file_is_a_fault_of_its_key(here: Path, text: str, says: str) -> None:
    faults = faults_of(write(here, text), {})
    assert len(faults) == 1
    assert says in faults[0]


@pytest.mark.parametrize(
    ("given", "bounds"), [("3", (3, 3)), ("1..8", (1, 8)), ("2..2", (2, 2)), ("64", (64, 64))]
)
def test_workers_are_a_number_or_bounds(here: Path, given: str, bounds: tuple[int, int]) -> None:
    assert load(None, {"NOONDAY_WORKERS": given}).worker_bounds == bounds
    assert load(None, {}, {"workers": given}).worker_bounds == bounds
    assert load(write(here, f'workers = "{given}"'), {}).worker_bounds == bounds


def test_a_number_of_workers_needs_no_quotes_in_the_file(here: Path) -> None:
    assert load(write(here, "workers = 2"), {}).worker_bounds == (2, 2)


def test_a_file_that_was_asked_for_has_to_be_there(here: Path) -> None:
    assert "no such file" in faults_of(here / "other.toml", {})[0]
    assert "no such file" in faults_of(None, {"NOONDAY_CONFIG": "other.toml"})[0]


def test_no_secret_is_shown_in_a_fault_or_in_the_settings_themselves(here: Path) -> None:
    faults = faults_of(
        None, {"NOONDAY_DATABASE_URL": "http://u:geheim@db/x", "NOONDAY_API_KEY": "nd_geheim"}
    )
    assert "geheim" not in str(faults)
    settings = Settings(
        database_url="postgresql://u:geheim@db/x",
        api_key="nd_geheim",
        alert_url="https://chat.example/geheim",
        alert_authorization="Bearer geheim",
    )
    assert "geheim" not in repr(settings)
    assert "geheim" not in str(settings)


def test_a_lane_may_have_an_objective_of_its_own(here: Path) -> None:
    settings = load(None, {"NOONDAY_LANE_OBJECTIVES": "batch=3600, critical=5"})
    lanes = ("critical", "default", "batch")
    assert [settings.objective_of(lane) for lane in lanes] == [5, 60, 3600]


@pytest.mark.parametrize(
    "given",
    [
        {"file": 'worker_pools = ["critical=16", "default,batch=48", "*=8"]'},
        {"variable": "critical=16, default,batch=48, *=8"},
        {"variable": "critical=16,default,batch=48,*=8"},
        {"option": ["critical=16", "default,batch=48", "*=8"]},
        {"option": ["critical=16,default,batch=48,*=8"]},
    ],
)
def test_pools_are_read_wherever_they_are_given(here: Path, given: dict[str, Any]) -> None:
    write(here, given.get("file", ""))
    settings = load(
        None,
        {"NOONDAY_WORKER_POOLS": given.get("variable", "")},
        {"worker_pools": given.get("option")},
    )
    assert settings.pools == [(("critical",), 16), (("default", "batch"), 48), (("*",), 8)]


def test_by_default_every_lane_is_served_and_long_work_shares_no_slot() -> None:
    lanes = [lanes for lanes, slots in Settings().pools if slots]
    assert lanes == [("critical",), ("default", "batch", "*"), ("long",)]


def test_address_and_key_for_client_commands_are_kept_for_their_owner_alone(here: Path) -> None:
    settings = load(None, {})
    assert read_client_file(settings) == ClientFile()
    write_client_file(settings, key="nd_k")
    write_client_file(settings, url="http://127.0.0.1:1")
    assert read_client_file(settings) == ClientFile("http://127.0.0.1:1", "nd_k")
    assert stat.S_IMODE(settings.cli_file.stat().st_mode) == 0o600
    assert [path.name for path in settings.home.iterdir()] == ["cli.json"]
    settings.cli_file.write_text("{")
    with pytest.raises(SettingsError, match="cannot be read"):
        read_client_file(settings)
