"""Plants a mistake in a run of pytest: ``-p tests.planted.plugin`` and the name in a variable."""

from __future__ import annotations

import os

import pytest

from tests.planted.mistakes import VARIABLE, plant


def pytest_configure(config: pytest.Config) -> None:
    if VARIABLE in os.environ:
        plant(os.environ[VARIABLE])
