"""Writes the README's figures from benchmarks/results/*.md, so that no number is typed by hand.

    python scripts/readme_figures.py

A figure is named by the result file and the row it comes from; everything else is read there.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
START = "<!-- figures: written by scripts/readme_figures.py -->"
END = "<!-- end of figures -->"


@dataclass(frozen=True)
class Figure:
    """What the README says about one row of a result, and against whom it was measured."""

    says: str
    result: str
    row: str
    against: str = ""


FIGURES = (
    Figure(
        "a request without work, through the door",
        "front_door",
        "a request without work (healthz), p50",
    ),
    *(
        Figure(
            f"`{operation}`, awaited, {sdk}, tiny model",
            "front_door",
            f"`{operation}`, {sdk}, p50",
            "transformers + PEFT, no server",
        )
        for operation in ("optim_step", "forward_backward")
        for sdk in ("ours", "official SDK")
    ),
    Figure(
        "training step through the door, 8×128, tiny model",
        "front_door",
        "step of 8×128, ours, sent together, against transformers + PEFT",
        "transformers + PEFT",
    ),
    *(
        Figure(
            f"{many} at once through the door, tiny model",
            "front_door",
            f"{many} at once, ours, against `generate`",
            "`generate` of transformers",
        )
        for many in ("1 sample", "8 samples", "32 samples")
    ),
    *(
        Figure(
            f"{many} of a run at once through the door, tiny model",
            "front_door",
            f"{many} of a run at once, ours, against transformers + PEFT",
            "transformers + PEFT, with logprobs",
        )
        for many in ("1 sample", "8 samples", "32 samples")
    ),
    Figure(
        "two tenants training at once, tiny model",
        "front_door",
        "2 tenants, steps of 8×128, against one",
        "one tenant",
    ),
    Figure(
        "`import`, over the bare interpreter",
        "import_time",
        "import, above the bare interpreter",
        "official SDK",
    ),
    Figure("`--help`", "cli_startup", "`tinkex --help`", "official CLI"),
    Figure(
        "encode 128 datums × 2,048 tokens", "encoding", "encode 128 × 2,048 tokens", "official SDK"
    ),
    Figure(
        "client CPU per sample, 128 in flight",
        "client_sampling",
        "client CPU per call, 128 in flight",
        "official SDK",
    ),
    Figure(
        "training step, 8 mixed lengths, CPU, engine alone",
        "engine_training",
        "step, 8 of 16…128, mixed lengths",
        "transformers + PEFT",
    ),
    Figure(
        "training step, 8×128, CPU, engine alone",
        "engine_training",
        "step, 8×128, equal lengths",
        "transformers + PEFT",
    ),
    Figure(
        "peak memory of a 4×2,048-token step, engine alone",
        "engine_memory",
        "peak, as usual",
        "transformers + PEFT",
    ),
    Figure(
        "8 tenants in one batch, tiny model, engine alone",
        "engine_tenants",
        "8 tenants, 1 datum of 32 tokens each",
        "one after another",
    ),
    Figure(
        "decode, one request, CPU, engine alone",
        "engine_decode",
        "one request, against generate",
        "`generate` of transformers",
    ),
    Figure(
        "`checkpoint list` of 5,000", "cli_listing", "`checkpoint list` of 5,000", "official CLI"
    ),
    Figure(
        "training, 8B shape, rank 32, 4,096 packed tokens, one H200, engine alone",
        "engine_gpu_train",
        "train, rank 32, 8 × 512 packed, 1 run(s) in the batch",
        "its matrix products alone",
    ),
    Figure(
        "decode, 8B shape, batch 32, one H200, engine alone",
        "engine_gpu_decode",
        "decode, batch 32, 0 adapter(s)",
        "one read of the weights",
    ),
)


def main() -> int:
    text = README.read_text(encoding="utf-8")
    if START not in text or END not in text:
        print(f"README.md lacks the lines {START} and {END}", file=sys.stderr)
        return 1
    before, rest = text.split(START, 1)
    after = rest.split(END, 1)[1]
    README.write_text(f"{before}{START}\n\n{table()}\n\n{END}{after}", encoding="utf-8")
    print(README.relative_to(ROOT))
    return 0


def table() -> str:
    head = ["what", "tinkex", "measured against", "better by", "from"]
    told = [cells for figure in FIGURES if (cells := _cells(figure)) is not None]
    rows = [head, ["---"] * len(head), *told]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cells(figure: Figure) -> list[str] | None:
    """A row of the table; None, said aloud, where there is no such result at the moment."""
    path = RESULTS / f"{figure.result}.md"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = find_row(lines, figure.row)
    if found is None:
        print(f"left out: {figure.says!r}, no row {figure.row!r} in {path.name}", file=sys.stderr)
        return None
    _, ours, alternative, ratio, _ = found
    against = f"{figure.against}: {alternative}" if alternative else ""
    date = next(line for line in lines if line.startswith("- date: "))[8:18]
    link = f"[{figure.result}](benchmarks/results/{figure.result}.md), {date}"
    return [readable(cell) for cell in (figure.says, ours, against, ratio)] + [link]


def readable(cell: str) -> str:
    """With commas in long numbers, which older results lack: 1,616 ms and 1,872×."""
    return re.sub(r"(?<![\d.,])\d{4,}(\.\d+)?", lambda found: f"{float(found[0]):,.0f}", cell)


def find_row(lines: list[str], name: str) -> list[str] | None:
    """The cells of the row called `name`."""
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] == name:
            return cells
    return None


if __name__ == "__main__":
    sys.exit(main())
