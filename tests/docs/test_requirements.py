"""The page of requirements names tests that exist, and what it says of documents is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.documents import DOCS, ROOT, anchors, blocks

PAGE = (DOCS / "requirements.md").read_text(encoding="utf-8")
ROWS = {row[0]: row[1] for row in re.findall(r"^\| (R\d\.\d+) \|(.+)\|$", PAGE, re.M)}
COUNTS = {"R1": 15, "R2": 15, "R3": 5, "R4": 5, "R5": 9}


def test_every_requirement_has_its_line() -> None:
    wanted = [f"{part}.{n + 1}" for part, count in COUNTS.items() for n in range(count)]
    assert list(ROWS) == wanted


@pytest.mark.parametrize("requirement", ROWS)
def test_every_requirement_names_tests_that_exist(requirement: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", ROWS[requirement])
    assert named, "no test is named"
    for file, function in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^\s*(async )?def {function or 'test_'}", source, re.M), (file, function)


def test_the_qa_script_runs_every_kind_of_check() -> None:
    script = (ROOT / "scripts" / "qa.sh").read_text(encoding="utf-8")
    checks = ("ruff format --check", "ruff check", "mypy", "sphinx-build -W", "scripts/test.sh")
    for check in checks:
        assert check in script
    assert "python -m pytest" in (ROOT / "scripts" / "test.sh").read_text(encoding="utf-8")
    assert "scripts/qa.sh" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page",
    [
        "getting-started", "guides/training-loop", "guides/sampling", "guides/checkpoints",
        "guides/futures-and-async", "guides/errors-and-retries", "guides/telemetry-and-metrics",
        "guides/configuration", "cli-reference", "guides/migrating", "migrating-cli",
        "guides/troubleshooting", "guides/faq", "architecture", "developing/extending",
        "developing/testing", "contributing", "parity", "guides/command-line", "guides/gpu",
        "guides/memory", "guides/rank-and-rate", "guides/team-server", "guides/upgrading",
        "guides/watching",
    ],
)  # fmt: skip
def test_every_guide_that_was_asked_for_is_there(page: str) -> None:
    assert (DOCS / f"{page}.md").is_file()


def test_the_readme_shows_checkpoint_create_and_the_qa_command() -> None:
    shown = "\n".join(b.code for b in blocks(ROOT / "README.md") if b.language == "console")
    assert "tinkex checkpoint create " in shown
    assert re.search(r"^make qa\b", shown, re.M)


@pytest.mark.parametrize(
    ("page", "section"),
    [("architecture.md", "the-command-line"), ("developing/testing.md", "testing-a-command")],
)
def test_sections_that_were_asked_for_are_there(page: str, section: str) -> None:
    assert section in anchors(DOCS / Path(page))


@pytest.mark.parametrize("option", ["--http-pool", "--model-path"])
def test_the_migration_page_says_what_became_of_options(option: str) -> None:
    page = (DOCS / "migrating-cli.md").read_text(encoding="utf-8")
    gone = page.split("## What became of", 1)[1].split("\n## ", 1)[0]
    assert f"`{option}" in gone


def test_the_families_that_documents_name_are_those_that_are_served() -> None:
    from tinkex.engine.model.families import FAMILIES

    rows = re.findall(r"^\| .+? \| (`.+?) \| .+ \|$", _families(), re.M)
    named = {name for row in rows for name in re.findall(r"`([\w]+)`", row)}
    assert named == set(FAMILIES)


def _families() -> str:
    page = (DOCS / "serving.md").read_text(encoding="utf-8")
    return page.split("| family | `model_type` |", 1)[1].split("\n\n", 1)[0]
