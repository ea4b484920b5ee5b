"""Writes docs/modules.md: the first sentence of every module, read from the source.

    python scripts/module_map.py

The documentation's build runs it, so the map cannot go stale.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tinkex"
PAGE = ROOT / "docs" / "modules.md"
FLOORS = ("", "types", "wire", "client", "engine", "server", "cli")


def page() -> str:
    parts = ["# Module map\n\nOne sentence per module, from its docstring.\n"]
    for floor in FLOORS:
        rows = [f"| `{name}` | {sentence} |" for name, sentence in _modules(floor)]
        title = f"tinkex.{floor}" if floor else "tinkex"
        parts.append(f"## {title}\n\n| module | what it is |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _modules(floor: str) -> list[tuple[str, str]]:
    folder = SOURCE / floor
    found = sorted(folder.rglob("*.py") if floor else folder.glob("*.py"))
    pairs = ((_name(path), first_sentence(path)) for path in found if "_pb2" not in path.name)
    return [(name, sentence) for name, sentence in pairs if sentence]


def _name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def first_sentence(path: Path) -> str:
    """Up to the first full stop that ends a line or is followed by a space."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    sentence = paragraph.split(". ")[0].rstrip(".")
    return sentence.replace("|", "\\|") + "." if sentence else ""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
