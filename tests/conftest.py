"""One Postgres for the whole run, shared by the workers of xdist.

The process that starts the workers starts the server and passes its URL on in
``NOONDAY_TEST_DATABASE_URL``; a URL that is set already is used instead. The role may create
databases. ``NOONDAY_TEST_POSTGRES`` chooses the major version: 18 (the wheel) or 15 (Debian).
Runs of nothing but ``WITHOUT_SERVER``, or with ``NOONDAY_TEST_NO_POSTGRES=1``, start none.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.debian import skip_without_package
from tests.support.postgres import open_folder, start_postgres, sweep_folders

pytest_plugins = ("tests.support.database", "tests.support.servers")

URL = "NOONDAY_TEST_DATABASE_URL"
WITHOUT_SERVER = ("domain", "embedded")  # folders whose tests do not ask for `postgres_url`
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
    started.callback(os.environ.pop, URL)
    os.environ[URL] = server.dsn()


def pytest_unconfigure() -> None:
    started.close()


def pytest_runtest_setup(item: pytest.Item) -> None:
    skip_without_package(item)


@pytest.fixture(scope="session")
def postgres_url() -> str:
    """The URL of the run's database ``noonday``; its role may create more databases."""
    if os.environ.get("NOONDAY_TEST_NO_POSTGRES") == "1":
        pytest.skip("NOONDAY_TEST_NO_POSTGRES is set")
    return os.environ[URL]


def _needs_server(config: pytest.Config) -> bool:
    if os.environ.get("NOONDAY_TEST_NO_POSTGRES") == "1" or config.option.collectonly:
        return False
    return not all(_is_without_server(argument) for argument in config.args)


def _is_without_server(argument: str) -> bool:
    path = Path(argument.partition("::")[0]).resolve()
    return any(path.is_relative_to(HERE / folder) for folder in WITHOUT_SERVER)
