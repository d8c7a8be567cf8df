"""Each case from the field is held by tests that are there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.field.cases import CASES

ROOT = Path(__file__).parents[2]
WANTED = [
    *(f"CRN-{n:02}" for n in range(1, 14)),
    *(f"LSE-0{n}" for n in (1, 2, 3)), "LSE-04 (c)", "LSE-05", "LSE-07",
    *(f"RTY-0{n}" for n in range(1, 9)),
    *(f"DUP-0{n}" for n in range(1, 9)),
    *(f"PGD-0{n}" for n in range(1, 8)),
    *(f"FAR-0{n}" for n in range(1, 5)),
    *(f"API-0{n}" for n in (4, 5, 7)),
]  # fmt: skip


def test_every_case_has_its_tests() -> None:
    assert sorted(CASES) == sorted(WANTED)
    assert all(CASES.values())


@pytest.mark.parametrize("case", CASES)
def test_every_test_of_a_case_is_there(case: str) -> None:
    for test in CASES[case]:
        file, _, name = test.partition("::")
        assert name in functions_of(ROOT / file), test


def functions_of(file: Path) -> set[str]:
    tree = ast.parse(file.read_text("utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
