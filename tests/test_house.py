"""What holds for the repository as a whole."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import noonday

ROOT = Path(__file__).parents[1]
OURS = ("src", "tests", "docs", "bench", "deploy", "requirements", ".ci")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

# In parts, so that this file passes its own test.
REGISTRIES = (
    *(("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("npmjs", "com")),
    *(("deb", "debian", "org"), ("crates", "io"), ("proxy", "golang", "org"), ("rubygems", "org")),
)
MACHINES = re.compile(r"(?<![\w.*~-])/(?:root|work|home/\w+|Users/\w+)(?:/|\b)")


def files() -> Iterator[Path]:
    yield from (path for path in ROOT.iterdir() if path.is_file() and path.name != ".git")
    for folder in OURS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def text_of(path: Path) -> str:
    return path.read_text("utf-8", errors="replace")


@pytest.mark.parametrize("name", ["run.txt", "dev.txt", "lock.txt", "peers.txt"])
def test_every_requirement_is_pinned_by_version_and_hash(name: str) -> None:
    text = text_of(ROOT / "requirements" / name).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    assert lines
    for line in lines:
        assert re.match(r"[a-z0-9-]+==\S+ ", line), line
        assert "--hash=sha256:" in line, line


def test_whatever_runs_in_production_is_tested_in_the_same_version() -> None:
    def pins(name: str) -> set[str]:
        return set(re.findall(r"^\S+==\S+", text_of(ROOT / "requirements" / name), re.MULTILINE))

    assert pins("run.txt") <= pins("dev.txt")


def test_no_file_names_the_host_of_a_registry() -> None:
    hosts = [".".join(parts) for parts in REGISTRIES]
    assert [(path, host) for path in files() for host in hosts if host in text_of(path)] == []


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    found = [(path, match[0]) for path in files() for match in MACHINES.finditer(text_of(path))]
    assert found == []


def test_the_changelog_knows_this_version() -> None:
    assert f"## [{noonday.__version__}]" in text_of(ROOT / "CHANGELOG.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text_of(page))
    missing = [to for to in links if "://" not in to and not (page.parent / to).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    """`noonday.store.runs.claim` is a name, `src/noonday/demo.py` a path."""
    text = text_of(page)
    names = set(re.findall(r"`(noonday(?:\.\w+)+)(?:\(\))?`", text)) - {"noonday.toml"}
    assert sorted(name for name in names if not resolves(name)) == []
    paths = set(re.findall(rf"`((?:{'|'.join(map(re.escape, OURS))})/[\w./-]*)`", text))
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_the_architecture_page_names_the_way_of_a_job() -> None:
    assert len(re.findall(r"`noonday\.\w+", text_of(ROOT / "docs" / "architecture.md"))) >= 7


def resolves(name: str) -> bool:
    """Whether a dotted name leads to a module, or to something within one."""
    parts = name.split(".")
    found: object = noonday
    for at, part in enumerate(parts[1:], start=2):
        if isinstance(found, ModuleType) and not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[:at]))
            except ModuleNotFoundError:
                return False
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True
