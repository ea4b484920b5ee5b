"""Promises about the server's settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tinkex.server.settings import Limits

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def test_every_limit_is_explained_in_the_documentation() -> None:
    page = PAGE.read_text(encoding="utf-8")
    missing = [each.name for each in dataclasses.fields(Limits) if f"`{each.name}`" not in page]
    assert missing == []
