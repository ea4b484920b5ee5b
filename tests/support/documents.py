"""Reads our Markdown pages: their code blocks, links and headings. Knows no renderer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,})(?P<info>[^`]*)$")
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^()\s]+(?:\([^()]*\))?)\)")
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+?) *#*$")


@dataclass(frozen=True)
class Block:
    """A fenced block. `line` is that of its first line of code, counted from 1."""

    page: Path
    line: int
    language: str
    notes: str
    code: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """README and every page of the documentation that people write."""
    written = [path for path in sorted(DOCS.rglob("*.md")) if "_build" not in path.parts]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md", *written]


def blocks(page: Path) -> list[Block]:
    return [block for block, _ in _scan(page) if block is not None]


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and lines outside code blocks."""
    return (line for block, line in _scan(page) if block is None and line is not None)


def links(page: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and targets of links, those inside code spans left out."""
    for number, line in prose(page):
        bare = re.sub(r"`[^`]*`", lambda code: "·" * len(code.group()), line)
        for match in _LINK.finditer(bare):
            yield number, match["target"]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the documentation both make them."""
    found = (_HEADING.match(line) for _, line in prose(page))
    return {_slug(match["text"]) for match in found if match}


def _slug(text: str) -> str:
    plain = re.sub(r"[`*_]|\[|\]\([^)]*\)", "", text).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def _scan(page: Path) -> Iterator[tuple[Block | None, tuple[int, str] | None]]:
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is None:
            yield None, (number + 1, lines[number])
            number += 1
            continue
        end = _closing(lines, number + 1, fence["ticks"])
        language, _, notes = fence["info"].strip().partition(" ")
        code = "\n".join(line.removeprefix(fence["indent"]) for line in lines[number + 1 : end])
        yield Block(page, number + 2, language, notes.strip(), code), None
        number = end + 1


def _closing(lines: list[str], start: int, ticks: str) -> int:
    for number in range(start, len(lines)):
        if lines[number].strip().startswith(ticks) and set(lines[number].strip()) == set(ticks[0]):
            return number
    return len(lines)
