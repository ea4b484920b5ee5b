"""What every benchmark here says beside its numbers, and where it writes them.

    from report import Row, write
    write("import_time", "Import time", [Row("import tinkex", 31.0, "ms", against=410.0), ...])

prints a table and writes `benchmarks/results/import_time.md` with machine, versions, command and
date.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
PARTS = {
    "engine": "the engine alone, without server and client; through the door: front_door",
    "client": "the client alone, over a server that computes nothing; through the door: front_door",
    "encoding": "the client's encoding alone",
    "server_overhead": "the server alone, over an engine that computes nothing",
    "durability": "the server's log beside the engine",
    "objects": "the server's storage alone, and how an engine reads from it",
}
"""What a result holds for, by the beginning of its name. Those not named here hold as users get it:
`tinkex serve`, or the command, as a process."""
PACKAGES = ("tinkex", "tinker", "numpy", "torch", "transformers", "peft", "pyqwest", "protobuf")


@dataclass(frozen=True)
class Row:
    """One figure. `against` is the alternative measured in the same run, in the same unit."""

    what: str
    value: float
    unit: str
    against: float | None = None
    higher_is_better: bool = False
    target: str = ""

    def ratio(self) -> str:
        if not self.against or not self.value:
            return ""
        gain = self.value / self.against if self.higher_is_better else self.against / self.value
        return f"{gain:,.0f}×" if gain >= 100 else f"{gain:.2f}×"

    def cells(self) -> tuple[str, ...]:
        against = "" if self.against is None else f"{figure(self.against)} {self.unit}"
        return (self.what, f"{figure(self.value)} {self.unit}", against, self.ratio(), self.target)


def figure(value: float) -> str:
    """A number as people read it, to about four places: 17,870 and 0.8633, never 1.787e+04."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


HEADINGS = ("what", "ours", "the alternative", "better by", "target")


def write(name: str, title: str, rows: Sequence[Row], note: str = "") -> None:
    """Print the table and keep it, with what is needed to judge and repeat it. What was written by
    hand below it stays."""
    write_table(name, title, HEADINGS, [row.cells() for row in rows], note)


def update(name: str, title: str, rows: Sequence[Row], note: str = "", whole: bool = True) -> None:
    """The same, but unless this is the `whole` of the table, rows that were not taken now stay."""
    taken = {row.what: row.cells() for row in rows}
    written, _ = _kept(name)
    kept = {} if whole else {cells[0]: cells for cells in _table_cells(written)}
    order = list(kept)
    for last, what in zip(["", *taken], taken, strict=False):
        if what not in kept:
            order.insert(order.index(last) + 1 if last else len(order), what)
    found = kept | taken
    write_table(name, title, HEADINGS, [found[what] for what in order], note)


def _kept(name: str) -> tuple[str, str]:
    """The page as it is: what a script wrote, and what was written by hand, from its first heading
    on."""
    path = RESULTS / f"{name}.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    written, heading, by_hand = text.partition("\n## ")
    return written, heading + by_hand


def _table_cells(text: str) -> list[tuple[str, ...]]:
    """The cells of a table's rows, its heading left out."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in lines[1:]]


def write_table(
    name: str, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], note: str = ""
) -> None:
    """The same for a table with columns of its own."""
    table = _markdown([headings, *rows])
    text = f"# {title}\n\n{_facts(name)}\n\n{table}\n"
    if note:
        text += f"\n{note.strip()}\n"
    RESULTS.mkdir(exist_ok=True)
    _, by_hand = _kept(name)
    (RESULTS / f"{name}.md").write_text(text + by_hand, encoding="utf-8")
    print(text)


def part_of(name: str) -> str:
    """What the result called `name` holds for."""
    return next((said for start, said in PARTS.items() if name.startswith(start)), "")


def _facts(name: str) -> str:
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]]),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()}{_accelerator()}",
        "versions": ", ".join(_versions()),
    }
    if part := part_of(name):
        facts["holds for"] = part
    return "\n".join(f"- {key}: {value}" for key, value in facts.items())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _accelerator() -> str:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    return f", {torch.cuda.get_device_name()}"


def _versions() -> list[str]:
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return found


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)
