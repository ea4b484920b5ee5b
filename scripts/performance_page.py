"""Writes docs/performance.md from benchmarks/results/*.md, so that no figure is typed by hand.

    python scripts/performance_page.py

The documentation's build runs it, so the page is always the results that are in the tree.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"

HEAD = """# Performance

Every figure below was printed by a script in `benchmarks/`, beside an alternative measured in the
same run on the same machine. Run the command under a heading to repeat it; absolute numbers will
differ on your machine, the ratios should not differ much.

This page is written by `scripts/performance_page.py` from `benchmarks/results/`; do not edit it.
"""


def page() -> str:
    """The whole page. A result's headings move one level down, under the page's own."""
    results = sorted(RESULTS.glob("*.md"))
    parts = [HEAD, *(_section(path) for path in results)]
    if not results:
        parts.append("No results are recorded yet.\n")
    return "\n".join(parts)


def _section(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").strip().splitlines()
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in lines) + "\n"


def main() -> None:
    text = page()
    # An unchanged file keeps its time, so that the build does not redo the page.
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        PAGE.write_text(text, encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
