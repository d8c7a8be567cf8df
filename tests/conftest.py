"""One Postgres for the whole run, shared by the workers of xdist.

The process that starts the workers starts the server and passes its URL on in
``NOONDAY_TEST_DATABASE_URL``; a URL that is set already is used instead. The role may create
databases. ``NOONDAY_TEST_POSTGRES`` chooses the major version: 18 (the wheel) or 15 (Debian).
With ``NOONDAY_TEST_PGBOUNCER=1`` there is a pooler in front of it, and stores lead through that.
Runs of nothing but ``WITHOUT_SERVER`` start none; with ``NOONDAY_TEST_NO_POSTGRES=1`` the tests
that ask for it, and those of the embedded one, are left out. With ``CI=true`` a skipped test fails
the run.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.debian import skip_without_package
from tests.support.pgbouncer import POOLER_FOLDER, pooling
from tests.support.postgres import open_folder, start_postgres, sweep_folders

pytest_plugins = ("tests.support.database", "tests.support.servers")

URL = "NOONDAY_TEST_DATABASE_URL"
# Folders whose tests do not ask for `postgres_url`.
WITHOUT_SERVER = ("domain", "embedded", "executors", "receiver")
# Folders some of whose tests start one of their own.
OF_ITS_OWN = ("embedded", "crash", "planted")
HERE = Path(__file__).parent
started = ExitStack()


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, "workerinput"):
        return
    sweep_folders()
    if URL in os.environ or not _needs_server(config):
        return
    folder = started.enter_context(open_folder())
    server = start_postgres(folder, int(os.environ.get("NOONDAY_TEST_POSTGRES", "18")))
    started.callback(server.stop)
    _set(URL, server.dsn())
    if os.environ.get("NOONDAY_TEST_PGBOUNCER") == "1":
        pooler = started.enter_context(open_folder())
        started.enter_context(pooling(server.dsn(), pooler))
        _set(POOLER_FOLDER, str(pooler))


def pytest_unconfigure() -> None:
    started.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("NOONDAY_TEST_NO_POSTGRES") == "1":
        left_out = {item for item in items if _needs_postgres(item)}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_runtest_setup(item: pytest.Item) -> None:
    skip_without_package(item)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") == "true" and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("\nCI=true: a skipped test is a failure", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def postgres_url() -> str:
    """The URL of the run's database ``noonday``; its role may create more databases."""
    return os.environ[URL]


def _set(variable: str, value: str) -> None:
    os.environ[variable] = value
    started.callback(os.environ.pop, variable)


def _needs_postgres(item: pytest.Item) -> bool:
    asks = "postgres_url" in getattr(item, "fixturenames", ())
    return asks or any(item.path.is_relative_to(HERE / folder) for folder in OF_ITS_OWN)


def _needs_server(config: pytest.Config) -> bool:
    if os.environ.get("NOONDAY_TEST_NO_POSTGRES") == "1" or config.option.collectonly:
        return False
    return not all(_is_without_server(argument) for argument in config.args)


def _is_without_server(argument: str) -> bool:
    path = Path(argument.partition("::")[0]).resolve()
    return any(path.is_relative_to(HERE / folder) for folder in WITHOUT_SERVER)
