"""Typed programs: what the documentation shows passes a strict type checker."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
def test_typed_user_code_passes_mypy_strict() -> None:
    api = pytest.importorskip("mypy.api")
    program = TESTS / "support" / "typed_user.py"
    settings = ["--strict", "--config-file", str(TESTS.parent / "pyproject.toml")]
    said, problems, status = api.run([*settings, str(program)])
    assert status == 0, said + problems
