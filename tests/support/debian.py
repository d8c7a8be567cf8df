"""Tests that need a program from a Debian package are skipped by name where it is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

# Packages whose program does not bear their name on the search path.
PROGRAMS = {"postgresql": "usr/lib/postgresql/*/bin/postgres"}


def skip_without_package(item: pytest.Item) -> None:
    """Skip ``item`` if a package of its ``debian`` marks is not installed."""
    for mark in item.iter_markers("debian"):
        (package,) = mark.args
        pattern = PROGRAMS.get(package)
        there = any(Path("/").glob(pattern)) if pattern else shutil.which(package)
        if not there:
            pytest.skip(f"needs {package}: apt-get install {package}")
